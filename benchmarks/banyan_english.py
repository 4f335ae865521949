"""A trained Banyan on the six English STS sets beside the paper; trains nothing.

What: Spearman x 100 of cosines on sts12, sts13, sts14, sts15, stsb and sick, and their plain mean, for the three
poolings of the same weights: `root` (the paper's model), `mean` of the token vectors, `root_mean` (both, each
normalised). Under them the paper's row and how far `root` is from it. Time: about 10 seconds.

    python benchmarks/banyan_english.py --model DIR
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core

from typing import Any

from banyan_common import ENGLISH_SETS, PAPER, data_folder, parser, print_table, save, with_mean
from banyan_runs import scores_by_pooling

from banyan_hf.evaluation.sts import read_pairs


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--model", required=True, help="folder of a trained Banyan")
    args = arguments.parse_args()
    folder = data_folder() / "eval" / "english"
    sets = [read_pairs(folder / f"{name}_test.csv") for name in ENGLISH_SETS]

    rows: list[dict[str, Any]] = [
        {"pooling": pooling, **with_mean(scores)} for pooling, scores in scores_by_pooling(args.model, sets).items()
    ]
    paper = with_mean(PAPER["Banyan"])
    rows.append({"pooling": "paper: root", **paper})
    rows.append({"pooling": "root - paper", **{column: rows[0][column] - paper[column] for column in paper}})
    print_table(rows)
    save(args.output, model=args.model, rows=rows)


if __name__ == "__main__":
    main()
