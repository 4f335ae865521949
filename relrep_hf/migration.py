"""Move vectors of one encoder to another without their texts: an array, or a whole index with a gate before it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray
from sentence_transformers import SentenceTransformer

from relrep_hf.embedding import EmbeddingCache, encoder_id
from relrep_hf.folding import detach, read_tag
from relrep_hf.identity import check_same_space
from relrep_hf.metrics import mean_interval
from relrep_hf.provenance import KEY, Provenance
from relrep_hf.sharding import Engine, write_shards
from relrep_hf.similarity import AffineMap, unit
from relrep_hf.space import RelativeSpace
from relrep_hf.vector_files import VectorFiles, read_vectors, vector_array, vector_type

#: Where migrated vectors live: in the space that all its encoders share, or in the target encoder's own.
Into = Literal["relative", "absolute"]

#: Singular values of the target's map below this share of the largest are treated as zero.
RCOND = 1e-6


def translate(
    vectors: ArrayLike,
    *,
    source: SentenceTransformer,
    target: SentenceTransformer,
    space: RelativeSpace,
    out: NDArray[np.float32] | None = None,
    batch_size: int = 8192,
    rcond: float = RCOND,
    cache: str | os.PathLike[str] | None = None,
) -> NDArray[np.float32]:
    """Translate absolute vectors: into the space by the source's map, out of it by the target's pseudo-inverse.

    ``y = W_t^+ (W_s x + b_s - b_t)``. Directions that the anchors do not see (m < d) come back as the target's mean
    (WIP) or as zero (cosine).

    Args:
        vectors: (N, d_source), an array or a memory map; it is read in batches.
        source: encoder the vectors were made with, or the model attached from it.
        target: encoder to move to, or the model attached from it.
        space: that both are in.
        out: (N, d_target) to write to, for example a memory map; made if not given.
        batch_size: rows at once.
        rcond: cut-off of the pseudo-inverse; larger is smoother.
        cache: folder for embeddings of the support.

    Returns:
        (N, d_target) float32; rows of length 1 where the target's are, and under cosine, since length is not in the
        relative coordinates.

    Raises:
        ValueError: dimensions disagree, or a model is in another space.
    """
    for model in (source, target):
        if read_tag(model) is not None:
            check_same_space(space, model)
    store = EmbeddingCache(cache)
    # The folded maps alone would not do: they know the target's mean only where the anchors look.
    supports = [store.embed(detach(model), space.support) for model in (source, target)]
    move = Translation.between(space, *supports, rcond=rcond)
    rows = vectors if isinstance(vectors, np.ndarray) else np.asarray(vectors)  # a memory map is an ndarray
    if rows.ndim != 2 or rows.shape[1] != move.dims:
        raise ValueError(
            f"The vectors have shape {rows.shape}, but the source encoder has {move.dims} dimensions: "
            "source and target may be swapped, or the vectors come from another encoder."
        )
    shape = (len(rows), len(move.origin))
    if out is None:
        out = np.empty(shape, dtype=np.float32)
    elif out.shape != shape:
        raise ValueError(f"out has shape {out.shape}, but the result has {shape}.")
    for start in range(0, len(rows), batch_size):
        part = np.asarray(rows[start : start + batch_size])
        _check_finite(part, first=start)
        out[start : start + batch_size] = move(part)
    return out


def _check_finite(rows: NDArray[Any], *, first: int) -> None:
    """Refuse NaN and infinity; ``first`` is the number of the first row."""
    if not np.isfinite(rows).all():
        row = first + int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise ValueError(f"Vector {row} is not finite (NaN or infinity); drop such rows of the index first.")


@dataclass(frozen=True)
class Translation:
    """``y = W_t^+ (W_s x + b_s - origin) + mean``: from one encoder's space to another's.

    Args:
        source: map of the source into the relative space.
        inverse: (d_target, m) pseudo-inverse of the target's map.
        relative_origin: (m,) where ``origin`` is in the relative space.
        origin: (d_target,) what comes back where the anchors see nothing: the target's mean (WIP) or zero (cosine).
        normalize: bring results to length 1: under cosine, and where all vectors of the target have it, so that an
            index that ranks by inner product goes on ranking by cosine.
    """

    source: AffineMap
    inverse: NDArray[np.float64]
    relative_origin: NDArray[np.float64]
    origin: NDArray[np.float64]
    normalize: bool

    @classmethod
    def between(
        cls, space: RelativeSpace, source: ArrayLike, target: ArrayLike, *, rcond: float = RCOND
    ) -> Translation:
        """Of two encoders, from their embeddings of the support.

        Args:
            space: that both are in.
            source: (K, d_source).
            target: (K, d_target).
            rcond: cut-off of the pseudo-inverse.

        Returns:
            the translation.
        """
        into, out_of = space.map_for(source, name="source"), space.map_for(target, name="target")
        origin = np.asarray(target, np.float64).mean(axis=0) * (not out_of.normalize)
        inverse = np.asarray(np.linalg.pinv(out_of.weight, rcond=rcond), np.float64)
        normalize = out_of.normalize or bool(np.allclose(np.linalg.norm(target, axis=1), 1.0, atol=1e-3))
        return cls(into, inverse, out_of.weight @ origin + out_of.bias, origin, normalize)

    @property
    def dims(self) -> int:
        """Dimensions of the source."""
        return int(self.source.weight.shape[1])

    def __call__(self, x: ArrayLike) -> NDArray[np.float64]:
        """Move (N, d_source) to (N, d_target)."""
        moved = (self.source(x) - self.relative_origin) @ self.inverse.T + self.origin
        return unit(moved) if self.normalize else moved


def recall(
    queries: ArrayLike, truth: ArrayLike, moved_queries: ArrayLike, moved: ArrayLike, *, k: int = 10
) -> NDArray[np.float64]:
    """Share of each query's k nearest rows of the truth, by cosine, that are among its k nearest moved rows.

    Args:
        queries: (Q, d).
        truth: (N, d), the documents encoded anew.
        moved_queries: (Q, e), the same queries in the space of the moved documents.
        moved: (N, e).
        k: at most N.

    Returns:
        (Q,) between 0 and 1.

    >>> truth = np.eye(3)
    >>> recall([[1.0, 0.5, 0.0]], truth, [[1.0, 0.5, 0.0]], truth[[1, 0, 2]], k=1).tolist()
    [0.0]
    """
    found = [nearest(queries, truth, k=k), nearest(moved_queries, moved, k=k)]
    return np.array([len(np.intersect1d(a, b)) / k for a, b in zip(*found, strict=True)])


def nearest(queries: ArrayLike, rows: ArrayLike, *, k: int = 10, block: int = 256) -> NDArray[np.int64]:
    """Row numbers of the k nearest rows by cosine, best first, (Q, k); ``block`` queries at a time.

    >>> nearest([[1.0, 0.1]], [[0.0, 1.0], [3.0, 0.0]], k=2).tolist()
    [[1, 0]]
    """
    a, b = unit(queries), unit(rows)
    if not 1 <= k <= len(b):
        raise ValueError(f"k={k} nearest of {len(b)} rows: k must be between 1 and the number of rows.")
    found = []
    for start in range(0, len(a), block):
        scores = a[start : start + block] @ b.T  # (block, N)
        best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
        found.append(np.take_along_axis(best, order, axis=1))
    return np.concatenate(found) if found else np.empty((0, k), np.int64)


@dataclass(frozen=True)
class MoveRows:
    """Rows of an index with their vectors moved; what the workers of a migration run.

    Args:
        vectors: the old index.
        move: (n, d) to (n, e).
        schema: of the new index.
    """

    vectors: VectorFiles
    move: Callable[[ArrayLike], NDArray[np.float64]]
    schema: pa.Schema

    def __call__(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows ``[start, stop)``; a vector that is not finite stops the shard."""
        name = self.vectors.vector_column
        for batch in self.vectors(start, stop):
            old = read_vectors(batch.column(name), name=name)
            _check_finite(old, first=start)
            columns = [
                vector_array(self.move(old).astype(np.float32)) if field.name == name else batch.column(field.name)
                for field in self.schema
            ]
            start += len(batch)
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True)
class Migration:
    """What a migration did.

    Args:
        files: parquet shards, in the order of the rows.
        rows: vectors moved.
        dims: of the new vectors.
        provenance: what the new vectors are; it is in the files too.
        recall: recall@10 on the held-out texts, with its 95 % interval, or ``None`` if none were given.
        held_out: how many texts that was measured on.
    """

    files: list[Path]
    rows: int
    dims: int
    provenance: Provenance
    recall: dict[str, float] | None
    held_out: int


