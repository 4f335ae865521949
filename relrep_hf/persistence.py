"""Disk and Hub: a space is ``space.json`` + ``mixing.safetensors``, and nothing of it is ever pickled."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import snapshot_download
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from relrep_hf.cards import space_card

CONFIG, TENSORS = "space.json", "mixing.safetensors"


def write_folder(path: str | os.PathLike[str], write: Callable[[Path], None]) -> None:
    """Write a folder whole or not at all: into a temporary neighbour, then by renames.

    Args:
        path: the folder; files of the same name in it are replaced, others kept.
        write: called with the temporary folder.

    Raises:
        ValueError: a file is in the way.
    """
    target = Path(path)
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file; give the name of a folder.")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        write(temporary)
        if not target.exists():
            temporary.chmod(0o755)  # mkdtemp makes folders that only the owner can read
            os.replace(temporary, target)
            return
        for file in temporary.iterdir():
            os.replace(file, target / file.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_space(path: str | os.PathLike[str], config: dict[str, Any], mixing: NDArray[np.float32]) -> None:
    """Write a space, with a model card if the folder has none.

    Args:
        path: the folder.
        config: JSON-ready; holds the support texts.
        mixing: (m, K); rows that are mostly zeros are stored as (values, columns).
    """

    def write(folder: Path) -> None:
        per_row = int((mixing != 0).sum(axis=1).max())
        if per_row * 2 < mixing.shape[1]:
            columns = np.argsort(mixing == 0, axis=1, kind="stable")[:, :per_row].astype(np.int32)
            values = np.take_along_axis(mixing, columns, axis=1)
            save_file({"values": np.ascontiguousarray(values), "columns": columns}, folder / TENSORS)
        else:
            save_file({"mixing": np.ascontiguousarray(mixing)}, folder / TENSORS)
        (folder / CONFIG).write_text(json.dumps(config, ensure_ascii=False, indent=1), encoding="utf-8")
        if not (Path(path) / "README.md").exists():
            (folder / "README.md").write_text(str(space_card(config)), encoding="utf-8")

    write_folder(path, write)


def read_space(path: str | os.PathLike[str]) -> tuple[dict[str, Any], NDArray[np.float32]]:
    """Read what ``write_space`` wrote.

    Args:
        path: the folder.

    Returns:
        config and mixing (m, K).

    Raises:
        ValueError: a file is missing or damaged.
    """
    folder = Path(path)
    absent = [name for name in (CONFIG, TENSORS) if not (folder / name).is_file()]
    if absent:
        raise ValueError(f"{folder} is not a relative space: {' and '.join(absent)} missing. Was it space.save'd?")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(folder / TENSORS)
        absent = [key for key in ("id", "support") if key not in config]
    except (ValueError, TypeError, SafetensorError) as error:
        raise ValueError(f"{folder} holds a damaged space ({error}). Copy or save it again.") from error
    if not isinstance(config, dict) or absent:
        raise ValueError(f"{folder / CONFIG} is not that of a space: it lacks {', '.join(absent) or 'everything'}.")
    if "mixing" in tensors:
        return config, tensors["mixing"]
    mixing = np.zeros((len(tensors["values"]), len(config["support"])), np.float32)
    # Rows shorter than the longest are padded with zeros at unused columns, so plain assignment is right.
    np.put_along_axis(mixing, tensors["columns"].astype(np.int64), tensors["values"], axis=1)
    return config, mixing


def pull_folder(name: str, *, revision: str | None, token: str | bool | None, cache_dir: str | None) -> str:
    """Find a space on disk or download it.

    Args:
        name: folder or ``owner/name``.
        revision: branch or commit.
        token: of the Hub.
        cache_dir: of the Hub's cache.

    Returns:
        a local folder.
    """
    if Path(name).is_dir():
        return name
    return snapshot_download(
        name, revision=revision, token=token, cache_dir=cache_dir, allow_patterns=[CONFIG, TENSORS, "README.md"]
    )
