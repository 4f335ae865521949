"""Tiny real encoders, built once, offline: different dims, with and without Normalize, static and transformer."""

from __future__ import annotations

import copy
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

NOUNS = [
    "cat",
    "dog",
    "bird",
    "tree",
    "house",
    "river",
    "stone",
    "cloud",
    "ship",
    "road",
    "king",
    "farmer",
    "child",
    "teacher",
    "engine",
    "city",
    "moon",
    "letter",
]
VERBS = ["sees", "likes", "follows", "builds", "finds", "paints", "carries", "forgets", "crosses", "hears"]
WORDS = ["[PAD]", "[UNK]", "the", "a", "old", "red", "small", "quiet", "near", "under", *NOUNS, *VERBS]


def sentences(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        adjectives = [rng.choice(["old", "red", "small", "quiet", ""]) for _ in range(3)]
        nouns = [rng.choice(NOUNS) for _ in range(3)]
        text = f"the {adjectives[0]} {nouns[0]} {rng.choice(VERBS)} a {adjectives[1]} {nouns[1]}"
        text += f" {rng.choice(['near', 'under'])} the {adjectives[2]} {nouns[2]}"
        found[" ".join(text.split())] = None
    return list(found)


def word_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def static_encoder(dim: int, seed: int, *, normalize: bool = False) -> SentenceTransformer:
    # Word vectors of all encoders are random maps of one hidden table, so that spaces share meaning as real ones do.
    hidden = np.random.default_rng(0).normal(size=(len(WORDS), 24))
    rng = np.random.default_rng(seed)
    table = hidden @ rng.normal(size=(24, dim)) / 5 + 0.05 * rng.normal(size=(len(WORDS), dim))
    modules = [StaticEmbedding(word_tokenizer(), embedding_weights=(table + 0.3).astype(np.float32))]
    model = SentenceTransformer(modules=modules + ([Normalize()] if normalize else []), device="cpu")
    model.model_card_data.generate_widget_examples = False
    return model


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    BertModel(config).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer(), pad_token="[PAD]", unk_token="[UNK]", model_max_length=32
    ).save_pretrained(folder)
    return folder


def build_bert(folder: Path) -> SentenceTransformer:
    modules = [Transformer(str(folder)), Pooling(48)]
    model = SentenceTransformer(modules=modules, device="cpu")
    model.model_card_data.generate_widget_examples = False
    return model


@pytest.fixture(scope="session")
def _encoders(bert_folder: Path) -> dict[str, SentenceTransformer]:
    return {
        "s50": static_encoder(50, 1),
        "s64": static_encoder(64, 2, normalize=True),
        "s24": static_encoder(24, 3),
        "bert": build_bert(bert_folder),
    }


@pytest.fixture
def encoders(_encoders: dict[str, SentenceTransformer]) -> dict[str, SentenceTransformer]:
    return copy.deepcopy(_encoders)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return sentences(600)


@pytest.fixture(scope="session")
def held_out(texts: list[str]) -> list[str]:
    return [text for text in sentences(900, seed=1) if text not in set(texts)][:200]


@pytest.fixture(scope="session")
def _space(_encoders: dict[str, SentenceTransformer], texts: list[str]):
    from relrep_hf import RelativeSpace

    pair = {name: _encoders[name] for name in ("s50", "s64")}
    return RelativeSpace.fit(pair, texts, anchors=20, show_progress=False)


@pytest.fixture
def space(_space):
    return _space


@pytest.fixture(scope="session")
def real_encoders() -> Path:
    """Folder of the built encoders; skips where it is absent."""
    folder = Path(os.environ.get("BANYAN_HF_ENCODERS", ""))
    if not os.environ.get("BANYAN_HF_ENCODERS") or not (folder / "minilm-l6").is_dir():
        pytest.skip("BANYAN_HF_ENCODERS does not name a folder with minilm-l6 in it")
    return folder


@pytest.fixture(scope="session")
def data() -> Path:
    """Folder of the shared data; skips where it is absent."""
    folder = Path(os.environ.get("BANYAN_HF_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (folder / "text" / "en.txt.gz").is_file():
        pytest.skip("BANYAN_HF_DATA does not name a folder with text/en.txt.gz in it")
    return folder
