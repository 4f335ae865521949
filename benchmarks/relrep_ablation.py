"""What each choice in PARAM + WIP is worth: R@1 on lines 2,001 to 5,000 of en.dev, which no acceptance figure uses.

python benchmarks/relrep_ablation.py [--cache DIR]; needs what relrep_pairs.py needs.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from relrep_pairs import ROOT, Bench, both_ways, lines

from relrep_hf import ParamSettings, RelativeSpace

VARIANTS: dict[str, dict] = {
    "default": {},
    "spectral start only, no training": {"settings": ParamSettings(steps=0)},
    "alignment loss only": {"settings": ParamSettings(l_cov=0, l_len=0, l_orth=0)},
    "other losses at 0.1": {"settings": ParamSettings(l_cov=0.1, l_len=0.1, l_orth=0.1)},
    "temperature 0.05": {"settings": ParamSettings(temperature=0.05)},
    "temperature 0.2": {"settings": ParamSettings(temperature=0.2)},
    "start weighted by rho^2": {"settings": ParamSettings(weight_power=2.0)},
    "learning rate 3e-3": {"settings": ParamSettings(learning_rate=3e-3)},
    "shrinkage 0.1": {"shrinkage": 0.1},
    "no shrinkage": {"shrinkage": None},
    "support of 4,000": {"support": 4000},
    "random anchors, WIP": {"selector": "random"},
    "k-means anchors, WIP": {"selector": "kmeans"},
    "k-means anchors, cosine": {"selector": "kmeans", "similarity": "cosine"},
    "PARAM (softmax, from k-means), cosine": {"similarity": "cosine"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", default=str(ROOT / "results" / "embeddings"))
    bench = Bench(parser.parse_args().cache)
    dev = lines("text/en.dev.txt.gz", 5000)[2000:]
    print(f"{time.strftime('%Y-%m-%d')}, {Path(__file__).name}, R@1 both directions, seconds of fit")
    for label, options in VARIANTS.items():
        parts = []
        for pair in (("MiniLM-L6", "GloVe-SIF"), ("MiniLM-L6", "USE")):
            start = time.perf_counter()
            space: RelativeSpace = bench.space(pair, **options)
            seconds = time.perf_counter() - start
            figures = both_ways(*(bench.map(space, name)(bench.embed(name, dev)) for name in pair))
            parts.append(f"{pair[1]} {figures[0]:.2f} {figures[1]:.2f} ({seconds:.0f} s)")
        sparse = bench.space(("MiniLM-L6", "USE"), **options) if label == "default" else None
        print(f"{label}: " + "; ".join(parts), flush=True)
        for top_k in (4000, 1000, 250) if sparse else ():
            small = sparse.sparsified(top_k)
            figures = both_ways(*(bench.map(small, n)(bench.embed(n, dev)) for n in ("MiniLM-L6", "USE")))
            print(f"default, {top_k} weights kept a row: USE {figures[0]:.2f} {figures[1]:.2f}", flush=True)


if __name__ == "__main__":
    main()
