"""The card of a space, from its files; the template is in model_cards/."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from banyan_hf.cards import PLACEHOLDER, fill


def space_card(config: Mapping[str, Any], *, name: str = PLACEHOLDER, report: Mapping[str, Any] | None = None,
               chart: str | None = None, chosen: Mapping[str, object] | None = None) -> ModelCard:  # fmt: skip
    """Card of a space.

    Args:
        config: as saved in space.json.
        name: of the repository.
        report: of ``retention_report``.
        chart: file name of its chart.
        chosen: metadata to set: language, license, base_model, ...

    Returns:
        the card; ``str`` of it is Markdown.

    Raises:
        ValueError: the report is about another space.
    """
    if report is not None and report["space"]["id"] != config["id"]:
        raise ValueError(
            f"The report is about space {report['space']['id']}, but this is {config['id']}: run `relrep report` again."
        )
    data = ModelCardData(
        library_name="relrep_hf", pipeline_tag="feature-extraction", tags=["relative-representations", "banyan"]
    )
    facts = {"config": config, "name": name, "report": report, "chart": chart}
    return fill("space", data, chosen, facts)
