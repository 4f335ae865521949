"""One classifier, many encoders: trained on the vectors of one, used with four.

What: a classifier of questions (TREC, six kinds) is trained once, in a relative space, on all-MiniLM-L6-v2. The same
head then runs on three encoders that it has never seen. `own` is a head trained on that encoder itself; `stitched` is
the one head. The support of the space holds the training questions without their labels: a head for questions wants a
space that has seen questions.

    python examples/one_head_many_encoders.py            # about 2 CPU minutes, 1 when the embeddings are on disk
    python examples/one_head_many_encoders.py --small    # seconds, no data: which module is a docstring of?

Full runs need BANYAN_HF_DATA, and BANYAN_HF_ENCODERS (or the Hub, without GloVe). Prints, last, the table of own and
stitched accuracy on the test set.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
from common import ENCODERS, ROOT, Embeddings, console, data, docstrings_of, encoder, word_vectors
from rich.table import Table
from sentence_transformers import SentenceTransformer

import banyan_hf
from relrep_hf import RelativeHead, RelativeSpace
from relrep_hf.heads import fit_logistic
from relrep_hf.similarity import unit


def trec(part: str) -> list[tuple[str, str]]:
    """Text and label of TREC's questions."""
    rows = [line.split("\t", 1) for line in data(f"classification/trec/{part}.tsv").read_text("utf-8").splitlines()]
    return [(text, label) for label, text in rows]


def modules() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Docstrings of three modules of Python's library, and which one each is of."""
    rows = [(text, name) for name in ("_pydecimal", "typing", "tarfile") for text in docstrings_of(f"{name}.py")]
    random.Random(0).shuffle(rows)
    return rows[: len(rows) * 3 // 4], rows[len(rows) * 3 // 4 :]


def main() -> None:
    arguments = argparse.ArgumentParser(description="One head for many encoders.")
    arguments.add_argument("--small", action="store_true", help="seconds, without data or downloads")
    arguments.add_argument("--output", type=Path, default=ROOT / "out")
    options = arguments.parse_args()

    train, test = modules() if options.small else (trec("train"), trec("test"))
    unique = list(dict.fromkeys(text for text, _ in train))
    if options.small:
        models = {"word-vectors": word_vectors(unique), "word-vectors-32": word_vectors(unique, dims=32)}
        models["banyan"] = SentenceTransformer(banyan_hf.default_model(), device="cpu")
    else:
        names = ["minilm-l6", "minilm-l3", *(["glove-sif"] if (ENCODERS / "glove-sif").is_dir() else []), "banyan"]
        models = {name: encoder(name) for name in names}
    embed = Embeddings(options.output / "embeddings")
    ready = {name: embed(model, name, unique)[0] for name, model in models.items()}
    space = RelativeSpace.fit_embeddings(
        ready, unique, anchors=64 if options.small else 300, selector="random" if options.small else "param",
        show_progress=True,
    )  # fmt: skip
    maps = {name: space.map_for(vectors, name=name) for name, vectors in ready.items()}

    def features(name: str, rows: list[tuple[str, str]]) -> np.ndarray:
        return unit(maps[name](embed(models[name], name, [text for text, _ in rows])[0]))

    labels, truth = [label for _, label in train], np.array([label for _, label in test])
    own = {name: fit_logistic(features(name, train), labels) for name in models}
    first = next(iter(models))
    head = RelativeHead.from_estimator(own[first], space=space.id)
    table = Table("encoder", "dims", "own head", f"head of {first}", "kept")
    kept = []
    for name in models:
        vectors = features(name, test)
        predictions = own[name].predict(vectors), head.predict(vectors)
        accuracy = [float((np.asarray(labels) == truth).mean()) for labels in predictions]
        kept += [accuracy[1] / accuracy[0]] if name != first else []
        dims = str(ready[name].shape[1])
        table.add_row(name, dims, f"{accuracy[0]:.1%}", f"{accuracy[1]:.1%}", f"{accuracy[1] / accuracy[0]:.1%}")
    console.print(table)
    console.print(f"Kept on encoders that the head has not seen: {np.mean(kept):.1%} ({len(test)} test texts).")


if __name__ == "__main__":
    main()
