"""The two similarities of relative representations, as functions and as affine maps.

``cosine`` is invariant to rotation and scaling of a space, ``wip`` (whitened inner product) to every invertible
affine map, exactly while the covariance is not shrunk. Both are one matrix product (after a normalisation in the case
of cosine), and that is what makes folding into a ``Dense`` module possible.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from relrep_hf.statistics import Statistics, whiten

Similarity = Literal["cosine", "wip"]


class AffineMap(NamedTuple):
    """``relative(x) = W n(x) + b``, where n is the identity or the L2 normalisation.

    Args:
        weight: (m, d).
        bias: (m,).
        normalize: whether x is brought to length 1 first (cosine).
    """

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    normalize: bool

    def __call__(self, x: ArrayLike) -> NDArray[np.float64]:
        """Map (N, d) absolute embeddings to (N, m) relative ones, in float64; another d raises ValueError."""
        matrix = np.asarray(x, dtype=np.float64)
        if matrix.shape[-1] != self.weight.shape[1]:
            raise ValueError(
                f"The vectors have {matrix.shape[-1]} dimensions, but the map is for {self.weight.shape[1]}: "
                "they come from another encoder, or the encoder has changed since it was attached."
            )
        return (unit(matrix) if self.normalize else matrix) @ self.weight.T + self.bias


def unit(x: ArrayLike) -> NDArray[np.float64]:
    """Bring rows to length 1; a zero row stays zero.

    Args:
        x: (N, d).

    Returns:
        (N, d) float64.

    >>> unit([[3.0, 4.0], [0.0, 0.0]]).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    matrix = np.asarray(x, dtype=np.float64)
    norms = np.linalg.norm(matrix, axis=-1, keepdims=True)
    return matrix / np.where(norms > 0, norms, 1.0)


def cosine(x: ArrayLike, anchors: ArrayLike) -> NDArray[np.float64]:
    """Cosine of every embedding with every anchor (Moschella et al. 2023).

    Args:
        x: (N, d) embeddings.
        anchors: (m, d).

    Returns:
        (N, m) in [-1, 1]; 0 where a vector is zero.

    >>> cosine([[2.0, 0.0]], [[1.0, 0.0], [0.0, 5.0]]).tolist()
    [[1.0, 0.0]]
    """
    return unit(x) @ unit(anchors).T


def wip(x: ArrayLike, anchors: ArrayLike, *, stats: Statistics) -> NDArray[np.float64]:
    """Whitened inner product ``(x - mu)' Sigma^-1 (a - mu)`` (PAPERS section 2, WIP).

    Args:
        x: (N, d) embeddings.
        anchors: (m, d) in the same space.
        stats: mean and whitener of that space.

    Returns:
        (N, m), unbounded: magnitude is kept. The row of a vector equal to the mean is zero.

    >>> from relrep_hf.statistics import fit_statistics
    >>> stats = fit_statistics([[-2.0], [2.0]], shrinkage=None)
    >>> wip([[2.0], [0.0]], [[4.0]], stats=stats).tolist()
    [[2.0], [0.0]]
    """
    return whiten(x, stats) @ whiten(anchors, stats).T


def relative_map(anchors: ArrayLike, *, similarity: Similarity, stats: Statistics | None = None) -> AffineMap:
    """Write a similarity to fixed anchors as an affine map.

    Args:
        anchors: (m, d).
        similarity: ``"cosine"`` (W = A/|A|, b = 0, after normalising x) or ``"wip"`` (W = (A - mu) Sigma^-1,
            b = -W mu).
        stats: of the space; needed by ``"wip"`` only.

    Returns:
        the map, in float64.

    Raises:
        ValueError: unknown similarity, or WIP without statistics.

    >>> relative_map([[0.0, 5.0]], similarity="cosine").weight.tolist()
    [[0.0, 1.0]]
    """
    matrix = np.asarray(anchors, dtype=np.float64)
    if similarity == "cosine":
        return AffineMap(unit(matrix), np.zeros(len(matrix)), True)
    if similarity != "wip":
        raise ValueError(f"similarity must be 'cosine' or 'wip', not {similarity!r}.")
    if stats is None:
        raise ValueError("WIP needs the mean and covariance of the space: pass stats=fit_statistics(embeddings).")
    weight = whiten(matrix, stats) @ stats.whitener  # (m, d)
    return AffineMap(weight, -weight @ stats.mean, False)
