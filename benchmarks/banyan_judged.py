"""A judge for languages with few human scores: thousands of pairs of the text itself, scored by multilingual e5.

What: SemRel's Spanish test set has 140 pairs, and two seeds of one recipe differ there by five points. So for each
language that `banyan_languages.py` has trained in --work, this takes --sentences sentences of 8 to 30 words of its
text, pairs each with its 1st, 2nd, 3rd, 5th, ... 2,049th neighbour in turn (from near copies to strangers, as e5 sees
it), and compares with e5's cosine: Banyan's root, the plain and the SIF mean of word2vec on the same text, and the
plain overlap of tokens. Spearman x 100; `over` is Banyan's root minus word2vec's plain mean, `low` and `high` its 95 %
interval (bootstrap over the pairs).

What it is not: human judgement. How far e5 agrees with people is in the column `e5 multilingual` of
`banyan_languages.py`; and all sentences are of the training text. Needs `BANYAN_HF_ENCODERS`. Time:
benchmarks/README.md.

    python benchmarks/banyan_judged.py --work out/languages --output benchmarks/results/judged.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core

import gzip
import random
import sys
from pathlib import Path
from typing import Any

import torch
from banyan_common import data_folder, encoder_folder, parser, print_table, save
from banyan_languages import (
    CONTROLS,
    PROMPTS,
    cosines,
    is_trained,
    model_folder,
    training_cost,
    word2vec,
    word2vec_passes,
)
from banyan_runs import correlation, interval
from peers import sentence_vectors, words_cutter
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn.functional import normalize

from banyan_hf.encoding import encode
from banyan_hf.evaluation.suites import SEMREL
from banyan_hf.persistence import load_encoder
from banyan_hf.training.recipe import Recipe

JUDGE = "e5-multilingual"
WORDS = (8, 30)
RANKS = [0, *(2**k for k in range(12))]  # of the neighbour: the nearest, then ever farther ones


def sample(text: Path, number: int) -> list[str]:
    """Different sentences of the text, neither fragments nor paragraphs; the same ones each time."""
    with gzip.open(text, "rt", encoding="utf-8") as file:
        lines = list(dict.fromkeys(line.strip() for line in file if WORDS[0] <= len(line.split()) <= WORDS[1]))
    return random.Random(0).sample(lines, min(number, len(lines)))


def judged_pairs(vectors: Tensor) -> Tensor:
    """Each row of `vectors` with its neighbour of one rank: the first rows of all pairs, then the second ones (2n,)."""
    unit = normalize(vectors, dim=1)
    pairs = set()
    for i, row in enumerate(unit):
        near = torch.argsort(unit @ row, descending=True)
        near = near[near != i]
        j = int(near[min(RANKS[i % len(RANKS)], len(near) - 1)])
        pairs.add((min(i, j), max(i, j)))
    return torch.tensor(sorted(pairs)).T.flatten()  # (2n,), the halves that `cosines` compares


def judged_row(code: str, text: Path, work: Path, seed: int, judge: SentenceTransformer, number: int) -> dict[str, Any]:
    folder = model_folder(work, code, seed)
    sentences = sample(text, number)
    prompt = PROMPTS[JUDGE]["all"]
    prompted = judge.encode(sentences, prompt=prompt, batch_size=64, convert_to_tensor=True, show_progress_bar=True)
    pairs = judged_pairs(prompted)
    judgement = cosines(prompted[pairs])
    model, tokenizer = load_encoder(str(folder))
    root = cosines(encode(sentences, model, tokenizer)[pairs])
    model.embeddings.weight.data = CONTROLS["both"](model.embeddings.weight.data)
    model.config.pooling = "mean"
    overlap = cosines(encode(sentences, model, tokenizer)[pairs])
    cut, passes = words_cutter(), word2vec_passes(training_cost(folder))
    vectors, words = word2vec(text, cut, work / "word2vec" / code, "words", passes=passes, seed=seed), cut(sentences)
    plain, sif = (cosines(sentence_vectors(vectors, words, pooling)[pairs]) for pooling in ("mean", "SIF mean"))
    low, high = interval(root, plain, judgement)
    of_root, of_word2vec = correlation(root, judgement), correlation(plain, judgement)
    return {
        "language": code, "pairs": len(judgement), "root": of_root, "word2vec": of_word2vec,
        "over": of_root - of_word2vec, "low": low, "high": high, "word2vec SIF": correlation(sif, judgement),
        "overlap": correlation(overlap, judgement),
    }  # fmt: skip


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--languages", nargs="+", default=list(SEMREL), choices=list(SEMREL))
    arguments.add_argument("--work", type=Path, default=Path("out/languages"), help="where banyan_languages.py trained")
    arguments.add_argument("--seed", type=int, default=0, help="which of the trained models")
    arguments.add_argument("--sentences", type=int, default=6000)
    args = arguments.parse_args()
    data = data_folder()
    if (judge_folder := encoder_folder(JUDGE)) is None:
        sys.exit(1)
    recipe = Recipe.named("lang", seed=args.seed)
    missing = [code for code in args.languages if not is_trained(model_folder(args.work, code, args.seed), recipe)]
    if missing:
        sys.exit(
            f"{args.work} holds no trained {', '.join(missing)} of seed {args.seed}: run banyan_languages.py "
            f"--work {args.work} --seeds {args.seed} first."
        )
    judge = SentenceTransformer(str(judge_folder), device="cpu", trust_remote_code=True)
    rows = [
        judged_row(code, data / "text" / f"{code}.txt.gz", args.work, args.seed, judge, args.sentences)
        for code in args.languages
    ]
    print_table(rows)
    save(args.output, seed=args.seed, judge=judge_folder.name, words=WORDS, ranks=RANKS, rows=rows)


if __name__ == "__main__":
    main()
