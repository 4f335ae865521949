"""Opening what is on disk or on the Hub, and saying what is wrong with it."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from .model.modeling_banyan import BanyanModel


def load_encoder(name: str) -> tuple[BanyanModel, PreTrainedTokenizerBase]:
    """Open a trained Banyan with its tokenizer.

    Args:
        name: folder or Hub name.

    Returns:
        The model in `eval()` mode, and its tokenizer.

    Raises:
        ValueError: it is not a Banyan, or its training was not finished.
    """
    if Path(name).is_dir() and not Path(name, "config.json").exists():
        raise ValueError(f"{name} holds no model (no config.json). Was its training finished?")
    config = AutoConfig.from_pretrained(name)
    if config.model_type != "banyan":
        raise ValueError(f"{name} is a {config.model_type!r} model; a Banyan is needed here.")
    return BanyanModel.from_pretrained(name).eval(), AutoTokenizer.from_pretrained(name)
