"""From embeddings to a mixing matrix: split, whiten, and run the selector that was asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from relrep_hf.anchors import Selector, farthest_anchors, kmeans_anchors, random_anchors
from relrep_hf.fitting import ParamSettings, fit_mixing
from relrep_hf.similarity import Similarity, unit
from relrep_hf.statistics import Statistics, fit_statistics, whiten

#: At most so many held-out pairs decide early stopping: their scores cost the square of this.
HELD_OUT = 1000


def check_choices(*, similarity: str, selector: str, shrinkage: float | str | None) -> None:
    """Refuse unknown choices before a text is encoded.

    Args:
        similarity: should be ``"wip"`` or ``"cosine"``.
        selector: should be ``"param"``, ``"random"``, ``"kmeans"`` or ``"farthest"``.
        shrinkage: should be ``None``, a number from 0 to 1 or ``"ledoit-wolf"``.

    Raises:
        ValueError: one of them is not.

    >>> check_choices(similarity="dot", selector="param", shrinkage=None)
    Traceback (most recent call last):
    ...
    ValueError: similarity must be 'wip' or 'cosine', not 'dot'.
    """
    if similarity not in ("wip", "cosine"):
        raise ValueError(f"similarity must be 'wip' or 'cosine', not {similarity!r}.")
    if selector not in ("param", "random", "kmeans", "farthest"):
        raise ValueError(f"selector must be 'param', 'random', 'kmeans' or 'farthest', not {selector!r}.")
    amount = 0.0 if shrinkage in (None, "ledoit-wolf") else shrinkage
    if not isinstance(amount, (int, float)) or not 0 <= amount <= 1:
        raise ValueError(f"shrinkage must be None, a number from 0 to 1 or 'ledoit-wolf', not {shrinkage!r}.")


def principal_directions(stats: Statistics) -> NDArray[np.float64]:
    """Principal components in whitened coordinates, so that their whitened inner product is the plain component.

    Args:
        stats: of one encoder.

    Returns:
        (rank, d), largest variance first; row r has the standard deviation of component r as its length.

    >>> stats = fit_statistics([[-2.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, -1.0]], shrinkage=None)
    >>> np.abs(principal_directions(stats)).round(3).tolist()
    [[1.414, 0.0], [0.0, 0.707]]
    """
    values, vectors = np.linalg.eigh(stats.whitener)  # eigenvalues are 1 / standard deviation, ascending
    kept = values > values.max() * 1e-9
    return (vectors[:, kept] / values[kept]).T


def choose_mixing(
    spaces: Mapping[str, NDArray[np.float64]],
    chosen: NDArray[np.int64],
    rest: NDArray[np.int64],
    *,
    anchors: int,
    similarity: Similarity,
    selector: Selector,
    shrinkage: float | str | None,
    settings: ParamSettings | None = None,
    seed: int = 0,
    show_progress: bool = False,
) -> tuple[NDArray[np.float64], int]:
    """Choose P for the support.

    Args:
        spaces: name -> (N, d_i) paired embeddings.
        chosen: (K,) rows of the support.
        rest: rows that are held out for early stopping; if there are none, a tenth of the support decides how long to
            train, and training then starts anew on all of it.
        anchors: m.
        similarity: ``"wip"`` or ``"cosine"``.
        selector: ``"param"``, ``"random"``, ``"kmeans"`` or ``"farthest"``.
        shrinkage: of WIP's covariance.
        settings: of PARAM.
        seed: decides every random choice.
        show_progress: draw a progress bar.

    Returns:
        P (m, K) and the steps of training (0 for a selector that does not learn).

    Raises:
        ValueError: unknown similarity or selector, or too few texts.

    >>> x = np.random.default_rng(0).normal(size=(30, 2))
    >>> options = {"similarity": "wip", "selector": "random", "shrinkage": None}
    >>> choose_mixing({"a": x}, np.arange(20), np.arange(20, 30), anchors=4, **options)[0].shape
    (4, 20)
    """
    check_choices(similarity=similarity, selector=selector, shrinkage=shrinkage)
    settings = settings or ParamSettings()

    def prepare(rows: NDArray, held: NDArray) -> tuple[list[NDArray], list[NDArray]]:
        """Support rows and held-out rows as the similarity sees them."""
        if similarity == "cosine":
            return [unit(x[rows]) for x in spaces.values()], [unit(x[held]) for x in spaces.values()]
        stats = [fit_statistics(x[rows], shrinkage=shrinkage, name=name) for name, x in spaces.items()]
        inside, outside = (
            [whiten(x[part], each) for x, each in zip(spaces.values(), stats, strict=True)] for part in (rows, held)
        )
        return inside, outside

    points, held = prepare(chosen, rest)
    principal = None
    if similarity == "wip" and len(spaces) == 1 and selector == "param":
        ((name, x),) = spaces.items()
        principal = principal_directions(fit_statistics(x[chosen], shrinkage=shrinkage, name=name))
    if selector == "random":
        return random_anchors(len(chosen), anchors=anchors, seed=seed), 0
    if selector != "param":
        pick = kmeans_anchors if selector == "kmeans" else farthest_anchors
        return pick(np.concatenate([unit(x) for x in points], axis=1), anchors=anchors, seed=seed), 0
    tenth = min(len(chosen) // 10, HELD_OUT)
    if len(rest) == 0 and tenth >= 20 and len(chosen) - tenth >= max(anchors, 20):
        shuffled = np.random.default_rng(seed).permutation(chosen)
        part, outside = prepare(shuffled[tenth:], shuffled[:tenth])
        early = fit_mixing(
            part,
            anchors=anchors,
            similarity=similarity,
            held_out=outside,
            settings=settings,
            seed=seed,
            principal=principal,
            show_progress=show_progress,
        )
        settings = dataclasses.replace(settings, steps=early.steps)
    fitted = fit_mixing(
        points,
        anchors=anchors,
        similarity=similarity,
        held_out=held if len(rest) else None,
        settings=settings,
        seed=seed,
        principal=principal,
        show_progress=show_progress,
    )
    return fitted.mixing, fitted.steps
