"""The CPU backend: `kernels.py` on torch's own memory, made differentiable.

Importing this file needs numba; `modeling_banyan.py` falls back to torch without it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import kernels
from .counter_dropout import CounterDropout, leaf_keys
from .graph import EntangledGraph


def _dropout_arguments(dropout: CounterDropout | None, dtype: torch.dtype) -> tuple[Any, ...]:
    """(streams, threshold, scale) as the kernels want them."""
    if dropout is None:
        return np.zeros(3, np.uint64), np.uint64(0), np.float32(1)
    streams = np.array([dropout.stream(k) for k in range(3)], np.int64).view(np.uint64)
    factor = np.float64(dropout.scale) if dtype == torch.float64 else np.float32(dropout.scale)
    return streams, np.uint64(dropout.threshold), factor


def _unsigned(keys: Tensor) -> np.ndarray:
    return keys.numpy().view(np.uint64)


@torch.no_grad()
def induce(
    leaves: Tensor,
    token_leaf: Tensor,
    offsets: Tensor,
    coefficients: tuple[Tensor, Tensor, Tensor],
    *,
    identity: Tensor,
    share: bool,
    structure: str = "greedy",
    dropout: tuple[float, int] | None = None,
) -> tuple[EntangledGraph, Tensor, Tensor]:
    """Build the trees of a batch and, with `share`, the entangled graph at once.

    Args:
        leaves: (n_leaves, D), value of every leaf.
        token_leaf: (T,) int64, leaf of every token.
        offsets: (B+1,) int64, where each sentence's tokens begin and end.
        coefficients: of `Compose`, float32.
        identity: (n_leaves,) int64, seeds the node keys; becomes `leaf_tokens`.
        share: whether equal pairs of children are one node.
        structure, dropout: see `induction.induce`.

    Returns:
        The graph, the node keys (N,), and the upward values (N, D) in float32.
    """
    n_tokens, n_leaves = len(token_leaf), len(leaves)
    room = n_tokens - int((offsets.diff() > 0).sum())  # merges of all sentences
    values = torch.empty(n_leaves + room, leaves.shape[1])
    values[:n_leaves] = leaves
    keys = torch.empty(n_leaves + room, dtype=torch.int64)
    keys[:n_leaves] = leaf_keys(identity)
    left, right = torch.empty(room, dtype=torch.int64), torch.empty(room, dtype=torch.int64)
    roots = torch.empty(len(offsets) - 1, dtype=torch.int64)
    mask = None if dropout is None else CounterDropout(probability=dropout[0], seed=dropout[1], keys=keys)
    streams, threshold, scale = _dropout_arguments(mask, torch.float32)
    n_nodes = kernels.induce(
        values.numpy(), _unsigned(keys), n_leaves, token_leaf.numpy(), offsets.numpy(),
        *(c.numpy() for c in coefficients), share, kernels.STRUCTURES[structure], streams[0], threshold, scale,
        left.numpy(), right.numpy(), roots.numpy(),
    )  # fmt: skip
    graph = EntangledGraph(
        identity, left[: n_nodes - n_leaves], right[: n_nodes - n_leaves], roots, token_leaf, offsets
    )
    return graph, keys[:n_nodes], values[:n_nodes]


class EntangledPass(torch.autograd.Function):
    """Leaves and coefficients -> upward and downward values of every node, with gradients by hand.

    The gradients are those of `message_passing.upward` and `.downward`: the same graph walked the other way, with the
    dropout masks made anew from their counters.
    """

    @staticmethod
    def forward(
        ctx: Any, graph: EntangledGraph, dropout: CounterDropout | None, leaves: Tensor, *coefficients: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Coefficients: left, right scale, bias of compose; left, right scale, left, right bias of decompose."""
        arrays = [c.detach().contiguous().numpy() for c in coefficients]
        left, right = graph.left.numpy(), graph.right.numpy()
        edges = graph.parent_counts().to(leaves.dtype)
        keys = _unsigned(dropout.keys) if dropout is not None else np.zeros(graph.n_nodes, np.uint64)
        streams, threshold, scale = _dropout_arguments(dropout, leaves.dtype)
        up = leaves.new_empty(graph.n_nodes, leaves.shape[1])
        up[: graph.n_leaves] = leaves.detach()
        down = torch.zeros_like(up)
        kernels.upward(up.numpy(), left, right, *arrays[:3], keys, streams[0], threshold, scale)
        kernels.downward(
            up.numpy(), down.numpy(), edges.numpy(), left, right, *arrays[3:], keys, streams[1:], threshold, scale
        )
        ctx.save_for_backward(up, down, edges, *coefficients)
        ctx.graph, ctx.dropout = graph, dropout
        return up, down

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_up: Tensor, grad_down: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the leaves and of the seven coefficient vectors."""
        up, down, edges, *coefficients = ctx.saved_tensors
        graph, dropout = ctx.graph, ctx.dropout
        arrays = [c.detach().contiguous().numpy() for c in coefficients]
        left, right = graph.left.numpy(), graph.right.numpy()
        keys = _unsigned(dropout.keys) if dropout is not None else np.zeros(graph.n_nodes, np.uint64)
        streams, threshold, scale = _dropout_arguments(dropout, up.dtype)
        # Sums over all nodes run in float64: thousands of float32 terms would lose digits.
        grads = [torch.zeros(up.shape[1], dtype=torch.float64) for _ in arrays]
        g = [grad.numpy() for grad in grads]
        grad_up, grad_down = grad_up.clone(), grad_down.clone()  # the kernels accumulate in place
        kernels.downward_backward(
            grad_down.numpy(), grad_up.numpy(), down.numpy(), edges.numpy(), left, right, arrays[3], arrays[4],
            g[3], g[4], g[5], g[6], keys, streams[1:], threshold, scale,
        )  # fmt: skip
        kernels.upward_backward(
            grad_up.numpy(), up.numpy(), left, right, arrays[0], arrays[1], g[0], g[1], g[2],
            keys, streams[0], threshold, scale,
        )  # fmt: skip
        return None, None, grad_up[: graph.n_leaves], *(grad.to(up.dtype) for grad in grads)
