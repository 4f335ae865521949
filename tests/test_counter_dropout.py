"""Dropout masks made from counters: equal on both backends, well spread, apart from one another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import BACKENDS, pad, small_model

from banyan_hf.model import numba_kernels as kernels
from banyan_hf.model.counter_dropout import BLOCK, LANES, CounterDropout, leaf_keys, mix, pair_keys


def dropout(probability=0.3, *, seed=5, n=200) -> CounterDropout:
    return CounterDropout(probability, seed, leaf_keys(torch.arange(n)))


def splitmix(x: int) -> int:
    """SplitMix64's finaliser in Python's integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


def test_mix_is_splitmix():
    numbers = [0, 1, -1, 2**63 - 1, -(2**63), 123456789]
    assert [x % 2**64 for x in mix(torch.tensor(numbers)).tolist()] == [splitmix(x % 2**64) for x in numbers]


@pytest.mark.parametrize("size", [2, 16, 64, 65, 100, 200])
@pytest.mark.parametrize("purpose", [0, 1, 2])
def test_kernel_makes_the_same_mask(size, purpose):
    masks, nodes, like = dropout(), torch.arange(200), torch.ones(200, size)
    expected = masks.node_mask(nodes, like) if purpose == 0 else masks.message_mask(nodes, like, side=purpose - 1)
    stream = np.array([masks.stream(purpose)]).view(np.uint64)[0]
    ours, bits = like.numpy().copy(), np.empty(BLOCK // LANES, np.uint64)
    for row, key in zip(ours, masks.keys.numpy().view(np.uint64), strict=True):
        kernels._drop(row, 0, key, stream, np.uint64(masks.threshold), np.float32(masks.scale), bits)
    assert torch.equal(torch.from_numpy(ours), expected)


def test_a_slice_gets_its_part_of_the_mask():
    masks = dropout(n=1)
    whole = masks.node_mask(torch.tensor([0]), torch.ones(1, 200))[0]
    part, bits = np.ones(200 - BLOCK, np.float32), np.empty(BLOCK // LANES, np.uint64)
    key, stream = masks.keys.numpy().view(np.uint64)[0], np.array([masks.stream(0)]).view(np.uint64)[0]
    kernels._drop(part, BLOCK, key, stream, np.uint64(masks.threshold), np.float32(masks.scale), bits)
    assert torch.equal(torch.from_numpy(part), whole[BLOCK:])


def test_rate_and_scale_in_every_coordinate():
    mask = dropout(0.25, n=20000).node_mask(torch.arange(20000), torch.ones(20000, 70))
    rates = (mask == 0).double().mean(0)
    assert ((rates - 0.25).abs() < 6 * (0.25 * 0.75 / 20000) ** 0.5).all()
    assert mask.unique().tolist() == [0.0, pytest.approx(4 / 3)]


def test_masks_are_apart():
    """Coordinates, nodes, streams and seeds do not repeat one another: agreement is that of chance."""
    nodes, like = torch.arange(200), torch.ones(200, 128)
    masks, other = dropout(0.5), dropout(0.5, seed=6)
    kinds = [
        masks.node_mask(nodes, like), masks.message_mask(nodes, like, side=0),
        masks.message_mask(nodes, like, side=1), other.node_mask(nodes, like),
    ]  # fmt: skip
    pairs = [(kinds[i], kinds[j]) for i in range(4) for j in range(i)] + [(kinds[0][1:], kinds[0][:-1])]
    pairs += [(kinds[0][:, shift:], kinds[0][:, :-shift]) for shift in (1, 16, 64)]
    for a, b in pairs:
        assert float((a == b).double().mean()) == pytest.approx(0.5, abs=0.03)


def test_order_of_children_matters():
    a, b = leaf_keys(torch.tensor([1, 2]))
    assert pair_keys(a, b) != pair_keys(b, a)


@pytest.mark.parametrize("backend", BACKENDS)
def test_seed_comes_from_torch_and_eval_has_none(backend):
    model = small_model(backend=backend, dropout=0.5)
    ids, mask = pad([[1, 2, 3, 4], [5, 6]])
    assert torch.equal(model(ids, mask).loss, model(ids, mask).loss)
    model.train()
    first, second = model(ids, mask).loss, model(ids, mask).loss
    torch.manual_seed(1)
    third = model(ids, mask).loss
    torch.manual_seed(1)
    assert torch.equal(third, model(ids, mask).loss)
    assert first != second


@pytest.mark.parametrize("probability", [1e-6, 0.999999])
def test_rates_that_round_to_nothing_or_all(probability):
    """The config allows any rate in [0, 1), so each must work."""
    model = small_model(dropout=probability, backend="torch").train()
    assert bool(model(*pad([[1, 2, 3]])).loss.isfinite())
