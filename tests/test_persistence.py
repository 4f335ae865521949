"""Packing a model small."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from support import assert_same, grammar_sentences

from banyan_hf.encoding import encode
from banyan_hf.model.code_files import AUTO_MAP, code_files
from banyan_hf.persistence import load_encoder, pack


@pytest.mark.parametrize(
    ("bits", "dtype", "share", "error"), [(16, torch.float16, 0.7, 1e-2), (8, torch.float8_e4m3fn, 0.5, 0.2)]
)
def test_pack(trained, tmp_path, bits, dtype, share, error):
    size = pack(trained.folder, tmp_path / "small", bits=bits)
    files = {path.name: path.stat().st_size for path in (tmp_path / "small").iterdir()}
    assert size == sum(files.values())
    assert "run.json" not in files
    assert {path.name for path in code_files()} <= set(files)
    assert json.loads((tmp_path / "small/config.json").read_text())["auto_map"] == AUTO_MAP
    (model, tokenizer), (packed, its_tokenizer) = (
        load_encoder(str(trained.folder)),
        load_encoder(str(tmp_path / "small")),
    )
    assert packed.dtype == torch.float32
    assert files["model.safetensors"] < share * (trained.folder / "model.safetensors").stat().st_size
    for name, value in model.state_dict().items():
        assert_same(packed.state_dict()[name], value.to(dtype).float() if value.ndim > 1 else value)
    texts = grammar_sentences(20, seed=1)
    assert its_tokenizer(texts).input_ids == tokenizer(texts).input_ids
    assert_same(encode(texts, packed, its_tokenizer), encode(texts, model, tokenizer), relative=error)


def test_pack_refuses(trained, tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(ValueError, match="taken exists"):
        pack(trained.folder, tmp_path / "taken")
    with pytest.raises(ValueError, match="taken holds no model"):
        pack(tmp_path / "taken", tmp_path / "new")
    with pytest.raises(ValueError, match="bits=4"):
        pack(trained.folder, tmp_path / "new", bits=4)
    model, tokenizer = load_encoder(str(trained.folder))
    model.embeddings.weight.data[0, 0] = 1000.0
    model.save_pretrained(tmp_path / "wide")
    tokenizer.save_pretrained(tmp_path / "wide")
    with pytest.raises(ValueError, match="1000, more than 8 bits"):
        pack(tmp_path / "wide", tmp_path / "new", bits=8)
    assert not (tmp_path / "new").exists()


def test_python_may_start_inside_the_folder(trained):
    """Then the folder comes before all packages: none of its files may have the name of one that somebody imports."""
    lines = "import sentence_transformers; from transformers import AutoModel; AutoModel.from_pretrained('.')"
    command = [sys.executable, "-c", "import banyan_hf; " + lines]
    done = subprocess.run(command, cwd=trained.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
