"""Compose and decompose: the equations that carry vectors up and down a graph.

`Compose` and `Decompose` hold the learned numbers; `upward` and `downward` apply them to every node of an
`EntangledGraph`, a level at a time, in plain differentiable torch. `numba_kernels.py` has the same two passes for CPUs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .counter_dropout import CounterDropout
from .graph import EntangledGraph


class Compose(nn.Module):
    """parent = left * s(Phi_l) + right * s(Phi_r) + phi, with s = sigmoid (PAPERS: Banyan, "compose").

    Every parameter has U numbers; coordinate k of an embedding uses number k mod U.
    """

    def __init__(self, channel_size: int, num_channels: int) -> None:
        super().__init__()
        self.num_channels = num_channels
        self.left_scale = nn.Parameter(torch.empty(channel_size))  # (U,) before the sigmoid
        self.right_scale = nn.Parameter(torch.empty(channel_size))  # (U,) before the sigmoid
        self.bias = nn.Parameter(torch.empty(channel_size))  # (U,)

    def numbers(self, dtype: torch.dtype) -> Tensor:
        """s(Phi_l), s(Phi_r) and phi as the rows of a (3, U) tensor."""
        left, right = torch.sigmoid(self.left_scale.to(dtype)), torch.sigmoid(self.right_scale.to(dtype))  # (U,)
        return torch.stack((left, right, self.bias.to(dtype)))

    def coefficients(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """The three vectors of the equation, tiled over the channels: (D,) each."""
        each = self.numbers(dtype)
        tiled = each[:, None].expand(3, self.num_channels, each.shape[1]).reshape(3, -1)  # (3, D); faster than repeat
        return tiled[0], tiled[1], tiled[2]

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """(n, D), (n, D) -> (n, D)."""
        left_scale, right_scale, bias = self.coefficients(left.dtype)
        return left * left_scale + right * right_scale + bias


class Decompose(nn.Module):
    """to_left = node * s(Theta_l) + theta_l; to_right = node * s(Theta_r) + theta_r (PAPERS: Banyan, "decompose")."""

    def __init__(self, channel_size: int, num_channels: int) -> None:
        super().__init__()
        self.num_channels = num_channels
        self.left_scale = nn.Parameter(torch.empty(channel_size))
        self.right_scale = nn.Parameter(torch.empty(channel_size))
        self.left_bias = nn.Parameter(torch.empty(channel_size))
        self.right_bias = nn.Parameter(torch.empty(channel_size))

    def coefficients(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Left scale, right scale (sigmoid applied), left bias, right bias, tiled over the channels: (D,) each."""
        return (
            torch.sigmoid(self.left_scale.to(dtype)).repeat(self.num_channels),
            torch.sigmoid(self.right_scale.to(dtype)).repeat(self.num_channels),
            self.left_bias.to(dtype).repeat(self.num_channels),
            self.right_bias.to(dtype).repeat(self.num_channels),
        )

    def forward(self, node: Tensor) -> tuple[Tensor, Tensor]:
        """(n, D) -> messages to the left and to the right child, (n, D) each."""
        left_scale, right_scale, left_bias, right_bias = self.coefficients(node.dtype)
        return node * left_scale + left_bias, node * right_scale + right_bias