def migrate(
    vectors: VectorFiles,
    output: str | os.PathLike[str],
    *,
    space: RelativeSpace,
    source: SentenceTransformer,
    target: SentenceTransformer,
    into: Into = "absolute",
    held_out: Sequence[str] = (),
    min_recall: float | None = None,
    rows_per_shard: int = 100_000,
    workers: int = 1,
    engine: Engine = "datasets",
    cache: str | os.PathLike[str] | None = None,
    show_progress: bool = False,
) -> Migration:
    """Move an index of one encoder to another, shard by shard; the old index is only read.

    Args:
        vectors: the old index, of ``vector_files.open_vectors``.
        output: folder of the new one. If a run was stopped, the same call makes the shards that are missing.
        space: that both encoders are in.
        source: encoder the index was made with.
        target: encoder of the queries to come.
        into: ``"absolute"``, where the target itself encodes queries, or ``"relative"``, where every encoder of the
            space does (``space.attach``).
        held_out: texts that are not in the support, a few hundred or more, to measure on what would be lost.
        min_recall: refuse to write anything if recall@10 on the held-out texts is below.
        rows_per_shard: rows in a file.
        workers: processes.
        engine: ``"datasets"`` or ``"ray"``.
        cache: folder for embeddings.
        show_progress: draw a progress bar.

    Returns:
        a ``Migration``.

    Raises:
        ValueError: dimensions disagree, recall is too low, or the output is not usable.
    """
    if into not in ("relative", "absolute"):
        raise ValueError(f"into={into!r} must be 'relative' or 'absolute'.")
    if min_recall is not None and not 0 <= min_recall <= 1:
        raise ValueError(f"min_recall={min_recall} is a share: it must be between 0 and 1.")
    source, target, store = detach(source), detach(target), EmbeddingCache(cache)
    if record := (vectors.schema.metadata or {}).get(KEY.encode()):
        Provenance.from_json(record).check(source)  # the old index says itself which encoder made it
    ids = encoder_id(source), encoder_id(target)

    def embed(texts: Sequence[str]) -> list[NDArray[np.float32]]:
        pairs = zip((source, target), ids, strict=True)
        return [store.embed(model, texts, identity=identity, show_progress=show_progress) for model, identity in pairs]

    supports = embed(space.support)
    move: Any = (
        Translation.between(space, *supports) if into == "absolute" else space.map_for(supports[0], name="source")
    )
    width = supports[0].shape[1]
    if vectors.count and vectors.dims != width:
        raise ValueError(
            f"The vectors of the index have {vectors.dims} dimensions, but the source encoder has {width}: source and "
            "target may be swapped, or the index was made by another encoder."
        )
    measured, texts = None, _held_out(held_out, space, needed=min_recall is not None)
    if texts:
        old, new = embed(texts)
        asked = new if into == "absolute" else space.map_for(supports[1], name="target")(new)
        measured = mean_interval(_recall_of_others(new, asked, move(old)))
        if min_recall is not None and measured["value"] < min_recall:
            raise ValueError(
                f"Nothing was written: recall@10 on {len(texts)} held-out texts is {measured['value']:.3f} "
                f"(95 % interval {measured['low']:.3f} to {measured['high']:.3f}), "
                f"{min_recall - measured['value']:.3f} below --min-recall {min_recall}. Fit the space on texts more "
                "like those of the index, with more anchors, or encode the documents anew."
            )
    dims = target.get_embedding_dimension() if into == "absolute" else space.anchors
    provenance = Provenance(space.id, ids[1] if into == "absolute" else None)
    name = vectors.vector_column
    metadata = dict(vectors.schema.metadata or {})
    metadata.pop(b"huggingface", None)  # datasets' record of the old columns
    schema = pa.schema(
        [pa.field(name, vector_type(int(dims or 0))) if field.name == name else field for field in vectors.schema],
        metadata={**metadata, KEY.encode(): provenance.to_json()},
    )
    files = write_shards(
        MoveRows(vectors, move, schema),
        output,
        count=vectors.count,
        schema=schema,
        plan={
            "vectors": _fingerprint(vectors),
            "space": space.id,
            "source": ids[0],
            "target": ids[1],
            "into": into,
        },
        rows_per_shard=rows_per_shard,
        workers=workers,
        engine=engine,
    )
    return Migration(files, vectors.count, int(dims or 0), provenance, measured, len(texts))


