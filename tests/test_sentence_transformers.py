"""The saved folder in sentence-transformers: equal bits, odd input, fine-tuning."""

from __future__ import annotations

import logging
import shutil

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from support import grammar_sentences
from transformers import AutoModel, AutoTokenizer

from banyan_hf import BanyanForPreTraining, BanyanModel
from banyan_hf.encoding import encode

TEXTS = [*grammar_sentences(40, seed=9), "", "cat", "the old cat sleeps", "the <pad> cat", "<pad>"]


@pytest.fixture(scope="module")
def folder(trained):
    return str(trained.folder)


@pytest.fixture(scope="module")
def encoder(folder):
    return SentenceTransformer(folder, device="cpu")


def one_by_one(model, tokenizer, texts=TEXTS):
    with torch.no_grad():
        return torch.cat([
            model(**tokenizer([text], return_tensors="pt", truncation=True)).pooler_output for text in texts
        ]).numpy()  # fmt: skip


def test_equals_pooler_output_bit_for_bit(folder, encoder):
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert type(model) is BanyanModel
    expected = one_by_one(model, tokenizer)
    for batch_size in (1, 3, 32):
        assert np.array_equal(encoder.encode(TEXTS, batch_size=batch_size), expected)
    assert np.array_equal(encode(TEXTS, model, tokenizer, batch_size=7).numpy(), expected)


def test_company_does_not_matter(encoder):
    expected = encoder.encode(TEXTS, batch_size=4)
    order = np.random.default_rng(0).permutation(len(TEXTS))
    mixed = [TEXTS[i] for i in order] + ["the old cat " * 120]
    found = encoder.encode(mixed, batch_size=64)[:-1]
    assert np.array_equal(found, expected[order])


@pytest.mark.parametrize("text", ["", " ", "\n", "😀", "龍龍龍", "word " * 50_000, "x" * 20_000])
def test_odd_texts_are_finite_and_not_zero(encoder, text):
    alone, company = encoder.encode([text]), encoder.encode([text, "the cat sleeps"])
    assert np.isfinite(alone).all()
    assert np.linalg.norm(alone) > 0
    assert np.array_equal(alone[0], company[0])


def test_no_texts(encoder, folder):
    assert len(encoder.encode([])) == 0
    empty = encode([], AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))
    assert empty.shape == (0, 32)


def test_dimensions_and_limit(encoder):
    assert encoder.get_embedding_dimension() == 32
    assert encoder.max_seq_length == encoder[0].auto_model.config.max_position_embeddings == 512


def test_truncation_is_said_once_with_counts(folder, caplog):
    encoder = SentenceTransformer(folder, device="cpu")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            encoder.encode(["the cat " * 600, "the old cat", "a dog " * 600])
    said = [r.getMessage() for r in caplog.records if "max_position_embeddings" in r.getMessage()]
    assert len(said) == 1
    assert "2 of 3" in said[0]
    assert "512" in said[0]


def test_save_again(encoder, tmp_path):
    encoder.model_card_data.generate_widget_examples = False
    encoder.save(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), device="cpu")
    assert np.array_equal(again.encode(TEXTS), encoder.encode(TEXTS))
    reopened = AutoModel.from_pretrained(tmp_path)
    assert np.array_equal(one_by_one(reopened, AutoTokenizer.from_pretrained(tmp_path)), encoder.encode(TEXTS))


def test_pretraining_folder_opens_too(folder, encoder, tmp_path):
    model = BanyanForPreTraining.from_pretrained(folder)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    assert np.array_equal(SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS), encoder.encode(TEXTS))


def test_files_that_are_there_are_kept(folder, tmp_path):
    (tmp_path / "modules.json").write_text("mine")
    BanyanModel.from_pretrained(folder).save_pretrained(tmp_path)
    assert (tmp_path / "modules.json").read_text() == "mine"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(folder, encoder, dtype):
    half = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": dtype})
    assert half[0].auto_model.dtype == getattr(torch, dtype)
    vectors = half.encode(TEXTS).astype(np.float32)
    assert np.isfinite(vectors).all()
    cosine = (vectors * encoder.encode(TEXTS)).sum(1) / np.linalg.norm(vectors, axis=1)
    assert np.median(cosine / np.linalg.norm(encoder.encode(TEXTS), axis=1)) > 0.999


def test_gradients_reach_the_weights(folder):
    encoder = SentenceTransformer(folder, device="cpu").train()
    features = encoder.preprocess(["the old cat sleeps", "a bus stops"])
    encoder(features)["sentence_embedding"].square().sum().backward()
    for name, parameter in encoder.named_parameters():
        assert "decompose" in name or float(parameter.grad.abs().sum()) > 0


def test_truncated_checkpoint_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "m", ignore=shutil.ignore_patterns("checkpoints"))
    weights = tmp_path / "m/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])
    with pytest.raises(Exception, match=r"(?i)safetensor|incomplete|header"):
        SentenceTransformer(str(tmp_path / "m"), device="cpu")
