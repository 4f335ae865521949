"""The classical ways to align two spaces, as the bar that a learned space has to pass.

Each takes paired training embeddings and returns two functions, one for each encoder, into a common space where cosine
compares. They are pairwise: with N encoders they need N (N - 1) / 2 fits, and a new encoder needs all of them again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import orthogonal_procrustes
from sklearn.linear_model import Ridge

from relrep_hf.statistics import fit_statistics, whiten

Map = Callable[[ArrayLike], NDArray[np.float64]]
Aligned = tuple[Map, Map]


def procrustes(source: ArrayLike, target: ArrayLike) -> Aligned:
    """Orthogonal Procrustes: the rotation that brings the centred source nearest to the centred target.

    Args:
        source: (N, d) training embeddings.
        target: (N, e), paired; the smaller space is padded with zeros.

    Returns:
        maps of source and target into max(d, e) dimensions.

    >>> rotate, keep = procrustes([[1, 0], [0, 1], [-1, -1]], [[0, 1], [-1, 0], [1, -1]])
    >>> bool(np.allclose(rotate([[1, 0]]), keep([[0, 1]])))
    True
    """
    x, y = np.asarray(source, np.float64), np.asarray(target, np.float64)
    mean_x, mean_y, width = x.mean(axis=0), y.mean(axis=0), max(x.shape[1], y.shape[1])

    def padded(z: ArrayLike, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        centred = np.asarray(z, np.float64) - mean
        return np.pad(centred, ((0, 0), (0, width - centred.shape[1])))

    rotation, _ = orthogonal_procrustes(padded(x, mean_x), padded(y, mean_y))
    return lambda z: padded(z, mean_x) @ rotation, lambda z: padded(z, mean_y)


def ridge(source: ArrayLike, target: ArrayLike, *, alpha: float = 1.0) -> Aligned:
    """Ridge regression from the source onto the centred target.

    Args:
        source: (N, d) training embeddings.
        target: (N, e), paired.
        alpha: L2 penalty.

    Returns:
        maps of source and target into e dimensions.

    >>> forward, keep = ridge([[0.0], [1.0], [2.0]], [[0.0], [2.0], [4.0]], alpha=1e-9)
    >>> bool(np.allclose(forward([[3.0]]), keep([[6.0]])))
    True
    """
    x, y = np.asarray(source, np.float64), np.asarray(target, np.float64)
    mean = y.mean(axis=0)
    model = Ridge(alpha=alpha).fit(x, y - mean)
    return lambda z: model.predict(np.asarray(z, np.float64)).reshape(len(z), -1), lambda z: np.asarray(z) - mean


def cca(source: ArrayLike, target: ArrayLike, *, shrinkage: float | str | None = 0.01, power: float = 1.0) -> Aligned:
    """Regularised canonical correlation analysis, variates weighted by their correlation.

    Solved through the SVD of the whitened cross-covariance: scikit-learn's iterative CCA takes one pair of variates
    at a time, which is hours for 384 of them.

    Args:
        source: (N, d) training embeddings.
        target: (N, e), paired.
        shrinkage: of both covariances.
        power: variates are weighted by ``rho ** power``.

    Returns:
        maps of source and target into min(d, e) dimensions.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(50, 2))
    >>> f, g = cca(x, x @ [[1.0, 2.0], [0.0, 1.0]], shrinkage=None)
    >>> bool(np.allclose(f(x), g(x @ [[1.0, 2.0], [0.0, 1.0]])))
    True
    """
    stats_x, stats_y = fit_statistics(source, shrinkage=shrinkage), fit_statistics(target, shrinkage=shrinkage)
    cross = whiten(source, stats_x).T @ whiten(target, stats_y) / len(np.asarray(source))  # (d, e)
    left, rho, right = np.linalg.svd(cross, full_matrices=False)
    weights = np.clip(rho, 0.0, 1.0) ** power
    return lambda z: whiten(z, stats_x) @ left * weights, lambda z: whiten(z, stats_y) @ right.T * weights


ClosedForm = Literal["procrustes", "ridge", "cca"]
#: Name -> function of (source, target).
CLOSED_FORMS: dict[ClosedForm, Callable[[ArrayLike, ArrayLike], Aligned]] = {
    "procrustes": procrustes,
    "ridge": ridge,
    "cca": cca,
}
