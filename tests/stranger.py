"""A Python where our packages are not installed: what a stranger who downloads a model has.

It is a real virtual environment whose site-packages holds links to everything that is installed here, except our two
packages and whatever else is named. So `import banyan_hf` fails there as it does for a stranger, in child processes
too; a blocker in `sys.meta_path` would miss those, and `python -S` would still find a package that is not installed in
editable mode.
"""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import textwrap
import venv
from pathlib import Path
from typing import Any

OURS = ("banyan_hf", "relrep_hf", "__editable__")


class Stranger:
    """A clean Python.

    Args:
        folder: where to make it.
        without: beginnings of the names of installed packages that shall be missing too.
    """

    def __init__(self, folder: Path, *, without: tuple[str, ...] = ()) -> None:
        venv.create(folder / "venv", symlinks=os.name != "nt", with_pip=False)
        self.python = folder / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        site = next((folder / "venv").rglob("site-packages"))
        for source in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            for entry in Path(source).iterdir():
                hidden = entry.name.startswith(OURS + without) or entry.suffix == ".pth"
                if not hidden and not (site / entry.name).exists():
                    (site / entry.name).symlink_to(entry)

    def run(self, code: str, *arguments: object, home: Path, endpoint: str | None = None) -> Any:
        """Run a script that calls `show` once.

        Args:
            code: body of a function; `arguments` are in `sys.argv`.
            arguments: of the script.
            home: of the user: all caches are there.
            endpoint: address of the Hub; without one the process is offline.

        Returns:
            What `show` was given; JSON can hold it.

        Raises:
            AssertionError: the script failed; holds the end of what it said.
        """
        home.mkdir(exist_ok=True)
        script = home / "script.py"
        script.write_text(TEMPLATE.format(body=textwrap.indent(textwrap.dedent(code), "    ")), encoding="utf-8")
        names = ("PATH", "LANG", "SYSTEMROOT", "TMPDIR", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")
        environment = {name: os.environ[name] for name in names if name in os.environ} | {
            "HOME": str(home),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_DISABLE_XET": "1",  # the loopback Hub has plain LFS
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            **({"HF_ENDPOINT": endpoint} if endpoint else {"HF_HUB_OFFLINE": "1"}),
        }
        done = subprocess.run(
            [self.python, script, *map(str, arguments)],
            env=environment, cwd=home, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return json.loads(done.stdout.rpartition("SHOW ")[2])


# Worker processes import the script anew, hence the guard at its end.
TEMPLATE = """
import importlib.util, hashlib, json, sys

assert not importlib.util.find_spec("banyan_hf") and not importlib.util.find_spec("relrep_hf")

def show(value):
    print("SHOW " + json.dumps(value))

def digest(array):
    return hashlib.sha256(array.tobytes()).hexdigest()

def main():
{body}

if __name__ == "__main__":
    main()
"""
