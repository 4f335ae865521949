"""The wheel holds all that an installed package needs, and works where nothing but the wheel is."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile

import pytest
from stranger import Stranger
from support import ROOT

PARTS = ("banyan_hf", "relrep_hf", "model_cards")
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
USE = """
    import subprocess
    sys.path.insert(0, sys.argv[1])
    import banyan_hf, relrep_hf
    from pathlib import Path
    from banyan_hf import cards
    from banyan_hf.training.recipe import Recipe
    from relrep_hf.cards import space_card

    model, tokenizer = banyan_hf.load_encoder(banyan_hf.default_model())
    config = {"id": "x", "anchors": 1, "support": [], "similarity": "wip", "selector": "param", "encoders": {}}
    show({
        "from": [Path(package.__file__).parents[1].name for package in (banyan_hf, relrep_hf)],
        "vocabulary": len(tokenizer),
        "recipes": [Recipe.named(name).batch_size for name in ("default", "en", "paper")],
        "card": cards.banyan_card(banyan_hf.default_model(), name="me/x").data.library_name,
        "space": space_card(config).data.library_name,
        "attached": Path(cards.template("attached")).is_file(),
    })
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("setuptools")
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PARTS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name in FILES:
        shutil.copy(ROOT / name, source)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, target], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return next(target.glob("*.whl"))


def test_content(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in ("banyan_hf", "relrep_hf"):
        ours = {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / package).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and path.name != "README.md"
            if path.suffix != ".py" or path.parent.name != "english"  # the box needs no code of its own
        }
        assert ours <= names, ours - names
        assert f"{package}/py.typed" in names
    templates = {f"banyan_hf/model_cards/{path.name}" for path in (ROOT / "model_cards").glob("*_template.md")}
    assert len(templates) == 3
    assert templates <= names
    assert not [name for name in names if name.startswith(("tests", "examples", "benchmarks", "model_cards"))]


def test_use(wheel, tmp_path):
    target = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(target)
    found = Stranger(tmp_path / "python", without=("numba", "llvmlite")).run(USE, target, home=tmp_path / "home")
    assert found.pop("recipes")
    assert found == {
        "from": ["installed", "installed"], "vocabulary": 16000, "card": "sentence-transformers", "space": "relrep_hf",
        "attached": True,
    }  # fmt: skip
