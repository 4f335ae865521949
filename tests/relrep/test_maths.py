from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relrep_hf import anchors as selectors
from relrep_hf import losses, metrics
from relrep_hf.closed_forms import CLOSED_FORMS
from relrep_hf.fitting import ParamSettings, fit_mixing, spectral_basis
from relrep_hf.similarity import cosine, relative_map, unit, wip
from relrep_hf.statistics import fit_statistics, inverse_sqrt, whiten


def points(count: int = 400, dim: int = 12, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, dim)) @ rng.normal(size=(dim, dim)) + rng.normal(size=dim)


def rotation(x: np.ndarray) -> np.ndarray:
    return x @ np.linalg.qr(np.random.default_rng(5).normal(size=(x.shape[1],) * 2))[0]


TRANSFORMS = {
    "rotation": rotation,
    "scaling": lambda x: 3.7 * x,
    "translation": lambda x: x + np.linspace(-2, 5, x.shape[1]),
    "anisotropic": lambda x: x * np.linspace(0.2, 4, x.shape[1]),
    "affine": lambda x: x @ np.random.default_rng(6).normal(size=(x.shape[1], x.shape[1] + 3)) + 1.5,
    "non-linear": lambda x: np.tanh(x) + 0.1 * x**2,
}
INVARIANT = {
    "cosine": {"rotation", "scaling"},
    "wip": {"rotation", "scaling", "translation", "anisotropic", "affine"},
    "wip, shrunk": {"rotation", "scaling", "translation"},
}


@pytest.mark.parametrize("similarity", INVARIANT)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_symmetries(similarity: str, name: str) -> None:
    x = points()
    mixing = selectors.random_anchors(len(x), anchors=7)

    def relative(z: np.ndarray) -> np.ndarray:
        if similarity == "cosine":
            return cosine(z, mixing @ z)
        stats = fit_statistics(z, shrinkage=0.1 if "shrunk" in similarity else None)
        return wip(z, mixing @ z, stats=stats)

    before, after = relative(x), relative(TRANSFORMS[name](x))
    difference = np.abs(before - after).max() / np.abs(before).max()
    assert (difference < 1e-8) == (name in INVARIANT[similarity]), difference


def test_shrunk_wip_is_approximately_invariant() -> None:
    x = points(2000)
    mixing = selectors.kmeans_anchors(x, anchors=7)
    moved = TRANSFORMS["affine"](x)

    def relative(z: np.ndarray, shrinkage: float) -> np.ndarray:
        return wip(z, mixing @ z, stats=fit_statistics(z, shrinkage=shrinkage))

    errors = []
    for shrinkage in (1e-4, 1e-2, 0.3):
        a, b = unit(relative(x, shrinkage)), unit(relative(moved, shrinkage))
        errors.append(1 - (a * b).sum(axis=1).mean())
    assert errors[0] < errors[1] < errors[2]
    assert errors[0] < 0.01


def test_wip_equals_a_slow_oracle() -> None:
    x = points(60, 5)
    stats = fit_statistics(x, shrinkage=0.2)
    sigma = np.cov(x.T, bias=True)
    sigma = 0.8 * sigma + 0.2 * np.trace(sigma) / 5 * np.eye(5)
    mean = x.mean(axis=0)
    expected = [[(u - mean) @ np.linalg.solve(sigma, a - mean) for a in x[:4]] for u in x[:9]]
    np.testing.assert_allclose(wip(x[:9], x[:4], stats=stats), expected, atol=1e-10)
    np.testing.assert_allclose(relative_map(x[:4], similarity="wip", stats=stats)(x[:9]), expected, atol=1e-10)
    np.testing.assert_allclose(relative_map(x[:4], similarity="cosine")(x[:9]), cosine(x[:9], x[:4]), atol=1e-12)


def test_rank_deficiency_has_three_answers() -> None:
    x = points(300, 6)
    constant = np.concatenate([x, np.full((300, 1), 3.0)], axis=1)
    assert fit_statistics(constant, shrinkage=None).rank == 6
    np.testing.assert_allclose(
        whiten(constant, fit_statistics(constant, shrinkage=None))[:, :6],
        whiten(x, fit_statistics(x, shrinkage=None)),
        atol=1e-8,
    )
    with pytest.raises(ValueError, match=r"6 texts cannot give .* 6 dimensions"):
        fit_statistics(x[:6], shrinkage=None)
    assert np.isfinite(whiten(x[:4], fit_statistics(x[:4]))).all()
    with pytest.raises(ValueError, match="equal"):
        fit_statistics(np.ones((9, 3)))
    with pytest.raises(ValueError, match="zero"):
        inverse_sqrt(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="7 dimensions, the statistics 6"):
        whiten(constant, fit_statistics(x))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_is_named(bad: float) -> None:
    x = points(20, 3)
    x[4, 1] = bad
    with pytest.raises(ValueError, match="1 of 20 rows"):
        fit_statistics(x)


