"""Text to token ids on disk. The corpus is memory-mapped by `datasets`; it is never a Python list."""

from __future__ import annotations

import codecs
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset, Features, List, Value, load_dataset
from datasets.exceptions import DatasetGenerationError
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

BATCH = 1000


@dataclass(frozen=True)
class Corpus:
    """Token ids of the sentences that passed the length filter.

    Args:
        sentences: a `datasets.Dataset` with the column `input_ids`.
        n_tokens: in those sentences.
        n_too_short, n_too_long: sentences left out.
    """

    sentences: Dataset
    n_tokens: int
    n_too_short: int
    n_too_long: int


def load_texts(sources: Sequence[str], cache_dir: Path) -> Dataset:
    """Read text files (one sentence a line, plain or .gz) or a dataset from the Hub.

    Args:
        sources: paths of text files, or one name of a dataset with a `text` column.
        cache_dir: where the memory-mapped copy goes.

    Returns:
        A dataset with the column `text`.

    Raises:
        ValueError: a file is missing, empty, binary, or a dataset has no `text` column.
    """
    check_sources(sources)
    if _is_dataset_name(sources):
        return _load_from_hub(sources[0], cache_dir)
    try:
        return load_dataset("text", data_files=list(sources), split="train", cache_dir=str(cache_dir))
    except DatasetGenerationError as error:
        cause = error.__cause__ or error
        what = " as UTF-8 text" if isinstance(cause, UnicodeDecodeError) else ""
        raise ValueError(f"{', '.join(sources)} could not be read{what}: {cause}") from error


def check_sources(sources: Sequence[str]) -> None:
    """Refuse files that are missing, empty or binary, before an hour of work depends on them.

    Args:
        sources: as for `load_texts`; the name of a dataset is not looked up here.

    Raises:
        ValueError: says which file, and what is wrong with it.
    """
    if not sources:
        raise ValueError("No text was given. Name one or more text files with one sentence a line.")
    if not _is_dataset_name(sources):
        for source in sources:
            check_text_file(Path(source))


def _is_dataset_name(sources: Sequence[str]) -> bool:
    path = Path(sources[0])
    return len(sources) == 1 and not path.exists() and path.suffix not in (".txt", ".gz")


def _load_from_hub(name: str, cache_dir: Path) -> Dataset:
    try:
        dataset = load_dataset(name, split="train", cache_dir=str(cache_dir))
    except Exception as error:  # datasets raises many kinds; the user has one question: which source was wrong
        raise ValueError(
            f"{name!r} is neither a file here nor a dataset that could be loaded ({type(error).__name__}: {error})."
        ) from error
    if "text" not in dataset.column_names:
        raise ValueError(f"Dataset {name!r} has the columns {dataset.column_names}, but a column 'text' is needed.")
    return dataset.select_columns("text")


def check_text_file(path: Path) -> None:
    """Refuse a file that is missing, empty, damaged or binary, by its first bytes.

    Raises:
        ValueError: says what is wrong.
    """
    if not path.is_file():
        raise ValueError(f"{path} is not a file. Give text files with one sentence a line (plain or .gz).")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(1 << 16)
    except (gzip.BadGzipFile, EOFError) as error:
        raise ValueError(
            f"{path} ends in .gz but is not a gzip file ({error}). Rename it if it is plain text."
        ) from error
    if not head.strip():
        raise ValueError(f"{path} is empty: there is no text in it.")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # does not mind a letter cut at the end
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text (byte {error.start}). Is it a binary file, or another encoding?"
        ) from error
    if b"\0" in head:
        raise ValueError(f"{path} holds NUL bytes: it looks like a binary file. Plain UTF-8 text is needed.")


def batches(texts: Dataset) -> Iterator[list[str]]:
    """The texts, some at a time, as tokenizer training wants them."""
    for batch in texts.iter(BATCH):
        yield batch["text"]


