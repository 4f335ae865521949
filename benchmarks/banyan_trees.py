"""When does the tree help? Root against token mean of one model, by sentence length and by shape of the tree.

What: takes all pairs of the six English STS sets (scores 0 to 5), sorts them by mean length, by mean relative height
(height / log2(tokens): 1 is balanced, larger is deeper) and by how far the root is from the token mean, cuts each into
four equal parts, and prints Spearman x 100 of root, token mean and both together in each part, pooled over the sets.
`helps` is root - mean, with a 95 % interval from 1,000 bootstrap samples of pairs. Then the learned numbers, and what
they do: the weight of a token in the root is the product of the scales on its way up.

Time: half a minute.

    python benchmarks/banyan_trees.py --output benchmarks/results/trees.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from banyan_common import ENGLISH_SETS, data_folder, parser, print_table, save
from banyan_runs import POOLINGS, correlation, interval

from banyan_hf import default_model
from banyan_hf.encoding import encode
from banyan_hf.evaluation.sts import read_pairs
from banyan_hf.persistence import load_encoder
from banyan_hf.trees import Tree, parse

PARTS = 4


def token_weights(tree: Tree, left: float, right: float) -> np.ndarray:
    """Weight of each token in the root: the product of the scales on its way up, (n,), scaled to a sum of 1."""
    weights = [1.0] * (len(tree.tokens) + len(tree.merges))
    for k in range(len(tree.merges) - 1, -1, -1):  # parents come after their children
        parent = weights[len(tree.tokens) + k]
        for child, scale in zip(tree.merges[k], (left, right), strict=True):
            weights[child] = parent * scale
    found = np.array(weights[: len(tree.tokens)])
    return found / found.sum()


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--model", default=default_model(), help="folder of a trained Banyan; default: the box")
    args = arguments.parse_args()
    folder = data_folder() / "eval" / "english"
    sets = [read_pairs(folder / f"{name}_test.csv") for name in ENGLISH_SETS]
    texts = [text for pairs in sets for text in pairs.first + pairs.second]
    distinct = list(dict.fromkeys(texts))
    place = {text: i for i, text in enumerate(distinct)}
    first = np.array([place[text] for pairs in sets for text in pairs.first])
    second = np.array([place[text] for pairs in sets for text in pairs.second])
    gold = np.array([score for pairs in sets for score in pairs.scores])

    model, tokenizer = load_encoder(args.model)
    vectors = {}
    for pooling in POOLINGS:
        model.config.pooling = pooling
        vectors[pooling] = F.normalize(encode(distinct, model, tokenizer), dim=1)
    cosines = {name: (v[first] * v[second]).sum(1).numpy() for name, v in vectors.items()}
    trees = [
        tree
        for start in range(0, len(distinct), 256)
        for tree in parse(distinct[start : start + 256], model, tokenizer)
    ]
    tokens = np.array([len(tree.tokens) for tree in trees])
    height = np.array([tree.height / max(math.log2(max(n, 1)), 1) for tree, n in zip(trees, tokens, strict=True)])
    apart = 1 - (vectors["root"] * vectors["mean"]).sum(1).numpy()

    rows: list[dict[str, Any]] = []
    for name, values in (("tokens", tokens), ("height / log2(n)", height), ("1 - cos(root, mean)", apart)):
        of_pair = (values[first] + values[second]) / 2
        order = np.argsort(of_pair, kind="stable")
        for part in np.array_split(order, PARTS):
            scores = {pooling: correlation(cosines[pooling][part], gold[part]) for pooling in POOLINGS}
            low, high = interval(cosines["root"][part], cosines["mean"][part], gold[part])
            rows.append({"by": name, "from": float(of_pair[part].min()), "to": float(of_pair[part].max()),
                         "pairs": len(part), **scores, "helps": scores["root"] - scores["mean"],
                         "low": low, "high": high})  # fmt: skip
    print_table(rows)

    with torch.no_grad():
        left, right, bias = (c[: model.config.channel_size] for c in model.compose.coefficients(torch.float32))
        down = [c[..., : model.config.channel_size].tolist() for c in model.decompose.coefficients(torch.float32)]
    print(f"\nup: left {left.tolist()}, right {right.tolist()}, bias {bias.tolist()}\ndown, in order: {down}")
    long = [tree for tree in trees if len(tree.tokens) >= 8]
    facts = {}
    for u in range(model.config.channel_size):
        weights = [token_weights(tree, float(left[u]), float(right[u])) for tree in long]
        used = [float(np.exp(-(w * np.log(w)).sum())) / len(w) for w in weights]
        last = [float(w[-1] * len(w)) for w in weights]
        facts[f"coordinate {u}"] = {
            "share of tokens that count": float(np.mean(used)),
            "last token x n": float(np.mean(last)),
        }
    print(f"Sentences of 8 tokens and more ({len(long)}), per coordinate of a channel: {facts}")
    save(args.output, model=args.model if args.model != default_model() else "the box", rows=rows, weights=facts,
         up={"left": left.tolist(), "right": right.tolist(), "bias": bias.tolist()})  # fmt: skip


if __name__ == "__main__":
    main()
