"""Fast queries: Banyan encodes them on a CPU, mpnet encoded the documents, in one shared space.

What: an index of 5,000 questions encoded by all-mpnet-base-v2. A query waits for its encoder, so queries are encoded by
something fast: the English Banyan in the box, or MiniLM-L6. Both sides meet in a relative space that was learned from
4,000 other questions; `stitch` makes one sentence-transformers model of the two. Beside it: CCA on the same pairs, and
each encoder on both sides.

    python examples/fast_queries.py            # about 5 CPU minutes, 1 when the embeddings are on disk
    python examples/fast_queries.py --small    # seconds, no data, no download: docstrings of Python's own library

Full runs need BANYAN_HF_DATA, and BANYAN_HF_ENCODERS or the Hub. Draws `out/fast_queries.png` and prints, last, a
table: nDCG@10 against the duplicates that people marked, what it keeps of the document encoder's own, queries a CPU
second.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import matplotlib
import numpy as np
from common import ROOT, Embeddings, console, docstrings, encoder, ndcg, quora, word_vectors
from rich.table import Table

from relrep_hf import RelativeSpace, stitch
from relrep_hf.closed_forms import cca
from relrep_hf.migration import nearest

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def chart(rows: dict[str, tuple[float, float]], path: Path) -> None:
    """Quality against speed; up and to the right is better."""
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, (quality, speed) in rows.items():
        axes.scatter(speed, quality, s=40, color="tab:red" if "stitched" in name else "tab:gray")
        axes.annotate(name, (speed, quality), xytext=(6, 5), textcoords="offset points", fontsize=8)
    axes.set(xscale="log", xlabel="queries encoded a CPU second", ylabel="nDCG@10")
    axes.margins(0.25, 0.15)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    arguments = argparse.ArgumentParser(description="Queries by a fast encoder, documents by a good one.")
    arguments.add_argument("--small", action="store_true", help="seconds, without data or downloads")
    arguments.add_argument("--output", type=Path, default=ROOT / "out")
    options = arguments.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)

    texts = docstrings() if options.small else quora()
    fast, good = (["word-vectors"], "banyan") if options.small else (["banyan", "minilm-l6"], "mpnet")
    models = {n: word_vectors(texts.others) if n == "word-vectors" else encoder(n) for n in (*fast, good)}
    embed = Embeddings(options.output / "embeddings")
    documents, _ = embed(models[good], good, texts.documents)
    others = {name: embed(models[name], name, texts.others)[0] for name in models}

    def speed(model) -> float:
        """Queries a CPU second, of all threads, on 200 queries that are in no cache."""
        model.encode(texts.queries[:32], show_progress_bar=False)
        begun = time.process_time()
        model.encode(texts.queries[-200:], show_progress_bar=False)
        return 200 / (time.process_time() - begun)

    own = ndcg(nearest(embed(models[good], good, texts.queries)[0], documents), texts.relevant)
    rows = {f"{good} on both sides": (own, speed(models[good]))}
    for name in fast:
        asked, rate = embed(models[name], name, texts.queries)[0], speed(models[name])
        alone = nearest(asked, embed(models[name], name, texts.documents)[0])
        rows[f"{name} on both sides"] = (ndcg(alone, texts.relevant), rate)
        pair = {name: others[name], good: others[good]}
        space = RelativeSpace.fit_embeddings(
            pair, texts.others, anchors=64 if options.small else 300, selector="random" if options.small else "param",
            show_progress=True,
        )  # fmt: skip
        model = stitch(query=models[name], document=models[good], space=space, cache=embed.cache.folder)
        mapped = space.map_for(others[good])(documents)
        found = nearest(model.encode_query(texts.queries, show_progress_bar=False), mapped)
        rows[f"{name} and {good}, stitched"] = (ndcg(found, texts.relevant), rate)
        left, right = cca(others[name], others[good])
        rows[f"{name} and {good}, CCA"] = (ndcg(nearest(left(asked), right(documents)), texts.relevant), rate)
    chart(rows, options.output / "fast_queries.png")

    table = Table("queries and documents", "nDCG@10", "kept", "queries a CPU s", "faster")
    slowest = rows[f"{good} on both sides"][1]
    for name, (quality, rate) in rows.items():
        table.add_row(name, f"{quality:.3f}", f"{quality / own:.1%}", f"{rate:,.0f}", f"{rate / slowest:,.1f} x")
    console.print(f"Chart: {options.output / 'fast_queries.png'}", highlight=False)
    console.print(table)


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    main()
