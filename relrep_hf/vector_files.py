"""Vectors with ids as they lie about: .npy, parquet files, a dataset. Read in slices, never changed."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from relrep_hf.provenance import KEY

if TYPE_CHECKING:
    from datasets import Dataset

#: Rows in a record batch.
BATCH = 8192


def vector_array(vectors: NDArray[np.float32]) -> pa.FixedSizeListArray:
    """An arrow column of vectors (n, d), each a list of d float32.

    >>> vector_array(np.eye(2, dtype=np.float32)).type
    FixedSizeListType(fixed_size_list<element: float>[2])
    """
    flat = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, type=vector_type(vectors.shape[1]))


def vector_type(dims: int) -> pa.DataType:
    """Arrow type of a vector."""
    return pa.list_(pa.field("element", pa.float32()), dims)


def read_vectors(column: pa.Array, *, name: str = "vector") -> NDArray[np.floating]:
    """An arrow column of lists as a matrix (n, d).

    Args:
        column: lists of equal length, fixed or not, of any float type.
        name: of the column, for errors.

    Returns:
        the matrix.

    Raises:
        ValueError: a vector is missing, or two have different lengths.

    >>> read_vectors(pa.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    if column.null_count:
        raise ValueError(f"{column.null_count} rows have no {name}; drop them first.")
    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(lengths) > 1:
        raise ValueError(f"The lists in {name} have different lengths, {sorted(lengths)[:5]}: they are no vectors.")
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)