def test_statistics_are_float64_for_any_input() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        stats = fit_statistics(points().astype(dtype))
        assert stats.whitener.dtype == stats.mean.dtype == np.float64


@pytest.mark.parametrize("selector", ["random", "kmeans", "farthest", "param", "param-cosine"])
def test_mixing_is_row_stochastic_and_anchors_lie_in_the_hull(selector: str) -> None:
    x = points(200, 6)
    z = whiten(x, fit_statistics(x))
    if selector == "random":
        mixing = selectors.random_anchors(200, anchors=9)
    elif selector in ("kmeans", "farthest"):
        mixing = getattr(selectors, f"{selector}_anchors")(z, anchors=9)
    else:
        kind = "cosine" if "cosine" in selector else "wip"
        spaces = [unit(x), unit(x[:, ::-1])] if kind == "cosine" else [z, z[:, ::-1] + 0.0]
        mixing = fit_mixing(spaces, anchors=9, similarity=kind, settings=ParamSettings(steps=5)).mixing
    assert mixing.shape == (9, 200)
    assert (mixing >= 0).all()
    np.testing.assert_allclose(mixing.sum(axis=1), 1, atol=1e-9)
    # In the hull: no direction separates an anchor from all texts.
    directions = np.random.default_rng(0).normal(size=(6, 50))
    assert ((mixing @ x @ directions) <= (x @ directions).max(axis=0) + 1e-9).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 30), st.integers(0, 5), st.integers(2, 8))
def test_selectors_survive_duplicated_points(anchors: int, seed: int, different: int) -> None:
    x = np.random.default_rng(seed).normal(size=(different, 3))[np.arange(30) % different]
    for mixing in (
        selectors.farthest_anchors(x, anchors=anchors, seed=seed),
        selectors.random_anchors(30, anchors=anchors, seed=seed),
    ):
        np.testing.assert_allclose(mixing.sum(axis=1), 1)
        assert (mixing.argmax(axis=1)[:, None] == mixing.argmax(axis=1)).sum() == anchors


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_kmeans_with_fewer_points_than_anchors_stays_stochastic() -> None:
    mixing = selectors.kmeans_anchors(np.repeat(points(3, 2), 10, axis=0), anchors=8)
    np.testing.assert_allclose(mixing.sum(axis=1), 1)


def test_sparsify_keeps_the_largest() -> None:
    mixing = np.random.default_rng(0).dirichlet(np.ones(10), size=4)
    sparse = selectors.sparsify(mixing, top_k=3)
    assert ((sparse > 0).sum(axis=1) == 3).all()
    assert (sparse.argmax(axis=1) == mixing.argmax(axis=1)).all()
    with pytest.raises(ValueError, match="top_k=11"):
        selectors.sparsify(mixing, top_k=11)


def test_spectral_basis_is_cca() -> None:
    x = points(3000, 5)
    y = x @ np.random.default_rng(1).normal(size=(5, 4)) + np.random.default_rng(2).normal(size=(3000, 4))
    spaces = [whiten(z, fit_statistics(z, shrinkage=None)) for z in (x, y)]
    expected = np.linalg.svd(spaces[0].T @ spaces[1] / 3000, compute_uv=False)
    basis, rho = spectral_basis(spaces, limit=4)
    np.testing.assert_allclose(rho, expected, atol=1e-8)
    np.testing.assert_allclose(basis.mean(axis=1), 0, atol=1e-9)
    np.testing.assert_allclose(basis @ basis.T / 3000, np.eye(4), atol=1e-8)


