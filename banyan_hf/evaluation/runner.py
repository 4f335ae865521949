"""Scoring a model on a suite, task by task: results are written as they come, and a task that fails loses no other.

output/manifest of a model: NAME-HASH/manifest.json, its scores as MTEB writes them: NAME-HASH/TASK.json,
and one table and one chart of all models in the folder: table.md, chart.svg.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mteb
from huggingface_hub import snapshot_download
from mteb.models import SentenceTransformerEncoderWrapper
from mteb.results import TaskResult
from sentence_transformers import SentenceTransformer

from ..persistence import RUN_FILE, check_name, write_text
from .environment import environment
from .report import write_report
from .suites import Entry

MANIFEST = "manifest.json"
BATCH_SIZE = 64
PACKAGES = (
    "banyan-hf",
    "mteb",
    "sentence-transformers",
    "transformers",
    "tokenizers",
    "torch",
    "numpy",
    "scikit-learn",
)
Scores = dict[str, float | None]  # by task, x 100; None: it failed


def evaluate(
    model: str,
    entries: Sequence[Entry],
    output: str | os.PathLike,
    *,
    resume: bool = False,
    trust_remote_code: bool = False,
    say: Callable[[str], None] = print,
) -> Scores:
    """Score one model, and bring table and chart of the output folder up to date.

    Args:
        model: folder or Hub name of any sentence-transformers model.
        entries: the rows; see `suites.entries`.
        output: folder of results; those of other models may be in it already.
        resume: keep the results of this very model that are there, if they were made from the same data.
        trust_remote_code: run code that the model brings along.
        say: takes one line for every task done.

    Returns:
        Main score of every task, x 100, or `None` where it failed; why is in the manifest and was said.

    Raises:
        ValueError: there is no such model, or results are there and `resume` was not asked for.
    """
    check_name(model)
    encoder = _open(model, trust_remote_code=trust_remote_code)
    identity = model_hash(model)
    folder = result_folder(model, output, identity=identity)
    there = [entry.name for entry in entries if (folder / f"{entry.name}.json").exists()]
    if there and not resume:
        raise ValueError(
            f"{folder} already holds results of {', '.join(there)}. Add --resume to keep them, or change --output."
        )
    folder.mkdir(parents=True, exist_ok=True)
    manifest: dict[str, Any] = {"model": model, "model_hash": identity, "tasks": _known_tasks(folder)}

    scores: Scores = {}
    for entry in entries:
        path, began = folder / f"{entry.name}.json", time.monotonic()
        result = _kept(path, entry) if resume else None
        kept = result is not None
        record: dict[str, Any] = manifest["tasks"].get(entry.name, {}) if kept else {}
        try:
            result = result or _run(encoder, entry)
        except Exception as error:  # whatever one task does, the others' results are kept
            record = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
            scores[entry.name] = None
            say(f"{entry.name}: failed. {record['error']}")
        else:
            scores[entry.name] = 100 * result.get_score()
            if not kept:
                temporary = path.with_suffix(".tmp")
                result.to_disk(temporary)
                os.replace(temporary, path)
                record = {"seconds": round(time.monotonic() - began, 2)}
            say(f"{entry.name}: {scores[entry.name]:.2f}{' (kept)' * kept}")
        task = entry.task.metadata
        manifest["tasks"][entry.name] = {
            "suite": entry.suite,
            "type": task.type,
            "main_score": task.main_score,
            "data": task.dataset,
            "seed": entry.task.seed,
            **record,
            "score": scores[entry.name],
        }
        write_text(folder / MANIFEST, json.dumps({**manifest, **environment(PACKAGES)}, indent=2) + "\n")
    try:
        write_report(Path(output))
    except ImportError as error:  # no reason to lose the scores
        say(str(error))
    return scores


def result_folder(model: str, output: str | os.PathLike, *, identity: str | None = None) -> Path:
    """Where the results of a model go: its name and the hash of its files, so that no two models can share scores.

    Args:
        model, output: as in `evaluate`.
        identity: `model_hash(model)`, if it is known already: it reads all weights.
    """
    return Path(output) / f"{label(model)}-{(identity or model_hash(model))[:8]}"


def label(model: str) -> str:
    """A model's name as part of a path: the Hub name with `__` for `/`, or the last part of a folder.

    Example:
        >>> from banyan_hf import default_model
        >>> label(default_model()), label("sentence-transformers/all-MiniLM-L6-v2")
        ('english', 'sentence-transformers__all-MiniLM-L6-v2')
    """
    return Path(model).resolve().name if Path(model).is_dir() else model.replace("/", "__")


def model_hash(model: str) -> str:
    """Hash of the files that decide what a model answers, 16 hexadecimal digits.

    Args:
        model: a folder, or the name of a Hub model that was loaded before.
    """
    folder = Path(model) if Path(model).is_dir() else Path(snapshot_download(model, local_files_only=True))
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        decides = path.suffix in (".json", ".safetensors", ".bin", ".model", ".txt", ".py") and path.name != RUN_FILE
        if path.is_file() and decides and name.parts[0] != "checkpoints":
            digest.update(f"{name.as_posix()}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()[:16]


def _open(model: str, *, trust_remote_code: bool) -> SentenceTransformerEncoderWrapper:
    encoder = SentenceTransformer(model, trust_remote_code=trust_remote_code)
    with _only_our_messages():
        return SentenceTransformerEncoderWrapper(encoder)


def _run(encoder: SentenceTransformerEncoderWrapper, entry: Entry) -> TaskResult:
    """MTEB's own evaluation; its default cache knows no local model by name, so it must never be used."""
    bars = sys.stderr.isatty()
    with _only_our_messages():
        results = mteb.evaluate(
            encoder,
            entry.task,
            cache=None,
            co2_tracker=False,
            encode_kwargs={"batch_size": BATCH_SIZE, "show_progress_bar": bars},
            show_progress_bar=False,
        )
    return results.task_results[0]


@contextmanager
def _only_our_messages() -> Iterator[None]:
    """Without what the libraries say about one another: nothing that a user of this command could change."""
    logger = logging.getLogger("mteb")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _kept(path: Path, entry: Entry) -> TaskResult | None:
    """The result on disk, if it is of this task's data and of this MTEB."""
    try:
        result = TaskResult.from_disk(path)
    except (OSError, ValueError):
        return None
    same = (result.dataset_revision, result.mteb_version) == (entry.task.metadata.revision, mteb.__version__)
    return result if same else None


def _known_tasks(folder: Path) -> dict[str, Any]:
    """What the manifest of an earlier run says, by task."""
    try:
        return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["tasks"]
    except (OSError, ValueError, KeyError):
        return {}
