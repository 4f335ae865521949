"""Six languages: train, score, and set beside word2vec on the same text, multilingual e5, USE and the paper.

What: for each of af, am, ar, es, hi, id, trains a Banyan on text/XX.txt.gz with the recipe `lang` (no setting knows
the language), trains gensim's skip-gram word2vec on the same text cut into the tokenizer's words, and scores both on
SemRel's test set; the multilingual encoders are scored beside them where `BANYAN_HF_ENCODERS` has them. One table of
Spearman x 100, means over the --seeds, `sd` their spread. `word2vec` is the plain mean, trained for as many passes as
Banyan and never for fewer than its usual 5; `over` is Banyan's root minus that, `low` and `high` its 95 % interval
(bootstrap over the pairs). `word2vec, pieces` learned from the text cut by Banyan's tokenizer; its distance from
`word2vec` is what whole words are worth. Three controls say what training is worth: the token mean with all vectors
of `equal lengths`, with `random directions`, and with `both`, which is the plain overlap of tokens. The nine
languages of the paper hold ha, mr and te, for which there is no text here, so its mean (60.01) has other columns.

Everything is kept in --work: the same command goes on where it was stopped, and finished languages are only scored.

Time: see benchmarks/README.md. `--held-out STEPS,STEPS` trains on 49 of 50 lines and prints the loss on the others for
each number of steps: that, and no test set, is for choosing the number in a recipe.

    python benchmarks/banyan_languages.py --output benchmarks/results/languages.json
    python benchmarks/banyan_languages.py --languages es id --seeds 0 1 2
    python benchmarks/banyan_languages.py --languages af --held-out 1000,2000
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core

import gzip
import json
import math
import statistics
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
PROMPTS = {"e5-multilingual": {"all": "query: "}}  # as its authors ask for similarity
HELD_OUT_EVERY = 50
CONTROLS = {
    "equal lengths": equal_lengths,
    "random directions": random_directions,
    "both": lambda table: equal_lengths(random_directions(table)),
}


def model_folder(work: Path, code: str, seed: int) -> Path:
    return work / f"seed{seed}" / code


def is_trained(folder: Path, recipe: Recipe) -> bool:
    """Whether the folder holds a finished model of this recipe; the program ends if it holds one of another."""
    if not (folder / "config.json").exists():
        return False
    if json.loads((folder / "run.json").read_text(encoding="utf-8"))["recipe"] != recipe.to_dict():
        sys.exit(f"{folder} was trained with another recipe than today's `lang`: remove it, or name another --work.")
    return True


def train_language(text: Path, folder: Path, recipe: Recipe) -> None:
    """Train, or go on, or do nothing."""
    if not is_trained(folder, recipe):
        train([str(text)], folder, recipe=recipe, resume=(folder / "run.json").exists())


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
        run, shorter = folder / str(number), replace(recipe, epochs=ONLY_MIN_STEPS, min_steps=number)
        # The output layer, which the loss needs, is in the checkpoint only.
        if not is_trained(run, shorter):
            resume = (run / "run.json").exists()
            train([str(folder / "train.txt")], run, recipe=shorter, save_steps=number, resume=resume)
        losses[number] = mean_loss(run, held_out)
        print(f"{text.name}: held-out loss after {number} steps {losses[number]:.3f}", flush=True)
    return losses


def training_cost(folder: Path) -> dict[str, Any]:
    """What training the Banyan in `folder` took: seconds, steps, passes."""
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))["result"]


def word2vec_passes(cost: dict[str, Any]) -> int:
    """As many as Banyan made, and never fewer than word2vec's usual number."""
    return max(SETTINGS["epochs"], math.ceil(cost["passes"]))