def test_losses_equal_their_formulas() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(6, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    u, v = a.numpy() / np.linalg.norm(a, axis=1, keepdims=True), b.numpy() / np.linalg.norm(b, axis=1, keepdims=True)
    scores = u @ v.T / 0.3
    rows = np.log(np.exp(scores).sum(axis=1)) - np.diag(scores)
    columns = np.log(np.exp(scores).sum(axis=0)) - np.diag(scores)
    assert float(losses.symmetric_info_nce([a, b], temperature=0.3)) == pytest.approx((rows + columns).mean() / 2)
    three = losses.symmetric_info_nce([a, b, a], temperature=0.3)
    pairs = [losses.symmetric_info_nce([x, y], temperature=0.3) for x, y in ((a, b), (a, a), (b, a))]
    assert float(three) == pytest.approx(float(sum(pairs)) / 3)
    squared = ((a.numpy()[:, None] - b.numpy()[None]) ** 2).sum(axis=2) / 4
    expected = -0.5 * np.log(np.exp(-squared / 0.5).mean(axis=1)).mean()
    assert float(losses.coverage(a, b, softness=0.5)) == pytest.approx(expected)
    gram = u @ u.T
    assert float(losses.orthogonality(a)) == pytest.approx((gram[~np.eye(6, dtype=bool)] ** 2).mean())
    assert float(losses.length(a, target=2.0)) == pytest.approx(((np.linalg.norm(a, axis=1) / 2 - 1) ** 2).mean())


def test_training_lowers_the_objective_and_is_deterministic() -> None:
    x = points(300, 8)
    y = np.tanh(x) @ np.random.default_rng(3).normal(size=(8, 6))
    spaces = [whiten(z, fit_statistics(z)) for z in (x, y)]
    held = [s[:60] for s in spaces]
    options = {"anchors": 12, "held_out": held, "settings": ParamSettings(steps=20, learning_rate=1e-2)}
    first = fit_mixing(spaces, **options)
    torch.manual_seed(99)
    torch.rand(10)
    second = fit_mixing(spaces, **options)
    assert (first.mixing == second.mixing).all()
    assert first.history[-1]["held_out"] < first.history[0]["held_out"]


def test_more_anchors_than_dimensions_is_fine_and_than_texts_is_not() -> None:
    z = whiten(points(100, 4), fit_statistics(points(100, 4)))
    assert fit_mixing([z, z], anchors=30, settings=ParamSettings(steps=2)).mixing.shape == (30, 100)
    assert fit_mixing([z], anchors=30, settings=ParamSettings(steps=2)).mixing.shape == (30, 100)
    with pytest.raises(ValueError, match="anchors=101, but there are only 100"):
        fit_mixing([z, z], anchors=101)
    with pytest.raises(ValueError, match="parallel"):
        fit_mixing([z, z[:50]], anchors=3)
    with pytest.raises(ValueError, match="temperature"):
        ParamSettings(temperature=0)


def test_metrics_equal_a_slow_oracle() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(30, 4)), rng.normal(size=(30, 4))
    scores = unit(a) @ unit(b).T
    expected = [1 + (np.delete(row, n) >= row[n]).sum() for n, row in enumerate(scores)]
    assert metrics.ranks(a, b).tolist() == expected
    assert (metrics.ranks(np.ones((5, 2)), np.ones((5, 2))) == 5).all()
    near = [set(np.argsort(-np.where(np.eye(30)[n], -9, unit(a)[n] @ unit(a).T))[:10]) for n in range(30)]
    far = [set(np.argsort(-np.where(np.eye(30)[n], -9, unit(b)[n] @ unit(b).T))[:10]) for n in range(30)]
    np.testing.assert_allclose(metrics.jaccard(a, b), [len(s & t) / len(s | t) for s, t in zip(near, far, strict=True)])
    interval = metrics.mean_interval(rng.normal(size=400) + 3)
    assert interval["low"] < interval["value"] < interval["high"]
    assert metrics.effective_rank(np.ones((4, 3))) == 0.0


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_closed_forms_find_what_they_are_made_for(name: str) -> None:
    x = points(500, 6)
    y = rotation(x) * 2 - 1
    left, right = CLOSED_FORMS[name](x[:400], y[:400])
    assert (metrics.ranks(left(x[400:]), right(y[400:])) == 1).all()


def test_closed_forms_take_unequal_dimensions() -> None:
    x = points(500, 8)
    y = x @ np.random.default_rng(1).normal(size=(8, 5))
    for form in CLOSED_FORMS.values():
        left, right = form(x, y)
        assert left(x[:3]).shape == right(y[:3]).shape
