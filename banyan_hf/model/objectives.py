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


class _SampledCrossEntropy(torch.autograd.Function):
    """As `_ExactCrossEntropy`, over each row's target and the shared negatives."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, drawn: Tensor) -> Tensor:
        negatives, times = drawn.unique(return_counts=True)  # (m,) tokens of the sample, and how often each was drawn
        n, m = len(hidden), len(negatives)
        place = torch.full((len(weight),), -1, device=drawn.device)  # (V,) where a token stands in the sample
        place[negatives] = torch.arange(m, device=drawn.device)
        hit = place[targets]  # (n,) where the row's own target was drawn by accident, or -1
        others = len(drawn) - torch.where(hit >= 0, times[hit], 0)  # (n,) draws that are not the row's target
        shift = torch.log((len(weight) - 1) / others.clamp(min=1).double()).to(hidden.dtype)  # (n,)
        rows = torch.cat([targets, negatives])  # (n + m,)
        vectors, biases = weight[rows], bias[rows]
        grad_vectors, grad_biases = torch.zeros_like(vectors), torch.zeros_like(biases)
        grad_hidden, total = torch.empty_like(hidden), hidden.new_zeros(())
        sample, sample_bias = vectors[n:], biases[n:] + times.double().log().to(bias.dtype)
        for start in range(0, n, CHUNK):
            chunk = slice(start, min(start + CHUNK, n))
            h, own_vectors = hidden[chunk], vectors[chunk]
            own = (h * own_vectors).sum(dim=1) + biases[chunk]  # (c,)
            scores = torch.addmm(sample_bias, h, sample.T).add_(shift[chunk, None])  # (c, m)
            accident = torch.nonzero(hit[chunk] >= 0).flatten()
            scores[accident, hit[chunk][accident]] = -torch.inf
            log_z = torch.logaddexp(own, scores.logsumexp(dim=1))  # (c,)
            total += (log_z - own).sum()
            # Gradients of the mean: softmax minus the indicator of the target.
            grad_scores = scores.sub_(log_z[:, None]).exp_().div_(n)  # (c, m)
            grad_own = ((own - log_z).exp() - 1) / n  # (c,)
            grad_hidden[chunk] = torch.addcmul(grad_scores @ sample, grad_own[:, None], own_vectors)
            grad_vectors[n:].addmm_(grad_scores.T, h)
            grad_vectors[chunk] = grad_own[:, None] * h
            grad_biases[n:] += grad_scores.sum(dim=0)
            grad_biases[chunk] = grad_own
        ctx.save_for_backward(grad_hidden, grad_vectors, grad_biases, rows)
        ctx.shape = weight.shape
        return total / n

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_vectors, grad_biases, rows = ctx.saved_tensors
        grad_weight = grad_vectors.new_zeros(ctx.shape).index_add_(0, rows, grad_vectors * grad_loss)
        grad_bias = grad_biases.new_zeros(ctx.shape[0]).index_add_(0, rows, grad_biases * grad_loss)
        return grad_hidden * grad_loss, grad_weight, grad_bias, None, None


def sampled_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, negatives: Tensor) -> Tensor:
    """Cross-entropy of each target against a shared sample of tokens that stands for the whole vocabulary.

    The M negatives of a row (the draws that are not its own target) speak for all V - 1 other tokens, so their scores
    are raised by log((V - 1) / M). Drawn uniformly, that estimate of the partition function is unbiased (Jean et al.
    2015), and with the whole vocabulary as the sample this *is* `cross_entropy`. Drawn from another distribution q the
    scores learn log(p / q) instead of log p, as word2vec's do: with q near the tokens' own frequency, how much more
    likely a token is here than anywhere.

    Args:
        hidden: (n, D); weight, bias: (V, D), (V,); targets: (n,) int64.
        negatives: (M,) int64, token ids; one that was drawn k times counts k times.

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
    return _SampledCrossEntropy.apply(hidden, weight, bias, targets, negatives)


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