class LinearCompose(nn.Module):
    """parent = hcat(left, right) Phi + phi in each channel (Self-StrAE).

    The product is accumulated in float64 and rounded: a matrix product in float32 may round a row differently when
    other rows stand beside it, and a sentence's tree must not depend on its batch.
    """

    def __init__(self, channel_size: int, num_channels: int) -> None:
        super().__init__()
        self.num_channels = num_channels
        self.weight = nn.Parameter(torch.empty(2 * channel_size, channel_size))  # Phi
        self.bias = nn.Parameter(torch.empty(channel_size))  # phi

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """(n, D), (n, D) -> (n, D)."""
        channels = (*left.shape[:-1], self.num_channels, left.shape[-1] // self.num_channels)  # no -1: n may be 0
        both = torch.cat([left.reshape(channels), right.reshape(channels)], dim=-1)  # (n, K, 2U)
        parent = both.double() @ self.weight.double() + self.bias.double()  # (n, K, U)
        return parent.to(left.dtype).reshape(left.shape)


class LinearDecompose(nn.Module):
    """(to_left, to_right) = node Theta + theta in each channel (Self-StrAE)."""

    def __init__(self, channel_size: int, num_channels: int) -> None:
        super().__init__()
        self.num_channels = num_channels
        self.weight = nn.Parameter(torch.empty(channel_size, 2 * channel_size))  # Theta
        self.bias = nn.Parameter(torch.empty(2 * channel_size))  # theta

    def forward(self, node: Tensor) -> tuple[Tensor, Tensor]:
        """(n, D) -> messages to the left and to the right child, (n, D) each."""
        channels = node.reshape(*node.shape[:-1], self.num_channels, node.shape[-1] // self.num_channels)  # (n, K, U)
        both = (channels.double() @ self.weight.double() + self.bias.double()).to(node.dtype)  # (n, K, 2U)
        to_left, to_right = both.chunk(2, dim=-1)
        return to_left.reshape(node.shape), to_right.reshape(node.shape)


def upward(
    graph: EntangledGraph, leaves: Tensor, compose: nn.Module, *, dropout: CounterDropout | None = None
) -> Tensor:
    """Value of every node from the leaves to the roots.

    Args:
        graph: the batch.
        leaves: (n_leaves, D), values of the leaves.
        compose: `Compose` or `LinearCompose`.
        dropout: masks of the composed nodes, in training.

    Returns:
        (N, D): the leaves as given, then every composed node.
    """
    values = torch.cat([leaves, leaves.new_zeros(graph.left.shape[0], leaves.shape[1])])  # (N, D)
    for nodes in _levels(graph.heights())[1:]:
        inner = nodes - graph.n_leaves
        parent = compose(values[graph.left[inner]], values[graph.right[inner]])  # (n, D)
        if dropout is not None:
            parent = parent * dropout.node_mask(nodes, parent)
        values[nodes] = parent
    return values


def downward(
    graph: EntangledGraph, up: Tensor, decompose: nn.Module, *, dropout: CounterDropout | None = None
) -> Tensor:
    """Value of every node from the roots to the leaves.

    A node without parents keeps its upward value; any other takes the mean of the messages over all its parent edges,
    in whatever sentence they lie (PAPERS: Banyan, "downward pass").

    Args:
        graph: the batch.
        up: (N, D), upward values.
        decompose: `Decompose` or `LinearDecompose`.
        dropout: masks of the messages, in training.

    Returns:
        (N, D) downward values.
    """
    edges = graph.parent_counts()  # (N,)
    received = torch.zeros_like(up)  # (N, D) sums of messages
    down = torch.zeros_like(up)
    for nodes in _levels(graph.depths()):
        count = edges[nodes, None]
        down[nodes] = torch.where(count > 0, received[nodes] / count.clamp(min=1), up[nodes])
        nodes = nodes[nodes >= graph.n_leaves]  # leaves send nothing
        to_left, to_right = decompose(down[nodes])  # (n, D), (n, D)
        if dropout is not None:
            to_left = to_left * dropout.message_mask(nodes, to_left, side=0)
            to_right = to_right * dropout.message_mask(nodes, to_right, side=1)
        inner = nodes - graph.n_leaves
        received.index_add_(0, graph.left[inner], to_left)
        received.index_add_(0, graph.right[inner], to_right)
    return down


def _levels(level: Tensor) -> list[Tensor]:
    """Node ids grouped by level, (n_0,), (n_1,), ..., each ascending."""
    if not len(level):
        return []
    return list(torch.argsort(level, stable=True).split(torch.bincount(level).tolist()))
