"""The four losses of PARAM (PAPERS section 2), defined in the whitened space and written for torch tensors.

Notation: B encoders, K support texts, m anchors. ``Z_i`` (K, d_i) is the whitened support of encoder i (for cosine:
its rows at length 1), P (m, K) the shared row-stochastic mixing matrix and ``A_i = P Z_i`` (m, d_i) the anchors. The
paper's appendix is not at hand, so each formula below is ours and complete.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def symmetric_info_nce(features: Sequence[Tensor], *, temperature: float) -> Tensor:
    """Alignment ``L_symNCE``: paired texts must find each other among the batch, in both directions.

    With ``f_i`` (n, m) the relative features of the same n texts in space i, rows brought to length 1, and
    ``S_ij = f_i f_j' / t``: the mean over all pairs i < j of ``(CE(S_ij, diagonal) + CE(S_ij', diagonal)) / 2``.

    Args:
        features: B tensors (n, m), B >= 2.
        temperature: t.

    Returns:
        scalar >= 0.

    >>> float(symmetric_info_nce([torch.eye(2), torch.eye(2)], temperature=0.01)) < 1e-6
    True
    """
    unit = [F.normalize(feature, dim=1) for feature in features]
    labels = torch.arange(len(unit[0]), device=unit[0].device)
    terms = []
    for i in range(len(unit)):
        for j in range(i + 1, len(unit)):
            scores = unit[i] @ unit[j].T / temperature  # (n, n)
            terms.append((F.cross_entropy(scores, labels) + F.cross_entropy(scores.T, labels)) / 2)
    return torch.stack(terms).mean()


def coverage(points: Tensor, anchors: Tensor, *, softness: float = 1.0) -> Tensor:
    """Coverage ``L_cov``: soft k-means, every support text should have an anchor near it.

    ``D_kr = |z_k - a_r|^2 / d``; the loss is ``mean_k -s log mean_r exp(-D_kr / s)``, the free energy of soft k-means,
    which tends to the k-means distortion per dimension as s goes to 0.

    Args:
        points: (n, d) whitened support texts.
        anchors: (m, d).
        softness: s.

    Returns:
        scalar >= 0; 0 if all anchors lie on all points.

    >>> float(coverage(torch.zeros(3, 2), torch.zeros(1, 2))) == 0.0
    True
    """
    distances = torch.cdist(points, anchors).square() / points.shape[1]  # (n, m)
    counted = torch.log(torch.tensor(float(anchors.shape[0]), dtype=points.dtype, device=points.device))
    return -softness * (torch.logsumexp(-distances / softness, dim=1) - counted).mean()


def orthogonality(anchors: Tensor) -> Tensor:
    """Orthogonality ``L_orth``: anchors of one space should not be correlated.

    The mean squared cosine of two different anchors, ``(|G|_F^2 - m) / (m (m - 1))`` with ``G = A^ A^'`` and the rows
    of ``A^`` of length 1. It is 0 for orthogonal anchors and never below ``(m/d - 1) / (m - 1)`` if m > d (Welch).

    Args:
        anchors: (m, d).

    Returns:
        scalar, 0..1.

    >>> float(orthogonality(torch.eye(3))), float(orthogonality(torch.ones(3, 2))) > 0.999
    (0.0, True)
    """
    count, dim = anchors.shape
    unit = F.normalize(anchors, dim=1)
    gram = unit.T @ unit if dim < count else unit @ unit.T  # the smaller one: both have the same norm
    return (gram.square().sum() - count).clamp_min(0.0) / max(count * (count - 1), 1)


def length(anchors: Tensor, *, target: float) -> Tensor:
    """Length ``L_len``: mixtures shrink towards the mean, so anchor norms are held near a target.

    ``mean_r (|a_r| / target - 1)^2``.

    Args:
        anchors: (m, d).
        target: the norm asked for, in whitened units (a whitened text has norm sqrt(d) on average).

    Returns:
        scalar >= 0.

    >>> float(length(torch.tensor([[3.0, 4.0]]), target=5.0))
    0.0
    """
    return (anchors.norm(dim=1) / target - 1).square().mean()
