"""Anchor selectors: each returns a row-stochastic mixing matrix P (m, K), so that the anchors of a space are ``P X``.

All encoders share P, which is why the selectors look at one matrix that describes the support texts for all encoders
at once (their whitened or normalised embeddings side by side).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.cluster import MiniBatchKMeans

Selector = Literal["param", "random", "kmeans", "farthest"]


def check_count(anchors: int, support: int) -> None:
    """Refuse a number of anchors that the support cannot give.

    Args:
        anchors: m.
        support: K.

    Raises:
        ValueError: m < 1 or m > K.

    >>> check_count(5, 3)
    Traceback (most recent call last):
    ...
    ValueError: anchors=5, but there are only 3 different support texts; ...
    """
    if not 1 <= anchors <= support:
        raise ValueError(
            f"anchors={anchors}, but there are only {support} different support texts; "
            f"mixtures of {support} texts span at most {support} anchors. Give more texts or ask for fewer anchors."
        )


def one_hot(indices: ArrayLike, *, support: int) -> NDArray[np.float64]:
    """Write chosen texts as a mixing matrix.

    Args:
        indices: (m,) rows of the support.
        support: K.

    Returns:
        (m, K).

    >>> one_hot([2, 0], support=3).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    chosen = np.asarray(indices)
    mixing = np.zeros((len(chosen), support))
    mixing[np.arange(len(chosen)), chosen] = 1.0
    return mixing


def random_anchors(support: int, *, anchors: int, seed: int = 0) -> NDArray[np.float64]:
    """Draw m support texts without replacement (the classical choice of Moschella et al. 2023).

    Args:
        support: K.
        anchors: m.
        seed: of the draw.

    Returns:
        (m, K), rows one-hot.

    >>> random_anchors(4, anchors=4).sum(axis=0).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    check_count(anchors, support)
    return one_hot(np.random.default_rng(seed).choice(support, anchors, replace=False), support=support)


def kmeans_anchors(points: ArrayLike, *, anchors: int, seed: int = 0) -> NDArray[np.float64]:
    """Take the centres of k-means: row r of P is uniform over the texts of cluster r.

    Args:
        points: (K, D) the support as all encoders see it.
        anchors: m.
        seed: of k-means.

    Returns:
        (m, K).

    >>> kmeans_anchors([[0.0], [0.1], [9.0], [9.1]], anchors=2).max(axis=1).tolist()
    [0.5, 0.5]
    """
    matrix = np.asarray(points, dtype=np.float64)
    check_count(anchors, len(matrix))
    model = MiniBatchKMeans(anchors, n_init=1, batch_size=2048, random_state=seed).fit(matrix)
    mixing = np.zeros((anchors, len(matrix)))
    mixing[model.labels_, np.arange(len(matrix))] = 1.0
    empty = np.flatnonzero(mixing.sum(axis=1) == 0)
    if len(empty):  # duplicated texts can leave a cluster without members: give it the nearest text to its centre
        distances = ((matrix[None] - model.cluster_centers_[empty][:, None]) ** 2).sum(axis=2)
        mixing[empty, distances.argmin(axis=1)] = 1.0
    return mixing / mixing.sum(axis=1, keepdims=True)


def farthest_anchors(points: ArrayLike, *, anchors: int, seed: int = 0) -> NDArray[np.float64]:
    """Greedy farthest-point traversal: each anchor is the text farthest from those already chosen (Gonzalez 1985).

    Args:
        points: (K, D) the support as all encoders see it.
        anchors: m.
        seed: of the first anchor.

    Returns:
        (m, K), rows one-hot and different, also when points coincide.

    >>> sorted(farthest_anchors([[0.0], [1.0], [9.0]], anchors=2)[:, 2].tolist())
    [0.0, 1.0]
    """
    matrix = np.asarray(points, dtype=np.float64)
    check_count(anchors, len(matrix))
    chosen = [int(np.random.default_rng(seed).integers(len(matrix)))]
    nearest = np.full(len(matrix), np.inf)  # (K,) squared distance to the chosen set
    squares = (matrix**2).sum(axis=1)
    for _ in range(anchors - 1):
        last = chosen[-1]
        nearest = np.minimum(nearest, squares - 2 * (matrix @ matrix[last]) + squares[last])  # no (K, D) temporary
        nearest[chosen] = -1.0
        chosen.append(int(nearest.argmax()))
    return one_hot(chosen, support=len(matrix))


def sparsify(mixing: ArrayLike, *, top_k: int) -> NDArray[np.float64]:
    """Keep the k largest weights of every row and rescale the row to sum 1.

    Args:
        mixing: (m, K) row-stochastic.
        top_k: weights to keep.

    Returns:
        (m, K) row-stochastic.

    Raises:
        ValueError: top_k is not between 1 and K.

    >>> sparsify([[0.5, 0.25, 0.25]], top_k=1).tolist()
    [[1.0, 0.0, 0.0]]
    """
    matrix = np.asarray(mixing, dtype=np.float64)
    if not 1 <= top_k <= matrix.shape[1]:
        raise ValueError(f"top_k={top_k} must lie between 1 and the {matrix.shape[1]} support texts.")
    kept = np.argpartition(-matrix, top_k - 1, axis=1)[:, :top_k]
    sparse = np.zeros_like(matrix)
    np.put_along_axis(sparse, kept, np.take_along_axis(matrix, kept, axis=1), axis=1)
    return sparse / sparse.sum(axis=1, keepdims=True)
