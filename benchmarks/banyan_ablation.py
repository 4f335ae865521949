"""From Self-StrAE to Banyan one step at a time, and what other trees do: every row is a configuration, not code.

What: trains each row by one pass over the first --words words of text/en.txt.gz, all with one tokenizer, then
prints the mean of the six English STS sets (Spearman x 100) for three poolings: `root` (the model), `mean` of the token
vectors (no tree), `root_mean` (both, each normalised). The two end points are trained with three seeds and shown as
mean and standard deviation. The structure rows are the full model with trees that do not look at the vectors.

Batch and learning rate differ by objective and are shown: the contrastive loss compares all nodes of a batch, so its
cost grows with the square of the batch, and 5e-3 is chosen for cross-entropy (1e-3 is Self-StrAE's). All rows learn
from spans of about ten tokens (which also keeps the torch backend, that linear composition needs, out of long
sentences), with negatives by frequency^0.75 and little dropout; sentences of more than 60 tokens are left out.

Finished rows are kept in --work; the same command goes on. Time: the four runs with linear composition take most of it
(benchmarks/README.md has the measured time).

    python benchmarks/banyan_ablation.py --words 2000000 --output benchmarks/results/ablation.json
    python benchmarks/banyan_ablation.py --rows full left right     # some rows only
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core

import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from banyan_common import ENGLISH_SETS, data_folder, parser, print_table, save
from banyan_runs import POOLINGS, first_words, pooling_scores

from banyan_hf.evaluation.sts import SentencePairs, read_pairs
from banyan_hf.tokenizer import train_tokenizer
from banyan_hf.training.recipe import Recipe
from banyan_hf.training.run import train

COMMON: dict[str, Any] = {
    "tokenizer_kind": "bpe", "vocab_size": 10000, "max_tokens": 60, "span_tokens": 10, "dropout": 0.05,
    "token_dropout": 0.0, "negative_power": 0.75, "epochs": 1, "batch_size": 128,
}  # fmt: skip
CONTRASTIVE = {"objective": "contrastive", "batch_size": 32, "learning_rate": 1e-3}
WIDE = {"num_channels": 16}  # K=16, U=16
STEPS: dict[str, dict[str, Any]] = {
    "Self-StrAE": {"composition": "linear", "entangled": False, **WIDE, **CONTRASTIVE},
    "+ entangled": {"composition": "linear", **WIDE, **CONTRASTIVE},
    "+ diagonal": {**WIDE, **CONTRASTIVE},
    "+ cross-entropy": {**WIDE},
    "full": {},  # + K=128, U=2
    "balanced": {"structure": "balanced"},
    "left": {"structure": "left"},
    "right": {"structure": "right"},
    "random": {"structure": "random"},
}
SEEDS = {"Self-StrAE": (0, 1, 2), "full": (0, 1, 2)}


def run_row(text: Path, tokenizer: Path, folder: Path, recipe: Recipe, sets: list[SentencePairs]) -> dict[str, Any]:
    """Train and score one row with one seed, unless that was done."""
    kept = folder / "row.json"
    if kept.exists():
        return json.loads(kept.read_text(encoding="utf-8"))
    wall, cpu = time.monotonic(), time.process_time()
    train([str(text)], folder, recipe=recipe, tokenizer=str(tokenizer), resume=(folder / "run.json").exists())
    found = {**pooling_scores(folder, sets), "wall_s": time.monotonic() - wall, "cpu_s": time.process_time() - cpu}
    kept.write_text(json.dumps(found), encoding="utf-8")
    return found


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--words", type=int, default=2_000_000)
    arguments.add_argument("--rows", nargs="+", default=list(STEPS), choices=list(STEPS))
    arguments.add_argument("--work", type=Path, default=Path("out/ablation"), help="models, kept")
    args = arguments.parse_args()
    data, work = data_folder(), args.work / str(args.words)
    sets = [read_pairs(data / "eval" / "english" / f"{name}_test.csv") for name in ENGLISH_SETS]
    work.mkdir(parents=True, exist_ok=True)
    text, tokenizer = work / "text.txt", work / "tokenizer"
    if not tokenizer.exists():
        first_words(data / "text" / "en.txt.gz", args.words, text)
        with text.open(encoding="utf-8") as file:
            train_tokenizer(file, COMMON["vocab_size"], show_progress=False).save_pretrained(tokenizer)

    rows: list[dict[str, Any]] = []
    for name in args.rows:
        recipe = Recipe(**{**COMMON, **STEPS[name]})
        runs = []
        for seed in SEEDS.get(name, (0,)):
            folder = work / f"{name.replace('+ ', 'plus-')}-{seed}"
            runs.append(run_row(text, tokenizer, folder, replace(recipe, seed=seed), sets))
        row: dict[str, Any] = {"row": name, "seeds": len(runs)}
        for pooling in POOLINGS:
            values = [run[pooling] for run in runs]
            row[pooling] = statistics.mean(values)
            row[f"{pooling} sd"] = statistics.stdev(values) if len(values) > 1 else None
        rows.append({**row, "batch": recipe.batch_size, "rate": recipe.learning_rate,
                     "CPU min": sum(run["cpu_s"] for run in runs) / 60})  # fmt: skip
        print_table(rows)
    save(args.output, words=args.words, common=COMMON, rows=rows)


if __name__ == "__main__":
    main()
