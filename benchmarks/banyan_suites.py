"""The paper's English tables: similarity, words, retrieval and classification, for the box and for its peers.

What: runs `banyan evaluate` (MTEB on local files) with the suites english, lexical, retrieval and classification on the
English model in the box with its three poolings, and on the encoders named by --peers in `BANYAN_HF_ENCODERS`, all by
the same code; prints one table, with the paper's Banyan beside it where its number is for the same data. SST-2 and MRPC
stand there twice: `_paper` is a small classifier on all frozen embeddings (mean of 5 seeds, spread below), `_mteb` is
MTEB's way (8 texts of each label; best threshold). `quora_small` is easier than the paper's Quora: no paper figure.

Results stay in --work (JSON for each task, table.md, chart.svg); the same command goes on where it was stopped.

Time: 4 minutes for the box and the static encoders; a transformer such as minilm-l6 takes 10 more.

    python benchmarks/banyan_suites.py --peers static-64d glove-sif --output benchmarks/results/suites.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core

import json
from pathlib import Path
from typing import Any

from banyan_common import ENGLISH_SETS, PAPER, data_folder, encoder_folder, parser, print_table, save
from banyan_runs import POOLINGS, box_with_pooling

from banyan_hf.evaluation.report import read_results
from banyan_hf.evaluation.runner import evaluate, result_folder
from banyan_hf.evaluation.suites import entries

SUITES = ("english", "lexical", "retrieval", "classification")
PAPER_SCORES = {
    **dict(zip(ENGLISH_SETS, PAPER["Banyan"], strict=True)),
    "simlex": 14.65, "sst2_paper": 75.96, "mrpc_paper": 79.48,
}  # fmt: skip


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--suites", nargs="+", default=list(SUITES), choices=SUITES)
    arguments.add_argument("--peers", nargs="*", default=["static-64d", "glove-sif"], help="folders of built encoders")
    arguments.add_argument("--work", type=Path, default=Path("out/suites"), help="results, kept")
    args = arguments.parse_args()
    rows = entries(args.suites, data_folder())
    models = [box_with_pooling(pooling, args.work / "models" / f"box-{pooling}") for pooling in POOLINGS]
    models += [path for name in args.peers if (path := encoder_folder(name)) is not None]
    spreads: dict[str, dict[str, float]] = {}
    for model in models:
        print(f"{model.name}:", flush=True)
        evaluate(str(model), rows, args.work / "results", resume=True, trust_remote_code=True)
        spreads[model.name] = spread_of_seeds(result_folder(str(model), args.work / "results"))

    names, found = read_results(args.work / "results")
    table: list[dict[str, Any]] = []
    for suite, task, scores in found:
        paper = None if task == "mean" else PAPER_SCORES.get(task)
        if (suite, task) == ("english", "mean"):
            paper = sum(PAPER["Banyan"]) / len(ENGLISH_SETS)
        table.append({"suite": suite, "task": task, **dict(zip(names, scores, strict=True)), "paper": paper})
    print_table(table)
    print(f"Standard deviation over 5 seeds: {spreads}")
    save(args.output, rows=table, spreads=spreads)


def spread_of_seeds(folder: Path) -> dict[str, float]:
    """Standard deviation of the main score over seeds, x 100, of the tasks that have seeds."""
    spreads = {}
    for task, score in (("sst2_paper", "accuracy"), ("mrpc_paper", "f1")):
        if (folder / f"{task}.json").exists():
            result = json.loads((folder / f"{task}.json").read_text(encoding="utf-8"))
            spreads[task] = round(100 * result["scores"]["test"][0][f"{score}_std"], 2)
    return spreads


if __name__ == "__main__":
    main()
