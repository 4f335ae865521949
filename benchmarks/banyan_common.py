"""What the Banyan benchmarks share: where the data lie, the paper's table, printing and saving results."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from banyan_hf.evaluation.environment import environment as date_and_versions

ROOT = Path(__file__).resolve().parent.parent
ENGLISH_SETS = ("sts12", "sts13", "sts14", "sts15", "stsb", "sick")
# Spearman x 100 on ENGLISH_SETS, from the Banyan paper (arXiv 2407.17771); models of 10 M tokens unless named.
PAPER = {
    "Banyan": (51.38, 69.60, 63.20, 73.08, 61.90, 55.23),
    "RoBERTa + SimCSE, 100 M": (50.63, 62.23, 54.17, 68.77, 53.53, 56.87),
    "Sent2Vec": (38.14, 51.37, 48.64, 67.28, 53.39, 59.67),
    "GloVe, no stop words": (39.00, 41.61, 39.31, 51.06, 48.40, 52.80),
    "Self-StrAE": (31.98, 53.88, 37.73, 55.23, 39.53, 51.78),
}
PACKAGES = (
    "banyan-hf", "torch", "transformers", "sentence-transformers", "tokenizers", "numba", "numpy", "gensim",
    "scikit-learn",
)  # fmt: skip


def data_folder() -> Path:
    """Where `BANYAN_HF_DATA` points, or `../shared/data` beside the project; ends the program if there is nothing."""
    folder = Path(os.environ.get("BANYAN_HF_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "text" / "en.txt.gz").is_file():
        sys.exit(f"{folder} holds no text/en.txt.gz: set BANYAN_HF_DATA to the folder with text/ and eval/ in it.")
    return folder


def encoder_folder(name: str) -> Path | None:
    """A built encoder in `BANYAN_HF_ENCODERS`, or None (and a sentence why)."""
    base = os.environ.get("BANYAN_HF_ENCODERS")
    if base and Path(base, name, "modules.json").is_file():
        return Path(base, name)
    print(f"No {name}: set BANYAN_HF_ENCODERS to the folder that shared/encoders/build_encoders.py made.", flush=True)
    return None


def parser(description: str | None) -> argparse.ArgumentParser:
    """An argument parser with the module's docstring and `--output`."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--output", type=Path, help="also write the results here, as JSON")
    return made


def cell(value: Any) -> str:
    """Numbers short enough to read: 12,345, 12.3 or 0.123; a missing one is a dash."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Rows with the same keys as a plain text table; text to the left, numbers to the right."""
    columns = list(rows[0])
    texts = [columns, *([cell(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in texts) for i in range(len(columns))]
    is_text = [any(isinstance(row[column], str) for row in rows) for column in columns]
    for line in texts:
        padded = [t.ljust(w) if left else t.rjust(w) for t, w, left in zip(line, widths, is_text, strict=True)]
        print("  ".join(padded).rstrip(), flush=True)


def environment() -> dict[str, Any]:
    """Date, versions and CPUs: without them a figure cannot be checked."""
    return {
        **date_and_versions(PACKAGES),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "load_average": [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else None,
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].split(":", 1)[1].strip() if names else platform.processor() or platform.machine()


def save(path: Path | None, **results: Any) -> None:
    """Write the results with their environment, if a path was given."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**environment(), **results}, indent=2) + "\n", encoding="utf-8")
    print(f"Written to {path}", flush=True)


def with_mean(scores: Sequence[float]) -> dict[str, float]:
    """The six columns by name, and their plain mean."""
    return {**dict(zip(ENGLISH_SETS, scores, strict=True)), "mean": sum(scores) / len(scores)}
