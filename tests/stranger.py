"""A Python where our packages are not installed: what a stranger who downloads a model has.

It is a real virtual environment whose site-packages holds links to everything that is installed here, except our two
packages and whatever else is named. So `import banyan_hf` fails there as it does for a stranger, in child processes
too; a blocker in `sys.meta_path` would miss those, and `python -S` would still see a non-editable install.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import textwrap
import venv
from pathlib import Path
from typing import Any

OURS = ("banyan_hf", "relrep_hf", "__editable__")


class Stranger:
    """A clean Python with a home of its own.

    Args:
        folder: where to make it.
        without: names (beginnings) of installed packages that shall be missing.
        endpoint: address of the Hub; none means offline.
    """

    def __init__(self, folder: Path, *, without: tuple[str, ...] = (), endpoint: str | None = None) -> None:
        venv.create(folder / "venv", symlinks=os.name != "nt", with_pip=False)
        self.python = folder / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        site = next((folder / "venv").rglob("site-packages"))
        for source in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            for entry in Path(source).iterdir():
                hidden = entry.name.startswith(OURS + without) or entry.suffix == ".pth"
                if not hidden and not (site / entry.name).exists():
                    (site / entry.name).symlink_to(entry)
        self.home = folder / "home"
        self.home.mkdir()
        names = ("PATH", "LANG", "SYSTEMROOT", "TMPDIR", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")
        self.environment = {name: os.environ[name] for name in names if name in os.environ} | {
            "HOME": str(self.home),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_DISABLE_XET": "1",  # a Hub without Xet storage
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            **({"HF_ENDPOINT": endpoint} if endpoint else {"HF_HUB_OFFLINE": "1"}),
        }

    def run(self, code: str, *arguments: object, cwd: Path | None = None, **environment: str) -> Any:
        """Run a script that has `show(value)`; returns the value, which JSON can hold.

        Raises:
            AssertionError: the script failed; holds the end of what it said.
        """
        script = self.home / "script.py"
        script.write_text(PRELUDE + textwrap.dedent(code), encoding="utf-8")
        done = subprocess.run(
            [self.python, script, *map(str, arguments)],
            env=self.environment | environment, cwd=cwd or self.home, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return json.loads(done.stdout.rpartition("SHOW ")[2])


PRELUDE = """
import importlib.util, json, sys

assert not importlib.util.find_spec("banyan_hf") and not importlib.util.find_spec("relrep_hf")

def show(value):
    print("SHOW " + json.dumps(value))

"""


def here(code: str, *arguments: object, **environment: str) -> Any:
    """As `Stranger.run`, in a process where our packages are installed."""
    raise NotImplementedError
