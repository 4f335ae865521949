"""The part of the retention report that needs labels: what heads lose in a space, and between encoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from relrep_hf.closed_forms import Aligned
from relrep_hf.heads import fit_logistic
from relrep_hf.metrics import mean_interval
from relrep_hf.similarity import AffineMap, unit

Vectors = Mapping[str, NDArray[np.float32]]


class Task(NamedTuple):
    """A labelled set.

    Args:
        train: texts to train the head on.
        train_labels: their labels.
        test: texts to measure on.
        test_labels: their labels.
    """

    train: Sequence[str]
    train_labels: Sequence[Any]
    test: Sequence[str]
    test_labels: Sequence[Any]


def task_record(
    train: ArrayLike, labels: Sequence[Any], own: ArrayLike, other: ArrayLike, test_labels: Sequence[Any], *,
    other_head: Any = None, other_train: ArrayLike | None = None, head: Any = None, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Accuracy of a head of one encoder on another's vectors, and what it keeps.

    Args:
        train: (N, m) training vectors of the source.
        labels: N labels.
        own: (n, m) test vectors of the source.
        other: (n, m) test vectors of the target.
        test_labels: n labels.
        other_head: head of the target, if it was trained already.
        other_train: (N, m) training vectors of the target, if not.
        head: head of the source, if it was trained already.
        seed: of the bootstrap.

    Returns:
        ``source_own``, ``target_own``, ``stitched`` and ``kept_percent`` (stitched / target_own), with intervals.
    """
    truth = np.asarray(test_labels)
    head = head or fit_logistic(train, labels)
    other_head = other_head or fit_logistic(other_train, labels)  # type: ignore[arg-type]
    hits = head.predict(unit(other)) == truth
    best = other_head.predict(unit(other)) == truth
    rng, draws = np.random.default_rng(seed), 1000
    rows = rng.integers(len(truth), size=(draws, len(truth)))
    kept = 100 * hits[rows].mean(axis=1) / np.maximum(best[rows].mean(axis=1), 1e-9)
    return {
        "source_own": mean_interval(head.predict(unit(own)) == truth, seed=seed),
        "target_own": mean_interval(best, seed=seed),
        "stitched": mean_interval(hits, seed=seed),
        "kept_percent": {
            "value": float(100 * hits.mean() / max(best.mean(), 1e-9)),
            "low": float(np.percentile(kept, 2.5)),
            "high": float(np.percentile(kept, 97.5)),
        },
    }


def alone_record(
    absolute: ArrayLike,
    relative: ArrayLike,
    labels: Sequence[Any],
    *,
    test_absolute: ArrayLike,
    test_relative: ArrayLike,
    test_labels: Sequence[Any],
    head: Any = None,
    seed: int = 0,
) -> dict[str, Any]:
    """What the features of one encoder lose in the space: the same kind of head on absolute and on relative vectors.

    Args:
        absolute: (N, d) training vectors of the encoder.
        relative: (N, m) the same texts in the space.
        labels: N labels.
        test_absolute: (n, d).
        test_relative: (n, m).
        test_labels: n labels.
        head: of the relative vectors, if it was trained already.
        seed: of the bootstrap.

    Returns:
        accuracies ``absolute`` and ``relative``, and ``loss_points``, their difference x 100, with 95 % intervals over
        texts (the loss is paired, so its interval is narrower than theirs).

    >>> x, y = np.random.default_rng(0).normal(size=(2, 60, 3)); labels = (x[:, 0] > 0).tolist()
    >>> record = alone_record(x, x, labels, test_absolute=y, test_relative=y, test_labels=labels)
    >>> record["loss_points"]["value"]
    0.0
    """
    truth = np.asarray(test_labels)
    before = fit_logistic(absolute, labels).predict(unit(test_absolute)) == truth
    after = (head or fit_logistic(relative, labels)).predict(unit(test_relative)) == truth
    return {
        "absolute": mean_interval(before, seed=seed),
        "relative": mean_interval(after, seed=seed),
        "loss_points": mean_interval(100 * (before.astype(np.float64) - after), seed=seed),
    }


def measure_task(
    task: Task,
    train: Vectors,
    test: Vectors,
    *,
    maps: Mapping[str, Mapping[str, AffineMap]],
    aligned: Mapping[tuple[str, str], Mapping[str, Aligned]],
    own: str,
    seed: int = 0,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Train a head on every encoder and run it on every other one, by every method.

    Args:
        task: labelled set.
        train: encoder -> (N, d) absolute vectors of ``task.train``.
        test: encoder -> (n, d) of ``task.test``.
        maps: method -> encoder -> map into the method's space.
        aligned: (source, target) -> closed form -> its two maps.
        own: the method whose loss against absolute vectors is measured.
        seed: of the bootstrap.

    Returns:
        a record an encoder (``alone_record``) and a record a method and ordered pair (``task_record``).

    >>> x, y = np.random.default_rng(0).normal(size=(2, 60, 3))
    >>> task = Task([""] * 60, (x[:, 0] > 0).tolist(), [""] * 60, (y[:, 0] > 0).tolist())
    >>> same = {name: AffineMap(np.eye(3), np.zeros(3), False) for name in "ab"}
    >>> sides = ({"a": x, "b": x}, {"a": y, "b": y})
    >>> alone, pairs = measure_task(task, *sides, maps={"this": same}, aligned={}, own="this")
    >>> len(alone), [record["kept_percent"]["value"] for record in pairs]
    (2, [100.0, 100.0])
    """
    alone: list[dict[str, Any]] = []
    records: list[dict[str, Any]] = []
    for label, each in maps.items():
        before = {name: move(train[name]) for name, move in each.items()}
        after = {name: move(test[name]) for name, move in each.items()}
        heads = {name: fit_logistic(x, task.train_labels) for name, x in before.items()}
        for name in each if label == own else ():
            record = alone_record(
                train[name], before[name], task.train_labels, test_absolute=test[name], test_relative=after[name],
                test_labels=task.test_labels, head=heads[name], seed=seed,
            )  # fmt: skip
            alone.append({"encoder": name, **record})
        for source, target in permutations(each, 2):
            record = task_record(
                before[source], task.train_labels, after[source], after[target], task.test_labels,
                head=heads[source], other_head=heads[target], seed=seed,
            )  # fmt: skip
            records.append({"method": label, "source": source, "target": target, **record})
    for (source, target), forms in aligned.items():
        for label, (left, right) in forms.items():
            record = task_record(
                left(train[source]), task.train_labels, left(test[source]), right(test[target]), task.test_labels,
                other_train=right(train[target]), seed=seed,
            )  # fmt: skip
            records.append({"method": label, "source": source, "target": target, **record})
    return alone, records
