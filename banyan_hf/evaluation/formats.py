"""Reading the files of a benchmark; whatever is wrong with one is said in one sentence, before anything is scored.

Pairs with scores in CSV are read by `sts.read_pairs`.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from pathlib import Path
from typing import Any

from .sts import SentencePairs, check_scores


def read_lines(path: Path) -> list[str]:
    """Lines of a text file, plain or .gz, without the line ends.

    Raises:
        ValueError: it is missing, empty, or not UTF-8 text.
    """
    if not path.is_file():
        raise ValueError(f"{path} is not a file. Does --data point at the folder that holds eval/, retrieval/, ...?")
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
            lines = [line.rstrip("\r\n") for line in file]
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not UTF-8 text, or a damaged .gz file ({error}).") from error
    if not any(lines):
        raise ValueError(f"{path} is empty.")
    return lines


def read_word_pairs(path: Path) -> SentencePairs:
    """`word TAB word TAB score` a line, as SimLex-999 and WordSim-353 come.

    Raises:
        ValueError: a line has another shape, a score is not a number, or all are equal.
    """
    rows = [(number, line.split("\t")) for number, line in enumerate(read_lines(path), start=1) if line]
    first, second, scores = [], [], []
    for number, row in rows:
        if len(row) != 3 or not math.isfinite(score := _number(row[2])):
            raise ValueError(f"{path}, line {number}: word TAB word TAB number is expected, not {row!r}.")
        first.append(row[0])
        second.append(row[1])
        scores.append(score)
    check_scores(path, scores)
    return SentencePairs(first, second, scores)


def read_labelled(path: Path, *, header: bool = False, label_first: bool = True) -> tuple[list[str], list[str]]:
    """Texts and their labels, one `label TAB text` a line.

    Args:
        path: plain or .gz.
        header: leave out the first line.
        label_first: `False` for `text TAB label`, as GLUE's SST-2 comes.

    Returns:
        (texts, labels).

    Raises:
        ValueError: a line has no tab, or all labels are the same.
    """
    texts, labels = [], []
    for number, line in enumerate(read_lines(path), start=1):
        if not line or (header and number == 1):
            continue
        left, tab, right = line.partition("\t") if label_first else line.rpartition("\t")
        label, text = (left, right) if label_first else (right, left)
        if not tab:
            raise ValueError(f"{path}, line {number}: a label and a text with a TAB between are expected.")
        texts.append(text.strip())
        labels.append(label.strip())
    if len(set(labels)) < 2:
        raise ValueError(f"{path} has {len(set(labels))} kind of label; a classifier needs at least 2.")
    return texts, labels


def read_records(path: Path) -> list[dict[str, Any]]:
    """JSON objects, one a line, each with `_id` and `text` (BEIR's corpus.jsonl and queries.jsonl).

    Raises:
        ValueError: a line is not such an object.
    """
    records = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            title, text = record.get("title") or "", record["text"]
            if not isinstance(title, str) or not isinstance(text, str):
                raise TypeError("title and text must be strings")
            records.append({"id": str(record["_id"]), "title": title, "text": text})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f'{path}, line {number}: a JSON object with "_id" and "text" is expected ({error!r}).'
            ) from error
    return records


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Which documents answer which query: `query-id TAB corpus-id TAB score`, after a header line (BEIR).

    Returns:
        {query id: {document id: relevance}}.

    Raises:
        ValueError: a line has another shape, or no document is relevant.
    """
    relevant: dict[str, dict[str, int]] = {}
    header, *lines = read_lines(path)
    if not math.isnan(_number(header.split("\t")[-1])):
        raise ValueError(f"{path} begins with a judgement, {header!r}; its first line must be a header.")
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        row = line.split("\t")
        if len(row) != 3 or not (score := _number(row[2])).is_integer():
            raise ValueError(
                f"{path}, line {number}: query-id TAB corpus-id TAB whole number is expected, not {row!r}."
            )
        if score > 0:
            relevant.setdefault(row[0], {})[row[1]] = int(score)
    if not relevant:
        raise ValueError(f"{path} names no relevant document.")
    return relevant


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
