"""Texts to vectors with a model and a tokenizer in memory (for a saved folder, use `SentenceTransformer`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from .model.modeling_banyan import BanyanModel

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@torch.inference_mode()
def encode(
    texts: Sequence[str], model: BanyanModel, tokenizer: PreTrainedTokenizerBase, *, batch_size: int = 256
) -> Tensor:
    """Sentence embeddings, in evaluation mode.

    Args:
        texts: n strings.
        model: left in the mode it was in.
        tokenizer: the model's own.
        batch_size: sentences at a time; vectors do not depend on it.

    Returns:
        (n, D) on the model's device.
    """
    if isinstance(texts, str):
        raise ValueError("A list of texts is needed, not one string: encode([text], ...).")
    with evaluating(model):
        vectors: list[Any] = [
            model.get_text_features(**tokenize_batch(texts[start : start + batch_size], model, tokenizer)).pooler_output
            for start in range(0, len(texts), batch_size)
        ]
    return torch.cat(vectors) if vectors else torch.empty(0, model.config.hidden_size, device=model.device)


@contextmanager
def evaluating(model: BanyanModel) -> Iterator[None]:
    """Evaluation mode inside, the mode of before afterwards, also after an error."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def tokenize_batch(texts: Sequence[str], model: BanyanModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, Tensor]:
    """Padded, truncated input of `BanyanModel.forward` on the model's device."""
    batch = tokenizer(
        list(texts),
        padding=True,
        truncation=True,
        max_length=model.config.max_position_embeddings,
        return_tensors="pt",
    )
    return {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}


def encode_file(source: Path, target: Path, model: SentenceTransformer, *, batch_size: int = 1024) -> tuple[int, int]:
    """Encode every line of a text file into a .npy file, holding one batch at a time.

    Args:
        source: UTF-8 text, one text a line.
        target: written under a temporary name first, then renamed.
        model: any sentence-transformers model.
        batch_size: lines at a time.

    Returns:
        The shape (lines, D) of what was written.

    Raises:
        ValueError: the file is missing or empty.
    """
    if not source.is_file():
        raise ValueError(f"{source} is not a file; a text file with one text a line is needed.")
    try:
        with source.open(encoding="utf-8") as file:
            n_lines = sum(1 for _ in file)
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 text ({error.reason} at byte {error.start}).") from error
    if not n_lines:
        raise ValueError(f"{source} is empty: there is nothing to encode.")
    if not target.parent.is_dir():
        raise ValueError(f"{target.parent}, the folder of the output, does not exist. Make it first.")
    shape = (n_lines, int(model.get_embedding_dimension() or 0))
    temporary = target.with_name(target.name + ".tmp")
    vectors = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float32, shape=shape)
    with source.open(encoding="utf-8") as file, tqdm(total=n_lines, unit="texts", desc="Encoding") as bar:
        start = 0
        while lines := [line.rstrip("\n") for line in islice(file, batch_size)]:
            vectors[start : start + len(lines)] = model.encode(lines, batch_size=batch_size)
            start += len(lines)
            bar.update(len(lines))
    vectors.flush()
    os.replace(temporary, target)
    return shape