def word2vec(text: Path, cut: Cut, folder: Path, unit: str, *, passes: int, seed: int) -> KeyedVectors:
    """Skip-gram vectors of the same text, trained once and kept."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = folder / f"word2vec-sg-{unit}-{passes}-seed{seed}"
    corpus = write_corpus(text, cut, folder / f"{unit}.txt")
    train_peer("word2vec-sg", corpus, trained, workers=1, epochs=passes, seed=seed)
    return KeyedVectors.load(str(trained / "vectors.kv"))


def cosines(vectors: Tensor | np.ndarray) -> np.ndarray:
    """Of the first with the second half of the rows."""
    first, second = torch.as_tensor(vectors).float().chunk(2)
    return cosine_similarity(first, second).numpy()


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--languages", nargs="+", default=list(SEMREL), choices=list(SEMREL))
    arguments.add_argument("--work", type=Path, default=Path("out/languages"), help="models and peers, kept")
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0], help="one Banyan and one word2vec for each")
    arguments.add_argument("--held-out", help="numbers of steps to compare on held-out lines, instead of the table")
    args = arguments.parse_args()
    data = data_folder()

    recipes = {seed: Recipe.named("lang", seed=seed) for seed in args.seeds}
    recipe = recipes[args.seeds[0]]
    if args.held_out:
        steps = [int(number) for number in args.held_out.split(",")]
        rows = []
        for code in args.languages:
            losses = held_out_losses(data / "text" / f"{code}.txt.gz", args.work / "held_out" / code, steps, recipe)
            rows.append({"language": code, **{f"{number} steps": loss for number, loss in losses.items()}})
        print_table(rows)
        save(args.output, held_out=rows)
        return

    rows = [language_row(code, data, args.work, recipes) for code in args.languages]
    for name, folder in PEERS.items():
        if (path := encoder_folder(folder)) is not None:
            semrel = [entry for entry in entries(["semrel"], data) if entry.name[-2:] in args.languages]
            scores = evaluate(
                str(path),
                semrel,
                args.work / "results",
                resume=True,
                trust_remote_code=True,
                prompts=PROMPTS.get(folder),
            )
            for row in rows:
                row[name] = scores[f"semrel_{row['language']}"]
    mean: dict[str, Any] = {"language": "mean", "words": None, "pairs": None}
    for name in list(rows[0])[3:]:
        values = [row[name] for row in rows]
        mean[name] = (
            None if None in values or name in ("root sd", "word2vec sd", "low", "high") else sum(values) / len(values)
        )
    rows.append(mean)
    print_table(rows)
    print(f"The paper's mean over nine languages, three of them others: {PAPER_NINE}")
    save(args.output, seeds=args.seeds, recipe=recipe.to_dict(), word2vec=SETTINGS, paper_nine=PAPER_NINE, rows=rows)


def language_row(code: str, data: Path, work: Path, recipes: dict[int, Recipe]) -> dict[str, Any]:
    """Train what is missing, score what is there."""
    text, pairs_file = data / "text" / f"{code}.txt.gz", data / "eval" / "semrel" / f"{code}_test.csv"
    models = [model_folder(work, code, seed) for seed in recipes]
    for model, recipe in zip(models, recipes.values(), strict=True):
        train_language(text, model, recipe)
    pairs = read_pairs(pairs_file)
    texts, gold = pairs.first + pairs.second, np.array(pairs.scores)
    cost = training_cost(models[0])  # the passes are those of every seed
    passes = word2vec_passes(cost)

    def plain_mean(unit: str, cut: Cut, folder: Path, seed: int) -> np.ndarray:
        vectors = word2vec(text, cut, folder, unit, passes=passes, seed=seed)
        return cosines(sentence_vectors(vectors, cut(texts), "mean"))

    root = np.stack([cosines(encode(texts, *load_encoder(str(model)))) for model in models])  # (seeds, pairs)
    peer = np.stack([plain_mean("words", words_cutter(), work / "word2vec" / code, seed) for seed in recipes])
    # Kept beside the model whose tokenizer cut the text: they go together.
    of_pieces = plain_mean("pieces", tokens_cutter(str(models[0])), models[0] / "word2vec", seed=0)
    low, high = interval(root, peer, gold)
    scores = mean_scores([pooling_scores(model, [pairs]) for model in models])
    controls = {
        name: mean_scores([pooling_scores(model, [pairs], control=change) for model in models])["mean"]
        for name, change in CONTROLS.items()
    }
    with gzip.open(text, "rt", encoding="utf-8") as file:
        words = sum(len(line.split()) for line in file)
    return {
        "language": code, "words": words, "pairs": len(gold), **scores, "root sd": spread(root, gold),
        "word2vec": correlation(peer, gold), "word2vec sd": spread(peer, gold),
        "over": scores["root"] - correlation(peer, gold), "low": low, "high": high,
        "word2vec, pieces": correlation(of_pieces, gold), **controls,
        "passes": cost["passes"], "word2vec passes": passes,
        "minutes of training": sum(training_cost(model)["seconds"] for model in models) / 60 / len(models),
    }  # fmt: skip


def spread(cosines: np.ndarray, gold: np.ndarray) -> float | None:
    """Standard deviation of the seeds' correlations; `cosines` (seeds, pairs)."""
    found = [correlation(of_seed, gold) for of_seed in cosines]
    return statistics.stdev(found) if len(found) > 1 else None


def mean_scores(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(run[name] for run in runs) / len(runs) for name in runs[0]}


if __name__ == "__main__":
    main()
