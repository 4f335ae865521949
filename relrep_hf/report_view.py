"""Show a retention report: tables for the terminal and a chart."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from relrep_hf.report import OURS


def tables(report: Mapping[str, Any]) -> Group:
    """Lay a report out for the terminal.

    Args:
        report: of ``retention_report``.

    Returns:
        something that ``rich`` prints.
    """
    space = report["space"]
    title = f"space {space['id']}: {space['anchors']} anchors, {space['selector']}, {space['similarity']}"
    sizes = Table(title=f"{title}; effective rank of {report['texts']['held_out']} held-out texts")
    for heading in ("encoder", "dimensions", "absolute", "relative"):
        sizes.add_column(heading, justify="left" if heading == "encoder" else "right")
    for name, record in report["encoders"].items():
        rank = record["effective_rank"]
        sizes.add_row(name, str(record["dim"]), f"{rank['absolute']:.0f}", f"{rank['relative']:.0f}")
    retrieval = Table(title="the same texts through two encoders, per cent")
    for heading in ("source -> target", "method", "R@1 (95 %)", "R@10", "MRR", "Jaccard@10", "distance", "eff. rank"):
        retrieval.add_column(heading, justify="left" if heading in ("source -> target", "method") else "right")
    for pair in report["pairs"]:
        for number, (label, record) in enumerate(pair["methods"].items()):
            r1 = record["r@1"]
            retrieval.add_row(
                f"{pair['source']} -> {pair['target']}" if number == 0 else "",
                label,
                f"{100 * r1['value']:.2f} ({100 * r1['low']:.1f}-{100 * r1['high']:.1f})",
                *(f"{100 * record[key]['value']:.2f}" for key in ("r@10", "mrr", "jaccard@10")),
                f"{record['paired_distance']['value']:.3f}",
                f"{record['effective_rank']:.0f}",
                style="bold" if label == OURS else None,
            )
        retrieval.add_section()
    parts: list[Any] = [sizes, *([retrieval] if report["pairs"] else [])]
    for title, records in report["alone"].items():
        table = Table(title=f"{title}: one encoder alone, accuracy on absolute and on relative vectors, per cent")
        for heading in ("encoder", "absolute", "relative", "loss in points (95 %)"):
            table.add_column(heading, justify="left" if heading == "encoder" else "right")
        for record in records:
            loss = record["loss_points"]
            table.add_row(
                record["encoder"],
                *(f"{100 * record[key]['value']:.1f}" for key in ("absolute", "relative")),
                f"{loss['value']:+.1f} ({loss['low']:+.1f} to {loss['high']:+.1f})",
            )
        parts.append(table)
    for title, records in report["tasks"].items():
        table = Table(title=f"{title}: a head trained on the source, run on the target, per cent")
        for heading in ("method", "source -> target", "source own", "target own", "stitched", "kept (95 %)"):
            table.add_column(heading, justify="left" if heading in ("method", "source -> target") else "right")
        for record in records:
            kept = record["kept_percent"]
            table.add_row(
                record["method"],
                f"{record['source']} -> {record['target']}",
                *(f"{100 * record[key]['value']:.1f}" for key in ("source_own", "target_own", "stitched")),
                f"{kept['value']:.1f} ({kept['low']:.1f}-{kept['high']:.1f})",
                style="bold" if record["method"] == OURS else None,
            )
        parts.append(table)
    parts.extend(Text(sentence) for sentence in report["verdict"])
    return Group(*parts)


def chart(report: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Draw R@1 of every pair and method with intervals.

    Args:
        report: of ``retention_report``.
        path: image file; the ending decides the format.

    Raises:
        ValueError: matplotlib is not installed, or the report is of one encoder and has no pairs.
    """
    if not report["pairs"]:
        raise ValueError("The chart shows pairs of encoders, but this report is of one; name another, or leave it out.")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("The chart needs matplotlib: pip install 'banyan-hf[plot]'.") from error
    pairs = report["pairs"]
    methods = list(pairs[0]["methods"])
    figure = Figure(figsize=(2 + 1.6 * len(pairs), 4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(methods)
    for number, method in enumerate(methods):
        records = [pair["methods"][method]["r@1"] for pair in pairs]
        values = [100 * record["value"] for record in records]
        spread = [
            [max(0.0, 100 * (r["value"] - r["low"])) for r in records],
            [max(0.0, 100 * (r["high"] - r["value"])) for r in records],
        ]
        places = [column + number * width for column in range(len(pairs))]
        axes.bar(places, values, width, yerr=spread, label=method, error_kw={"linewidth": 0.8})
    axes.set_xticks(
        [column + 0.4 - width / 2 for column in range(len(pairs))],
        [f"{pair['source']}\n-> {pair['target']}" for pair in pairs],
        fontsize=7,
    )
    axes.set_ylabel("R@1, held-out pairs (%)")
    axes.set_ylim(0, 105)
    axes.legend(fontsize=7, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.savefig(path, dpi=150)
