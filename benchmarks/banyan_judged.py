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
from banyan_languages import CONTROLS, word2vec_passes, word2vec_vectors
from banyan_runs import correlation, interval
from peers import words_cutter
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from banyan_hf.encoding import encode
from banyan_hf.evaluation.suites import SEMREL
from banyan_hf.persistence import load_encoder

WORDS = (8, 30)
RANKS = [0, *(2**k for k in range(12))]  # of the neighbour: the nearest, then ever farther ones


def sample(text: Path, number: int) -> list[str]:
    """Different sentences of the text, neither fragments nor paragraphs; the same ones each time."""
    with gzip.open(text, "rt", encoding="utf-8") as file:
        lines = list(dict.fromkeys(line.strip() for line in file if WORDS[0] <= len(line.split()) <= WORDS[1]))
    return random.Random(0).sample(lines, min(number, len(lines)))


def judged_pairs(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs (n, 2) of rows of `vectors`, each with its neighbour of one rank, and their cosines (n,)."""
    unit = normalize(vectors, dim=1)
    pairs = set()
    for i, row in enumerate(unit):
        near = torch.argsort(unit @ row, descending=True)
        near = near[near != i]
        j = int(near[min(RANKS[i % len(RANKS)], len(near) - 1)])
        pairs.add((min(i, j), max(i, j)))
    found = torch.tensor(sorted(pairs))  # (n, 2)
    return found, (unit[found[:, 0]] * unit[found[:, 1]]).sum(dim=1)


def judged_row(code: str, text: Path, work: Path, judge: SentenceTransformer, number: int) -> dict[str, Any]:
    sentences = sample(text, number)
    prompted = judge.encode(sentences, prompt="query: ", batch_size=64, convert_to_tensor=True, show_progress_bar=True)
    pairs, cosines = judged_pairs(prompted.cpu().float())
    judgement = cosines.numpy()

    def of_pairs(vectors: Tensor) -> Any:
        return cosine_similarity(vectors[pairs[:, 0]], vectors[pairs[:, 1]]).numpy()

    model, tokenizer = load_encoder(str(work / code))
    root = of_pairs(encode(sentences, model, tokenizer))
    model.embeddings.weight.data = CONTROLS["both"](model.embeddings.weight.data)
    model.config.pooling = "mean"
    overlap = of_pairs(encode(sentences, model, tokenizer))
    peer = {
        pooling: of_pairs(
            word2vec_vectors(
                text, sentences, words_cutter(), work / "word2vec" / code, "words",
                passes=word2vec_passes(work / code), pooling=pooling,
            )
        )
        for pooling in ("mean", "SIF mean")
    }  # fmt: skip
    low, high = interval(root, peer["mean"], judgement)
    ours, word2vec = correlation(root, judgement), correlation(peer["mean"], judgement)
    return {
        "language": code, "pairs": len(pairs), "root": ours, "word2vec": word2vec, "over": ours - word2vec,
        "low": low, "high": high, "word2vec SIF": correlation(peer["SIF mean"], judgement),
        "overlap": correlation(overlap, judgement),
    }  # fmt: skip


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--languages", nargs="+", default=list(SEMREL), choices=list(SEMREL))
    arguments.add_argument("--work", type=Path, default=Path("out/languages"), help="where banyan_languages.py trained")
    arguments.add_argument("--sentences", type=int, default=6000)
    args = arguments.parse_args()
    data = data_folder()
    if (judge_folder := encoder_folder("e5-multilingual")) is None:
        sys.exit(1)
    if missing := [code for code in args.languages if not (args.work / code / "cost.json").is_file()]:
        sys.exit(
            f"{args.work} holds no trained {', '.join(missing)}: run banyan_languages.py --work {args.work} first."
        )
    judge = SentenceTransformer(str(judge_folder), device="cpu", trust_remote_code=True)
    rows = [
        judged_row(code, data / "text" / f"{code}.txt.gz", args.work, judge, args.sentences) for code in args.languages
    ]
    print_table(rows)
    save(args.output, judge=judge_folder.name, words=WORDS, ranks=RANKS, rows=rows)


if __name__ == "__main__":
    main()
