"""The model card of the English model in the box: its figures measured anew, and the card filled from them.

What: scores the three poolings of the same weights on the six English sets with MTEB, keeps what was found (and the
paper's row) as manifests in model_cards/results/banyan-english/, and renews the generated parts of
model_cards/banyan-english.md from these files and from nothing else. Time: about a minute.

    python benchmarks/banyan_card.py
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from banyan_common import ENGLISH_SETS, PAPER, ROOT, data_folder
from banyan_runs import box_with_pooling

from banyan_hf import cards, default_model
from banyan_hf.evaluation.runner import evaluate
from banyan_hf.evaluation.suites import entries

ROWS = {"root": "**pure: root**", "mean": "token mean", "root_mean": "root + token mean"}
RESULTS, CARD = ROOT / "model_cards" / "results" / "banyan-english", ROOT / "model_cards" / "banyan-english.md"


def measure(pooling: str, work: Path) -> dict[str, Any]:
    """Manifest of the box's weights with one pooling."""
    model = box_with_pooling(pooling, work / pooling / "banyan-english")
    evaluate(str(model), entries(["english"], data_folder()), work / pooling / "results")
    path = next((work / pooling / "results").glob("*/manifest.json"))
    return json.loads(path.read_text(encoding="utf-8")) | {"model": "banyan-english", "pooling": pooling}


def paper() -> dict[str, Any]:
    """The paper's row in the same shape; these six figures are quoted, not measured."""
    scores = dict(zip(ENGLISH_SETS, PAPER["Banyan"], strict=True))
    data = {"path": "arXiv 2407.17771"}
    return {
        "model": "Banyan as in arXiv 2407.17771",
        "tasks": {
            name: {"suite": "english", "type": "STS", "main_score": "cosine_spearman", "data": data, "score": score}
            for name, score in scores.items()
        },
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as work:
        manifests = {pooling: measure(pooling, Path(work)) for pooling in ROWS} | {"paper": paper()}
    for name, manifest in manifests.items():
        (RESULTS / name).mkdir(parents=True, exist_ok=True)
        text = json.dumps(manifest, indent=1) + "\n"
        (RESULTS / name / "manifest.json").write_text(text, encoding="utf-8")
    labels = {**ROWS, "paper": "paper, Banyan (root)"}
    results = [cards.Results.read(f"{label}={RESULTS / name}") for name, label in labels.items()]
    fresh = cards.banyan_card(default_model(), name="owner/banyan-english", results=results)
    card = cards.refresh(CARD.read_text(encoding="utf-8"), fresh, chosen={})
    card.save(CARD)
    print(cards.score_table(results))


if __name__ == "__main__":
    main()
