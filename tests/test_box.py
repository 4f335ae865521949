"""The English model that comes with the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from support import ROOT, SHARED
from transformers import AutoModel, AutoTokenizer

import banyan_hf
from banyan_hf.evaluation.sts import read_pairs, spearman


@pytest.fixture(scope="module")
def encoder():
    return SentenceTransformer(banyan_hf.default_model())


def test_is_small_and_complete():
    files = list(Path(banyan_hf.default_model()).iterdir())
    assert sum(path.stat().st_size for path in files) <= 14_000_000
    assert {"config.json", "model.safetensors", "tokenizer.json", "modules.json"} <= {path.name for path in files}


def test_opens_by_every_door(encoder):
    folder = banyan_hf.default_model()
    texts = ["A violinist played.", "", "xyzzy 😀", "the " * 50_000]
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.float32
    with torch.no_grad():
        out = model(**tokenizer(texts, padding=True, truncation=True, return_tensors="pt"))
    vectors = encoder.encode(texts)
    assert torch.equal(out.pooler_output, torch.from_numpy(vectors))
    assert torch.isfinite(out.pooler_output).all()


def test_knows_what_belongs_together(encoder):
    triples = [
        ("a pianist gave a concert", "the orchestra performed a symphony", "the senator won the election"),
        ("the troops fought the enemy", "soldiers captured the fortress", "heavy rain caused flooding"),
        ("the company reported profits", "the bank announced losses", "birds build their nests in trees"),
    ]
    for text, near, far in triples:
        scores = encoder.similarity(encoder.encode([text]), encoder.encode([near, far]))[0]
        assert scores[0] > scores[1]


def test_score_is_what_the_card_says(encoder):
    folder = SHARED / "data/eval/english"
    if not folder.exists():
        pytest.skip("the STS sets lie in ../shared, which is not here")
    names = ("sts12", "sts13", "sts14", "sts15", "stsb", "sick")
    scores = [
        spearman(lambda texts: encoder.encode(texts, convert_to_tensor=True, batch_size=256), pairs)
        for pairs in (read_pairs(folder / f"{name}_test.csv") for name in names)
    ]
    card = (ROOT / "model_cards/banyan-english.md").read_text(encoding="utf-8")
    row = next(line for line in card.splitlines() if line.startswith("| **pure: root**"))
    assert row.split("|")[-2].strip() == f"{sum(scores) / len(scores):.2f}"


def test_demo_runs_offline():
    done = subprocess.run([sys.executable, "examples/demo.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "6,144,014 parameters" in done.stdout
