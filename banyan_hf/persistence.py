"""Opening what is on disk or on the Hub, saying what is wrong with it, and packing a model small."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from .model.code_files import AUTO_MAP, write_code_files
from .model.modeling_banyan import BanyanModel

BOX = Path(__file__).parent / "english"
STORED_AS = {16: torch.float16, 8: torch.float8_e4m3fn}  # bits a number of the packed table -> dtype
RUN_FILE = "run.json"  # beside a trained model: what its training was asked for; no part of the model


def default_model() -> str:
    """Folder of the English model that comes with the package.

    Example:
        >>> model, tokenizer = load_encoder(default_model())
        >>> model.config.model_type
        'banyan'
    """
    return str(BOX)


def load_encoder(name: str) -> tuple[BanyanModel, PreTrainedTokenizerBase]:
    """Open a trained Banyan with its tokenizer.

    Args:
        name: folder or Hub name.

    Returns:
        The model in `eval()` mode, and its tokenizer.

    Raises:
        ValueError: it is not a Banyan, or its training was not finished.
    """
    check_name(name)
    config = AutoConfig.from_pretrained(name)
    if config.model_type != "banyan":
        raise ValueError(f"{name} is a {config.model_type!r} model; a Banyan is needed here.")
    return BanyanModel.from_pretrained(name).eval(), AutoTokenizer.from_pretrained(name)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all: under a hidden name first, then renamed."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def check_name(name: str) -> None:
    """Refuse what can be no model, without asking the Hub: a folder without one, or a bare word that is no folder.

    Raises:
        ValueError: says what is missing.
    """
    path = Path(name)
    if path.is_dir() and not ((path / "config.json").exists() or (path / "modules.json").exists()):
        raise ValueError(f"{name} holds no model (no config.json). Was its training finished?")
    if not path.exists() and "/" not in name:
        raise ValueError(f"{name!r} is neither a folder here nor a Hub name (owner/name).")


def pack(source: str | os.PathLike, target: str | os.PathLike, *, bits: int = 16) -> int:
    """Copy a trained model with a half or a quarter of the bytes: vectors in float16 or float8, JSON without blanks.

    `config.json` still says float32, so the copy loads, computes and answers in float32.

    Args:
        source: folder of a trained model.
        target: folder to make; must not exist.
        bits: for each number of the token table: 16, or 8 (float8_e4m3fn, a relative error of at most 1/16, which the
            sum of many coordinates averages out).

    Returns:
        Size of the copy in bytes.

    Raises:
        ValueError: there is no model in `source`, or something at `target`, or its numbers do not fit.
    """
    source, target = Path(source), Path(target)
    if bits not in STORED_AS:
        raise ValueError(f"bits={bits}: a table can be stored with 16 or with 8 bits a number.")
    if target.exists():
        raise ValueError(f"{target} exists already. Choose another folder, or delete it yourself.")
    load_encoder(str(source))  # refuses what is not a complete model
    tensors = load_file(source / "model.safetensors")
    largest, limit = max(float(t.abs().max()) for t in tensors.values() if t.ndim > 1), torch.finfo(STORED_AS[bits]).max
    if largest > limit:
        raise ValueError(f"The model holds {largest:.0f}, more than {bits} bits can ({limit:.0f}).")
    staging = target.with_name(target.name + ".tmp")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    # The handful of structural numbers keep their precision; the token table is what has the size.
    smaller = {name: t.to(STORED_AS[bits]) if t.ndim > 1 else t for name, t in tensors.items()}
    save_file({name: t.contiguous() for name, t in smaller.items()}, staging / "model.safetensors", {"format": "pt"})
    for path in source.glob("*.json"):
        if path.name == RUN_FILE:
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        if path.name == "config.json":
            content["auto_map"] = AUTO_MAP
        dense = path.name == "tokenizer.json"
        text = json.dumps(content, ensure_ascii=False, **({"separators": (",", ":")} if dense else {"indent": 2}))
        (staging / path.name).write_text(text + "\n", encoding="utf-8")
    write_code_files(staging)
    if (source / "README.md").is_file():
        shutil.copy(source / "README.md", staging)
    for path in staging.iterdir():
        path.chmod(0o644)  # safetensors makes its files private
    os.replace(staging, target)
    return sum(path.stat().st_size for path in target.iterdir())
