"""Putting a folder on the Hub: which files go, which stay, and one commit for all that go."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, HfApi, ModelCard
from huggingface_hub.errors import (
    HTTPError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from . import cards
from .model.code_files import AUTO_MAP, code_files
from .model.short_card import CARD
from .model.st_files import sentence_transformers_files

MAX_FILE_SIZE = 2_000_000_000  # bytes; an encoder of half a billion float32 parameters

# What lies beside a model and is no part of it: pattern of the path, and why it stays.
STAYS = (
    (r"(^|/)(\.|__pycache__/)|\.(tmp|pyc)$", "hidden or temporary"),
    (r"(^|/)checkpoints?(-\d+)?/", "checkpoint"),
    (r"(^|/)(optimizer|scheduler|scaler|rng_state|trainer_state|training_args)[^/]*$", "training state"),
    (r"\.(bin|pt|pth|ckpt|pkl|pickle|joblib|msgpack|h5)$", "not safetensors: opening it could run code"),
    (r"(^|/)run\.json$", "record of the training run; names files of this machine"),
    (r"(?i)(credential|secret|password|\.(pem|key)$)", "looks like a secret"),
    (r"\.(npy|npz|parquet|arrow|csv|tsv|jsonl|log|gz|zip|tar)$", "data, no part of a model"),
    (r"(^|/)(?!(vocab|merges|requirements|license|LICENSE|NOTICE)\.txt$)[^/]+\.txt$", "text, no part of a model"),
)


@dataclass
class Plan:
    """What a push would do.

    Args:
        files: path in the repository -> file on disk, or the content itself.
        stays: path -> why it is not uploaded.
    """

    files: dict[str, Path | bytes] = field(default_factory=dict)
    stays: dict[str, str] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every file, by path."""
        return {
            path: len(source) if isinstance(source, bytes) else source.stat().st_size
            for path, source in sorted(self.files.items())
        }


