"""Shared fixtures. Nothing here needs the network or `../shared`."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

from banyan_hf import BanyanConfig, BanyanForPreTraining

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
BACKENDS = ("torch", "numba")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def pretraining_model(backend: str) -> BanyanForPreTraining:
    """A small model with random weights; the same for both backends."""
    torch.manual_seed(0)
    config = BanyanConfig(vocab_size=60, hidden_size=32, num_channels=16, backend=backend, max_position_embeddings=300)
    return BanyanForPreTraining(config).eval()
