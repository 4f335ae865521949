"""The retention report: what a space keeps, beside every closed form, with intervals.

Two questions, asked apart. *Alignment*: do encoders agree on held-out pairs, and does a head travel between them?
*Information*: what does one encoder lose by going through the space at all? The second needs one encoder only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.progress import track

from relrep_hf.anchors import Selector
from relrep_hf.closed_forms import CLOSED_FORMS, Aligned
from relrep_hf.embedding import EmbeddingCache, encoder_id
from relrep_hf.inputs import Encoders, check_texts, named
from relrep_hf.metrics import effective_rank, jaccard, mean_interval, paired_distance, ranks
from relrep_hf.report_tasks import Task, measure_task
from relrep_hf.similarity import Similarity
from relrep_hf.space import RelativeSpace

#: Spaces without learning that stand beside the fitted one: label -> (selector, similarity).
RIVAL_SPACES: dict[str, tuple[Selector, Similarity]] = {
    "random + cosine": ("random", "cosine"),
    "k-means + cosine": ("kmeans", "cosine"),
    "farthest + cosine": ("farthest", "cosine"),
    "random + WIP": ("random", "wip"),
}
OURS = "this space"


def retrieval_record(source: ArrayLike, target: ArrayLike, *, seed: int = 0) -> dict[str, Any]:
    """Agreement of two spaces on paired texts.

    Args:
        source: (N, m).
        target: (N, m), paired.
        seed: of the bootstrap.

    Returns:
        R@1, R@10, MRR, Jaccard@10 and paired distance with 95 % intervals, and the effective rank of the source.

    >>> retrieval_record(np.eye(3), np.eye(3))["r@1"]["value"]
    1.0
    """
    rank = ranks(source, target)
    return {
        "r@1": mean_interval(rank == 1, seed=seed),
        "r@10": mean_interval(rank <= 10, seed=seed),
        "mrr": mean_interval(1 / rank, seed=seed),
        "jaccard@10": mean_interval(jaccard(source, target), seed=seed),
        "paired_distance": mean_interval(paired_distance(source, target), seed=seed),
        "effective_rank": effective_rank(source),
    }


def retention_report(
    space: RelativeSpace,
    encoders: Encoders,
    held_out: Sequence[str],
    *,
    fit_texts: Sequence[str] | None = None,
    tasks: Mapping[str, Task] | None = None,
    rivals: bool = True,
    cache: str | os.PathLike[str] | None = None,
    batch_size: int = 32,
    seed: int = 0,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Measure a space on texts it has not seen: every encoder alone, and every ordered pair of encoders.

    Args:
        space: the fitted space.
        encoders: one or more, whether they were in ``fit`` or not. One alone has no pairs and no rivals: the report
            then says only what its own features lose.
        held_out: texts that are in neither ``fit_texts`` nor the support.
        fit_texts: what the rivals learn from; the support if not given.
        tasks: name -> labelled set; a head is trained on each source and run on each target.
        rivals: whether to measure the closed forms and the unlearned spaces too.
        cache: folder for embeddings.
        batch_size: texts in one forward pass.
        seed: of rivals and bootstrap.
        show_progress: draw progress bars.

    Returns:
        JSON-ready: ``space``, ``encoders`` (dimension and effective ranks), ``texts``, ``alone`` (task -> a record an
        encoder), ``pairs`` (source, target, methods -> record), ``tasks`` and ``verdict``, sentences that say who wins.

    Raises:
        ValueError: no encoder, or held-out texts that the space was fitted on.
    """
    models = named(encoders)
    rivals = rivals and len(models) > 1  # a rival is another way to align; one encoder has nothing to align with
    held_out, fit_texts = check_texts(held_out), check_texts(fit_texts or space.support)
    seen = set(space.support) | set(fit_texts)
    overlap = sum(text in seen for text in held_out)
    if overlap or len(held_out) < 2:
        raise ValueError(
            f"{overlap} of {len(held_out)} held-out texts were used in fitting; their figures would flatter the space. "
            "Give at least two texts that are in neither the support nor fit_texts."
        )
    store = EmbeddingCache(cache)
    ids = {name: encoder_id(model) for name, model in models.items()} if cache is not None else {}

    def embed(texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        return store.embed_each(models, texts, ids=ids, batch_size=batch_size, show_progress=show_progress)

    support, test = embed(space.support), embed(held_out)
    fitted = embed(fit_texts) if rivals else {}
    maps = {OURS: {name: space.map_for(support[name], name=name) for name in models}}
    for label, (selector, similarity) in RIVAL_SPACES.items() if rivals else ():
        rival = RelativeSpace.fit_embeddings(
            fitted, fit_texts, anchors=min(space.anchors, len(fit_texts)), similarity=similarity, selector=selector,
            shrinkage=space.shrinkage if space.similarity == "wip" else "ledoit-wolf", seed=seed,
        )  # fmt: skip
        maps[label] = {name: rival.map_for(fitted[name], name=name) for name in models}
    relative = {label: {name: each[name](test[name]) for name in models} for label, each in maps.items()}
    aligned: dict[tuple[str, str], dict[str, Aligned]] = {}
    pairs = []
    for source, target in track(
        list(permutations(models, 2)), description="measuring pairs", disable=not show_progress
    ):
        methods = {
            label: retrieval_record(vectors[source], vectors[target], seed=seed) for label, vectors in relative.items()
        }
        for label, closed_form in CLOSED_FORMS.items() if rivals else ():
            aligned[source, target] = aligned.get((source, target), {})
            left, right = aligned[source, target][label] = closed_form(fitted[source], fitted[target])
            methods[label] = retrieval_record(left(test[source]), right(test[target]), seed=seed)
        pairs.append({"source": source, "target": target, "methods": methods})
    task_records, alone_records = {}, {}
    for title, task in (tasks or {}).items():
        vectors = embed(task.train), embed(task.test)
        alone_records[title], records = measure_task(task, *vectors, maps=maps, aligned=aligned, own=OURS, seed=seed)
        if records:
            task_records[title] = records
    sizes = {
        name: {
            "dim": int(test[name].shape[1]),
            "effective_rank": {"absolute": effective_rank(test[name]), "relative": effective_rank(vectors)},
        }
        for name, vectors in relative[OURS].items()
    }
    return {
        "space": {"id": space.id, "anchors": space.anchors, "similarity": space.similarity, "selector": space.selector},
        "encoders": sizes,
        "texts": {"fit": len(fit_texts), "held_out": len(held_out)},
        "alone": alone_records,
        "pairs": pairs,
        "tasks": task_records,
        "verdict": verdict(pairs, task_records, alone_records),
    }


def verdict(
    pairs: Sequence[Mapping[str, Any]],
    tasks: Mapping[str, Sequence[Mapping[str, Any]]],
    alone: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[str]:
    """Say in words what each encoder loses in the space and how the space stands against its rivals.

    Args:
        pairs: as in the report.
        tasks: as in the report.
        alone: as in the report.

    Returns:
        one sentence a pair, a task, and an encoder and task.

    >>> record = {"r@1": {"value": 0.5, "low": 0.4, "high": 0.6}}
    >>> methods = {"this space": record, "cca": {"r@1": {"value": 0.9}}}
    >>> verdict([{"source": "a", "target": "b", "methods": methods}], {}, {})
    ['a -> b: cca wins, R@1 90.0 against 50.0 (40.0 to 60.0) of this space.']
    >>> methods["cca"]["r@1"]["value"] = 0.5
    >>> verdict([{"source": "a", "target": "b", "methods": methods}], {}, {})
    ['a -> b: this space and cca find as many, R@1 50.0 (40.0 to 60.0).']
    """
    sentences = []
    for pair in pairs:
        own = pair["methods"][OURS]["r@1"]
        head = f"{pair['source']} -> {pair['target']}: "
        figure = f"{100 * own['value']:.1f} ({100 * own['low']:.1f} to {100 * own['high']:.1f})"
        others = {label: record["r@1"]["value"] for label, record in pair["methods"].items() if label != OURS}
        if not others:
            sentences.append(f"{head}R@1 {figure}; no rivals were measured.")
            continue
        best = max(others, key=lambda label: others[label])
        other = others[best]
        if other > own["high"]:
            sentences.append(f"{head}{best} wins, R@1 {100 * other:.1f} against {figure} of this space.")
        elif other > own["value"]:
            sentences.append(f"{head}{best} is ahead within the interval, R@1 {100 * other:.1f} against {figure}.")
        elif other == own["value"]:
            sentences.append(f"{head}this space and {best} find as many, R@1 {figure}.")
        else:
            sentences.append(f"{head}this space is best, R@1 {figure}; next is {best} with {100 * other:.1f}.")
    for title, records in tasks.items():
        kept: dict[str, list[float]] = {}
        for record in records:
            kept.setdefault(record["method"], []).append(record["kept_percent"]["value"])
        means = {label: float(np.mean(values)) for label, values in kept.items()}
        best = max(means, key=lambda label: means[label])
        tail = "" if best == OURS else f"; {best} keeps more: {means[best]:.1f} %"
        sentences.append(f"{title}: heads keep {means[OURS]:.1f} % of the target's own accuracy{tail}.")
    for title, records in alone.items():
        for record in records:
            loss, own = record["loss_points"], record["absolute"]["value"]
            sentences.append(
                f"{title}: {record['encoder']} alone loses {loss['value']:.1f} points ({loss['low']:.1f} to "
                f"{loss['high']:.1f}) of {100 * own:.1f} by going through the space."
            )
    return sentences