@dataclass(frozen=True)
class NumpyVectors:
    """A .npy file (n, d), memory-mapped, with ids from a list or its row numbers.

    Args:
        path: the file.
        ids: n of them; ``None`` for row numbers.
        id_column: what to call them.
        vector_column: what to call the vectors.
    """

    path: Path
    ids: NDArray[Any] | None = None
    id_column: str = "id"
    vector_column: str = "vector"

    def __post_init__(self) -> None:
        rows = self.rows
        if rows.ndim != 2 or rows.dtype.kind != "f":
            raise ValueError(f"{self.path} holds {rows.dtype} of shape {rows.shape}; vectors (texts, dims) are needed.")
        if self.ids is not None and len(self.ids) != len(rows):
            raise ValueError(f"There are {len(self.ids)} ids for {len(rows)} vectors in {self.path}.")
        if self.ids is not None and (different := len(np.unique(self.ids))) < len(self.ids):
            raise ValueError(f"Only {different:,} of the {len(self.ids):,} ids are different.")

    @property
    def rows(self) -> NDArray[Any]:
        """The vectors, memory-mapped."""
        return np.load(self.path, mmap_mode="r", allow_pickle=False)

    @property
    def count(self) -> int:
        """Number of vectors."""
        return len(self.rows)

    @property
    def dims(self) -> int:
        """Numbers in a vector."""
        return int(self.rows.shape[1])

    @property
    def schema(self) -> pa.Schema:
        """Columns."""
        kind = pa.int64() if self.ids is None else pa.array(self.ids[:1]).type
        return pa.schema({self.id_column: kind, self.vector_column: vector_type(self.dims)})

    def __call__(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows ``[start, stop)``."""
        rows = self.rows
        for first in range(start, stop, BATCH):
            last = min(first + BATCH, stop)
            ids = np.arange(first, last) if self.ids is None else self.ids[first:last]
            columns = [pa.array(ids), vector_array(np.asarray(rows[first:last], dtype=np.float32))]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True)
class ParquetVectors:
    """Parquet files with a column of vectors; every other column comes along.

    Args:
        paths: in the order of the rows.
        vector_column: name of the vectors.
    """

    paths: Sequence[Path]
    vector_column: str = "vector"
    _starts: list[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        schema = self.schema
        if self.vector_column not in schema.names:
            raise ValueError(f"{self.paths[0]} has the columns {schema.names}, but no {self.vector_column!r}.")
        for path in self.paths[1:]:
            other = pq.read_schema(path)
            if not other.equals(schema):
                raise ValueError(f"{path} has other columns than {self.paths[0]}.")
            if _made_by(other) != _made_by(schema):
                raise ValueError(f"{path} was made by another encoder, or in another space, than {self.paths[0]}.")
        counts = [pq.read_metadata(path).num_rows for path in self.paths]
        object.__setattr__(self, "_starts", [0, *accumulate(counts)])

    @property
    def count(self) -> int:
        """Number of vectors."""
        return self._starts[-1]

    @property
    def dims(self) -> int:
        """Numbers in a vector, read off the first."""
        first = next(self(0, min(1, self.count)), None)
        return 0 if first is None else read_vectors(first.column(self.vector_column)).shape[1]

    @property
    def schema(self) -> pa.Schema:
        """Columns of the files."""
        return pq.read_schema(self.paths[0])

    def __call__(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows ``[start, stop)``; only the row groups that hold some of them are read."""
        for number in range(bisect.bisect_right(self._starts, start) - 1, len(self.paths)):
            if self._starts[number] >= stop:
                return
            file, first = pq.ParquetFile(self.paths[number]), self._starts[number]
            for group in range(file.num_row_groups):
                last = first + file.metadata.row_group(group).num_rows
                if last > start and first < stop:
                    row = first
                    for batch in file.iter_batches(batch_size=BATCH, row_groups=[group]):
                        cut = batch.slice(max(start - row, 0), max(min(stop, row + len(batch)) - max(start, row), 0))
                        if len(cut):
                            yield cut
                        row += len(batch)
                first = last


@dataclass(frozen=True)
class DatasetVectors:
    """A ``datasets.Dataset`` with a column of vectors; every other column comes along.

    Args:
        dataset: memory-mapped.
        vector_column: name of the vectors.
    """

    dataset: Dataset
    vector_column: str = "vector"

    def __post_init__(self) -> None:
        if self.vector_column not in self.dataset.column_names:
            raise ValueError(f"The dataset has the columns {self.dataset.column_names}, but no {self.vector_column!r}.")

    @property
    def count(self) -> int:
        """Number of vectors."""
        return len(self.dataset)

    @property
    def dims(self) -> int:
        """Numbers in a vector, read off the first."""
        return len(self.dataset[0][self.vector_column]) if self.count else 0

    @property
    def schema(self) -> pa.Schema:
        """Columns."""
        return self.dataset.features.arrow_schema

    def __call__(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows ``[start, stop)``."""
        tables = self.dataset.with_format("arrow")
        for first in range(start, stop, BATCH):
            yield from tables[first : min(first + BATCH, stop)].to_batches()


VectorFiles = NumpyVectors | ParquetVectors | DatasetVectors


def open_vectors(
    sources: Sequence[str | os.PathLike[str]],
    *,
    ids: str | os.PathLike[str] | None = None,
    vector_column: str = "vector",
) -> VectorFiles:
    """Open vectors with ids.

    Args:
        sources: one .npy file; or parquet files, or a folder of them; or the folder or Hub name of a dataset.
        ids: of a .npy file: .npy, or text with one id a line; default: row numbers.
        vector_column: in parquet files and datasets.

    Returns:
        rows that can be read in slices.

    Raises:
        ValueError: nothing usable is there; says what.
    """
    paths = [Path(source) for source in sources]
    if len(paths) == 1 and paths[0].suffix == ".npy":
        if not paths[0].is_file():
            raise ValueError(f"{paths[0]} is not a file.")
        return NumpyVectors(paths[0], None if ids is None else _read_ids(Path(ids)), vector_column=vector_column)
    if ids is not None:
        raise ValueError("--ids belongs to a .npy file; parquet files and datasets have their ids in a column.")
    if len(paths) == 1 and not paths[0].exists() and paths[0].suffix != ".parquet":
        from datasets import load_dataset

        try:
            return DatasetVectors(load_dataset(str(sources[0]), split="train"), vector_column)
        except Exception as error:  # datasets raises many kinds; the user has one question: which source was wrong
            raise ValueError(
                f"{sources[0]!r} is neither a file nor a dataset that could be loaded ({type(error).__name__}: {error})"
            ) from error
    if len(paths) == 1 and (paths[0] / "state.json").is_file():
        from datasets import load_from_disk

        return DatasetVectors(load_from_disk(str(paths[0])), vector_column)
    if len(paths) == 1 and paths[0].is_dir():
        paths = sorted(paths[0].glob("*.parquet"))
    absent = [path for path in paths if not path.is_file()]
    if absent or not paths:
        raise ValueError(f"{absent[0] if absent else sources[0]} is not a parquet file, nor a folder with some.")
    return ParquetVectors(paths, vector_column)


def _read_ids(path: Path) -> NDArray[Any]:
    """Ids from .npy, or one a line."""
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # an id may hold other line separators
    return np.array([line.removesuffix("\r") for line in lines])


def _made_by(schema: pa.Schema) -> bytes | None:
    return (schema.metadata or {}).get(KEY.encode())
