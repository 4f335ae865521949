"""Scoring a model on a suite, task by task: results are written as they come, and a task that fails loses no other.

NAME-HASH/manifest.json says what was run on a model, NAME-HASH/TASK.json holds its scores as MTEB writes them;
table.md and chart.svg show all models in the folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from .report import MANIFEST, read_manifest, write_chart, write_table
from .suites import Entry

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
    prompts: Mapping[str, str] | None = None,
    say: Callable[[str], None] = print,
) -> Scores:
    """Score one model, and bring table and chart of the output folder up to date.

    Args:
        model: folder or Hub name of any sentence-transformers model.
        entries: the rows; see `suites.entries`.
        output: folder of results; those of other models may be in it already.
        resume: keep the results of this very model that are there, if they were made from the same data.
        trust_remote_code: run code that the model brings along.
        prompts: what is put before a text, in place of the model's own prompts: `"query"` and `"document"` in
            retrieval, `"all"` in every other task. E5 wants `{"all": "query: ", "query": "query: ", "document":
            "passage: "}` and scores lower without.
        say: takes one line for every task done.

    Returns:
        Main score of every task, x 100, or `None` where it failed; why is in the manifest and was said.

    Raises:
        ValueError: there is no such model, the output folder is of no use, or results are there and `resume` was not
            asked for.
    """
    check_name(model)
    check_output(model, Path(output))
    encoder = _open(model, trust_remote_code=trust_remote_code, prompts=prompts)
    identity = model_hash(model, prompts=prompts)
    folder = result_folder(model, output, identity=identity)
    there = [entry.name for entry in entries if (folder / f"{entry.name}.json").exists()]
    if there and not resume:
        raise ValueError(
            f"{folder} already holds results of {', '.join(there)}. Add --resume to keep those that were made from the "
            "same data and make the others anew, or change --output."
        )
    folder.mkdir(parents=True, exist_ok=True)
    known = read_manifest(folder / MANIFEST) or {"tasks": {}}
    manifest: dict[str, Any] = {
        "model": model, "model_hash": identity, "prompts": dict(prompts or {}), "tasks": known["tasks"]
    }  # fmt: skip

    scores: Scores = {}
    for entry in entries:
        path, began = folder / f"{entry.name}.json", time.monotonic()
        result = _kept(path, entry) if resume else None
        kept = result is not None
        record: dict[str, Any] = manifest["tasks"].get(entry.name, {}) if kept else {}
        try:
            result = result or _run(encoder, entry)
            score = _finite_score(result)
        except Exception as error:  # whatever one task does, the others' results are kept
            record = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
            scores[entry.name] = None
            say(f"{entry.name}: failed. {record['error']}")
        else:
            scores[entry.name] = score
            if not kept:
                temporary = path.with_suffix(".tmp")
                result.to_disk(temporary)
                os.replace(temporary, path)
                record = {"seconds": round(time.monotonic() - began, 2), **environment(PACKAGES)}
            say(f"{entry.name}: {score:.2f}{' (kept)' * kept}")
        task = entry.task.metadata
        manifest["tasks"][entry.name] = {
            "suite": entry.suite,
            "type": task.type,
            "main_score": task.main_score,
            "data": task.dataset,
            "seed": getattr(entry.task, "seeds", entry.task.seed),
            **record,
            "score": scores[entry.name],
        }
        text = json.dumps({**manifest, **environment(PACKAGES)}, indent=2, allow_nan=False)
        write_text(folder / MANIFEST, text + "\n")
        write_table(Path(output))
    try:
        write_chart(Path(output))
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


def check_output(model: str, output: Path) -> None:
    """Refuse a folder in which results cannot lie, or where they would become part of the model.

    Raises:
        ValueError: says which it is.
    """
    if output.exists() and not output.is_dir():
        raise ValueError(f"{output} is a file; --output must be a folder.")
    if Path(model).is_dir() and output.resolve().is_relative_to(Path(model).resolve()):
        raise ValueError(f"{output} lies in the model's own folder, {model}. Name a folder elsewhere with --output.")


def model_hash(model: str, *, prompts: Mapping[str, str] | None = None) -> str:
    """Hash of what decides how a model answers, 16 hexadecimal digits.

    Args:
        model: a folder, or the name of a Hub model that was loaded before.
        prompts: as in `evaluate`; with others it is another model.
    """
    folder = Path(model) if Path(model).is_dir() else Path(snapshot_download(model, local_files_only=True))
    digest = hashlib.sha256(json.dumps(dict(prompts), sort_keys=True).encode() if prompts else b"")
    # A module's folder may be a link to another model's; rglob does not follow it.
    files = (Path(place, name) for place, _, names in os.walk(folder, followlinks=True) for name in names)
    for path in sorted(files):
        name = path.relative_to(folder)
        decides = path.suffix in (".json", ".safetensors", ".bin", ".model", ".txt", ".py") and path.name != RUN_FILE
        if path.is_file() and decides and name.parts[0] != "checkpoints":
            digest.update(f"{name.as_posix()}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()[:16]


def _open(
    model: str, *, trust_remote_code: bool, prompts: Mapping[str, str] | None
) -> SentenceTransformerEncoderWrapper:
    given = dict(prompts or {})
    default = "all" if "all" in given else None
    try:
        encoder = SentenceTransformer(
            model, trust_remote_code=trust_remote_code, prompts=given or None, default_prompt_name=default
        )
    except Exception as error:  # whatever a damaged folder provokes in five libraries
        where = "" if Path(model).is_dir() else " There is no folder of that name here, so the Hub was asked."
        hint = " Add --trust-remote-code if you trust it." if "trust_remote_code" in str(error) else ""
        raise ValueError(f"{model} cannot be opened ({type(error).__name__}: {error}).{where}{hint}") from error
    with _only_our_messages():
        return SentenceTransformerEncoderWrapper(encoder)


def _finite_score(result: TaskResult) -> float:
    """Main score x 100.

    Raises:
        ValueError: it is not a number.
    """
    score = 100 * result.get_score()
    if not math.isfinite(score):
        raise ValueError("the score is not a number. Are all similarities equal? Does the model know these texts?")
    return score


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
        _finite_score(result)
    except Exception:  # missing or damaged, in whatever way: it is made again
        return None
    same = (result.dataset_revision, result.mteb_version) == (entry.task.metadata.revision, mteb.__version__)
    return result if same else None
