"""Six languages: train, score, and set beside word2vec on the same text, multilingual e5, USE and the paper.

What: for each of af, am, ar, es, hi, id, trains a Banyan on text/XX.txt.gz with the recipe `lang` (no setting knows the
language), trains gensim's skip-gram word2vec on the same text cut into the tokenizer's words, and scores both on
SemRel's test set; the multilingual encoders are scored beside them where `BANYAN_HF_ENCODERS` has them. One table of
Spearman x 100. `word2vec` is the plain mean, trained for as many passes as Banyan and never for fewer than its usual 5;
`over` is Banyan's root minus that, `low` and `high` its 95 % interval (bootstrap over the pairs). `word2vec, pieces`
learned from the text cut by Banyan's tokenizer; its distance from `word2vec` is what whole words are worth. Three
controls say what training is worth: the token mean with all vectors of `equal lengths`, with `random directions`, and
with `both`, which is the plain overlap of tokens. The nine languages of the paper hold ha, mr and te, for which there
is no text here, so its mean (60.01) has other columns.

Everything is kept in --work: the same command goes on where it was stopped, and finished languages are only scored.

Time: see benchmarks/README.md. `--held-out STEPS,STEPS` trains on 49 of 50 lines and prints the loss on the others for
each number of steps: that, and no test set, is for choosing the number in a recipe.

    python benchmarks/banyan_languages.py --output benchmarks/results/languages.json
    python benchmarks/banyan_languages.py --languages es id --seed 1 --work out/seed1
    python benchmarks/banyan_languages.py --languages af --held-out 1000,2000
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core

import gzip
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from banyan_common import data_folder, encoder_folder, parser, print_table, save
from banyan_runs import (
    ONLY_MIN_STEPS,
    correlation,
    equal_lengths,
    interval,
    mean_loss,
    pooling_scores,
    random_directions,
)
from gensim.models.keyedvectors import KeyedVectors
from peers import SETTINGS, Cut, sentence_vectors, tokens_cutter, train_peer, words_cutter, write_corpus
from torch import Tensor
from torch.nn.functional import cosine_similarity

from banyan_hf.encoding import encode
from banyan_hf.evaluation.runner import evaluate
from banyan_hf.evaluation.sts import read_pairs
from banyan_hf.evaluation.suites import SEMREL, entries
from banyan_hf.persistence import load_encoder
from banyan_hf.training.recipe import Recipe
from banyan_hf.training.run import train

PAPER_NINE = 60.01
PEERS = {"e5 multilingual": "e5-multilingual", "USE multilingual": "use-multilingual"}
HELD_OUT_EVERY = 50
CONTROLS = {
    "equal lengths": equal_lengths,
    "random directions": random_directions,
    "both": lambda table: equal_lengths(random_directions(table)),
}
BATCH_SIZE = Recipe.named("lang").batch_size


def train_language(text: Path, folder: Path, recipe: Recipe) -> None:
    """Train, or go on, or do nothing; what it cost is written beside the model."""
    if (folder / "config.json").exists():
        trained = json.loads((folder / "run.json").read_text(encoding="utf-8"))["recipe"]
        if trained != recipe.to_dict():
            sys.exit(
                f"{folder} was trained with another seed or another recipe than today's `lang`: "
                "remove it, or name another --work."
            )
        return
    result = train([str(text)], folder, recipe=recipe, resume=(folder / "run.json").exists())
    sentences = len(result.corpus.sentences)
    cost = {"seconds": result.seconds, "steps": result.steps, "passes": result.steps * BATCH_SIZE / sentences}
    (folder / "cost.json").write_text(json.dumps(cost), encoding="utf-8")


def held_out_losses(text: Path, folder: Path, steps: list[int], recipe: Recipe) -> dict[int, float]:
    """Loss on every fiftieth line after training on the others, for each number of steps."""
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(text, "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    held_out = [line for line in lines[::HELD_OUT_EVERY] if line.strip()]
    (folder / "train.txt").write_text(
        "\n".join(line for i, line in enumerate(lines) if i % HELD_OUT_EVERY) + "\n", encoding="utf-8"
    )
    losses = {}
    for number in steps:
        run = folder / str(number)
        # The output layer, which the loss needs, is in the checkpoint only.
        if not (run / "config.json").exists():
            shorter = replace(recipe, epochs=ONLY_MIN_STEPS, min_steps=number)
            resume = (run / "run.json").exists()
            train([str(folder / "train.txt")], run, recipe=shorter, save_steps=number, resume=resume)
        losses[number] = mean_loss(run, held_out)
        print(f"{text.name}: held-out loss after {number} steps {losses[number]:.3f}", flush=True)
    return losses


def training_cost(folder: Path) -> dict[str, Any]:
    """What training the Banyan in `folder` took: seconds, steps, passes."""
    return json.loads((folder / "cost.json").read_text(encoding="utf-8"))


def word2vec_passes(cost: dict[str, Any]) -> int:
    """As many as Banyan made, and never fewer than word2vec's usual number."""
    return max(SETTINGS["epochs"], math.ceil(cost["passes"]))


