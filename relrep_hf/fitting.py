"""Learn PARAM's mixing matrix P from paired support embeddings.

Two parametrisations of a row-stochastic P (m, K), chosen by the similarity:

- ``SpanMixing`` for WIP: ``P = (1 + e T G) / K``. G (q, K) holds the left singular vectors of all whitened supports
  side by side, scaled to variance 1. Whitened supports are centred, so the rows of G sum to 0 and those of P to 1 for
  every T; e is the largest number that keeps P >= 0. Only the part of P that lies in the span of the supports moves
  the anchors of the fitted encoders, the rest would be noise for an encoder that joins later. It also makes a step
  independent of K, because ``A_i = P Z_i = e T (G Z_i / K)``.
- ``SoftmaxMixing`` for cosine: free logits (m, K), as PAPERS section 2 has it. Cosine looks at the raw direction of an
  anchor, so anchors have to sit far out in the hull, which no small tilt around the mean can reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor, nn

from relrep_hf.anchors import check_count, kmeans_anchors
from relrep_hf.losses import coverage, length, orthogonality, symmetric_info_nce
from relrep_hf.metrics import ranks
from relrep_hf.similarity import Similarity, unit


@dataclass(frozen=True)
class ParamSettings:
    """Settings of PARAM; the defaults are those that won in benchmarks/relrep_notes.md.

    Args:
        l_nce: weight of alignment (``losses.symmetric_info_nce``).
        l_cov: weight of coverage.
        l_len: weight of length.
        l_orth: weight of orthogonality.
        temperature: of the alignment loss.
        weight_power: WIP starts from spectral anchors weighted by ``rho ** weight_power``.
        steps: at most so many optimiser steps.
        patience: stop after so many steps without a better held-out loss.
        learning_rate: of Adam, for WIP; cosine uses 100 times as much, because its logits are on another scale.
        batch_size: paired texts in one step.
    """

    l_nce: float = 1.0
    l_cov: float = 0.01
    l_len: float = 0.01
    l_orth: float = 0.01
    temperature: float = 0.1
    weight_power: float = 1.0
    steps: int = 60
    patience: int = 30
    learning_rate: float = 3e-4
    batch_size: int = 1024

    def __post_init__(self) -> None:
        """Refuse impossible settings early."""
        if self.temperature <= 0:
            raise ValueError(f"temperature must be positive, not {self.temperature}.")
        if self.steps < 0 or self.batch_size < 2:
            raise ValueError(f"steps={self.steps} must be >= 0 and batch_size={self.batch_size} >= 2.")


@dataclass
class FittedMixing:
    """What ``fit_mixing`` returns.

    Args:
        mixing: (m, K) row-stochastic, float64.
        steps: optimiser steps that were taken to get it.
        history: one record a check: step, training loss and held-out loss.
    """

    mixing: NDArray[np.float64]
    steps: int
    history: list[dict[str, float]] = field(default_factory=list)


def spectral_basis(spaces: Sequence[NDArray[np.float64]], *, limit: int) -> tuple[NDArray, NDArray]:
    """Directions over texts that the whitened spaces share, best shared first (multi-set CCA, MAXVAR).

    With two encoders and no shrinkage, eigenvalue ``1 + rho`` belongs to canonical correlation ``rho``; with B
    encoders ``rho = (eigenvalue - 1) / (B - 1)`` is the mean correlation of a direction between encoders.

    Args:
        spaces: B matrices (K, d_i), whitened.
        limit: at most so many directions.

    Returns:
        G (q, K) with rows of mean 0 and variance 1, and rho (q,) clipped to 0..1 (ones if B = 1).

    >>> basis, rho = spectral_basis([np.array([[1.0], [-1.0]])] * 2, limit=5)
    >>> basis.shape, rho.round(6).tolist()
    ((1, 2), [1.0])
    """
    joined = np.concatenate(spaces, axis=1)  # (K, sum d)
    values, vectors = np.linalg.eigh(joined.T @ joined / len(joined))
    order = np.argsort(-values)
    order = order[values[order] > 1e-6 * values.max()][:limit]
    values, vectors = values[order], vectors[:, order]
    # The sign of an eigenvector is arbitrary and may differ between machines: make its largest entry positive.
    vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])])
    rho = np.ones_like(values) if len(spaces) == 1 else np.clip((values - 1) / (len(spaces) - 1), 0.0, 1.0)
    return (joined @ (vectors / np.sqrt(values))).T, rho


class SpanMixing(nn.Module):
    """``P = (1 + e T G) / K``: see the head of this file."""

    def __init__(
        self,
        spaces: Sequence[NDArray[np.float64]],
        *,
        anchors: int,
        power: float,
        seed: int,
        principal: NDArray[np.float64] | None = None,
    ) -> None:
        super().__init__()
        width = sum(space.shape[1] for space in spaces)
        if len(spaces) == 1 and principal is None:
            self.basis, _ = spectral_basis(spaces, limit=width)
            start = kmeans_anchors(unit(spaces[0]), anchors=anchors, seed=seed) @ self.basis.T  # (m, q)
            rotation = np.eye(anchors)
        else:
            self.basis, rho = spectral_basis(spaces, limit=width)
            rows = min(anchors, len(rho))
            if len(spaces) == 1 and principal is not None:
                # One encoder has no partner to say which directions matter: its own variance says it.
                rows = min(rows, len(principal))
                start = principal[:rows] @ np.linalg.pinv(self.basis @ spaces[0] / len(spaces[0]))  # (r, q)
                start /= np.abs(start).max()
            else:
                start = np.eye(rows, len(rho)) * rho**power  # (r, q)
            # Any rotation of the rows gives the same cosines; a random one spreads the shared directions evenly over
            # the anchors, so that all anchors have about one norm and lie far from the walls P = 0. It is kept out of
            # the parameter because Adam, which scales every entry by itself, learns better along the directions.
            noise = np.random.default_rng(seed).normal(size=(anchors, anchors))
            rotation = np.linalg.qr(noise)[0][:, :rows]  # (m, r)
        self.scale = self._scale(rotation @ start)  # fixed: it is the unit of anchor lengths while learning
        self.tilt = nn.Parameter(torch.tensor(start, dtype=torch.float32))
        self.register_buffer("rotation", torch.tensor(rotation, dtype=torch.float32))
        for number, space in enumerate(spaces):
            moment = torch.tensor(self.basis @ space / len(space), dtype=torch.float32)  # (q, d)
            self.register_buffer(f"moment_{number}", moment)
        self.count = len(spaces)

    def _scale(self, tilt: NDArray) -> float:
        """Largest e that keeps ``1 + e T G`` non-negative."""
        return 1.0 / max(float(-(tilt @ self.basis).min()), 1e-12)

    def anchors(self) -> list[Tensor]:
        """Anchors (m, d_i) of every encoder."""
        tilt = self.scale * (self.get_buffer("rotation") @ self.tilt)  # (m, q)
        return [tilt @ self.get_buffer(f"moment_{number}") for number in range(self.count)]

    def mixing(self) -> NDArray[np.float64]:
        """P (m, K)."""
        tilt = (self.get_buffer("rotation") @ self.tilt).detach().numpy().astype(np.float64)
        return np.maximum(1.0 + self._scale(tilt) * (tilt @ self.basis), 0.0) / self.basis.shape[1]


class SoftmaxMixing(nn.Module):
    """``P = softmax(logits)``, started from k-means clusters."""

    def __init__(self, spaces: Sequence[NDArray[np.float64]], *, anchors: int, power: float, seed: int) -> None:
        super().__init__()
        del power  # belongs to the spectral start
        clusters = kmeans_anchors(np.concatenate(spaces, axis=1), anchors=anchors, seed=seed)
        # A text outside the cluster starts at 1 % of the weight of one inside it, so that its logit can move.
        self.logits = nn.Parameter(torch.tensor(np.log(np.where(clusters > 0, 1.0, 0.01)), dtype=torch.float32))
        self.spaces = [torch.tensor(space, dtype=torch.float32) for space in spaces]

    def anchors(self) -> list[Tensor]:
        """Anchors (m, d_i) of every encoder."""
        weights = self.logits.softmax(dim=1)  # (m, K)
        return [weights @ space for space in self.spaces]

    def mixing(self) -> NDArray[np.float64]:
        """P (m, K)."""
        return self.logits.detach().double().softmax(dim=1).numpy()


def _reciprocal_rank(module: SpanMixing | SoftmaxMixing, points: Sequence[Tensor], similarity: Similarity) -> float:
    """Mean reciprocal rank of held-out pairs over all ordered pairs of encoders."""
    anchors = [nn.functional.normalize(a, dim=1) if similarity == "cosine" else a for a in module.anchors()]
    features = [(x @ a.T).numpy() for x, a in zip(points, anchors, strict=True)]
    return float(np.mean([(1 / ranks(a, b)).mean() for a, b in permutations(features, 2)]))


def fit_mixing(
    spaces: Sequence[NDArray[np.float64]],
    *,
    anchors: int,
    similarity: Similarity = "wip",
    held_out: Sequence[NDArray[np.float64]] | None = None,
    settings: ParamSettings | None = None,
    seed: int = 0,
    principal: NDArray[np.float64] | None = None,
    show_progress: bool = False,
) -> FittedMixing:
    """Minimise ``l_nce L_symNCE + l_cov L_cov + l_len L_len + l_orth L_orth`` over P (PAPERS section 2, PARAM).

    Args:
        spaces: B matrices (K, d_i) of the support: whitened for WIP, rows of length 1 for cosine. With B = 1 there is
            no alignment loss.
        anchors: m.
        similarity: ``"wip"`` or ``"cosine"``.
        held_out: B matrices (n, d_i), prepared in the same way; with them training stops early, at the best step.
        settings: weights and optimiser.
        seed: decides every random choice.
        principal: (r, d) for one encoder under WIP: the directions to start from, in whitened coordinates and best
            first; without them the start is k-means.
        show_progress: draw a progress bar.

    Returns:
        P, the number of steps and the history.

    Raises:
        ValueError: more anchors than support texts, or B matrices of different length.

    >>> z = np.random.default_rng(0).normal(size=(64, 4)); z -= z.mean(axis=0)
    >>> mixing = fit_mixing([z, 2 * z[:, :3]], anchors=5, settings=ParamSettings(steps=3)).mixing
    >>> mixing.shape, bool(np.allclose(mixing.sum(axis=1), 1)), bool((mixing >= 0).all())
    ((5, 64), True, True)
    """
    settings = settings or ParamSettings()
    sizes = {len(space) for space in spaces}
    if len(sizes) != 1:
        raise ValueError(f"Supports must be parallel, but the encoders have {sorted(sizes)} texts.")
    check_count(anchors, sizes.pop())
    module: SpanMixing | SoftmaxMixing
    if similarity == "wip":
        module = SpanMixing(spaces, anchors=anchors, power=settings.weight_power, seed=seed, principal=principal)
    else:
        module = SoftmaxMixing(spaces, anchors=anchors, power=settings.weight_power, seed=seed)
    rate = settings.learning_rate * (1 if similarity == "wip" else 100)
    optimiser = torch.optim.Adam(module.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        targets = [float(a.norm(dim=1).mean()) for a in module.anchors()]
    train = [torch.tensor(space, dtype=torch.float32) for space in spaces]
    check = None if held_out is None else [torch.tensor(space, dtype=torch.float32) for space in held_out]

    def objective(points: Sequence[Tensor]) -> Tensor:
        total = torch.zeros(())
        anchors_now = module.anchors()  # B x (m, d)
        if len(points) > 1 and settings.l_nce:
            bases = anchors_now if similarity == "wip" else [nn.functional.normalize(a, dim=1) for a in anchors_now]
            features = [x @ a.T for x, a in zip(points, bases, strict=True)]  # B x (n, m)
            total = total + settings.l_nce * symmetric_info_nce(features, temperature=settings.temperature)
        for x, a, target in zip(points, anchors_now, targets, strict=True):
            share = 1 / len(points)
            total = total + share * settings.l_cov * coverage(x, a)
            total = total + share * settings.l_len * length(a, target=target)
            total = total + share * settings.l_orth * orthogonality(a)
        return total

    best, best_step, best_state = float("inf"), 0, {k: v.clone() for k, v in module.state_dict().items()}
    history: list[dict[str, float]] = []
    for step in track(range(settings.steps + 1), description="learning anchors", disable=not show_progress):
        if check is not None and step % 5 == 0:
            with torch.no_grad():
                loss_now = float(objective(check))
                # Pairs are judged by what they are for, being found; one encoder has only its loss.
                score = 1 - _reciprocal_rank(module, check, similarity) if len(check) > 1 else loss_now
            history.append({"step": step, "held_out": loss_now, "score": score})
            if score < best - 1e-6:
                best, best_step = score, step
                best_state = {k: v.clone() for k, v in module.state_dict().items()}
            elif step - best_step >= settings.patience:
                break
        if step == settings.steps:
            break
        rows = torch.randperm(len(train[0]), generator=generator)[: settings.batch_size]
        loss = objective([x[rows] for x in train])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    if check is None:
        return FittedMixing(module.mixing(), settings.steps, history)
    module.load_state_dict(best_state)
    return FittedMixing(module.mixing(), best_step, history)
