"""What each speed measure of training gains, and what it costs in quality.

What, on the English corpus, one thread:

1. Tokens per CPU second of full training steps with everything on (numba kernels, 1,000 negatives, downward values
   of the leaves only, fused Adam), then with one measure at a time taken away or changed. `gain` is the full speed
   divided by the row's: what having that measure is worth.
2. With `--minutes M`: the measures that change the loss (how many candidates a token is told from) train for M minutes
   each, from the same start, and are scored on the development set sts16: equal
   time, so what a faster step costs in quality shows. The learning rate ends with the clock.

Time: 2 minutes, and M minutes for each of the four losses.

    python benchmarks/banyan_speed_measures.py --minutes 5 --output results/speed_measures.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from banyan_common import data_folder, parser, print_table, save
from banyan_runs import PLAIN, pooling_scores
from banyan_training_speed import Batch, Stepper, make_batches, make_tokenizer

from banyan_hf.evaluation.sts import read_pairs
from banyan_hf.training.run import train

# name -> what differs from the full configuration: fields of the recipe, backend, optimiser
MEASURES: dict[str, dict[str, Any]] = {
    "everything on": {},
    "torch backend instead of the kernels": {"backend": "torch"},
    "exact softmax instead of 1,000 negatives": {"num_negatives": None},
    "4,000 negatives": {"num_negatives": 4000},
    "250 negatives": {"num_negatives": 250},
    "downward values of all nodes": {"down": "nodes"},
    "Adam in a loop over tensors, not fused": {"fused": False},
    "without dropout": {"dropout": 0.0},
    "batches of 128 instead of 512": {"batch_size": 128},
}
LOSSES = {"exact softmax": None, "4,000 negatives": 4000, "1,000 negatives": 1000, "250 negatives": 250}


def speed(batches: Sequence[Batch], vocab_size: int, changes: dict[str, Any]) -> float:
    """Tokens per CPU second of training steps; the first one, which compiles, is not counted."""
    fields = {name: changes[name] for name in ("num_negatives", "dropout") if name in changes}
    options = {name: changes[name] for name in ("backend", "fused") if name in changes}
    stepper = Stepper(vocab_size, replace(PLAIN, **fields), **options)
    if changes.get("down"):
        encoder = stepper.model.banyan
        encoder.entangle = partial(_with_all_nodes, encoder.entangle)  # type: ignore[method-assign]
    stepper.step(batches[0])
    started = time.process_time()
    tokens = sum(stepper.step(batch) for batch in batches[1:])
    return tokens / (time.process_time() - started)


def _with_all_nodes(entangle: Any, *args: Any, down: str, **kwargs: Any) -> Any:
    """The graph with downward values of every node, cut to the leaves afterwards."""
    graph, up, below = entangle(*args, down="nodes", **kwargs)
    return graph, up, below[: graph.n_leaves]


def equal_time(minutes: float) -> list[dict[str, Any]]:
    """Each loss for the same time on one thread, from the same start; the score on the development set."""
    pairs = read_pairs(data_folder() / "eval" / "dev" / "sts16.csv")
    rows: list[dict[str, Any]] = []
    for name, negatives in LOSSES.items():
        with tempfile.TemporaryDirectory() as scratch:
            recipe = replace(PLAIN, num_negatives=negatives, epochs=1000, max_minutes=minutes)
            result = train([str(data_folder() / "text" / "en.txt.gz")], Path(scratch, "run"), recipe=recipe)
            scores = pooling_scores(result.folder, [pairs])
        shown = {f"sts16 {pooling}": scores[pooling] for pooling in ("root", "mean")}
        rows.append({"loss": name, "minutes": minutes, "steps": result.steps, **shown})
        print_table(rows)
    return rows


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--tokenizer", help="folder; default: one is trained on 100,000 lines (10 seconds)")
    arguments.add_argument("--steps", type=int, default=8, help="timed steps of 512 sentences of each row")
    arguments.add_argument("--minutes", type=float, help="also train each loss for this long")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    tokenizer = make_tokenizer(args.tokenizer)
    full, rows = None, []
    for name, changes in MEASURES.items():
        size = changes.get("batch_size", 512)
        batches = make_batches(tokenizer, 1 + args.steps * 512 // size, size)
        rate = speed(batches, len(tokenizer), changes)
        full = full or rate
        rows.append({"measure": name, "tokens/CPU s": round(rate), "gain": full / rate})
    print_table(rows)
    trained = equal_time(args.minutes) if args.minutes else []
    save(args.output, measures=rows, equal_time=trained)


if __name__ == "__main__":
    main()
