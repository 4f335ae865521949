"""Both backends against a slow oracle in plain Python, and against one another."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
import torch
from support import (
    AWKWARD,
    BACKENDS,
    PLACES,
    STRUCTURES,
    assert_same,
    merges_of,
    names,
    pad,
    random_sentences,
    small_model,
)

from banyan_hf.model import numba_backend
from banyan_hf.model.counter_dropout import CounterDropout, node_keys
from banyan_hf.model.message_passing import downward, upward

DTYPES = {"f32": (torch.float32, 1e-5), "f64": (torch.float64, 1e-12)}
LONG = [[(7 * i * i + 3 * i) % 1500 for i in range(row, row + 60)] for row in range(0, 2400, 60)]


def oracle(banyan, sentences):
    """The paper, a node at a time: (upward by name, downward by name, roots' names, merges).

    A node's name is its token, or the pair of its children's names.
    """
    numbers = {name: p.detach().numpy() for name, p in banyan.named_parameters()}
    table = numbers["embeddings.weight"]

    def tiled(name, dtype):
        values = numbers[name].astype(dtype)
        values = torch.sigmoid(torch.from_numpy(values)).numpy() if name.endswith("scale") else values
        return np.tile(values, banyan.config.num_channels)

    def compose(left, right):
        left_scale, right_scale, bias = (
            tiled(f"compose.{n}", left.dtype) for n in ("left_scale", "right_scale", "bias")
        )
        return left * left_scale + right * right_scale + bias

    def cosine(a, b):
        a, b = a.astype(np.float64), b.astype(np.float64)
        return np.float32(a @ b / (np.sqrt(a @ a) * np.sqrt(b @ b)))

    up, roots, all_merges = {token: table[token] for tokens in sentences for token in tokens}, [], []
    for tokens in sentences:
        # The frontier: (name, number in the sentence, float32 value).
        frontier = [(token, i, table[token].astype(np.float32)) for i, token in enumerate(tokens)]
        merges = []
        while len(frontier) > 1:
            best = int(np.argmax([cosine(a[2], b[2]) for a, b in pairwise(frontier)]))
            (left, i, u), (right, j, v) = frontier[best : best + 2]
            if (left, right) not in up:
                up[left, right] = compose(up[left], up[right])
            frontier[best : best + 2] = [((left, right), len(tokens) + len(merges), compose(u, v))]
            merges.append((i, j))
        roots.append(frontier[0][0] if frontier else None)
        all_merges.append(merges)

    down, messages = {}, defaultdict(list)
    for name in reversed(up):  # a node was added after its children
        down[name] = np.mean(messages[name], axis=0) if messages[name] else up[name]
        if isinstance(name, tuple):
            for side, child in zip(("left", "right"), name, strict=True):
                scale, bias = (tiled(f"decompose.{side}_{n}", table.dtype) for n in ("scale", "bias"))
                messages[child].append(down[name] * scale + bias)
    return up, down, roots, all_merges


BATCHES = {
    "awkward": AWKWARD,
    **{f"random{seed}": random_sentences(seed) for seed in range(4)},
    "full": [[1, 2, 3, 4], [4, 3, 2, 1], [1, 1, 2, 2]],  # no padding
    "largest_alone": [[11], [1, 2, 3], [1, 2]],  # the largest id, in a sentence of its own
    "singles": [[3], [4], [3]],
    "twice": [[5, 5, 5, 5, 5, 5, 5]],
    "empty_rows": [[], [1, 2], []],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("backend", BACKENDS)
class TestOracle:
    def test_graph(self, backend, batch, dtype):
        sentences, (kind, tolerance) = BATCHES[batch], DTYPES[dtype]
        banyan = small_model(backend=backend, dtype=kind).banyan
        up, down, roots, _ = oracle(banyan, sentences)
        for place in PLACES:
            graph, ours_up, ours_down = banyan.entangle(*pad(sentences, place=place, extra=2))
            found = names(graph)
            assert sorted(map(str, found)) == sorted(map(str, up))
            assert [found[root] if root >= 0 else None for root in graph.roots.tolist()] == roots
            for ours, expected in ((ours_up, up), (ours_down, down)):
                assert ours.dtype == kind
                assert_same(ours.detach(), torch.from_numpy(np.stack([expected[n] for n in found])), relative=tolerance)

    def test_sentences(self, backend, batch, dtype):
        sentences, (kind, tolerance) = BATCHES[batch], DTYPES[dtype]
        banyan = small_model(backend=backend, dtype=kind).banyan
        up, _, roots, merges = oracle(banyan, sentences)
        for place in PLACES:
            ids, mask = pad(sentences, place=place, extra=1)
            out = banyan(ids, mask, output_trees=True)
            assert [merges_of(out.trees, row) for row in range(len(sentences))] == merges
            assert (out.last_hidden_state[mask == 0] == 0).all()
            for row, tokens in enumerate(sentences):
                if not tokens:
                    assert_same(out.pooler_output[row].detach(), torch.full((24,), 24**-0.5, dtype=kind))
                    continue
                assert_same(
                    out.pooler_output[row].detach(), torch.from_numpy(np.array(up[roots[row]])), relative=tolerance
                )
                if len(set(tokens)) == len(tokens):  # else the oracle shares leaves, which `forward` does not
                    _, down, _, _ = oracle(banyan, [tokens])
                    ours = out.last_hidden_state[row][mask[row] == 1].detach()
                    expected = torch.from_numpy(np.stack([down[token] for token in tokens]))
                    assert_same(ours, expected, relative=tolerance)


@pytest.mark.parametrize("shape", [(3, 0), (3, 4), (0, 0), (0, 5)])
def test_batches_without_tokens(backend, shape):
    model = small_model(backend=backend)
    ids, mask = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    out = model.banyan(ids, mask, output_trees=True)
    assert out.pooler_output.shape == (shape[0], 24)
    assert out.last_hidden_state.shape == (*shape, 24)
    assert (out.pooler_output.norm(dim=1) - 1).abs().max() < 1e-6 if shape[0] else True
    assert out.trees.shape == (shape[0], 0, 2)
    model.train()
    loss = model(ids, mask).loss
    assert float(loss.detach()) == 0
    loss.backward()


def gradients(model, ids, mask):
    """Loss and gradients in training, from one seed."""
    torch.manual_seed(5)
    model.train()
    out = model(ids, mask)
    out.loss.backward()
    return out.loss.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dropout", [0, 0.3])
@pytest.mark.parametrize("entangled", [True, False])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_backends_agree(structure, entangled, dropout, dtype):
    kind, tolerance = DTYPES[dtype]
    fields = {"structure": structure, "entangled": entangled, "dropout": dropout}
    models = [small_model(backend=b, dtype=kind, **fields) for b in BACKENDS]
    ids, mask = pad(AWKWARD + random_sentences(9), place="inside", extra=1)
    plain = [model.banyan(ids, mask, output_trees=True) for model in models]
    assert torch.equal(plain[0].trees, plain[1].trees)
    assert_same(plain[0].pooler_output, plain[1].pooler_output)
    (loss, grads), (other_loss, other_grads) = (gradients(model, ids, mask) for model in models)
    assert_same(loss, other_loss, relative=tolerance)
    for name, grad in grads.items():
        assert grad is not None, name
        assert_same(grad, other_grads[name], relative=tolerance)


@pytest.mark.parametrize("fields", [{"objective": "contrastive"}, {"num_negatives": 3}])
def test_backends_agree_on_other_objectives(fields):
    ids, mask = pad(AWKWARD)
    (loss, grads), (other_loss, other_grads) = (
        gradients(small_model(backend=b, dropout=0.2, dtype=torch.float64, **fields), ids, mask) for b in BACKENDS
    )
    assert_same(loss, other_loss, relative=1e-12)
    for name, grad in grads.items():
        assert_same(grad, other_grads[name], relative=1e-11)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_pass_on_two_threads_equals_torch(dropout):
    model = small_model(backend="torch", vocab_size=1500, hidden_size=160, num_channels=80).banyan
    graph = model.entangle(*pad(LONG))[0]
    masks = CounterDropout(dropout, seed=11, keys=node_keys(graph, graph.leaf_tokens)) if dropout else None
    threads, values = torch.get_num_threads(), {}
    leaves = model.embeddings.weight[graph.leaf_tokens].detach()
    scales_and_biases = torch.stack(model.decompose.coefficients(torch.float32)).split(2)
    arguments = (leaves.requires_grad_(), *model.compose.coefficients(torch.float32), *scales_and_biases)
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            up, down = numba_backend.EntangledPass.apply(graph, masks, None, graph.n_nodes, *arguments)
            (grad,) = torch.autograd.grad(down.square().sum(), leaves, retain_graph=True)
            values[n] = up, down, grad
    finally:
        torch.set_num_threads(threads)
    for one, two in zip(values[1], values[2], strict=True):
        assert_same(one, two)
    up = upward(graph, leaves, model.compose, dropout=masks)
    down = downward(graph, up, model.decompose, dropout=masks)
    assert_same(values[1][0], up)
    assert_same(values[1][1], down, relative=1e-5)


@pytest.mark.parametrize("rows", ["nodes", "leaves"])
@pytest.mark.parametrize("dropout", [False, True])
def test_gradcheck(dropout, rows):
    model = small_model(hidden_size=6, num_channels=3, dtype=torch.float64, backend="torch").banyan
    graph = model.entangle(*pad([[1, 2, 1, 2], [3], [2, 2, 1], [1, 2]]))[0]
    masks = CounterDropout(0.4, seed=3, keys=node_keys(graph, graph.leaf_tokens)) if dropout else None
    inputs = (
        model.embeddings.weight[graph.leaf_tokens],
        *model.compose.coefficients(torch.float64),
        *torch.stack(model.decompose.coefficients(torch.float64)).split(2),
    )
    wanted = graph.n_nodes if rows == "nodes" else graph.n_leaves

    def run(*arguments):
        return numba_backend.EntangledPass.apply(graph, masks, None, wanted, *arguments)

    assert torch.autograd.gradcheck(run, [x.detach().clone().requires_grad_() for x in inputs])


def test_linear_gradients_are_those_of_finite_differences():
    model = small_model(composition="linear", hidden_size=8, dtype=torch.float64, backend="auto", dropout=0)
    ids, mask = pad([[1, 2, 3], [2, 2], [4]])
    _, grads = gradients(model, ids, mask)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            parameter += 1e-6 * direction
            more = model(ids, mask).loss
            parameter -= 2e-6 * direction
            less = model(ids, mask).loss
            parameter += 1e-6 * direction
        assert float((more - less) / 2e-6) == pytest.approx(float((grads[name] * direction).sum()), rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("structure", ["left", "right", "balanced"])
def test_controls_ignore_the_vectors(backend, structure):
    out = small_model(backend=backend, structure=structure).banyan(torch.tensor([[4, 1, 7, 2]]), output_trees=True)
    expected = {
        "left": [(0, 1), (4, 2), (5, 3)],
        "right": [(2, 3), (1, 4), (0, 5)],
        "balanced": [(0, 1), (2, 3), (4, 5)],
    }
    assert merges_of(out.trees, 0) == expected[structure]


def test_equal_scores_go_to_the_left(backend):
    out = small_model(backend=backend).banyan(torch.tensor([[3, 3, 3]]), output_trees=True)
    assert merges_of(out.trees, 0) == [(0, 1), (3, 2)]


def test_numba_cannot_be_asked_for_off_the_cpu():
    model = small_model(backend="numba").banyan.to("meta")
    with pytest.raises(ValueError, match=r"backend=.numba.*meta.*auto"):
        model._use_numba(torch.device("meta"))


@pytest.mark.parametrize("ids", [[[1, 12]], [[-1, 2]]])
def test_ids_outside_the_vocabulary(backend, ids):
    """Both the encoder and pre-training name the id and the size."""
    model = small_model(backend=backend)
    for forward in (model, model.banyan):
        with pytest.raises(ValueError, match=rf"{12 if 12 in ids[0] else -1}.*12"):
            forward(torch.tensor(ids))


def test_narrow_ids_are_ids(backend):
    model = small_model(backend=backend)
    ids = torch.tensor([[1, 2, 3, 1, 2]])
    assert_same(model.banyan(ids.int()).pooler_output, model.banyan(ids).pooler_output)
    assert_same(model(ids.int()).loss, model(ids).loss)
    model.train()
    assert bool(model(ids.int()).loss.isfinite())
