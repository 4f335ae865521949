"""Date and versions: without them a figure cannot be checked."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any


def environment(packages: Iterable[str]) -> dict[str, Any]:
    """When and with what something is measured, for a JSON file.

    Args:
        packages: names of distributions.

    Returns:
        `date` (UTC), `python`, and `versions` by name, `None` for what is not installed.

    Example:
        >>> environment(["no such package"])["versions"]
        {'no such package': None}
    """
    versions: dict[str, str | None] = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": versions,
    }
