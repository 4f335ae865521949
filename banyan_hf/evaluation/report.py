"""From the manifests in a folder of results to one Markdown table and one chart, a column for each model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..persistence import write_text

Row = tuple[str, str, list[float | None]]  # suite, task (or "mean"), score of each model
FILLS = (("black", ""), ("white", "///"), ("0.6", ""), ("white", "..."), ("0.85", ""), ("white", "xxx"))


def read_results(folder: Path) -> tuple[list[str], list[Row]]:
    """Scores of all models in a folder, suite by suite, with the plain mean of each suite.

    Args:
        folder: what `runner.evaluate` wrote to.

    Returns:
        Names of the models (with the hash where two have the same), and rows. A score is `None` where the task was not
        run or failed; a mean is `None` unless every task of the suite has a score.
    """
    manifests = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/manifest.json"))]
    manifests = [manifest for manifest in manifests if manifest["tasks"]]
    suites: dict[str, list[str]] = {}
    for manifest in manifests:
        for name, task in manifest["tasks"].items():
            rows = suites.setdefault(task["suite"], [])
            rows.extend([name] if name not in rows else [])
    table: list[Row] = []
    for suite, names in suites.items():
        scores = [[manifest["tasks"].get(name, {}).get("score") for manifest in manifests] for name in names]
        table += [(suite, name, row) for name, row in zip(names, scores, strict=True)]
        if len(names) > 1:
            table.append((suite, "mean", [_mean(column) for column in zip(*scores, strict=True)]))
    return _distinct(manifests), table


def markdown(models: list[str], rows: list[Row]) -> str:
    """The table; scores x 100 with two digits, a dash where there is none.

    Example:
        >>> print(markdown(["ours"], [("english", "sts12", [52.178]), ("english", "mean", [None])]))
        | suite | task | ours |
        |---|---|---:|
        | english | sts12 | 52.18 |
        | english | **mean** | - |
    """
    lines = ["| suite | task | " + " | ".join(models) + " |", "|---|---|" + "---:|" * len(models)]
    for suite, name, scores in rows:
        shown = " | ".join("-" if score is None else f"{score:.2f}" for score in scores)
        lines.append(f"| {suite} | {'**mean**' if name == 'mean' else name} | {shown} |")
    return "\n".join(lines)


def chart(models: list[str], rows: list[Row], path: Path) -> None:
    """Bars for each task, a fill for each model, readable in black and white.

    Raises:
        ImportError: matplotlib is missing (`pip install 'banyan-hf[plot]'`).
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("The chart needs: pip install 'banyan-hf[plot]'") from error
    height = 0.8 / len(models)
    figure = Figure(figsize=(7, 0.8 + len(rows) * max(0.22, 0.13 * len(models))), layout="constrained")
    axes = figure.subplots()
    for i, model in enumerate(models):
        colour, hatch = FILLS[i % len(FILLS)]
        values = [scores[i] or 0.0 for _, _, scores in rows]  # nothing to draw where there is no score
        axes.barh([row + i * height for row in range(len(rows))], values, height, label=model, color=colour,
                  hatch=hatch, edgecolor="black", linewidth=0.6)  # fmt: skip
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(rows))], [f"{s}: {name}" for s, name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("main score of the task, x 100")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=min(len(models), 3))
    temporary = path.with_suffix(".tmp")
    with rc_context({"svg.hashsalt": "banyan"}):  # same scores, same bytes
        figure.savefig(temporary, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None)
    os.replace(temporary, path)


def write_report(folder: Path) -> None:
    """Write table.md, then chart.svg.

    Raises:
        ImportError: matplotlib is missing; the table is there.
    """
    models, rows = read_results(folder)
    if not rows:
        return
    write_text(folder / "table.md", markdown(models, rows) + "\n")
    chart(models, rows, folder / "chart.svg")


def _mean(scores: Iterable[float | None]) -> float | None:
    known = list(scores)
    return None if None in known else sum(s for s in known if s is not None) / len(known)


def _distinct(manifests: list[dict[str, Any]]) -> list[str]:
    names = [Path(manifest["model"]).name for manifest in manifests]
    return [
        f"{name} ({manifest['model_hash'][:8]})" if names.count(name) > 1 else name
        for name, manifest in zip(names, manifests, strict=True)
    ]
