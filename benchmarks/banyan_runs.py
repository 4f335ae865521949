"""What the scripts that train or score models share: a small text, held-out loss, controls, poolings, an interval."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoTokenizer

from banyan_hf.encoding import encode, tokenize_batch
from banyan_hf.evaluation.sts import SentencePairs, spearman
from banyan_hf.model.modeling_banyan import BanyanForPreTraining
from banyan_hf.persistence import default_model, load_encoder
from banyan_hf.training.recipe import Recipe

POOLINGS = ("root", "mean", "root_mean")
HELD_OUT_BATCH = 256
# The paper's model and tokenizer, whole sentences, uniform negatives: what speed and structures were measured with.
PLAIN = Recipe.named(
    "paper", num_negatives=1000, epochs=3, batch_size=256, learning_rate=5e-3, schedule="linear"
)  # fmt: skip
ONLY_MIN_STEPS = 1e-9  # epochs of a recipe whose `min_steps` alone says how long it trains


def first_words(text: Path, words: int, target: Path) -> None:
    """The first lines of a .gz file that hold so many words."""
    found = 0
    with gzip.open(text, "rt", encoding="utf-8") as source, target.open("w", encoding="utf-8") as file:
        for line in source:
            file.write(line)
            found += len(line.split())
            if found >= words:
                return


@torch.no_grad()
def mean_loss(run: Path, texts: list[str]) -> float:
    """Exact loss of a run's last checkpoint (which has the output layer), a mean over full batches.

    The loss of a batch has one term for each distinct token, so it depends on the batch's size: that is fixed.
    """
    checkpoint = max((run / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    model = BanyanForPreTraining.from_pretrained(checkpoint).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    batches = [texts[i : i + HELD_OUT_BATCH] for i in range(0, len(texts), HELD_OUT_BATCH)]
    full = [batch for batch in batches if len(batch) == HELD_OUT_BATCH] or batches
    return sum(float(model(**tokenize_batch(batch, model.banyan, tokenizer)).loss) for batch in full) / len(full)


def box_with_pooling(pooling: str, folder: Path) -> Path:
    """A copy of the box whose configuration asks for another pooling: another model."""
    shutil.copytree(default_model(), folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "pooling": pooling}), encoding="utf-8")
    return folder


def random_directions(table: Tensor, seed: int = 0) -> Tensor:
    """Each token's vector turned in a random direction: none resembles another, what counts is weighted overlap."""
    noise = torch.randn(table.shape, generator=torch.Generator().manual_seed(seed))
    return normalize(noise, dim=1) * table.norm(dim=1, keepdim=True)  # (V, D)


def equal_lengths(table: Tensor) -> Tensor:
    """Each token's vector with length 1: a frequent token weighs as much as a rare one."""
    return normalize(table, dim=1)  # (V, D)


def correlation(found: np.ndarray, gold: np.ndarray) -> float:
    """Spearman x 100; `found` (pairs,), or (seeds, pairs): then the mean of the seeds'."""
    of_seeds = [100 * float(spearmanr(one, gold).statistic) for one in np.atleast_2d(found)]
    return sum(of_seeds) / len(of_seeds)


def interval(ours: np.ndarray, other: np.ndarray, gold: np.ndarray, samples: int = 1000) -> tuple[float, float]:
    """95 % interval of the difference of two models' `correlation` with the human scores, by bootstrap over pairs."""
    rng, n = np.random.default_rng(0), len(gold)
    draws = (rng.integers(n, size=n) for _ in range(samples))
    found = [correlation(ours[..., d], gold[d]) - correlation(other[..., d], gold[d]) for d in draws]
    return float(np.quantile(found, 0.025)), float(np.quantile(found, 0.975))


def scores_by_pooling(
    folder: str, sets: Sequence[SentencePairs], *, control: Callable[[Tensor], Tensor] | None = None
) -> dict[str, list[float]]:
    """Spearman x 100 on each set, for each pooling of a saved model, or of what `control` makes of its token table."""
    model, tokenizer = load_encoder(folder)
    if control is not None:
        model.embeddings.weight.data = control(model.embeddings.weight.data)
    scores = {}
    for pooling in POOLINGS:
        model.config.pooling = pooling
        scores[pooling] = [spearman(partial(encode, model=model, tokenizer=tokenizer), pairs) for pairs in sets]
    return scores


def pooling_scores(
    folder: Path, sets: Sequence[SentencePairs], *, control: Callable[[Tensor], Tensor] | None = None
) -> dict[str, float]:
    """Mean of `scores_by_pooling` over the sets."""
    found = scores_by_pooling(str(folder), sets, control=control)
    return {pooling: sum(scores) / len(scores) for pooling, scores in found.items()}
