"""The three small JSON files that tell sentence-transformers how to open a Banyan folder.

Without them it would wrap the encoder with mean pooling over `last_hidden_state`, silently. They name only built-in
modules, so no trust flag is needed for them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FILES: dict[str, Any] = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
    ],
    "sentence_bert_config.json": {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "get_text_features", "method_output_name": "pooler_output"}},
        "module_output_name": "sentence_embedding",
    },
    "config_sentence_transformers.json": {
        "model_type": "SentenceTransformer",
        "prompts": {"query": "", "document": ""},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    },
}


# Ids as a NumPy array, and no mask where the padding token's id says as much: making the rest takes longer than a
# sentence's tree does.
AS_ARRAYS: dict[str, Any] = {"common": {"return_tensors": "np"}}
WITHOUT_MASK: dict[str, Any] = {"text": {"return_attention_mask": False}}


def sentence_transformers_files(*, pad_token_id: int | None) -> dict[str, str]:
    """Name -> content of the files.

    Args:
        pad_token_id: of the model's configuration.

    Example:
        >>> sorted(sentence_transformers_files(pad_token_id=1))
        ['config_sentence_transformers.json', 'modules.json', 'sentence_bert_config.json']
    """
    inputs = {"processing_kwargs": AS_ARRAYS | ({} if pad_token_id is None else WITHOUT_MASK)}
    contents = {**FILES, "sentence_bert_config.json": {**FILES["sentence_bert_config.json"], **inputs}}
    return {name: json.dumps(content, indent=2) + "\n" for name, content in contents.items()}


def write_sentence_transformers_files(folder: str | os.PathLike, *, pad_token_id: int | None) -> None:
    """Write the files that are missing; those that are there may be somebody's choice (prompts, a further module).

    Args:
        folder: of the saved model.
        pad_token_id: of the model's configuration.
    """
    for name, content in sentence_transformers_files(pad_token_id=pad_token_id).items():
        path = Path(folder, name)
        if not path.exists():
            path.write_text(content, encoding="utf-8")
