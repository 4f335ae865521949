"""Move vectors of one encoder into the absolute space of another, without their texts."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sentence_transformers import SentenceTransformer

from relrep_hf.embedding import EmbeddingCache
from relrep_hf.folding import detach, read_tag
from relrep_hf.identity import check_same_space
from relrep_hf.space import RelativeSpace

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
        (N, d_target) float32; rows of length 1 under cosine, since length is not in the relative coordinates.

    Raises:
        ValueError: dimensions disagree, or a model is in another space.
    """
    supports, maps = [], []
    for model in (source, target):
        if read_tag(model) is not None:
            check_same_space(space, model)
        # The folded map alone would not do: it knows the target's mean only where the anchors look.
        supports.append(EmbeddingCache(cache).embed(detach(model), space.support))
        maps.append(space.map_for(supports[-1]))
    rows = vectors if isinstance(vectors, np.ndarray) else np.asarray(vectors)  # a memory map is an ndarray
    count, width = len(rows), maps[1].weight.shape[1]
    if rows.ndim != 2 or rows.shape[1] != maps[0].weight.shape[1]:
        raise ValueError(
            f"The vectors have shape {rows.shape}, but the source encoder has {maps[0].weight.shape[1]} dimensions: "
            "source and target may be swapped, or the vectors come from another encoder."
        )
    if out is None:
        out = np.empty((count, width), dtype=np.float32)
    elif out.shape != (count, width):
        raise ValueError(f"out has shape {out.shape}, but the result has {(count, width)}.")
    inverse = np.linalg.pinv(maps[1].weight, rcond=rcond)  # (d_target, m)
    # Where the anchors see nothing the best guess under WIP is the target's mean, which the map sends to 0.
    mean = np.zeros(width) if maps[1].normalize else supports[1].astype(np.float64).mean(axis=0)
    origin = maps[1].weight @ mean + maps[1].bias  # (m,)
    for start in range(0, count, batch_size):
        relative = maps[0](np.asarray(rows[start : start + batch_size]))  # (n, m)
        moved = (relative - origin) @ inverse.T + mean
        if maps[1].normalize:
            moved /= np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-12)
        out[start : start + batch_size] = moved
    return out
