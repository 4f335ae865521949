"""Mean, covariance and whitening of one encoder's embeddings, always in float64.

WIP needs the inverse of a covariance that is often singular: an encoder that ends in LayerNorm puts every text on a
hyperplane, a dead unit is constant, and a few hundred texts cannot span 768 dimensions. The three cases are told
apart here, because only the last one is a mistake.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.covariance import ledoit_wolf_shrinkage

#: Directions whose variance is below this share of the largest one carry only rounding errors of float32.
RANK_RTOL = 1e-9


@dataclass(frozen=True)
class Statistics:
    """What whitening needs to know of one encoder.

    Args:
        mean: (d,) mean embedding.
        whitener: (d, d) symmetric ``Sigma^-1/2``, with zeros in directions that have no variance.
        shrinkage: the share of the covariance that was replaced by a multiple of the identity.
        rank: the number of directions that have variance.
    """

    mean: NDArray[np.float64]
    whitener: NDArray[np.float64]
    shrinkage: float
    rank: int


def as_matrix(x: ArrayLike, *, name: str = "embeddings") -> NDArray[np.float64]:
    """Check an embedding matrix and return it in float64.

    Args:
        x: (N, d) numbers of any dtype.
        name: what the error calls it.

    Returns:
        (N, d) float64.

    Raises:
        ValueError: not a matrix, no rows, or a number is NaN or infinite.

    >>> as_matrix([[1, 2]]).dtype
    dtype('float64')
    """
    matrix = np.asarray(x, dtype=np.float64)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"{name} must be a non-empty matrix (texts, dimensions), not of shape {matrix.shape}.")
    if not np.isfinite(matrix).all():
        bad = int((~np.isfinite(matrix).all(axis=1)).sum())
        raise ValueError(
            f"{name} hold NaN or infinity in {bad} of {len(matrix)} rows; drop those texts, or encode in float32."
        )
    return matrix


def shrink(covariance: ArrayLike, *, amount: float) -> NDArray[np.float64]:
    """Pull a covariance towards a multiple of the identity: ``(1 - a) Sigma + a tr(Sigma)/d I``.

    Args:
        covariance: (d, d).
        amount: a, from 0 (none) to 1.

    Returns:
        (d, d) with the same trace.

    Raises:
        ValueError: the amount is outside 0..1.

    >>> shrink([[3.0, 0.0], [0.0, 1.0]], amount=0.5).tolist()
    [[2.5, 0.0], [0.0, 1.5]]
    """
    if not 0 <= amount <= 1:
        raise ValueError(f"shrinkage must lie between 0 and 1, not {amount}.")
    sigma = np.asarray(covariance, dtype=np.float64)
    return (1 - amount) * sigma + amount * np.trace(sigma) / len(sigma) * np.eye(len(sigma))


def inverse_sqrt(covariance: ArrayLike, *, rtol: float = RANK_RTOL) -> tuple[NDArray[np.float64], int]:
    """Symmetric inverse square root, a pseudo-inverse where the covariance has no variance.

    Args:
        covariance: (d, d) symmetric, positive semi-definite.
        rtol: an eigenvalue below ``rtol`` times the largest counts as zero.

    Returns:
        ``Sigma^-1/2`` (d, d) and the rank.

    Raises:
        ValueError: the covariance is zero, so no two texts have different embeddings.

    >>> root, rank = inverse_sqrt([[4.0, 0.0], [0.0, 0.0]])
    >>> root.tolist(), rank
    ([[0.5, 0.0], [0.0, 0.0]], 1)
    """
    values, vectors = np.linalg.eigh(np.asarray(covariance, dtype=np.float64))
    if values[-1] <= 0:
        raise ValueError("The covariance is zero: all embeddings are equal. Give different texts or another encoder.")
    kept = values > rtol * values[-1]
    basis = vectors[:, kept]
    return (basis / np.sqrt(values[kept])) @ basis.T, int(kept.sum())


def fit_statistics(
    x: ArrayLike, *, shrinkage: float | str | None = "ledoit-wolf", name: str = "embeddings"
) -> Statistics:
    """Estimate mean and whitener of one encoder (PAPERS section 2, WIP).

    Args:
        x: (N, d) embeddings.
        shrinkage: ``None`` or 0 (exact affine invariance), a number up to 1, or ``"ledoit-wolf"`` (from the data).
        name: what errors call the encoder.

    Returns:
        the statistics, in float64.

    Raises:
        ValueError: no shrinkage with N <= d texts, unknown shrinkage, or embeddings that cannot be used.

    >>> stats = fit_statistics([[0.0, 0.0], [2.0, 0.0], [0.0, 4.0], [2.0, 4.0]], shrinkage=None)
    >>> stats.mean.tolist(), stats.whitener.tolist(), stats.rank
    ([1.0, 2.0], [[1.0, 0.0], [0.0, 0.5]], 2)
    """
    matrix = as_matrix(x, name=name)
    n_texts, dim = matrix.shape
    mean = matrix.mean(axis=0)
    centred = matrix - mean
    if isinstance(shrinkage, str):
        if shrinkage != "ledoit-wolf":
            raise ValueError(f"shrinkage must be None, a number or 'ledoit-wolf', not {shrinkage!r}.")
        amount = float(ledoit_wolf_shrinkage(centred, assume_centered=True))
    else:
        amount = float(shrinkage or 0.0)
    if amount == 0 and n_texts <= dim:
        raise ValueError(
            f"{name}: {n_texts} texts cannot give a covariance of full rank in {dim} dimensions. "
            f"Give more than {dim} texts (ten times as many is safe), or set shrinkage='ledoit-wolf'."
        )
    covariance = centred.T @ centred / n_texts  # (d, d)
    if not covariance.any():
        raise ValueError(f"{name}: all {n_texts} embeddings are equal, so they say nothing about the texts.")
    root, rank = inverse_sqrt(shrink(covariance, amount=amount))
    return Statistics(mean=mean, whitener=root, shrinkage=amount, rank=rank)


def whiten(x: ArrayLike, stats: Statistics) -> NDArray[np.float64]:
    """Whiten embeddings: ``(x - mu) Sigma^-1/2``.

    Args:
        x: (N, d) embeddings.
        stats: of the same encoder.

    Returns:
        (N, d) float64.

    Raises:
        ValueError: the dimensions disagree.

    >>> whiten([[3.0]], fit_statistics([[-1.0], [1.0]], shrinkage=None)).tolist()
    [[3.0]]
    """
    matrix = np.asarray(x, dtype=np.float64)
    if matrix.shape[-1] != len(stats.mean):
        raise ValueError(
            f"The vectors have {matrix.shape[-1]} dimensions, the statistics {len(stats.mean)}. "
            "They come from two encoders, or the encoder has changed: attach it again."
        )
    return (matrix - stats.mean) @ stats.whitener
