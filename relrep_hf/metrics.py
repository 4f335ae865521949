"""How well two spaces agree on the same texts: retrieval, neighbours, distance, rank, and intervals."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import bootstrap

from relrep_hf.similarity import unit

#: Rows of the similarity matrix that are held at once.
BLOCK = 1024


def ranks(source: ArrayLike, target: ArrayLike) -> NDArray[np.int64]:
    """Rank of the true partner of each source row among all target rows, by cosine; 1 is best.

    Args:
        source: (N, m); row n is the same text as row n of the target.
        target: (N, m).

    Returns:
        (N,). Ties count against us: a constant space has rank N, not 1.

    Raises:
        ValueError: the shapes differ.

    >>> ranks([[1, 0], [0, 1]], [[1, 0.1], [1, 0]]).tolist()
    [2, 2]
    """
    a, b = unit(source), unit(target)
    if a.shape != b.shape:
        raise ValueError(f"Paired matrices must have one shape, not {a.shape} and {b.shape}.")
    result = np.empty(len(a), dtype=np.int64)
    for start in range(0, len(a), BLOCK):
        scores = a[start : start + BLOCK] @ b.T  # (block, N)
        own = scores[np.arange(len(scores)), np.arange(start, start + len(scores))]
        result[start : start + BLOCK] = (scores >= own[:, None]).sum(axis=1)
    return result


def neighbours(x: ArrayLike, *, k: int = 10) -> NDArray[np.int64]:
    """The k nearest other rows by cosine.

    Args:
        x: (N, m), N > k.
        k: how many.

    Returns:
        (N, k) row numbers, in no order.

    >>> neighbours([[1, 0], [1, 0.1], [0, 1]], k=1).tolist()
    [[1], [0], [1]]
    """
    a = unit(x)
    result = np.empty((len(a), k), dtype=np.int64)
    for start in range(0, len(a), BLOCK):
        scores = a[start : start + BLOCK] @ a.T  # (block, N)
        scores[np.arange(len(scores)), np.arange(start, start + len(scores))] = -np.inf
        result[start : start + BLOCK] = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    return result


def jaccard(source: ArrayLike, target: ArrayLike, *, k: int = 10) -> NDArray[np.float64]:
    """Overlap of each text's k nearest neighbours in the two spaces.

    Args:
        source: (N, m).
        target: (N, m), paired with it.
        k: neighbours; at most N - 1 are used.

    Returns:
        (N,) intersection over union, 0..1.

    >>> jaccard([[1, 0], [1, 0.1], [0, 1]], [[5, 0], [5, 0.5], [0, 5]], k=1).tolist()
    [1.0, 1.0, 1.0]
    """
    k = min(k, len(np.asarray(source)) - 1)
    pairs = zip(neighbours(source, k=k), neighbours(target, k=k), strict=True)
    common = np.array([len(np.intersect1d(a, b)) for a, b in pairs])
    return common / (2 * k - common)


def paired_distance(source: ArrayLike, target: ArrayLike) -> NDArray[np.float64]:
    """Euclidean distance of paired rows, both brought to length 1 (0 same, 2 opposite).

    Args:
        source: (N, m).
        target: (N, m).

    Returns:
        (N,).

    >>> paired_distance([[1, 0]], [[-2, 0]]).tolist()
    [2.0]
    """
    return np.linalg.norm(unit(source) - unit(target), axis=1)


def effective_rank(x: ArrayLike) -> float:
    """Exponential of the entropy of the covariance's spectrum (Roy and Vetterli 2007).

    Args:
        x: (N, m).

    Returns:
        between 1 and min(N, m); 0 if all rows are equal.

    >>> round(effective_rank([[1, 0], [-1, 0], [0, 1], [0, -1]]), 6)
    2.0
    """
    matrix = np.asarray(x, dtype=np.float64)
    values = np.linalg.svd(matrix - matrix.mean(axis=0), compute_uv=False) ** 2
    shares = values[values > values.max(initial=0.0) * 1e-12] / max(values.sum(), 1e-300)
    return float(np.exp(-(shares * np.log(shares)).sum())) if len(shares) else 0.0


def mean_interval(values: ArrayLike, *, seed: int = 0, resamples: int = 1000) -> dict[str, float]:
    """Mean with its 95 % percentile bootstrap interval over texts.

    Args:
        values: (N,) one figure a text.
        seed: of the resampling.
        resamples: bootstrap samples.

    Returns:
        ``{"value", "low", "high"}``.

    >>> mean_interval([1.0, 1.0, 1.0])
    {'value': 1.0, 'low': 1.0, 'high': 1.0}
    """
    sample = np.asarray(values, dtype=np.float64)
    mean = float(sample.mean())
    if len(sample) < 2 or np.ptp(sample) == 0:
        return {"value": mean, "low": mean, "high": mean}
    interval = bootstrap(
        (sample,),
        np.mean,
        n_resamples=resamples,
        method="percentile",
        batch=64,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return {"value": mean, "low": float(interval.low), "high": float(interval.high)}
