"""The scripts that print the README's figures take hours; what would break them is noticed here in seconds."""

from __future__ import annotations

import importlib
import json
import os
from types import ModuleType
from unittest.mock import patch

import numpy as np
import pytest
from support import ROOT

SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))


@pytest.fixture
def script(monkeypatch):
    """Import a script by name, as Python does that runs it in its folder; what it sets in the environment is undone."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))

    def load(name: str) -> ModuleType:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != "gensim":
                raise
            pytest.skip("gensim is not installed")

    with patch.dict(os.environ):
        yield load


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_fits_the_package(script, name):
    assert script(name).__doc__


def test_every_way_of_merging_fits_the_kernels(script):
    structures = script("banyan_structures")
    sources = {way: structures.changed_source(changes) for way, changes in structures.WAYS.items()}
    for way, source in sources.items():
        compile(source, way, "exec")
    assert len(set(sources.values())) == len(structures.WAYS)


def test_a_line_that_the_kernels_lack_ends_the_program(script):
    with pytest.raises(SystemExit, match="0 times 'no such line'"):
        script("banyan_structures").changed_source([("no such line", "")])


def test_a_correlation_of_seeds_is_the_mean_of_theirs(script):
    runs = script("banyan_runs")
    gold = np.arange(50.0)
    rng = np.random.default_rng(0)
    near, far = gold + rng.normal(0, 5, 50), gold + rng.normal(0, 50, 50)
    one_by_one = runs.correlation(near, gold), runs.correlation(far, gold)
    assert runs.correlation(np.stack([near, far]), gold) == pytest.approx(sum(one_by_one) / 2)
    low, high = runs.interval(np.stack([near, near]), far, gold)
    assert (low, high) == runs.interval(near, far, gold)
    assert 0 < low < one_by_one[0] - one_by_one[1] < high
    assert runs.interval(near, np.stack([near, near]), gold) == pytest.approx((0, 0))


def test_a_model_of_another_recipe_is_not_reused(script, tmp_path):
    languages = script("banyan_languages")
    recipe, other = (languages.Recipe.named("lang", seed=seed) for seed in (0, 1))
    assert not languages.is_trained(tmp_path, recipe)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "run.json").write_text(json.dumps({"recipe": recipe.to_dict()}))
    assert languages.is_trained(tmp_path, recipe)
    with pytest.raises(SystemExit, match="another recipe"):
        languages.is_trained(tmp_path, other)
