"""MTEB tasks on local files: MTEB's own scoring, no Hub. The revision of a task is the hash of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from datasets import Dataset, DatasetDict
from mteb import TaskMetadata
from mteb.abstasks import AbsTask, AbsTaskClassification, AbsTaskPairClassification, AbsTaskRetrieval, AbsTaskSTS

from .formats import read_labelled, read_qrels, read_records
from .probe import Probe
from .sts import SentencePairs, read_pairs

T = TypeVar("T", bound=AbsTask)


def revision(paths: Sequence[Path]) -> str:
    """Hash of the files' names and content, 16 hexadecimal digits; a missing file counts as empty."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + (path.read_bytes() if path.is_file() else b""))
    return digest.hexdigest()[:16]


def pairs_task(
    name: str, path: Path, *, language: str = "eng-Latn", read: Callable[[Path], SentencePairs] = read_pairs
) -> AbsTask:
    """Similarity of pairs: Spearman's correlation of the cosine with the score of people.

    Args:
        name: of the task and its result file.
        path: the pairs.
        language: BCP-47, as MTEB writes it.
        read: of the file's format.

    Raises:
        ValueError: the file is not usable; see `read`.
    """
    pairs = read(path)
    task = _task(AbsTaskSTS, name, "STS", "cosine_spearman", [path], language)
    task.min_score, task.max_score = min(pairs.scores), max(pairs.scores)  # type: ignore[assignment]  # MTEB rescales by them
    rows = {"sentence1": pairs.first, "sentence2": pairs.second, "score": pairs.scores}
    return _ready(task, DatasetDict(test=Dataset.from_dict(rows)))


def retrieval_task(name: str, folder: Path) -> AbsTask:
    """Retrieval on a folder in BEIR's layout: corpus.jsonl[.gz], queries.jsonl[.gz], qrels/test.tsv; NDCG@10.

    Raises:
        ValueError: a file is not usable, or the judgements name a query that is not there.
    """
    corpus_file, query_file = (_plain_or_gz(folder / f"{stem}.jsonl") for stem in ("corpus", "queries"))
    judgements = folder / "qrels" / "test.tsv"
    relevant, queries, corpus = read_qrels(judgements), read_records(query_file), read_records(corpus_file)
    for what, wanted, given, file in (
        ("query", set(relevant), queries, query_file),
        ("document", {document for found in relevant.values() for document in found}, corpus, corpus_file),
    ):
        if lost := wanted - {record["id"] for record in given}:
            raise ValueError(f"{judgements} judges {what} {min(lost)!r} ({len(lost)} in all), not in {file.name}.")
    task = _task(AbsTaskRetrieval, name, "Retrieval", "ndcg_at_10", [corpus_file, query_file, judgements])
    task.ignore_identical_ids = True  # as MTEB does for Quora, where a question may be its own answer
    asked = [{"id": query["id"], "text": query["text"]} for query in queries if query["id"] in relevant]
    split = {
        "corpus": Dataset.from_list(corpus),
        "queries": Dataset.from_list(asked),
        "relevant_docs": relevant,
        "top_ranked": None,
    }
    return _ready(task, {"default": {"test": split}})


def classification_task(name: str, train: Path, test: Path, **file_format: bool) -> AbsTask:
    """Classification as MTEB does it: logistic regression on 8 texts of each label, 10 draws; mean accuracy.

    Args:
        name: of the task and its result file.
        train, test: labelled texts.
        **file_format: see `read_labelled`.
    """
    task = _task(AbsTaskClassification, name, "Classification", "accuracy", [train, test])
    return _ready(task, _labelled(train, test, **file_format))


def probe_task(name: str, train: Path, test: Path, **file_format: bool) -> AbsTask:
    """Classification as the Banyan paper does it: a small classifier on all frozen embeddings, 5 seeds; accuracy."""
    task = _task(Probe, name, "Classification", "accuracy", [train, test])
    return _ready(task, _both_splits(_labelled(train, test, **file_format)))


def pair_probe_task(name: str, train: Path, test: Path) -> AbsTask:
    """As `probe_task`, for pairs that are paraphrases or not (CSV of sent1, sent2, score 0 or 1); F1 of paraphrases."""
    task = _task(Probe, name, "PairClassification", "f1", [train, test])
    return _ready(task, _both_splits(DatasetDict(train=_paraphrases(train), test=_paraphrases(test))))


def pair_classification_task(name: str, test: Path) -> AbsTask:
    """Paraphrases as MTEB does it: no training; F1 at the cosine threshold that is best *on the test set*."""
    task = _task(AbsTaskPairClassification, name, "PairClassification", "cosine_f1", [test])
    return _ready(task, DatasetDict(test=_paraphrases(test).rename_column("label", "labels")))


def _task(kind: type[T], name: str, task_type: str, score: str, paths: Sequence[Path], language: str = "eng-Latn") -> T:
    metadata = TaskMetadata(
        name=name,
        description=f"Local files: {', '.join(path.name for path in paths)}",
        type=task_type,  # type: ignore[arg-type]
        category="t2c" if task_type == "Classification" else "t2t",
        main_score=score,
        eval_splits=["test"],
        eval_langs=[language],
        dataset={"path": f"local/{name}", "revision": revision(paths)},
    )
    return type(kind.__name__, (kind,), {"metadata": metadata})()


def _ready(task: AbsTask, dataset: Any) -> AbsTask:
    task.dataset, task.data_loaded = dataset, True
    return task


def _plain_or_gz(path: Path) -> Path:
    return path if path.is_file() else path.with_name(path.name + ".gz")


def _labelled(train: Path, test: Path, **file_format: bool) -> DatasetDict:
    splits = {name: read_labelled(path, **file_format) for name, path in (("train", train), ("test", test))}
    known = sorted(set(splits["train"][1]))
    if new := set(splits["test"][1]) - set(known):
        raise ValueError(f"{test} has the label {min(new)!r}, which {train.name} does not: {', '.join(known)}.")
    return DatasetDict(
        {
            name: Dataset.from_dict({"text": texts, "label": [known.index(label) for label in labels]})
            for name, (texts, labels) in splits.items()
        }
    )


def _paraphrases(path: Path) -> Dataset:
    pairs = read_pairs(path)
    if set(pairs.scores) != {0.0, 1.0}:
        raise ValueError(f"{path} must score pairs with 0 (no paraphrase) and 1, and have both.")
    return Dataset.from_dict(
        {"sentence1": pairs.first, "sentence2": pairs.second, "label": [int(score) for score in pairs.scores]}
    )


def _both_splits(dataset: DatasetDict) -> dict[str, Any]:
    """A probe learns from one split and is scored on the other: MTEB hands it both as one."""
    return {"default": {"test": dataset}}
