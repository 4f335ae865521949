"""What a Banyan is trained for: the token at each distinct leaf, or (Self-StrAE) agreement of up and down.

No function here holds (nodes x vocabulary) or (nodes x nodes) numbers at once: rows are taken in chunks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

CHUNK = 512  # rows whose scores are held at a time


class _ExactCrossEntropy(torch.autograd.Function):
    """Softmax cross-entropy that makes its gradients chunk by chunk while the probabilities are at hand."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        needs_grad = any(ctx.needs_input_grad)
        total = hidden.new_zeros(())
        grad_hidden, grad_weight, grad_bias = (torch.zeros_like(t) if needs_grad else t for t in (hidden, weight, bias))
        for start in range(0, len(hidden), CHUNK):
            rows = slice(start, start + CHUNK)
            h, t = hidden[rows], targets[rows, None]
            logits = torch.addmm(bias, h, weight.T)  # (n, V)
            log_z = logits.logsumexp(dim=1, keepdim=True)  # (n, 1)
            total += (log_z - logits.gather(1, t)).sum()
            if needs_grad:
                grad_logits = logits.sub_(log_z).exp_()  # softmax
                grad_logits.scatter_add_(1, t, torch.full_like(log_z, -1.0))
                grad_logits /= len(hidden)
                grad_hidden[rows] = grad_logits @ weight
                grad_weight.addmm_(grad_logits.T, h)
                grad_bias += grad_logits.sum(dim=0)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        return total / max(len(hidden), 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        return grad_hidden * grad_loss, grad_weight * grad_loss, grad_bias * grad_loss, None


def cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of `softmax(W h + b)` against the targets, over the whole vocabulary (PAPERS: "objective").

    Args:
        hidden: (n, D), downward values of the distinct leaves.
        weight, bias: (V, D) and (V,), the output layer.
        targets: (n,) int64 token ids.

    Returns:
        () the mean over the n rows; 0 if there are none.

    Example:
        >>> h, w, b = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
        >>> t = torch.tensor([0, 4, 2])
        >>> torch.allclose(cross_entropy(h, w, b, t), F.cross_entropy(h @ w.T + b, t), atol=1e-6)
        True
    """
    return _ExactCrossEntropy.apply(hidden, weight, bias, targets)


def sampled_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, negatives: Tensor) -> Tensor:
    """Cross-entropy of each target against a shared uniform sample of tokens that stands for the whole vocabulary.

    The M negatives of a row (the sample without the row's own target) speak for all V - 1 other tokens, so their
    scores are raised by log((V - 1) / M): the estimate of the partition function is unbiased (Jean et al. 2015). With
    the whole vocabulary as the sample this *is* `cross_entropy`.

    Args:
        hidden: (n, D); weight, bias: (V, D), (V,); targets: (n,) int64.
        negatives: (M,) int64, distinct token ids.

    Returns:
        () the mean over the n rows; 0 if there are none.

    Example:
        >>> h, w, b = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
        >>> t = torch.tensor([0, 4, 2])
        >>> exact = cross_entropy(h, w, b, t)
        >>> torch.allclose(sampled_cross_entropy(h, w, b, t, torch.randperm(5)), exact, atol=1e-6)
        True
    """
    if not len(hidden):
        return cross_entropy(hidden, weight, bias, targets)
    rows = torch.cat([targets, negatives])  # one gather, so that the table gets one gradient
    vectors, biases = F.embedding(rows, weight), bias[rows]  # (n + M, D), (n + M,)
    n = len(targets)
    own = (hidden * vectors[:n]).sum(dim=1) + biases[:n]  # (n,)
    others = torch.addmm(biases[n:], hidden, vectors[n:].T)  # (n, M)
    hit = negatives == targets[:, None]  # (n, M) the row's own target, drawn by accident
    drawn = len(negatives) - hit.sum(dim=1)  # (n,)
    shift = torch.log((len(weight) - 1) / drawn.clamp(min=1))  # (n,)
    rest = others.masked_fill(hit, -torch.inf).logsumexp(dim=1) + shift.to(others.dtype)
    return (torch.logaddexp(own, rest) - own).mean()


def contrastive(up: Tensor, down: Tensor, *, temperature: float) -> Tensor:
    """Self-StrAE's objective: each node's upward vector against the downward vectors of all nodes, and the reverse.

    `mean over nodes i of (-log softmax_j(cos(up_i, down_j) / t)[i] - log softmax_j(cos(down_i, up_j) / t)[i]) / 2`.

    Args:
        up, down: (N, D), values of the same nodes.
        temperature: t.

    Returns:
        () the mean; 0 if there are no nodes.
    """
    if not len(up):
        return (up.sum() + down.sum()) * 0
    up, down = F.normalize(up, dim=1), F.normalize(down, dim=1)

    def rows_against(queries: Tensor, others: Tensor, start: int) -> Tensor:
        targets = torch.arange(start, start + len(queries), device=queries.device)
        return F.cross_entropy(queries @ others.T / temperature, targets, reduction="sum")

    total = up.new_zeros(())
    for start in range(0, len(up), CHUNK):  # checkpointed: the scores are made again on the way back
        for a, b in ((up, down), (down, up)):
            total = total + checkpoint(rows_against, a[start : start + CHUNK], b, start, use_reentrant=False)
    return total / (2 * len(up))
