"""Model cards: a template filled from what lies in a folder, scores from result files, what people wrote kept.

A template marks the parts that come from files with `<!-- generated: name -->` and `<!-- end -->`. `refresh` renews
those parts of a card and leaves every other word to its author.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from safetensors import safe_open

from .persistence import RUN_FILE

HERE = Path(__file__).parent
# model_cards/ lies at the top of a checkout, where people look for it, and inside the package in a wheel.
TEMPLATES = next((path for path in (HERE / "model_cards", HERE.parent / "model_cards") if path.is_dir()), HERE)
# Names in cards that were written before the repository had one: ours, and that of sentence-transformers.
PLACEHOLDER, ST_PLACEHOLDER = "owner/name", "sentence_transformers_model_id"
TAGS = ["banyan", "sentence-transformers", "sentence-similarity", "feature-extraction"]
GENERATED = re.compile(r"<!-- generated: (?P<name>[\w-]+) -->\n.*?<!-- end -->", re.DOTALL)
NOTHING = "<!-- nothing known -->"  # in a generated part: it must not replace one in which something is known
# Sentences by which one knows the cards that transformers, sentence-transformers and `short_card` write by themselves.
DEFAULTS = (
    "This model card has been automatically generated",
    "This is a [sentence-transformers](https://www.SBERT.net)",
    "Nothing is said here about its training text",
)


@dataclass(frozen=True)
class Results:
    """Scores of one model.

    Args:
        label: what a table calls the model.
        tasks: name -> what the manifest of an evaluation says about it: suite, type, main_score, data, score.
    """

    label: str
    tasks: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, specification: str) -> Results:
        """Read the folder that `banyan evaluate --output` made for one model.

        Args:
            specification: `folder`, or `label=folder`.

        Raises:
            ValueError: there is no manifest in the folder, a task failed, or the file is damaged.
        """
        label, _, name = specification.rpartition("=")
        path = Path(name, "manifest.json")
        if not path.is_file():
            raise ValueError(f"{name} holds no {path.name}. Make one with: banyan evaluate MODEL --suite english; then "
                             "give the model's own folder in it.")  # fmt: skip
        try:
            tasks = json.loads(path.read_text(encoding="utf-8"))["tasks"]
            scores = {task: float(record["score"]) for task, record in tasks.items() if record["score"] is not None}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no manifest of an evaluation ({error!r}).") from error
        if failed := sorted(set(tasks) - set(scores)) or (not tasks and ["all"]):
            raise ValueError(f"{path} has no score of {', '.join(failed)}. Run the evaluation again with --resume.")
        return cls(label or Path(name).resolve().name, tasks)

    def model_index(self) -> list[EvalResult]:
        """The scores as the Hub's metadata wants them, with two digits."""
        return [
            EvalResult(
                task_type=task["type"],
                dataset_type=task["data"]["path"],
                dataset_revision=task["data"].get("revision"),
                dataset_name=name,
                dataset_split="test",
                metric_type=task["main_score"],
                metric_value=round(float(task["score"]), 2),
            )
            for name, task in self.tasks.items()
        ]


def template(name: str) -> str:
    """Path of a template in model_cards/.

    Example:
        >>> Path(template("banyan")).name
        'banyan_template.md'
    """
    return str(TEMPLATES / f"{name}_template.md")


def banyan_card(
    folder: str | os.PathLike,
    *,
    name: str,
    results: Sequence[Results] = (),
    chosen: Mapping[str, object] | None = None,
) -> ModelCard:
    """Card of a Banyan, from its files.

    Args:
        folder: of the model.
        name: of its repository, `owner/name`.
        results: scores; the first are the model's own and go into the metadata, all go into the table.
        chosen: metadata to set: language, license, datasets, ...

    Returns:
        The card; `str` of it is Markdown.
    """
    config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    with safe_open(Path(folder, "model.safetensors"), framework="np") as file:
        shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118 - not a dict
        dtypes = sorted({file.get_slice(key).get_dtype() for key in file.keys()})  # noqa: SIM118
    counts = {key: math.prod(shape) for key, shape in shapes.items()}
    tables = {key: n for key, n in counts.items() if "embeddings" in key or key.startswith("lm_head")}
    run_file = Path(folder, RUN_FILE)
    run = json.loads(run_file.read_text(encoding="utf-8")) if run_file.is_file() else {}
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=list(TAGS),
        model_name=name.rpartition("/")[2] if results else None,  # without results the library wants no name
        eval_results=results[0].model_index() if results else None,
    )
    return fill("banyan", data, chosen, {
        "name": name,
        "config": config,
        "n_parameters": sum(counts.values()),
        "n_table": sum(tables.values()),
        "dtypes": dtypes,
        "megabytes": Path(folder, "model.safetensors").stat().st_size / 1e6,
        "recipe": run.get("recipe"),
        "result": run.get("result"),
        "scores": score_table(results),
    })  # fmt: skip


def score_table(results: Sequence[Results]) -> str:
    """Markdown: for each suite of the first results a table, with a row for each label and the mean at the end."""
    suites: dict[str, list[str]] = {}
    for name, task in results[0].tasks.items() if results else ():
        suites.setdefault(task["suite"], []).append(name)
    return "\n\n".join(_suite_table(tasks, results) for tasks in suites.values())


def _suite_table(tasks: Sequence[str], results: Sequence[Results]) -> str:
    lines = [f"| model | {' | '.join(tasks)} | mean |", "|---|" + "---|" * (len(tasks) + 1)]
    for row in results:
        if missing := [task for task in tasks if task not in row.tasks]:
            raise ValueError(f"{row.label} has no score of {', '.join(missing)}, which {results[0].label} has.")
        scores = [float(row.tasks[task]["score"]) for task in tasks]
        lines.append(f"| {row.label} | {' | '.join(f'{v:.2f}' for v in [*scores, sum(scores) / len(scores)])} |")
    return "\n".join(lines)


def refresh(text: str, fresh: ModelCard, *, chosen: Mapping[str, object]) -> ModelCard:
    """Renew the generated parts of a card; every other word and every other line of metadata stays.

    Args:
        text: the card as people left it.
        fresh: the card as the template gives it today.
        chosen: metadata that was asked for just now.

    Raises:
        ValueError: the metadata of the card cannot be read.
    """
    try:
        card = ModelCard(text)
    except Exception as error:  # YAML's and huggingface_hub's own kinds
        raise ValueError(f"The metadata of the card cannot be read ({error}). Mend its YAML head first.") from error
    for key, value in fresh.data.__dict__.items():
        if value is not None and (card.data.get(key) is None or key in chosen or key == "eval_results"):
            card.data[key] = value
    card.data["tags"] = [*dict.fromkeys([*(card.data.get("tags") or []), *(fresh.data.get("tags") or [])])]
    parts = {match["name"]: match[0] for match in GENERATED.finditer(fresh.text) if NOTHING not in match[0]}
    card.text = GENERATED.sub(lambda match: parts.get(match["name"], match[0]), card.text)
    return card


def is_default(text: str) -> bool:
    """Whether a library wrote this card and nobody changed its first sentence.

    Example:
        >>> is_default("# My model")
        False
    """
    return any(sentence in text for sentence in DEFAULTS)


def fill(name: str, data: ModelCardData, chosen: Mapping[str, object] | None, facts: Mapping[str, Any]) -> ModelCard:
    """A template filled.

    Args:
        name: of the template.
        data: metadata.
        chosen: metadata that goes before it.
        facts: what the template's text needs.
    """
    for key, value in (chosen or {}).items():
        data[key] = value
    return ModelCard.from_template(data, template_path=template(name), **facts)
