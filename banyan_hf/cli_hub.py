"""The commands that publish a model: push, card, mteb-meta."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

console = Console()
CardLanguage = Annotated[
    list[str] | None, typer.Option("--language", help="ISO 639 code for the card. May be given again.")
]
CardLicense = Annotated[str | None, typer.Option("--license", help="Of the weights, for the card, e.g. apache-2.0.")]
CardDatasets = Annotated[list[str] | None, typer.Option("--dataset", help="Data set on the Hub it was trained on.")]
CardResults = Annotated[
    list[str] | None,
    typer.Option(
        "--results",
        help="A model's folder of `banyan evaluate`, or LABEL=FOLDER. The first go into the metadata too.",
    ),
]


def push(
    folder: Annotated[Path, typer.Argument(help="Folder of a trained Banyan.")],
    repo: Annotated[str, typer.Argument(help="Where to: owner/name.")],
    private: Annotated[bool, typer.Option("--private", help="Nobody else shall see it.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch; made if it does not exist.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be uploaded.")] = False,
    language: CardLanguage = None,
    license: CardLicense = None,
    dataset: CardDatasets = None,
    results: CardResults = None,
    replace_card: Annotated[
        bool, typer.Option("--replace-card", help="Write the card anew, also where people changed it.")
    ] = False,
    max_file_size: Annotated[int, typer.Option(help="Refuse files with more megabytes.")] = 2000,
) -> None:
    """Upload a model, so that anybody can open it, with a card that says what it is.

    [bold]Example:[/]  banyan push my-model me/my-model --language en --license apache-2.0 --dry-run

    Training states, checkpoints and pickles stay here. Log in first: hf auth login.
    """
    from . import cards
    from .hub import plan_banyan, publish

    plan = plan_banyan(folder, max_file_size=max_file_size * 1_000_000)
    chosen = _metadata(language, license, dataset)
    scores = [cards.Results.read(name) for name in results or ()]
    fresh = cards.banyan_card(folder, name=repo, results=scores, chosen=chosen)
    url = publish(
        plan, fresh, repo, private=private, revision=revision, dry_run=dry_run, replace_card=replace_card,
        chosen=chosen, say=lambda what: console.print(what, highlight=False),
    )  # fmt: skip
    console.print("Dry run: nothing was uploaded." if url is None else f"Uploaded: {url}", markup=False)


def card(
    folder: Annotated[Path, typer.Argument(help="Folder of a trained Banyan.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Markdown file; what people wrote into it is kept.")],
    name: Annotated[str, typer.Option(help="Of the repository: owner/name.")] = "owner/name",
    language: CardLanguage = None,
    license: CardLicense = None,
    dataset: CardDatasets = None,
    results: CardResults = None,
) -> None:
    """Write or renew a model card without uploading anything.

    [bold]Example:[/]  banyan card my-model --output my-model/README.md --results results/my-model --language en
    """
    from . import cards

    chosen = _metadata(language, license, dataset)
    scores = [cards.Results.read(where) for where in results or ()]
    fresh = cards.banyan_card(folder, name=name, results=scores, chosen=chosen)
    if output.exists():
        fresh = cards.refresh(output.read_text(encoding="utf-8"), fresh, chosen=chosen)
    fresh.save(output)
    console.print(f"Wrote {output}.", markup=False, highlight=False)


def mteb_meta(
    repo: Annotated[str, typer.Argument(help="Name of the model on the Hub: owner/name.")],
    folder: Annotated[
        Path | None, typer.Option("--model", help="Its folder.", show_default="the model in the box")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Commit on the Hub.", show_default="the newest")] = None,
    language: Annotated[list[str] | None, typer.Option(help="As MTEB writes it, eng-Latn. May be given again.")] = None,
    license: Annotated[str | None, typer.Option(help="Of the weights, e.g. apache-2.0.")] = None,
) -> None:
    """Print the code that registers a model with MTEB, for a pull request there.

    [bold]Example:[/]  banyan mteb-meta me/my-model --language eng-Latn --license apache-2.0 > my_models.py
    """
    from .hub import newest_commit
    from .persistence import default_model
    from .registration import model_meta_code

    commit = revision or newest_commit(repo)
    code = model_meta_code(folder or default_model(), repo, revision=commit, languages=language, license=license)
    print(code, end="")


def _metadata(language: list[str] | None, license: str | None, dataset: list[str] | None) -> dict[str, object]:
    """What was asked for, by the names that the Hub gives it."""
    asked = {"language": language, "license": license, "datasets": dataset}
    single = {key: value[0] if isinstance(value, list) and len(value) == 1 else value for key, value in asked.items()}
    return {key: value for key, value in single.items() if value}
