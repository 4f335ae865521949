"""See the trees that a Banyan induces: one HTML page, to look at, to print, to send.

What: every sentence of a text becomes a tree in one self-contained file (SVG, no network). Point at a circle, or
reach it with Tab: its phrase, and the phrases nearest to it. The phrase list holds the phrases of all the sentences
(each constituent of two to six tokens), or the lines of `--phrases`.

    python examples/see_the_trees.py                                   # ten sentences; seconds
    python examples/see_the_trees.py --text my.txt --model my-model    # one sentence a line

Prints, last, the number of trees and the page's name: `out/trees.html`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import banyan_hf
from banyan_hf.drawing import draw, page
from banyan_hf.trees import parse

SENTENCES = [
    "The old king of France lived in a castle near Paris.",
    "A young queen ruled the northern kingdom for thirty years.",
    "The orchestra played a symphony by Beethoven at the opening of the new concert hall.",
    "Heavy rain caused floods along the coast and in the valleys of the south.",
    "In the spring of 1914 the company opened a second factory, and two years later it employed 5,000 people.",
    "Wolves hunt deer in the forests of northern Canada.",
    "The parliament passed a law on taxes.",
    "The river flows through the valley into the Black Sea.",
    "Although the first expedition had failed because its ships were crushed by ice, the explorers returned the next "
    "summer with a stronger ship, reached the island before winter, built a small hut of wood and stone on its western "
    "shore, and spent the long dark months there with little food.",
    "Yes.",
]


def main() -> None:
    arguments = argparse.ArgumentParser(description="Trees of a text as one HTML page.")
    arguments.add_argument("--text", type=Path, help="one sentence a line; default: ten sentences")
    arguments.add_argument("--phrases", type=Path, help="one phrase a line; default: the phrases of the text")
    arguments.add_argument("--model", default=banyan_hf.default_model(), help="folder or Hub name of a Banyan")
    arguments.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "out" / "trees.html")
    options = arguments.parse_args()

    model, tokenizer = banyan_hf.load_encoder(options.model)
    texts = (
        [line.strip() for line in options.text.open(encoding="utf-8") if line.strip()] if options.text else SENTENCES
    )
    if options.phrases:
        phrases = [line.strip() for line in options.phrases.open(encoding="utf-8") if line.strip()]
    else:
        spans = [span for tree in parse(texts, model, tokenizer) for span in tree.spans]
        phrases = list(dict.fromkeys(span for span in spans if 2 <= len(span.split()) <= 6))
    figures = draw(texts, model, tokenizer, phrases=phrases)

    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(page(figures, title="Trees that a Banyan induced"), encoding="utf-8")
    print(f"{len(figures)} trees, {len(phrases)} phrases: {options.output}")


if __name__ == "__main__":
    main()