def tokenize(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, *, min_tokens: int, max_tokens: int, cache_file: Path
) -> Corpus:
    """Token ids of every sentence of `min_tokens` to `max_tokens` tokens.

    Args:
        texts: with the column `text`.
        tokenizer: the model's.
        min_tokens, max_tokens: inclusive bounds, in tokens (the paper: 4 and 200).
        cache_file: where the ids go.

    Raises:
        ValueError: no sentence is within the bounds.
    """
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()

    def encode(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
        return {"input_ids": [encoding.ids for encoding in backend.encode_batch_fast(batch["text"])]}

    ids = texts.map(
        encode,
        batched=True,
        batch_size=BATCH,
        remove_columns=texts.column_names,
        features=Features({"input_ids": List(Value("int32"))}),
        cache_file_name=str(cache_file),
        new_fingerprint=cache_file.stem,  # the file is this run's own: no hashing of the tokenizer
        desc="Tokenizing",
    )
    lengths = pc.list_value_length(ids.data.column("input_ids")).to_numpy()
    fits = (lengths >= min_tokens) & (lengths <= max_tokens)
    if not fits.any():
        longest = int(lengths.max()) if len(lengths) else 0
        raise ValueError(
            f"None of {len(lengths):,} sentences has {min_tokens} to {max_tokens} tokens (the longest has {longest}). "
            "Is there one sentence a line? Set --min-tokens and --max-tokens for other text."
        )
    return Corpus(
        sentences=ids.select(fits.nonzero()[0]),
        n_tokens=int(lengths[fits].sum()),
        n_too_short=int((lengths < min_tokens).sum()),
        n_too_long=int((lengths > max_tokens).sum()),
    )


def token_counts(corpus: Corpus, vocab_size: int) -> np.ndarray:
    """How often each token occurs, (V,) int64, counted a memory-mapped piece at a time."""
    counts = np.zeros(vocab_size, np.int64)
    for batch in corpus.sentences.with_format("arrow").iter(BATCH):
        counts += np.bincount(batch["input_ids"].combine_chunks().values.to_numpy(), minlength=vocab_size)
    return counts


def collate(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Pad a batch on the right: input_ids and attention_mask, (B, L) int64 each.

    Example:
        >>> collate([{"input_ids": [5, 6]}, {"input_ids": [7]}])["attention_mask"].tolist()
        [[1, 1], [1, 0]]
    """
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    ids = pad_sequence([torch.tensor(row["input_ids"]) for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}


def cut(batch: dict[str, Tensor], span_tokens: int) -> dict[str, Tensor]:
    """Cut each sentence of a batch into equal spans, so that a token's context is its neighbourhood.

    Decomposition hands the root's value down almost unchanged, so in a whole sentence every token is predicted from
    all of it. A sentence of L tokens becomes round(L / n) spans (at least one), with n drawn for each sentence from
    [span_tokens / 2, 3 span_tokens / 2].

    Args:
        batch: of `collate`, input_ids and attention_mask, (B, L) each.
        span_tokens: length to aim at, in tokens.

    Returns:
        The same tokens in the same order, as more and shorter rows. Draws from torch's global generator.

    Example:
        >>> cut(collate([{"input_ids": [5, 6, 7, 8]}]), 2)["attention_mask"].sum().item()
        4
    """
    mask = batch["attention_mask"].bool()
    lengths = mask.sum(dim=1)  # (B,)
    aim = span_tokens * (0.5 + torch.rand(len(lengths), device=mask.device))  # (B,)
    pieces = (lengths / aim).round().long().clamp(min=1)  # (B,)
    place = mask.cumsum(dim=1) - 1  # (B, L), 0 at the first token
    piece = place * pieces[:, None] // lengths.clamp(min=1)[:, None]
    row = (piece + (pieces.cumsum(0) - pieces)[:, None])[mask]  # (T,) of the new batch, never falling
    sizes = torch.bincount(row, minlength=int(pieces.sum()))  # (B',)
    shorter = torch.arange(int(sizes.max()), device=mask.device) < sizes[:, None]  # (B', L')
    ids = batch["input_ids"].new_zeros(shorter.shape)
    ids[shorter] = batch["input_ids"][mask]
    return {"input_ids": ids, "attention_mask": shorter.long()}
