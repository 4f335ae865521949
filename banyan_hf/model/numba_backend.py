"""The CPU backend: `numba_kernels.py` on torch's own memory, made differentiable.

Importing this file needs numba; `modeling_banyan.py` falls back to torch without it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import numba_kernels as kernels
from .counter_dropout import CounterDropout, leaf_keys
from .graph import EntangledGraph
from .numba_kernels import BLOCK, STRUCTURES


def _dropout_arguments(dropout: CounterDropout | None, dtype: torch.dtype) -> Callable[[int | slice], tuple[Any, ...]]:
    """(keys, stream or streams, threshold, scale) as the kernels want them, for a choice of streams."""
    if dropout is None:  # threshold 0: the kernels look at no key
        keys, streams, threshold, scale = np.zeros(1, np.uint64), np.zeros(3, np.uint64), 0, 1.0
    else:
        keys, streams = _unsigned(dropout.keys), np.array([dropout.stream(k) for k in range(3)]).view(np.uint64)
        threshold, scale = dropout.threshold, dropout.scale
    factor = np.float64(scale) if dtype == torch.float64 else np.float32(scale)
    return lambda which: (keys, streams[which], np.uint64(threshold), factor)


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
    values = leaves.new_empty(n_leaves + room, leaves.shape[1], dtype=torch.float32)
    values[:n_leaves] = leaves
    keys = torch.empty(n_leaves + room, dtype=torch.int64)
    keys[:n_leaves] = leaf_keys(identity)
    left, right = torch.empty(room, dtype=torch.int64), torch.empty(room, dtype=torch.int64)
    roots = torch.empty(len(offsets) - 1, dtype=torch.int64)
    mask = None if dropout is None else CounterDropout(probability=dropout[0], seed=dropout[1], keys=keys)
    stream, threshold, scale = _dropout_arguments(mask, torch.float32)(0)[1:]
    n_nodes = kernels.induce(
        values.numpy(), _unsigned(keys), n_leaves, token_leaf.numpy(), offsets.numpy(),
        *(c.numpy() for c in coefficients), share, STRUCTURES[structure], stream, threshold, scale,
        left.numpy(), right.numpy(), roots.numpy(),
    )  # fmt: skip
    graph = EntangledGraph(
        identity, left[: n_nodes - n_leaves], right[: n_nodes - n_leaves], roots, token_leaf, offsets
    )
    return graph, keys[:n_nodes], values[:n_nodes]


def encode(
    table: Tensor, ids: Tensor, mask: Tensor, numbers: Tensor, *, structure: str, neutral: float
) -> tuple[Tensor, bool]:
    """Roots of a batch and nothing else: what inference needs, with the same bits as `induce`.

    Args:
        table: (V, D) float32, the token vectors.
        ids: (B, L) int64.
        mask: (B, L) bool, where there are tokens; the sentences need not stand at the left.
        numbers: (3, U) float32, of `Compose`.
        structure: see `induction.induce`.
        neutral: every coordinate of the vector of a sentence without tokens.

    Returns:
        The roots (B, D), and whether all ids lie in the table; if not, the roots are of no use.
    """
    roots = table.new_empty(len(ids), table.shape[1])
    arrays = (x.detach().contiguous().numpy() for x in (table, ids, mask, numbers))
    inside = kernels.encode(*arrays, STRUCTURES[structure], np.float32(neutral), roots.numpy())
    return roots, inside


class EntangledPass(torch.autograd.Function):
    """Leaves and coefficients -> upward and downward values, with gradients by hand.

    The gradients are those of `message_passing.upward` and `.downward`: the same graph walked the other way, with the
    dropout masks made anew from their counters.
    """

    @staticmethod
    def forward(
        ctx: Any,
        graph: EntangledGraph,
        dropout: CounterDropout | None,
        ready: list[Tensor] | None,
        rows: int,
        leaves: Tensor,
        left_scale: Tensor,
        right_scale: Tensor,
        bias: Tensor,
        scales: Tensor,
        biases: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Carry values up and down.

        Args:
            ctx: autograd's.
            graph: the batch.
            dropout: masks, in training.
            ready: [(N, D)], the upward values, if induction has made them in this precision already.
            rows: how many rows of the downward values are wanted: N, or `n_leaves` for the leaves only.
            leaves: (n_leaves, D).
            left_scale, right_scale, bias: (D,) each, of compose.
            scales, biases: (2, D) each, of decompose: row 0 for the left child, row 1 for the right.

        Returns:
            Upward values (N, D), downward values (rows, D).
        """
        compose = [c.detach().numpy() for c in (left_scale, right_scale, bias)]
        left, right = graph.left.numpy(), graph.right.numpy()
        edges = graph.parent_counts().to(leaves.dtype)
        dropping = _dropout_arguments(dropout, leaves.dtype)
        if ready is None:
            up = leaves.new_empty(graph.n_nodes, leaves.shape[1])
            up[: graph.n_leaves] = leaves.detach()
            _share_coordinates(kernels.upward, up, up.numpy(), left, right, *compose, *dropping(0))
        else:
            up = ready[0]  # in a list, so that autograd does not take it for an input
        down = torch.zeros_like(up)
        _share_coordinates(
            kernels.downward, up, up.numpy(), down.numpy(), edges.numpy(), left, right,
            scales.detach().numpy(), biases.detach().numpy(), *dropping(slice(1, 3)),
        )  # fmt: skip
        ctx.save_for_backward(up, down, edges, left_scale, right_scale, scales)
        ctx.graph, ctx.dropout = graph, dropout
        ctx.set_materialize_grads(False)
        return up, down if rows == graph.n_nodes else down[:rows].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given_up: Tensor | None, given_down: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of the leaves and of the coefficients."""
        up, down, edges, left_scale, right_scale, scales = ctx.saved_tensors
        graph = ctx.graph
        left, right = graph.left.numpy(), graph.right.numpy()
        dropping = _dropout_arguments(ctx.dropout, up.dtype)
        # The kernels accumulate in place, so they get their own copies, with zeros where nothing was asked for.
        grad_up, grad_down = torch.zeros_like(up), torch.zeros_like(down)
        if given_up is not None:
            grad_up.copy_(given_up)
        if given_down is not None:
            grad_down[: len(given_down)] = given_down
        # Sums over all nodes run in float64: thousands of float32 terms would lose digits.
        compose = [torch.zeros(up.shape[1], dtype=torch.float64) for _ in range(3)]
        decompose = [torch.zeros(2, up.shape[1], dtype=torch.float64) for _ in range(2)]
        if given_down is not None:
            _share_coordinates(
                kernels.downward_backward, up, grad_down.numpy(), grad_up.numpy(), down.numpy(), edges.numpy(),
                left, right, scales.detach().numpy(), *(g.numpy() for g in decompose), *dropping(slice(1, 3)),
            )  # fmt: skip
        _share_coordinates(
            kernels.upward_backward, up, grad_up.numpy(), up.numpy(), left, right, left_scale.detach().numpy(),
            right_scale.detach().numpy(), *(g.numpy() for g in compose), *dropping(0),
        )  # fmt: skip
        coefficients = (grad.to(up.dtype) for grad in (*compose, *decompose))
        return None, None, None, None, grad_up[: graph.n_leaves], *coefficients


def _share_coordinates(kernel: Any, values: Tensor, *arguments: Any) -> None:
    """Run a pass on slices of the coordinates, one per thread that torch may use; small batches on one."""
    n_nodes, size = values.shape
    slices = max(1, min(torch.get_num_threads(), size // BLOCK)) if n_nodes * size > 1 << 18 else 1
    width = -(-size // slices // BLOCK) * BLOCK
    bounds = [(first, min(first + width, size)) for first in range(0, size, width)]
    if len(bounds) == 1:
        kernel(0, size, *arguments)
        return
    with ThreadPoolExecutor(len(bounds)) as pool:  # the kernels release the GIL
        for future in [pool.submit(kernel, first, last, *arguments) for first, last in bounds]:
            future.result()
