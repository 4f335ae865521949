"""The entry by which MTEB knows a model: code for a pull request to its repository."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from pathlib import Path

HEAD = '''"""Banyan: sentence encoders that induce their own trees (https://arxiv.org/abs/2407.17771)."""

from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper

'''
CITATION = """@article{opper2024banyan,
  title={Banyan: Improved Representation Learning with Explicit Structure},
  author={Opper, Mattia and Siddharth, N.},
  journal={arXiv preprint arXiv:2407.17771},
  year={2024}
}"""


def model_meta_code(
    folder: str | os.PathLike,
    repo_id: str,
    *,
    revision: str,
    languages: Sequence[str] | None = None,
    license: str | None = None,
    released: datetime.date | None = None,
) -> str:
    """Python code of MTEB's `ModelMeta` for a Banyan; figures are read from the model.

    Args:
        folder: of the model.
        repo_id: its name on the Hub.
        revision: commit there.
        languages: as MTEB writes them, e.g. `eng-Latn`.
        license: as on the card.
        released: today, if not given.

    Returns:
        A module: imports and one assignment.

    Raises:
        ValueError: MTEB is not installed or refuses a value.
    """
    try:
        from mteb.models.model_meta import ModelMeta, ScoringFunction
        from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
    except ImportError as error:
        raise ValueError("The entry needs MTEB: pip install 'banyan-hf[eval]'.") from error
    from .persistence import BOX, load_encoder

    model, _ = load_encoder(str(folder))
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    meta = ModelMeta(
        loader=SentenceTransformerEncoderWrapper,
        loader_kwargs={"trust_remote_code": True},
        name=repo_id,
        model_type=["dense"],
        revision=revision,
        release_date=(released or datetime.date.today()).isoformat(),
        languages=list(languages) if languages else None,
        n_parameters=n_parameters,
        n_embedding_parameters=model.embeddings.weight.numel(),
        memory_usage_mb=round(4 * n_parameters / 2**20, 1),
        max_tokens=model.config.max_position_embeddings,
        embed_dim=model.config.hidden_size,
        license=license,
        open_weights=True,
        public_training_code=None,
        public_training_data=None,
        framework=["Sentence Transformers", "PyTorch", "Transformers", "safetensors"],
        reference=f"https://huggingface.co/{repo_id}",
        similarity_fn_name=ScoringFunction("cosine"),
        use_instructions=False,
        training_datasets=set() if Path(folder) == BOX else None,  # the box: no data set that MTEB knows
        citation=CITATION,
    )
    return f"{HEAD}{Path(repo_id).name.replace('-', '_').replace('.', '_')} = {meta.to_python()}\n"
