"""From the manifests in a folder of results to one Markdown table and one chart, a column for each model."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..persistence import write_text

Row = tuple[str, str, list[float | None]]  # suite, task (or "mean"), score of each model
MANIFEST = "manifest.json"
FILLS = (
    ("black", ""), ("white", "///"), ("0.6", ""), ("white", "..."), ("0.85", ""), ("white", "xxx"),
    ("0.6", "\\\\\\"), ("white", "ooo"), ("0.85", "///"), ("0.6", "..."), ("white", "---"), ("0.85", "xxx"),
)  # fmt: skip
LONG = 20  # letters in the name of a model, above which the legend has one column


def read_results(folder: Path) -> tuple[list[str], list[Row]]:
    """Scores of all models in a folder, suite by suite, with the plain mean of a suite whose scores are of one kind.

    Args:
        folder: what `runner.evaluate` wrote to.

    Returns:
        Names of the models (with the hash where two have the same), and rows. A score is `None` where the task was not
        run or failed; a mean is `None` unless every task of the suite has a score. A task that was scored on other data
        by another model is another row. Manifests that cannot be read are left out.
    """
    found = (read_manifest(path) for path in sorted(folder.glob(f"*/{MANIFEST}")))
    manifests = [manifest for manifest in found if manifest and manifest["tasks"]]
    # suite -> (task, revision of its data) -> main score's name
    suites: dict[str, dict[tuple[str, str], str]] = {}
    for manifest in manifests:
        for name, task in manifest["tasks"].items():
            suites.setdefault(task["suite"], {})[name, _revision(task)] = task["main_score"]
    table: list[Row] = []
    for suite, kinds in suites.items():
        names = [name for name, _ in kinds]
        scores = [[_score(manifest, *key) for manifest in manifests] for key in kinds]
        for (name, data), row in zip(kinds, scores, strict=True):
            table.append((suite, f"{name} (data {data[:6]})" if names.count(name) > 1 else name, row))
        if len(set(names)) == len(names) > 1 and len(set(kinds.values())) == 1:
            table.append((suite, "mean", [_mean(column) for column in zip(*scores, strict=True)]))
    return _distinct(manifests), table


def read_manifest(path: Path) -> dict[str, Any] | None:
    """What is known of one model's results; `None` if that cannot be read."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        complete = isinstance(manifest["model"], str) and isinstance(manifest["model_hash"], str)
        complete &= all(task["suite"] and task["main_score"] for task in manifest["tasks"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest if complete else None


def markdown(models: list[str], rows: list[Row]) -> str:
    """The table; scores x 100 with two digits, a dash where there is none.

    Example:
        >>> print(markdown(["ours"], [("english", "sts12", [52.178]), ("english", "mean", [None])]))
        | suite | task | ours |
        |---|---|---:|
        | english | sts12 | 52.18 |
        | english | **mean** | - |
    """
    models = [model.replace("|", "\\|") for model in models]
    lines = ["| suite | task | " + " | ".join(models) + " |", "|---|---|" + "---:|" * len(models)]
    for suite, name, scores in rows:
        shown = " | ".join("-" if score is None else f"{score:.2f}" for score in scores)
        task = "**mean**" if name == "mean" else name.replace("|", "\\|")
        lines.append(f"| {suite} | {task} | {shown} |")
    return "\n".join(lines)


def chart(models: list[str], rows: list[Row], path: Path) -> None:
    """Bars for each task, a fill for each of the first dozen models, readable in black and white.

    Raises:
        ImportError: matplotlib is missing (`pip install 'banyan-hf[plot]'`).
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("The chart needs: pip install 'banyan-hf[plot]'") from error
    models = models[: len(FILLS)]
    height, columns = 0.8 / len(models), 1 if max(map(len, models)) > LONG else min(len(models), 3)
    inches = 0.8 + len(rows) * max(0.22, 0.13 * len(models)) + 0.25 * math.ceil(len(models) / columns)
    figure = Figure(figsize=(7, inches), layout="constrained")
    axes = figure.subplots()
    for i, model in enumerate(models):
        colour, hatch = FILLS[i]
        values = [scores[i] or 0.0 for _, _, scores in rows]  # nothing to draw where there is no score
        axes.barh([row + i * height for row in range(len(rows))], values, height, label=model, color=colour,
                  hatch=hatch, edgecolor="black", linewidth=0.6)  # fmt: skip
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(rows))], [f"{s}: {name}" for s, name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("main score of the task, x 100")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=columns)
    temporary = path.with_suffix(".tmp")
    with rc_context({"svg.hashsalt": "banyan"}):  # same scores, same bytes
        figure.savefig(temporary, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None)
    os.replace(temporary, path)


def write_table(folder: Path) -> None:
    """Bring table.md up to date."""
    models, rows = read_results(folder)
    if rows:
        write_text(folder / "table.md", markdown(models, rows) + "\n")


def write_chart(folder: Path) -> None:
    """Bring chart.svg up to date.

    Raises:
        ImportError: matplotlib is missing.
    """
    models, rows = read_results(folder)
    if rows:
        chart(models, rows, folder / "chart.svg")


def _revision(task: dict[str, Any]) -> str:
    return str(task.get("data", {}).get("revision"))


def _score(manifest: dict[str, Any], name: str, revision: str) -> float | None:
    task = manifest["tasks"].get(name)
    return task.get("score") if task is not None and _revision(task) == revision else None


def _mean(scores: Iterable[float | None]) -> float | None:
    known = list(scores)
    return None if None in known else sum(s for s in known if s is not None) / len(known)


def _distinct(manifests: list[dict[str, Any]]) -> list[str]:
    names = [Path(manifest["model"]).name or "." for manifest in manifests]
    return [
        f"{name} ({manifest['model_hash'][:8]})" if names.count(name) > 1 else name
        for name, manifest in zip(names, manifests, strict=True)
    ]
