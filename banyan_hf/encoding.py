"""Texts to vectors with a model and a tokenizer in memory (for a saved folder, use `SentenceTransformer`)."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
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
    import pyarrow as pa
    from datasets import Dataset
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
        source: UTF-8 text, one text a line, plain or .gz.
        target: written under a temporary name first, then renamed.
        model: any sentence-transformers model.
        batch_size: lines at a time.

    Returns:
        The shape (lines, D) of what was written.

    Raises:
        ValueError: the file is missing or empty.
    """
    from .training.corpus import check_text_file

    check_text_file(source)
    opened = gzip.open if source.suffix == ".gz" else open
    try:
        with opened(source, "rt", encoding="utf-8") as file:
            n_lines = sum(1 for _ in file)
    except (UnicodeDecodeError, EOFError, zlib.error) as error:
        raise ValueError(f"{source} is not UTF-8 text, or a damaged .gz file ({error}).") from error
    if not target.parent.is_dir():
        raise ValueError(f"{target.parent}, the folder of the output, does not exist. Make it first.")
    shape = (n_lines, int(model.get_embedding_dimension() or 0))
    temporary = target.with_name(target.name + ".tmp")
    vectors = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float32, shape=shape)
    with opened(source, "rt", encoding="utf-8") as file, tqdm(total=n_lines, unit="texts", desc="Encoding") as bar:
        start = 0
        while lines := [line.rstrip("\n") for line in islice(file, batch_size)]:
            vectors[start : start + len(lines)] = model.encode(lines, batch_size=batch_size)
            start += len(lines)
            bar.update(len(lines))
    vectors.flush()
    os.replace(temporary, target)
    return shape


def encode_corpus(
    sources: Sequence[str],
    folder: Path,
    model: str,
    *,
    batch_size: int = 1024,
    rows_per_shard: int = 100_000,
    workers: int = 1,
    engine: str = "datasets",
) -> tuple[int, int]:
    """Encode a corpus into parquet shards with the columns `id` (row number) and `vector`.

    A shard is written whole or not at all; after a stop the same call makes those that are missing.

    Args:
        sources: text files, one text a line (plain or .gz), or the name of a dataset with a `text` column.
        folder: of the shards; a hidden neighbour holds the memory-mapped texts while the work lasts.
        model: folder or Hub name of any sentence-transformers model; every worker opens it once.
        batch_size: texts at a time.
        rows_per_shard: texts in a file; also what a killed worker loses at most.
        workers: processes.
        engine: who runs them, `"datasets"` or `"ray"`.

    Returns:
        The shape (texts, D) of all shards together.

    Raises:
        ValueError: the sources or the folder are not usable; see the message.
        RuntimeError: a worker died; call again.
    """
    import shutil

    import pyarrow as pa

    from relrep_hf.provenance import KEY, Provenance
    from relrep_hf.sharding import write_shards
    from relrep_hf.vector_files import vector_type

    from .training.corpus import check_sources, load_texts

    check_sources(sources)
    folder = folder.resolve()
    open_encoder.cache_clear()  # the folder may hold another model now
    opened = open_encoder(model)
    provenance, dims = Provenance.of(opened), int(opened.get_embedding_dimension() or 0)
    texts = load_texts(sources, folder.with_name(f".{folder.name}-corpus"))
    schema = pa.schema({"id": pa.int64(), "vector": vector_type(dims)}, metadata={KEY: provenance.to_json()})
    write_shards(
        EncodedRows(texts, model, batch_size, max(torch.get_num_threads() // workers, 1), schema),
        folder,
        count=len(texts),
        schema=schema,
        plan={"sources": list(sources), "encoder": provenance.encoder, "space": provenance.space},
        rows_per_shard=rows_per_shard,
        workers=workers,
        engine=engine,  # type: ignore[arg-type]
    )
    shutil.rmtree(folder.with_name(f".{folder.name}-corpus"), ignore_errors=True)
    return len(texts), dims


@lru_cache(maxsize=1)
def open_encoder(model: str) -> SentenceTransformer:
    """A sentence-transformers model, opened once in a process."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(model)


@dataclass(frozen=True)
class EncodedRows:
    """Rows of a corpus with their vectors; what the workers of `encode_corpus` run.

    Args:
        texts: with the column `text`, memory-mapped.
        model: opened in the worker.
        batch_size: texts at a time.
        threads: of one worker.
        schema: of the shards.
    """

    texts: Dataset
    model: str
    batch_size: int
    threads: int
    schema: pa.Schema

    def __call__(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows `[start, stop)`."""
        import pyarrow as pa

        from relrep_hf.vector_files import vector_array

        torch.set_num_threads(self.threads)
        encoder = open_encoder(self.model)
        for first in range(start, stop, self.batch_size):
            last = min(first + self.batch_size, stop)
            vectors: Any = encoder.encode(
                self.texts[first:last]["text"], batch_size=self.batch_size, show_progress_bar=False
            )
            columns = [pa.array(range(first, last)), vector_array(np.asarray(vectors, np.float32))]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