def plan_folder(folder: str | os.PathLike, *, max_file_size: int = MAX_FILE_SIZE) -> Plan:
    """Choose the files of a folder that may go to the Hub.

    Args:
        folder: a saved model.
        max_file_size: bytes; a larger file is refused.

    Returns:
        The plan. Nothing was sent.

    Raises:
        ValueError: no such folder, a checkpoint, a link, a file too large, or no weights.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder. Give the folder of a saved model.")
    if state := next((name for name in ("trainer_state.json", "optimizer.pt") if (root / name).exists()), None):
        raise ValueError(
            f"{root} is a checkpoint of a training run (it holds {state}), not a finished model. Push the run's own "
            "folder, or open the checkpoint and save the model elsewhere first."
        )
    plan = Plan()
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        if why := next((reason for pattern, reason in STAYS if re.search(pattern, name)), None):
            plan.stays[name] = why
        elif path.is_dir() or not path.resolve().is_relative_to(root.resolve()):
            raise ValueError(f"{path} is a link to {path.resolve()}. Put a copy in its place: links are not followed.")
        else:
            plan.files[name] = path
    for name, size in plan.sizes.items():
        if size > max_file_size:
            raise ValueError(
                f"{name} has {size:,} bytes, more than the limit of {max_file_size:,}. If it belongs to the model, "
                "raise the limit (--max-file-size); if not, move it away."
            )
    if not any(name.endswith(".safetensors") for name in plan.files):
        raise ValueError(f"{root} holds no weights (.safetensors). Was the model saved there?")
    return plan


def plan_banyan(folder: str | os.PathLike, *, max_file_size: int = MAX_FILE_SIZE) -> Plan:
    """As `plan_folder`, for a Banyan: with all that a stranger needs, as this version of the package writes it.

    Raises:
        ValueError: as `plan_folder`, and if the folder holds another kind of model, or no tokenizer.
    """
    plan = plan_folder(folder, max_file_size=max_file_size)
    path = Path(folder, "config.json")
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if config.get("model_type") != "banyan":
        raise ValueError(f"{folder} holds no Banyan (model_type is {config.get('model_type')!r}).")
    if "tokenizer.json" not in plan.files:
        raise ValueError(f"{folder} holds no tokenizer.json. Save the tokenizer there: tokenizer.save_pretrained(...).")
    plan.files["config.json"] = (json.dumps(config | {"auto_map": AUTO_MAP}, indent=2) + "\n").encode()
    plan.files |= {file.name: file for file in code_files()}
    for name, content in sentence_transformers_files(pad_token_id=config.get("pad_token_id")).items():
        plan.files.setdefault(name, content.encode())
    return plan


def card_on_hub(repo_id: str, *, revision: str | None = None, token: str | bool | None = None) -> str | None:
    """The card that a repository has now; `None` if there is no card, or no repository yet."""
    try:
        path = HfApi(token=token).hf_hub_download(repo_id, CARD, revision=revision)
    except RevisionNotFoundError:  # the branch is still to be made, from main
        return None if revision is None else card_on_hub(repo_id, token=token)
    except (RemoteEntryNotFoundError, RepositoryNotFoundError):
        return None
    return Path(path).read_text(encoding="utf-8")


def add_card(
    plan: Plan,
    fresh: ModelCard,
    repo_id: str,
    *,
    on_hub: str | None = None,
    chosen: Mapping[str, object] | None = None,
) -> str:
    """Decide which card the repository shall have, and put it into the plan; what people wrote stays.

    Args:
        plan: may hold a card that lies in the folder.
        fresh: made from the template.
        repo_id: takes the place of names that were not known yet.
        on_hub: the card that is there now; goes before the one in the folder.
        chosen: metadata that the user asked for just now; goes before what a card says.

    Returns:
        In words, where the card comes from.
    """
    local = plan.files.get(CARD)
    written = local.read_text(encoding="utf-8") if isinstance(local, Path) else None
    card, origin = fresh, "new, from the template"
    for text, place in ((on_hub, "on the Hub"), (written, "in the folder")):
        if text is not None and not cards.is_default(text):
            card = cards.refresh(text, fresh, chosen=chosen or {})
            origin = f"the one {place} is kept, with its generated parts renewed"
            break
    plan.files[CARD] = str(card).replace(cards.PLACEHOLDER, repo_id).replace(cards.ST_PLACEHOLDER, repo_id).encode()
    return origin


def push(
    plan: Plan,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    token: str | bool | None = None,
    message: str = "Upload with banyan-hf",
) -> str:
    """Upload a plan in one commit, so that nobody ever sees half of it.

    A push that was interrupted can be repeated: files that arrived are not sent again.

    Args:
        plan: what to upload.
        repo_id: `owner/name`; made if it does not exist.
        private: nobody else shall see it.
        revision: branch; made if it does not exist.
        token: of the Hub; the stored one if not given.
        message: of the commit.

    Returns:
        Address of the commit.

    Raises:
        ValueError: the name or the card is not valid, or the repository is public where a private one was asked for.
    """
    check_repo_id(repo_id)
    if isinstance(card := plan.files.get(CARD), bytes):
        ModelCard(card.decode()).validate()
    api = HfApi(token=token)
    repo = api.create_repo(repo_id, private=private or None, exist_ok=True).repo_id
    if private and not api.model_info(repo).private:
        raise ValueError(
            f"{repo} exists and is public, so nothing was uploaded. Make it private in its settings first."
        )
    if revision is not None:
        api.create_branch(repo, branch=revision, exist_ok=True)
    operations = [
        CommitOperationAdd(name, source if isinstance(source, bytes) else str(source))
        for name, source in sorted(plan.files.items())
    ]
    return str(api.create_commit(repo, operations, commit_message=message, revision=revision).commit_url)


def newest_commit(repo_id: str) -> str:
    """Hash of a repository's newest commit.

    Raises:
        ValueError: the Hub has no such repository, or cannot be reached.
    """
    check_repo_id(repo_id)
    try:
        return str(HfApi().model_info(repo_id).sha)
    except (HTTPError, ConnectionError) as error:
        raise ValueError(explain(error)) from error


def check_repo_id(repo_id: str) -> None:
    """Refuse a name that the Hub would refuse.

    Raises:
        ValueError: says what a name looks like.
    """
    try:
        validate_repo_id(repo_id)
    except ValueError as error:
        raise ValueError(f"{repo_id!r} is no name of a repository ({error}). Write owner/name.") from error
    if "/" not in repo_id:
        raise ValueError(f"{repo_id!r} names no owner. Write owner/name.")


def publish(
    plan: Plan,
    fresh: ModelCard,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    dry_run: bool = False,
    replace_card: bool = False,
    chosen: Mapping[str, object] | None = None,
    say: Callable[[Any], None] = print,
) -> str | None:
    """Add the card, show what goes and what stays, and push: what `banyan push` and `relrep push` do.

    Args:
        plan, repo_id, private, revision: as in `push`.
        fresh, chosen: as in `add_card`.
        dry_run: show only; the Hub is not asked anything.
        replace_card: take the fresh card, whatever people wrote.
        say: takes something that rich prints.

    Returns:
        Address of the commit; `None` after a dry run.

    Raises:
        ValueError: as `push`; or the Hub refused, or cannot be reached.
    """
    check_repo_id(repo_id)
    if replace_card:
        plan.files.pop(CARD, None)
    try:
        on_hub = None if dry_run or replace_card else card_on_hub(repo_id, revision=revision)
        origin = add_card(plan, fresh, repo_id, on_hub=on_hub, chosen=chosen)
        say(show(plan))
        say(f"Card: {origin}.")
        return None if dry_run else push(plan, repo_id, private=private, revision=revision)
    except (HTTPError, ConnectionError, LocalEntryNotFoundError) as error:
        raise ValueError(explain(error)) from error


def show(plan: Plan) -> Group:
    """A table of the files that go, largest first, and a line for each that stays."""
    table = Table("file", Column("bytes", justify="right"))
    for name, size in sorted(plan.sizes.items(), key=lambda item: -item[1]):
        table.add_row(name, f"{size:,}")
    table.add_section()
    table.add_row(f"{len(plan.files)} files", f"{sum(plan.sizes.values()):,}")
    stays: dict[str, list[str]] = {}
    for name, why in plan.stays.items():
        first, slash, _ = name.partition("/")
        if first + slash not in (names := stays.setdefault(why, [])):
            names.append(first + slash)  # a folder is named once
    lines = [f"Not uploaded ({why}): {', '.join(names)}" for why, names in stays.items()]
    return Group(table, *map(Text, lines))


def explain(error: Exception) -> str:
    """One sentence for what the Hub refused, with the next step."""
    response = getattr(error, "response", None)
    if response is None:
        return (
            f"The Hub cannot be reached ({error}). No commit was made; the same command can be repeated. (Hubs other "
            "than huggingface.co may need HF_HUB_DISABLE_XET=1.)"
        )
    if response.status_code in (401, 403):
        return (
            "The Hub does not know you or does not let you write there. Log in with `hf auth login`, or set HF_TOKEN."
        )
    return f"{error} No commit was made; the same command can be repeated."