def _held_out(texts: Sequence[str], space: RelativeSpace, *, needed: bool) -> list[str]:
    """The different texts that the space was not fitted on."""
    known = set(space.support)
    fresh = [text for text in dict.fromkeys(texts) if text not in known]
    if (texts or needed) and len(fresh) < 50:
        raise ValueError(
            f"{len(fresh)} held-out texts that are not in the support of the space are too few to measure recall@10; "
            "give a few hundred (--held-out)."
        )
    return fresh


def _recall_of_others(truth: NDArray[Any], asked: NDArray[Any], moved: NDArray[Any], *, k: int = 10) -> NDArray[Any]:
    """As ``recall``, every text being query and document; a text does not count as its own neighbour."""
    found = [
        [set(row[row != number][:k]) for number, row in enumerate(nearest(queries, rows, k=k + 1))]
        for queries, rows in ((truth, truth), (asked, moved))
    ]
    return np.array([len(a & b) / k for a, b in zip(*found, strict=True)])


def _fingerprint(vectors: VectorFiles, *, ends: int = 64) -> str:
    """Hash of all vectors, and of the first and the last rows whole: a restarted run must be given the same index."""
    digest = hashlib.sha256()
    for start, stop in ((0, min(ends, vectors.count)), (max(vectors.count - ends, 0), vectors.count)):
        for batch in vectors(start, stop):
            digest.update(json.dumps(batch.to_pylist(), default=str).encode())
    for batch in vectors(0, vectors.count):
        rows = read_vectors(batch.column(vectors.vector_column), name=vectors.vector_column)
        digest.update(np.ascontiguousarray(rows).tobytes())
    return digest.hexdigest()[:16]