def word2vec(text: Path, cut: Cut, folder: Path, unit: str, *, passes: int) -> KeyedVectors:
    """Skip-gram vectors of the same text, trained once and kept."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = folder / f"word2vec-sg-{unit}-{passes}"
    train_peer("word2vec-sg", write_corpus(text, cut, folder / f"{unit}.txt"), trained, workers=1, epochs=passes)
    return KeyedVectors.load(str(trained / "vectors.kv"))


def cosines(vectors: Tensor | np.ndarray) -> np.ndarray:
    """Of the first with the second half of the rows."""
    first, second = torch.as_tensor(vectors).float().chunk(2)
    return cosine_similarity(first, second).numpy()


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--languages", nargs="+", default=list(SEMREL), choices=list(SEMREL))
    arguments.add_argument("--work", type=Path, default=Path("out/languages"), help="models and peers, kept")
    arguments.add_argument("--seed", type=int, default=0, help="of Banyan's training; each seed needs its own --work")
    arguments.add_argument("--held-out", help="numbers of steps to compare on held-out lines, instead of the table")
    args = arguments.parse_args()
    data = data_folder()

    recipe = Recipe.named("lang", seed=args.seed)
    if args.held_out:
        steps = [int(number) for number in args.held_out.split(",")]
        rows = []
        for code in args.languages:
            losses = held_out_losses(data / "text" / f"{code}.txt.gz", args.work / "held_out" / code, steps, recipe)
            rows.append({"language": code, **{f"{number} steps": loss for number, loss in losses.items()}})
        print_table(rows)
        save(args.output, held_out=rows)
        return

    rows = [language_row(code, data, args.work, recipe) for code in args.languages]
    for name, folder in PEERS.items():
        if (path := encoder_folder(folder)) is not None:
            semrel = [entry for entry in entries(["semrel"], data) if entry.name[-2:] in args.languages]
            scores = evaluate(str(path), semrel, args.work / "results", resume=True, trust_remote_code=True)
            for row in rows:
                row[name] = scores[f"semrel_{row['language']}"]
    mean: dict[str, Any] = {"language": "mean", "words": None, "pairs": None}
    for name in list(rows[0])[3:]:
        values = [row[name] for row in rows]
        mean[name] = None if None in values or name in ("low", "high") else sum(values) / len(values)
    rows.append(mean)
    print_table(rows)
    print(f"The paper's mean over nine languages, three of them others: {PAPER_NINE}")
    save(args.output, recipe=recipe.to_dict(), word2vec=SETTINGS, paper_nine=PAPER_NINE, rows=rows)


def language_row(code: str, data: Path, work: Path, recipe: Recipe) -> dict[str, Any]:
    """Train what is missing, score what is there."""
    text, pairs_file = data / "text" / f"{code}.txt.gz", data / "eval" / "semrel" / f"{code}_test.csv"
    train_language(text, work / code, recipe)
    pairs = read_pairs(pairs_file)
    scores = pooling_scores(work / code, [pairs])
    cost = training_cost(work / code)
    passes = word2vec_passes(cost)
    texts, gold = pairs.first + pairs.second, np.array(pairs.scores)
    peer = {
        unit: cosines(sentence_vectors(word2vec(text, cut, kept, unit, passes=passes), cut(texts), "mean"))
        for unit, cut, kept in (
            ("words", words_cutter(), work / "word2vec" / code),
            ("pieces", tokens_cutter(str(work / code)), work / code / "word2vec"),  # goes when its tokenizer goes
        )
    }
    root = cosines(encode(texts, *load_encoder(str(work / code))))
    low, high = interval(root, peer["words"], gold)
    of_word2vec = correlation(peer["words"], gold)
    with gzip.open(text, "rt", encoding="utf-8") as file:
        words = sum(len(line.split()) for line in file)
    controls = {name: pooling_scores(work / code, [pairs], control=change)["mean"] for name, change in CONTROLS.items()}
    return {
        "language": code, "words": words, "pairs": len(gold), **scores, "word2vec": of_word2vec,
        "over": scores["root"] - of_word2vec, "low": low, "high": high,
        "word2vec, pieces": correlation(peer["pieces"], gold), **controls,
        "passes": cost["passes"], "word2vec passes": passes, "minutes of training": cost["seconds"] / 60,
    }  # fmt: skip


if __name__ == "__main__":
    main()
