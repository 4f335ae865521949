"""Equality with the authors' code: trees, values, losses, gradients (see tests/data/README.md)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import BACKENDS, ROOT, SHARED

from banyan_hf import BanyanConfig, BanyanForPreTraining
from banyan_hf.trees import merge_spans

FILES = {"E24": ROOT / "tests/data/golden_E24.npz", "E256": SHARED / "golden/golden_E256.npz"}
BATCHES = ("i", "ii", "iii", "iii_safe", "iv", "v")
TOLERANCE = {"f32": 1e-5, "f64": 1e-12}  # relative to the largest value
PARAMETERS = {
    "comp_l": "banyan.compose.left_scale",
    "comp_r": "banyan.compose.right_scale",
    "cb": "banyan.compose.bias",
    "decomp_l": "banyan.decompose.left_scale",
    "decomp_r": "banyan.decompose.right_scale",
    "lb": "banyan.decompose.left_bias",
    "rb": "banyan.decompose.right_bias",
}
# Sentences in which two *different* pairs have a cosine of exactly 1, so that rounding decides in the reference.
UNDECIDED = {"iii": (6, 7)}


@pytest.fixture(scope="module", params=FILES)
def golden(request):
    path = FILES[request.param]
    if not path.exists():
        pytest.skip(f"{path.name} lies in ../shared, which is not here")
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


def build(golden, backend, dtype):
    """The model with the golden weights; the vocabulary is re-numbered to `ids`."""
    width = int(golden["E"])
    config = BanyanConfig(
        vocab_size=len(golden["ids"]), hidden_size=width, num_channels=int(golden["channels"]), backend=backend
    )
    model = BanyanForPreTraining(config).eval()
    state = {name: torch.from_numpy(golden[key]) for key, name in PARAMETERS.items()}
    state |= {
        "banyan.embeddings.weight": torch.from_numpy(golden["embedding"]),
        "lm_head.weight": torch.from_numpy(golden["out_weight"]),
        "lm_head.bias": torch.from_numpy(golden["out_bias"]),
    }
    model.load_state_dict(state)
    return model.double() if dtype == "f64" else model


def read(golden, batch):
    """input_ids with 0 at padding, and the mask."""
    tokens = torch.from_numpy(golden[f"{batch}/tokens_local"])
    mask = torch.arange(tokens.shape[1]) < torch.from_numpy(golden[f"{batch}/lengths"])[:, None]
    return torch.where(mask, tokens, 0), mask


def assert_close(actual, expected, dtype):
    expected = torch.as_tensor(expected)
    torch.testing.assert_close(
        actual.detach().double(), expected.double(), rtol=0, atol=TOLERANCE[dtype] * float(expected.abs().max())
    )


def same_node(graph, golden, batch):
    """For every node of ours, the reference's number of it: leaves by token, others by their children."""
    to_golden = {i: i for i in range(graph.n_leaves)}  # both sort leaves by token id
    children = {
        (left, right): node
        for node, (left, right) in enumerate(
            zip(golden[f"{batch}/node_left"].tolist(), golden[f"{batch}/node_right"].tolist(), strict=True)
        )
        if left >= 0
    }
    for k, (left, right) in enumerate(zip(graph.left.tolist(), graph.right.tolist(), strict=True)):
        to_golden[graph.n_leaves + k] = children[to_golden[left], to_golden[right]]
    return torch.tensor([to_golden[i] for i in range(graph.n_nodes)])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("backend", BACKENDS)
class TestReference:
    def test_merges_and_roots(self, golden, backend, batch, dtype):
        model = build(golden, backend, dtype).banyan
        ids, mask = read(golden, batch)
        out = model(ids, attention_mask=mask, output_trees=True)
        rows = golden[f"{batch}/merges_{dtype}"]
        for sentence in range(len(ids)):
            if sentence in UNDECIDED.get(batch, ()):
                continue
            expected = rows[rows[:, 0] == sentence][:, 2:]
            n = int(mask[sentence].sum())
            ours = [(*a, *b) for a, b in merge_spans(out.trees[sentence], n)]
            assert ours == [tuple(row) for row in expected.tolist()]
            expected_root = golden[f"{batch}/roots_{dtype}"]
            scale = np.abs(expected_root).max()
            error = np.abs(out.pooler_output[sentence].detach().numpy() - expected_root[sentence]).max()
            assert error <= TOLERANCE[dtype] * scale

    def test_graph_values_loss_and_gradients(self, golden, backend, batch, dtype):
        if batch == "iii":
            pytest.skip("two of its sentences are undecided in the reference; iii_safe is the same without them")
        model = build(golden, backend, dtype)
        ids, mask = read(golden, batch)
        graph, up, down = model.banyan.entangle(ids, mask)
        golden_node = same_node(graph, golden, batch)
        assert sorted(golden_node.tolist()) == list(range(int(golden[f"{batch}/num_nodes"])))
        assert golden["ids"][graph.leaf_tokens].tolist() == golden[f"{batch}/labels"].tolist()
        assert golden_node[graph.roots].tolist() == golden[f"{batch}/root_node"].tolist()
        assert graph.depths().tolist() == golden[f"{batch}/node_level"][golden_node].tolist()
        assert_close(up, golden[f"{batch}/comp_f64"][golden_node], dtype)
        assert_close(down, golden[f"{batch}/feat_f64"][golden_node], dtype)

        out = model(ids, mask, output_logits=True)
        assert_close(out.logits, golden[f"{batch}/logits_{dtype}"], dtype)
        assert_close(out.loss, golden[f"{batch}/loss_restricted_{dtype}"], dtype)
        out.loss.backward()
        for key, name in PARAMETERS.items():
            assert_close(model.get_parameter(name).grad, golden[f"{batch}/grad_restricted_{key}_{dtype}"], dtype)
        for key, name in (
            ("embedding_weight", "banyan.embeddings.weight"),
            ("out_weight", "lm_head.weight"),
            ("out_bias", "lm_head.bias"),
        ):
            assert_close(model.get_parameter(name).grad, golden[f"{batch}/grad_restricted_{key}_f64"], dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("backend", BACKENDS)
def test_words(golden, backend, dtype):
    """The reference's `compose_words`: one sequence at a time."""
    model = build(golden, backend, dtype).banyan
    local = {token: i for i, token in enumerate(golden["ids"].tolist())}
    for tokens, expected in zip(golden["words/tokens"].tolist(), golden[f"words/out_{dtype}"], strict=True):
        ids = torch.tensor([[local[t] for t in tokens if t >= 0]])
        assert_close(model(ids).pooler_output[0], expected, dtype)
