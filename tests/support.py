"""Shared fixtures and helpers. Nothing here needs the network or `../shared`."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hub_server

# huggingface_hub reads these once, when it is imported. So no test can reach another Hub than the one in this process,
# not even by mistake; and most tests are offline, so that they cannot reach that one either.
assert "huggingface_hub" not in sys.modules, "a plugin imported huggingface_hub before the tests could set its endpoint"
HUB = hub_server.Hub()
HF_HOME = tempfile.mkdtemp(prefix="banyan-tests-")
atexit.register(shutil.rmtree, HF_HOME, ignore_errors=True)
os.environ.update(HF_ENDPOINT=HUB.url, HF_HOME=HF_HOME, HF_HUB_OFFLINE="1", HF_HUB_DISABLE_XET="1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from huggingface_hub import constants
from torch import Tensor

from banyan_hf import BanyanConfig, BanyanForPreTraining
from banyan_hf.model.graph import EntangledGraph
from banyan_hf.training.recipe import Recipe
from banyan_hf.training.run import TrainingResult, train

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
BACKENDS = ("torch", "numba")
STRUCTURES = ("greedy", "left", "right", "balanced", "random")
PLACES = ("right", "left", "inside")  # where padding may stand

# Rows of one token, without tokens, equal rows, repeated spans, a parent made of the same node twice, and a largest id
# (11) that occurs once.
AWKWARD = [[3, 4, 5, 3, 4, 5], [7], [], [2, 2], [2, 2, 2, 2], [7], [9, 1, 11, 3], [3, 4, 5, 3, 4, 5], [5, 4, 3, 4, 5]]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def pretraining_model(backend: str) -> BanyanForPreTraining:
    """A small model with random weights; the same for both backends."""
    return small_model(backend=backend, vocab_size=60, hidden_size=32, num_channels=16, max_position_embeddings=300)


def small_model(*, dtype: torch.dtype = torch.float32, **fields: object) -> BanyanForPreTraining:
    """Random weights, the same for equal shapes; biases too are random, so that none can be forgotten."""
    config = BanyanConfig(**{"vocab_size": 12, "hidden_size": 24, "num_channels": 4, "num_negatives": None} | fields)
    generator = torch.Generator().manual_seed(0)
    model = BanyanForPreTraining(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            size = 0.9 if name.endswith("scale") else 0.1 if "embeddings" in name else 0.3
            parameter.copy_((torch.rand(parameter.shape, generator=generator) * 2 - 1) * size)
    return model.to(dtype)


def random_sentences(seed: int, *, n: int = 7, longest: int = 9, vocab_size: int = 12) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(vocab_size) for _ in range(rng.randint(0, longest))] for _ in range(n)]


def pad(
    sentences: list[list[int]], *, place: str = "right", extra: int = 0, filler: int = 1, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """input_ids and mask; `filler` is a real id, so that a mask that is not obeyed shows."""
    rng = random.Random(seed)
    width = max(map(len, sentences), default=0) + extra
    ids = torch.full((len(sentences), width), filler)
    mask = torch.zeros(len(sentences), width, dtype=torch.int64)
    for row, sentence in enumerate(sentences):
        n = len(sentence)
        columns = {
            "right": range(n),
            "left": range(width - n, width),
            "inside": sorted(rng.sample(range(width), n)),
        }[place]
        ids[row, list(columns)] = torch.tensor(sentence, dtype=torch.int64)
        mask[row, list(columns)] = 1
    return ids, mask


def names(graph: EntangledGraph) -> list[object]:
    """What each node is, whatever its number: a token, or the pair of its children."""
    found: list[object] = graph.leaf_tokens.tolist()
    for left, right in zip(graph.left.tolist(), graph.right.tolist(), strict=True):
        found.append((found[left], found[right]))
    return found


def merges_of(trees: Tensor, row: int) -> list[tuple[int, int]]:
    """The merges of a sentence in `BanyanModelOutput.trees`."""
    return [tuple(pair) for pair in trees[row].tolist() if pair[0] >= 0]


def assert_same(actual: Tensor, expected: Tensor, *, relative: float = 0.0) -> None:
    """Equal bits; or, with `relative`, equal up to that part of the largest value."""
    if relative == 0:
        assert torch.equal(actual, expected), f"bits differ by up to {(actual - expected).abs().max()}"
    else:
        torch.testing.assert_close(
            actual, expected, rtol=0, atol=relative * max(float(expected.detach().abs().max()), 1e-30)
        )


def grammar_sentences(n: int, *, seed: int) -> list[str]:
    """Sentences of a small grammar: verbs tell the kind of their subject, adjectives the kind of their noun."""
    rng = random.Random(seed)
    kinds = (
        ("cat dog horse", "old hungry furry", "sleeps runs eats"),
        ("car bus train", "red noisy rusty", "starts stops brakes"),
        ("king clerk nurse", "kind rich tired", "speaks writes laughs"),
    )

    def phrase(kind: tuple[str, str, str]) -> str:
        nouns, adjectives, _ = (words.split() for words in kind)
        return " ".join([rng.choice(["the", "a"]), *rng.sample(adjectives, rng.randint(1, 2)), rng.choice(nouns)])

    def sentence() -> str:
        kind, other = rng.choice(kinds), rng.choice(kinds)
        verb = rng.choice(kind[2].split())
        return f"{phrase(kind)} {verb} {rng.choice(['near', 'behind', 'with'])} {phrase(other)}."

    return [sentence() for _ in range(n)]


TINY = Recipe.named(
    "paper", vocab_size=150, hidden_size=32, num_channels=16, epochs=12, batch_size=32, learning_rate=0.02,
    schedule="linear",
)  # fmt: skip


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    """A model trained on 600 sentences of the grammar, in a folder."""
    folder = tmp_path_factory.mktemp("trained")
    text = folder / "text.txt"
    text.write_text("\n".join(grammar_sentences(600, seed=0)) + "\n", encoding="utf-8")
    return train([str(text)], folder / "model", recipe=TINY, save_steps=1000, say=lambda line: None)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[hub_server.Hub]:
    """The loopback Hub, empty, reachable, and with somebody logged in."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
    for state in (HUB.repos, HUB.objects, HUB.log, HUB.faults):
        state.clear()
    yield HUB
    unknown = [line for line in HUB.log if line.startswith("UNKNOWN")]
    assert not unknown, unknown


Outcome = tuple[int, str]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """`banyan ARGUMENTS` in this process: exit code, and what it printed with blanks instead of line breaks."""
    from banyan_hf.cli import main

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["banyan", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, " ".join((printed.out + (printed.err if code else "")).split())

    return run
