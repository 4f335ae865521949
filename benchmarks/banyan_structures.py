"""Cheap alternatives to greedy merging, each trained and scored: does any make better trees? (an open question)

What: trains one Banyan per way of choosing the next merge, on the first --words words of text/en.txt.gz, and prints the
loss on held-out text (text/en.dev.txt.gz), Spearman x 100 on the development set sts16 for three poolings (never a
test set), how deep the trees are, and CPU minutes. Ways:

    greedy       the pair with the highest cosine (the model)
    dot          the highest inner product: long, that is rare and informative, vectors merge first
    height       cosine - 0.05 for every level below the pair: prefers balanced trees
    look-ahead   the pair whose cosine most exceeds the mean of the two pairs that the merge would destroy

A way is the package's own kernel with one line of its source replaced, compiled beside it: no option of the package.

    python benchmarks/banyan_structures.py --words 2000000 --output benchmarks/results/structures.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core

import gzip
import importlib.util
import math
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from banyan_common import data_folder, parser, print_table, save
from banyan_runs import ONLY_MIN_STEPS, PLAIN, first_words, mean_loss, pooling_scores

from banyan_hf.evaluation.sts import read_pairs
from banyan_hf.model import numba_backend, numba_kernels
from banyan_hf.persistence import load_encoder
from banyan_hf.training.run import train
from banyan_hf.trees import parse

COSINE = "return np.float32(dot / max(norms[left] * norms[right], 1e-30))"
BETTER = "if score[i] > score[best]:"
GAIN = """

@_jit(inline="always")
def _gain(score, i, length):
    total, n = 0.0, 0
    for j in (i - 1, i + 1):
        if 0 <= j < length - 1:
            total, n = total + score[j], n + 1
    return score[i] - total / max(n, 1)


@_jit()
def induce("""
WAYS: dict[str, list[tuple[str, str]]] = {
    "greedy": [],
    "dot": [(COSINE, "return np.float32(dot)")],
    "height": [(COSINE, COSINE[:-1] + " - 0.05 * max(heights[left], heights[right]))")],
    "look-ahead": [
        ("\n\n@_jit()\ndef induce(", GAIN),
        (BETTER, "if _gain(score, i, length) > _gain(score, best, length):"),
    ],
}


def changed_source(changes: list[tuple[str, str]]) -> str:
    """The package's kernels with lines of their source replaced."""
    source = Path(numba_kernels.__file__).read_text(encoding="utf-8")
    for old, new in changes:
        if source.count(old) != 1:
            raise SystemExit(f"numba_kernels.py has {source.count(old)} times {old!r}: bring this script up to date.")
        source = source.replace(old, new)
    return source.replace("from .", "from banyan_hf.model.")


def kernels_of(way: str, folder: Path) -> ModuleType:
    """The kernels that choose merges in this way; numba compiles them as a module of their own."""
    path = folder / f"kernels_{way.replace('-', '_')}.py"
    path.write_text(changed_source(WAYS[way]), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("ways", nargs="*", default=list(WAYS), help=f"default: {' '.join(WAYS)}")
    arguments.add_argument("--words", type=int, default=2_000_000)
    arguments.add_argument("--steps", type=int, default=700, help="of 256 sentences; two passes over 2 million words")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--work", type=Path, default=Path("out/structures"), help="models, kept")
    args = arguments.parse_args()
    data, work = data_folder(), args.work / f"{args.words}-{args.seed}"
    pairs = read_pairs(data / "eval" / "dev" / "sts16.csv")
    with gzip.open(data / "text" / "en.dev.txt.gz", "rt", encoding="utf-8") as file:
        held_out = [line.strip() for line in file if line.strip()]
    work.mkdir(parents=True, exist_ok=True)
    first_words(data / "text" / "en.txt.gz", args.words, work / "text.txt")

    rows: list[dict[str, Any]] = []
    for way in args.ways:
        numba_backend.kernels = kernels_of(way, work)
        folder, cpu = work / way, time.process_time()
        recipe = replace(PLAIN, epochs=ONLY_MIN_STEPS, min_steps=args.steps, seed=args.seed)
        # All ways share the tokenizer of the first; the output layer, which the loss needs, is in the checkpoint only.
        first = work / args.ways[0]
        tokenizer = str(first) if (first / "config.json").exists() else None
        if not (folder / "config.json").exists():
            train([str(work / "text.txt")], folder, recipe=recipe, tokenizer=tokenizer, save_steps=args.steps,
                  resume=(folder / "run.json").exists())  # fmt: skip
        cpu = time.process_time() - cpu
        row: dict[str, Any] = {"way": way, "held-out loss": mean_loss(folder, held_out)}
        row.update({f"sts16 {pooling}": score for pooling, score in pooling_scores(folder, [pairs]).items()})
        model, tok = load_encoder(str(folder))
        trees = [tree for tree in parse(held_out[:1000], model, tok) if len(tree.tokens) > 1]
        row["height / log2(n)"] = sum(t.height / math.log2(len(t.tokens)) for t in trees) / len(trees)
        rows.append({**row, "CPU min": cpu / 60})
        print_table(rows)
    save(args.output, words=args.words, steps=args.steps, seed=args.seed, rows=rows)


if __name__ == "__main__":
    main()
