"""Semantic textual similarity: Spearman's correlation of cosines with human scores, times 100."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import Tensor

COLUMNS = ("sent1", "sent2", "score")


@dataclass(frozen=True)
class SentencePairs:
    """Pairs of sentences with a human score each.

    Args:
        first, second: the sentences.
        scores: how alike they are; any scale.
    """

    first: list[str]
    second: list[str]
    scores: list[float]


def read_pairs(path: str | os.PathLike) -> SentencePairs:
    """Read a CSV file with the columns sent1, sent2, score.

    Raises:
        ValueError: the file is missing or empty, lacks a column, a score is not a number, or all are equal.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is not a file. A CSV with the columns {', '.join(COLUMNS)} is expected.")
    try:
        text = path.read_text(encoding="utf-8-sig")  # a mark at the start, as Excel writes it, is no letter
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); a CSV is expected."
        ) from error
    with io.StringIO(text, newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            columns = list(reader.fieldnames or ())
            rows = [(reader.line_num, row) for row in reader]
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {reader.reader.line_num}: {error}. Is a quotation mark left open before it?"
            ) from error
    missing = [column for column in COLUMNS if column not in columns]
    if missing:
        raise ValueError(
            f"{path} has the columns {columns}, but {', '.join(missing)} is missing. "
            f"Its first line must name {', '.join(COLUMNS)}."
        )
    first, second, scores = [], [], []
    for line, row in rows:
        if None in row:
            raise ValueError(f"{path}, line {line} has more fields than the first line names. Quote texts with commas.")
        try:
            score = float(row["score"])
        except (TypeError, ValueError):
            score = math.nan
        if not math.isfinite(score):
            raise ValueError(f"{path}, line {line}: score {row['score']!r} is not a number.")
        if row["sent1"] is None or row["sent2"] is None:
            raise ValueError(f"{path}, line {line} has fewer fields than the first line names.")
        first.append(row["sent1"])
        second.append(row["sent2"])
        scores.append(score)
    check_scores(path, scores)
    return SentencePairs(first, second, scores)


def check_scores(path: Path, scores: list[float]) -> None:
    """Refuse scores with which nothing correlates.

    Raises:
        ValueError: there are fewer than two, or all are equal.
    """
    if len(scores) < 2:
        raise ValueError(f"{path} holds {len(scores)} pairs; a correlation needs at least 2.")
    if len(set(scores)) == 1:
        raise ValueError(f"{path} gives every pair the score {scores[0]}: nothing can correlate with that.")


def spearman(encode: Callable[[list[str]], Tensor], pairs: SentencePairs) -> float:
    """Spearman's correlation x 100 between the cosine of two embeddings and the human score.

    Args:
        encode: texts -> (n, D) embeddings.
        pairs: the data.
    """
    first, second = encode(pairs.first).float(), encode(pairs.second).float()
    cosines = F.cosine_similarity(first, second)  # (n,)
    return 100 * float(spearmanr(cosines.cpu().numpy(), pairs.scores).statistic)
