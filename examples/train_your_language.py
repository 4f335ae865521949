"""Train your language: from a text file to a model with scores, in a folder that is ready for the Hub.

What: a tokenizer and a Banyan are trained on one sentence a line, then scored: on pairs of sentences that people rated
(CSV with sent1, sent2, score), the root beside the plain mean of the same token vectors, so that you see what the tree
adds. Without arguments: Afrikaans, 0.6 million words, scored on SemRel.

    python examples/train_your_language.py                                                   # about 1 CPU minute
    python examples/train_your_language.py my.txt --pairs rated.csv --output my-model --epochs 5
    python examples/train_your_language.py --small     # seconds, no data: docstrings of Python's own library

The first form needs BANYAN_HF_DATA. Prints, last, the scores.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from common import ROOT, console, data, docstrings, ndcg
from rich.table import Table
from sentence_transformers import SentenceTransformer

import banyan_hf
from banyan_hf.encoding import encode
from banyan_hf.evaluation.sts import read_pairs, spearman
from banyan_hf.training.recipe import Recipe
from banyan_hf.training.run import train
from relrep_hf.migration import nearest


def main() -> None:
    arguments = argparse.ArgumentParser(description="Train and score a Banyan on your text.")
    arguments.add_argument("text", nargs="?", help="one sentence a line, plain or .gz; default: Afrikaans")
    arguments.add_argument("--pairs", help="CSV with sent1, sent2, score")
    arguments.add_argument("--epochs", type=float, default=3)
    arguments.add_argument("--output", type=Path, default=ROOT / "out" / "my-language", help="replaced if it is there")
    arguments.add_argument("--small", action="store_true", help="seconds, without data")
    options = arguments.parse_args()

    recipe = Recipe.named("default", epochs=options.epochs)
    text, pairs = options.text, options.pairs
    with tempfile.TemporaryDirectory() as folder:
        if options.small:
            text = f"{folder}/docstrings.txt"
            sentences = docstrings()
            Path(text).write_text("\n".join(sentences.documents + sentences.others) + "\n", encoding="utf-8")
            recipe = replace(recipe, vocab_size=800, hidden_size=64, num_channels=32, num_negatives=200, batch_size=64)
        elif text is None:
            text, pairs = str(data("text/af.txt.gz")), str(data("eval/semrel/af_test.csv"))
        if options.output.exists() and options.output == arguments.get_default("output"):
            shutil.rmtree(options.output)  # of this example, made by an earlier run
        result = train([text], options.output, recipe=recipe)
    console.print(f"{result.steps} steps in {result.seconds:.0f} s, {result.tokens_per_second:,.0f} tokens a second.")

    encoder = SentenceTransformer(str(options.output))  # what anyone will do who gets the folder
    console.print(f"{options.output} opens anywhere ({encoder.get_embedding_dimension()} numbers a text) and holds: "
                  + ", ".join(sorted(path.name for path in options.output.iterdir() if path.is_file())))  # fmt: skip
    model, tokenizer = banyan_hf.load_encoder(str(options.output))
    table = Table("", "Spearman x 100" if pairs else "nDCG@10")
    for pooling in ("root", "mean"):
        model.config.pooling = pooling
        if pairs:
            score = f"{spearman(lambda texts: encode(texts, model, tokenizer), read_pairs(pairs)):.2f}"
        elif options.small:
            ask, answers = (encode(part, model, tokenizer).numpy() for part in (sentences.queries, sentences.documents))
            score = f"{ndcg(nearest(ask, answers), sentences.relevant):.3f}"
        else:
            score = "no --pairs"
        table.add_row({"root": "root of the tree", "mean": "mean of the tokens"}[pooling], score)
    console.print(table)


if __name__ == "__main__":
    main()
