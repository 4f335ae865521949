"""Objectives against dense formulas, on more rows than one chunk."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import assert_same

from banyan_hf.model.objectives import CHUNK, contrastive, cross_entropy, sampled_cross_entropy

V, D = 40, 6


def problem(n, *, seed=0, vocab_size=V):
    """hidden, weight, bias with gradients; targets. Double precision."""
    g = torch.Generator().manual_seed(seed)
    shapes = ((n, D), (vocab_size, D), (vocab_size,))
    inputs = [torch.randn(s, generator=g, dtype=torch.float64).requires_grad_() for s in shapes]
    return inputs, torch.randint(vocab_size, (n,), generator=g)


def dense(hidden, weight, bias, targets):
    return F.cross_entropy(hidden @ weight.T + bias, targets)


def assert_equal_with_gradients(ours, expected, inputs, *, relative=1e-12):
    assert_same(ours.detach(), expected.detach(), relative=relative)
    pairs = zip(
        torch.autograd.grad(3 * ours, inputs), torch.autograd.grad(3 * expected, inputs, allow_unused=True), strict=True
    )
    for grad, wanted in pairs:
        assert_same(grad, wanted, relative=relative)


@pytest.mark.parametrize("n", [1, CHUNK, 2 * CHUNK + 7])
def test_exact_is_torch(n):
    inputs, targets = problem(n)
    assert_equal_with_gradients(cross_entropy(*inputs, targets), dense(*inputs, targets), inputs)


@pytest.mark.parametrize("n", [1, CHUNK + 3])
def test_sampled_from_everything_is_exact(n):
    inputs, targets = problem(n)
    everything = torch.randperm(V)
    assert_equal_with_gradients(
        sampled_cross_entropy(*inputs, targets, everything), dense(*inputs, targets), inputs, relative=1e-11
    )


def told_from(inputs, targets, negatives):
    """Row by row: each target against the draws that are not its own token, which stand for V - 1 tokens."""
    hidden, weight, bias = inputs
    rows = []
    for logit, target in zip(hidden @ weight.T + bias, targets.tolist(), strict=True):
        others = [token for token in negatives.tolist() if token != target]
        z = logit[target].exp() + (V - 1) / len(others) * logit[others].exp().sum()
        rows.append(z.log() - logit[target])
    return torch.stack(rows).mean()


def test_accidental_hits_are_left_out():
    """A row whose target was drawn is told from the others only, and each sample stands for V - 1 tokens."""
    inputs, targets = problem(CHUNK + 9)
    negatives = torch.randperm(V, generator=torch.Generator().manual_seed(1))[:7]
    assert 0 < sum(target in negatives for target in targets) < len(targets)
    ours = sampled_cross_entropy(*inputs, targets, negatives)
    assert_equal_with_gradients(ours, told_from(inputs, targets, negatives), inputs, relative=1e-11)


def test_a_token_drawn_twice_counts_twice():
    """As word2vec's negatives: a sample with repetitions is a sum over its draws, without those of the row's target."""
    inputs, targets = problem(CHUNK + 9)
    negatives = torch.randint(V // 2, (30,), generator=torch.Generator().manual_seed(2))
    assert len(negatives.unique()) < len(negatives)
    ours = sampled_cross_entropy(*inputs, targets, negatives)
    assert_equal_with_gradients(ours, told_from(inputs, targets, negatives), inputs, relative=1e-11)


def test_only_the_target_was_drawn():
    inputs, targets = problem(1)
    loss = sampled_cross_entropy(*inputs, targets, targets)
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(loss, inputs))


def test_partition_estimate_is_unbiased():
    """exp(loss - exact loss) of one row is Z'/Z, whose mean over samples is 1."""
    inputs, targets = problem(1, seed=3)
    exact = dense(*inputs, targets)
    generator = torch.Generator().manual_seed(0)
    ratios = torch.stack([
        (sampled_cross_entropy(*inputs, targets, torch.randperm(V, generator=generator)[:10]) - exact).exp().detach()
        for _ in range(2000)
    ])  # fmt: skip
    assert abs(float(ratios.mean()) - 1) < 4 * float(ratios.std()) / len(ratios) ** 0.5


@pytest.mark.parametrize("objective", [cross_entropy, lambda *x: sampled_cross_entropy(*x, torch.tensor([0, 3, 1]))])
def test_gradcheck(objective):
    inputs, targets = problem(5, vocab_size=6)
    assert torch.autograd.gradcheck(lambda *x: objective(*x, targets), inputs)


def test_gradcheck_in_chunks(monkeypatch):
    monkeypatch.setattr("banyan_hf.model.objectives.CHUNK", 2)
    inputs, targets = problem(5, vocab_size=6)
    assert torch.autograd.gradcheck(lambda *x: cross_entropy(*x, targets), inputs)
    negatives = torch.tensor([0, 3, 1])
    assert torch.autograd.gradcheck(lambda *x: sampled_cross_entropy(*x, targets, negatives), inputs)


@pytest.mark.parametrize("n", [1, CHUNK + 11])
def test_contrastive_is_the_dense_formula(n):
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(n, D, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]
    scores = F.normalize(inputs[0], dim=1) @ F.normalize(inputs[1], dim=1).T / 0.2
    own = torch.arange(n)
    expected = (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2
    assert_equal_with_gradients(contrastive(*inputs, temperature=0.2), expected, inputs, relative=1e-11)


def test_no_rows():
    inputs, targets = problem(0)
    for loss in (
        cross_entropy(*inputs, targets),
        sampled_cross_entropy(*inputs, targets, torch.tensor([1, 2])),
        contrastive(inputs[0], inputs[0] * 1, temperature=0.2),
    ):
        assert float(loss.detach()) == 0
        loss.backward()
        assert float(inputs[0].grad.abs().sum()) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_finite(dtype):
    inputs, targets = problem(9)
    half = [x.detach().to(dtype).requires_grad_() for x in inputs]
    for loss in (cross_entropy(*half, targets), sampled_cross_entropy(*half, targets, torch.arange(5))):
        assert float(loss.detach()) > 0
        loss.backward()
        assert all(bool(x.grad.isfinite().all()) for x in half)
