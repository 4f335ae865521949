"""Every example runs in its small form and prints its figure last."""

from __future__ import annotations

import importlib
import re
import sys

import pytest
from rich.console import Console
from support import ROOT


@pytest.fixture
def example(monkeypatch, capsys):
    """Run an example in this process; what it printed, without the frames of tables."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setenv("COLUMNS", "160")

    def run(name: str, *arguments: object) -> str:
        module = importlib.import_module(name)
        if hasattr(module, "console"):
            monkeypatch.setattr(module, "console", Console(width=160))
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        capsys.readouterr()
        module.main()
        return capsys.readouterr().out

    return run


def row(printed: str, label: str) -> list[float]:
    """The numbers in the last line that has the label."""
    line = next(line for line in reversed(printed.splitlines()) if label in line)
    return [float(number) for number in re.findall(r"(?<![\w-])\d+(?:\.\d+)?", line.split(label)[1].replace(",", ""))]


def test_switch_models(example, tmp_path):
    pytest.importorskip("lancedb", reason="the extra 'index' is not installed")
    printed = example("switch_models", "--small", "--output", tmp_path / "out")
    assert row(printed, "encoded anew")[0] == 1.0
    relative, absolute = row(printed, "relative space, m = 64"), row(printed, "translated into")
    cca, procrustes = row(printed, "closed form: CCA"), row(printed, "closed form: Procrustes")
    for recall, ndcg, *_ in (relative, absolute, cca, procrustes):
        assert 0.1 < recall < 1  # ten of 800 by chance would be 0.01
        assert 0.05 < ndcg < 1
    assert "A query of the wrong space is refused" in printed
    assert re.search(r"a million would be moved \d+ times faster\.$", " ".join(printed.split()))


def test_the_gate_stops_switch_models(example, tmp_path):
    pytest.importorskip("lancedb", reason="the extra 'index' is not installed")
    with pytest.raises(ValueError, match="Nothing was written"):
        example("switch_models", "--small", "--min-recall", "0.99", "--output", tmp_path / "out")
    assert not (tmp_path / "out" / "relative").exists()


def test_see_the_trees(example, tmp_path):
    printed = example("see_the_trees", "--output", tmp_path / "trees.html")
    assert re.match(r"10 trees, \d+ phrases: ", printed.splitlines()[-1])
    assert (tmp_path / "trees.html").read_text(encoding="utf-8").count("<svg") == 10


def test_fast_queries(example, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
    printed = example("fast_queries", "--small", "--output", tmp_path)
    stitched, cca = row(printed, "word-vectors and banyan, stitched"), row(printed, "word-vectors and banyan, CCA")
    assert stitched[0] > 0.05 < cca[0]
    assert row(printed, "banyan on both sides")[1] == 100
    assert (tmp_path / "fast_queries.png").stat().st_size > 10_000


def test_one_head_many_encoders(example, tmp_path):
    printed = example("one_head_many_encoders", "--small", "--output", tmp_path)
    for name in ("word-vectors-32", "banyan"):
        _, own, stitched, _ = row(printed, f" {name} ")
        assert own > 50  # of three modules
        assert stitched > 50
    assert row(printed, "has not seen:")[0] > 70


def test_train_your_language(example, tmp_path):
    printed = example("train_your_language", "--small", "--output", tmp_path / "model")
    assert (tmp_path / "model" / "modules.json").exists()
    assert 0 < row(printed, "root of the tree")[0] <= 1
    assert 0 < row(printed, "mean of the tokens")[0] <= 1


def test_small_language_models(example):
    printed = example("small_language_models", "--small")
    before, after = row(printed, "random + cosine"), row(printed, "PARAM + WIP")
    assert min(after) > max(before)
    assert min(after) > 2  # of 200 by chance: 0.5
