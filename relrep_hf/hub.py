"""Putting a space, an attached or a stitched model on the Hub; the uploading itself is `banyan_hf.hub`'s."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import ModelCard

from banyan_hf.hub import CARD, MAX_FILE_SIZE, Plan, add_card, card_on_hub, plan_folder, push
from relrep_hf.cards import space_card
from relrep_hf.folding import is_tag
from relrep_hf.persistence import CONFIG

__all__ = ["add_card", "card_on_hub", "plan_push", "push"]

REPORT = "report.json"  # beside a space: what `relrep report --output` wrote, and its chart
CHARTS = ("report.svg", "report.png")


def plan_push(
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    max_file_size: int = MAX_FILE_SIZE,
    chosen: Mapping[str, object] | None = None,
) -> tuple[Plan, ModelCard]:
    """Files and fresh card of a space, or of a model that is attached to one.

    Args:
        folder: what ``RelativeSpace.save`` wrote (``report.json`` and its chart beside it go along), or a saved
            attached or stitched model.
        repo_id: ``owner/name``.
        max_file_size: bytes.
        chosen: metadata to set.

    Returns:
        the plan and the card.

    Raises:
        ValueError: the folder holds neither, or a file may not be uploaded.
    """
    plan = plan_folder(folder, max_file_size=max_file_size)
    if CONFIG in plan.files:
        config = json.loads(Path(folder, CONFIG).read_text(encoding="utf-8"))
        path = plan.files.get(REPORT)
        report = json.loads(path.read_text(encoding="utf-8")) if isinstance(path, Path) else None
        chart = next((name for name in CHARTS if name in plan.files), None)
        return plan, space_card(config, name=repo_id, report=report, chart=chart, chosen=chosen)
    modules = Path(folder, "modules.json")
    names = [m["name"] for m in json.loads(modules.read_text(encoding="utf-8"))] if modules.is_file() else []
    if not any(is_tag(name) for name in names) or CARD not in plan.files:
        raise ValueError(
            f"{folder} holds neither a space ({CONFIG}) nor a saved model that is attached to one (relrep attach, "
            "space.attach, stitch)."
        )
    card = ModelCard(Path(folder, CARD).read_text(encoding="utf-8"))
    for key, value in (chosen or {}).items():
        card.data[key] = value
    for file in Path(folder).glob("*/*.py"):  # code of an encoder inside a Router: it is looked for in the root
        plan.files.setdefault(file.name, file)
    return plan, card
