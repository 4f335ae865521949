"""What each choice in PARAM + WIP is worth on one hard pair, MiniLM-L6 / GloVe-SIF.

    python benchmarks/relrep_ablation.py [--cache DIR] [--other USE]

R@1 and mean reciprocal rank among lines 8,001 to 12,000 of en.txt.gz, which neither a fit nor an acceptance figure
uses. Needs what relrep_pairs.py needs. Prints a Markdown table; it is kept in relrep_notes.md.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core

import argparse
import time
from pathlib import Path

from relrep_common import ROOT, Bench, lines

from relrep_hf import ParamSettings
from relrep_hf.metrics import ranks

VARIANTS: dict[str, dict] = {
    "default (m = 300, K = 8,000)": {},
    "spectral start only, no training": {"settings": ParamSettings(steps=0)},
    "alignment loss only": {"settings": ParamSettings(l_cov=0, l_len=0, l_orth=0)},
    "no alignment loss": {"settings": ParamSettings(l_nce=0)},
    "no coverage": {"settings": ParamSettings(l_cov=0)},
    "no length": {"settings": ParamSettings(l_len=0)},
    "no orthogonality": {"settings": ParamSettings(l_orth=0)},
    "temperature 0.05": {"settings": ParamSettings(temperature=0.05)},
    "temperature 0.2": {"settings": ParamSettings(temperature=0.2)},
    "start weighted by rho^2": {"settings": ParamSettings(weight_power=2.0)},
    "m = 50": {"anchors": 50},
    "m = 100": {"anchors": 100},
    "m = 600": {"anchors": 600},
    "K = 1,000": {"support": 1000},
    "K = 2,000": {"support": 2000},
    "K = 4,000": {"support": 4000},
    "no shrinkage": {"shrinkage": None},
    "shrinkage 0.1": {"shrinkage": 0.1},
    "random anchors, WIP": {"selector": "random"},
    "k-means anchors, WIP": {"selector": "kmeans"},
    "farthest anchors, WIP": {"selector": "farthest"},
    "random anchors, cosine": {"selector": "random", "similarity": "cosine"},
    "k-means anchors, cosine": {"selector": "kmeans", "similarity": "cosine"},
    "farthest anchors, cosine": {"selector": "farthest", "similarity": "cosine"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", default=str(ROOT / "results" / "embeddings"), help="folder for embeddings")
    parser.add_argument("--other", default="GloVe-SIF", help="partner of MiniLM-L6 (default: %(default)s)")
    arguments = parser.parse_args()
    bench, pair = Bench(arguments.cache), ("MiniLM-L6", arguments.other)
    texts = lines("text/en.txt.gz", 12000)[8000:]
    print(f"{time.strftime('%Y-%m-%d')}, {Path(__file__).name}, {' / '.join(pair)}, {len(texts):,} pairs\n")
    print("| variant | R@1 there | R@1 back | MRR | steps | CPU seconds of fit |\n|---|---|---|---|---|---|")
    for label, options in VARIANTS.items():
        for name in pair:  # encoding is not part of the time
            bench.embed(name, bench.fit_texts)
        start = time.process_time()
        space = bench.space(pair, **options)
        seconds = time.process_time() - start
        a, b = (bench.relative(space, name, texts) for name in pair)
        there, back = ranks(a, b), ranks(b, a)
        found = [100 * float((rank == 1).mean()) for rank in (there, back)]
        mrr = 50 * float((1 / there).mean() + (1 / back).mean())
        steps = space.settings.get("steps", "-")
        print(f"| {label} | {found[0]:.2f} | {found[1]:.2f} | {mrr:.2f} | {steps} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
