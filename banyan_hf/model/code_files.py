"""The code that is saved with every model, so that whoever has only transformers can open it.

transformers finds the files of a model by reading their text: it follows lines of the form `from .name import ...` and
no other spelling, in one flat folder, and takes every other import outside of `try` for a requirement. The files beside
this one keep to that.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from transformers.dynamic_module_utils import get_relative_import_files

AUTO_MAP = {
    "AutoConfig": "configuration_banyan.BanyanConfig",
    "AutoModel": "modeling_banyan.BanyanModel",
    "AutoModelForPreTraining": "modeling_banyan.BanyanForPreTraining",
}


def code_files() -> list[Path]:
    """The files that a model needs: this folder's `modeling_banyan.py` and all that it imports from here.

    Example:
        >>> sorted(path.name for path in code_files())[:3]
        ['code_files.py', 'configuration_banyan.py', 'counter_dropout.py']
    """
    modeling = Path(__file__).with_name("modeling_banyan.py")
    return [modeling, *sorted({Path(name) for name in get_relative_import_files(modeling)})]


def write_code_files(folder: str | os.PathLike) -> None:
    """Put the code into the folder of a saved model, in place of an older version.

    Args:
        folder: must exist.
    """
    for path in code_files():
        target = Path(folder, path.name)
        if not (target.exists() and target.samefile(path)):
            shutil.copyfile(path, target)
