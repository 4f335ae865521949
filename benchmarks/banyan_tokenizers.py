"""Which tokenizer, before any training: overlap of weighted tokens on the development set (sts16).

What: for each kind and size of vocabulary, trains a tokenizer on the first --lines lines of text/en.txt.gz and gives
each token a random direction and the length log(1 / p)^2, p its share of the text. The mean of these vectors knows
nothing but which tokens two sentences share and how rare they are, and yet scores nearly as high as a trained model. So
it tells tokenizers apart in seconds: those that cut endings off ("sing", "ing") are ahead. `bpe 0.33` is BPE that
counts a word with its frequency to that power. `tokens` is the mean number in a sentence of the text (fewer are
faster), sts16 is Spearman x 100, a mean over three seeds with its standard deviation. Time: benchmarks/README.md.

    python benchmarks/banyan_tokenizers.py
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core

import gzip
import statistics
import time
from functools import partial
from itertools import islice
from typing import Any

import torch
from banyan_common import data_folder, parser, print_table, save
from banyan_runs import random_directions
from transformers import PreTrainedTokenizerBase

from banyan_hf import BanyanConfig, BanyanModel
from banyan_hf.encoding import encode
from banyan_hf.evaluation.sts import SentencePairs, read_pairs, spearman
from banyan_hf.tokenizer import train_tokenizer

KINDS: dict[str, dict[str, Any]] = {
    "bpe": {"kind": "bpe"},
    "bpe 0.33": {"kind": "bpe", "word_power": 0.33},
    "unigram": {"kind": "unigram"},
}
SEEDS = (0, 1, 2)
DIMS = 256


def overlap_scores(tokenizer: PreTrainedTokenizerBase, counts: torch.Tensor, pairs: SentencePairs) -> list[float]:
    """sts16 of random directions, weighted by log(1 / p)^2: one score a seed."""
    config = BanyanConfig(
        vocab_size=len(tokenizer), hidden_size=DIMS, pad_token_id=tokenizer.pad_token_id, pooling="mean"
    )
    model = BanyanModel(config).eval()
    rarity = -(counts.clamp(min=1) / counts.sum()).log()  # (V,)
    lengths = rarity.square()[:, None].expand(-1, DIMS)  # (V, D); one factor for all, so no cosine minds it
    scores = []
    for seed in SEEDS:
        model.embeddings.weight.data.copy_(random_directions(lengths, seed))
        scores.append(spearman(partial(encode, model=model, tokenizer=tokenizer), pairs))
    return scores


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--lines", type=int, default=150_000)
    arguments.add_argument("--sizes", type=int, nargs="+", default=[6000, 10000, 16000, 25000])
    args = arguments.parse_args()
    data = data_folder()
    pairs = read_pairs(data / "eval" / "dev" / "sts16.csv")
    with gzip.open(data / "text" / "en.txt.gz", "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in islice(file, args.lines)]

    rows: list[dict[str, Any]] = []
    for name, settings in KINDS.items():
        for size in args.sizes:
            start = time.process_time()
            tokenizer = train_tokenizer(lines, size, **settings, show_progress=False)
            seconds = time.process_time() - start
            backend = tokenizer.backend_tokenizer
            backend.no_padding()
            backend.no_truncation()
            ids = torch.tensor([i for encoding in backend.encode_batch_fast(lines) for i in encoding.ids])
            scores = overlap_scores(tokenizer, torch.bincount(ids, minlength=len(tokenizer)), pairs)
            rows.append({
                "kind": name, "size": size, "tokens": len(ids) / len(lines), "sts16": statistics.mean(scores),
                "sd": statistics.stdev(scores), "CPU s of training": seconds,
                "children sang happily in norway": " ".join(tokenizer.tokenize("children sang happily in norway")),
            })  # fmt: skip
    print_table(rows)
    save(args.output, lines=args.lines, dims=DIMS, rows=rows)


if __name__ == "__main__":
    main()
