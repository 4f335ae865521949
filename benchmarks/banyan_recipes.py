"""Compare training recipes at a fixed budget, on development material only (sts16; never the test sets).

What: trains one model per variant on the English corpus with `banyan_hf.training.run.train`, then prints Spearman x 100
on `eval/dev/sts16.csv` for the three poolings, the last logged loss, wall and CPU minutes. A variant is a recipe with
changes, written `name:field=value,field=value`. Time: 2 to 5 minutes for an epoch of 10 million words.

    python benchmarks/banyan_recipes.py --base default --set epochs=1 \\
        as-it-is: uniform:negative_power=0 no-dropout:dropout=0
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from banyan_common import data_folder, parser, print_table, save
from banyan_runs import pooling_scores

from banyan_hf.evaluation.sts import read_pairs
from banyan_hf.training.recipe import Recipe
from banyan_hf.training.run import train


def fields(text: str) -> dict[str, Any]:
    """`a=1,b=null` -> {"a": 1, "b": None}; numbers as YAML reads them, so write 0.001, not 1e-3."""
    return {key: yaml.safe_load(value) for key, value in (pair.split("=") for pair in text.split(",") if pair)}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("variants", nargs="+", help="name:field=value,...")
    arguments.add_argument("--base", default="default", help="the recipe that variants change")
    arguments.add_argument("--set", default="", help="changes for all variants: field=value,...")
    args = arguments.parse_args()
    data = data_folder()
    pairs = read_pairs(data / "eval" / "dev" / "sts16.csv")
    base = replace(Recipe.named(args.base), **fields(args.set))
    rows: list[dict[str, Any]] = []
    for variant in args.variants:
        name, _, changes = variant.partition(":")
        with tempfile.TemporaryDirectory() as scratch:
            wall, cpu = time.monotonic(), time.process_time()
            result = train(
                [str(data / "text" / "en.txt.gz")], Path(scratch, name), recipe=replace(base, **fields(changes))
            )
            wall, cpu = time.monotonic() - wall, time.process_time() - cpu
            scores = pooling_scores(result.folder, [pairs])
        row: dict[str, Any] = {"variant": name, "changes": changes or "-", **scores}
        rows.append({**row, "loss": result.loss, "wall min": wall / 60, "CPU min": cpu / 60})
        print_table(rows)
    save(args.output, base=args.base, set=args.set, rows=rows)


if __name__ == "__main__":
    main()
