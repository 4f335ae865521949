"""Dropout whose masks are a function of (seed, node identity, coordinate), so nothing has to be stored.

A node's *key* is a hash of what the node is: of its token for a leaf, of its children's keys for a composed node.
Equal nodes therefore get equal masks, wherever they stand in the batch and whichever backend makes them; the backward
pass of `numba_kernels.py` makes them again; and a resumed run, which restores torch's generator, repeats them exactly.

The hash is SplitMix64's finaliser (Steele et al. 2014), on int64 tensors with wrap-around.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .graph import EntangledGraph

MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
GOLDEN = 0x9E3779B97F4A7C15
LANES = 4  # one 64-bit hash decides four coordinates, 16 bits each
BLOCK = 64  # in every 64 coordinates, lane k of the 16 hashes decides coordinates 16k .. 16k+15


def _signed(x: int) -> int:
    """The int64 with the same bits as the unsigned 64-bit number x."""
    x &= (1 << 64) - 1
    return x - (1 << 64) if x >> 63 else x


def _shift_right(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # int64 shifts copy the sign; the mask takes it away


def mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser, int64 -> int64, elementwise.

    Example:
        >>> mix(torch.tensor([0, 1, 2])).tolist()
        [0, 6238072747940578789, -2606959012126976886]
    """
    x = (x ^ _shift_right(x, 30)) * _signed(MIX_1)
    x = (x ^ _shift_right(x, 27)) * _signed(MIX_2)
    return x ^ _shift_right(x, 31)


def leaf_keys(identity: Tensor) -> Tensor:
    """Keys of leaves from what tells them apart: token ids, or positions where occurrences are not shared."""
    return mix(identity + 1)


def pair_keys(left: Tensor, right: Tensor) -> Tensor:
    """Key of the node composed from two nodes; not symmetric."""
    return mix(mix(left) + right)


def hidden_leaves(keys: Tensor, *, probability: float, seed: int) -> Tensor:
    """Which leaves are hidden as a whole, (n_leaves,) bool, from their keys: equal leaves alike.

    Example:
        >>> hidden = hidden_leaves(leaf_keys(torch.arange(40000)), probability=0.3, seed=3)
        >>> round(float(hidden.double().mean()), 2)
        0.3
    """
    return _shift_right(mix(keys ^ seed), 11).double() < probability * 2**53  # 53 bits: exact in float64


def node_keys(graph: EntangledGraph, identity: Tensor) -> Tensor:
    """Keys of all nodes of a graph, (N,) int64, from the identities of its leaves."""
    keys = torch.cat([leaf_keys(identity), torch.zeros_like(graph.left)])
    heights = graph.heights()
    for height in range(1, int(heights.max()) + 1 if len(heights) else 0):
        nodes = torch.nonzero(heights == height).flatten()
        inner = nodes - graph.n_leaves
        keys[nodes] = pair_keys(keys[graph.left[inner]], keys[graph.right[inner]])
    return keys


@dataclass(frozen=True)
class CounterDropout:
    """Dropout masks for the nodes of one graph.

    Args:
        probability: of a coordinate being zeroed, rounded to a multiple of 2^-16. Kept ones are scaled up.
        seed: of this forward pass, drawn from torch's generator.
        keys: (N,) int64, node keys.

    Example:
        >>> dropout = CounterDropout(probability=0.25, seed=3, keys=leaf_keys(torch.arange(40000)))
        >>> mask = dropout.node_mask(torch.arange(40000), torch.ones(40000, 8))
        >>> round(float((mask == 0).double().mean()), 2), mask.unique().tolist()
        (0.25, [0.0, 1.3333333730697632])
    """

    probability: float
    seed: int
    keys: Tensor

    @property
    def threshold(self) -> int:
        """Lanes below this are dropped."""
        return min(round(self.probability * 65536), 65535)

    @property
    def scale(self) -> float:
        """Factor of kept coordinates."""
        return 65536 / (65536 - self.threshold)

    def stream(self, purpose: int) -> int:
        """Offset that keeps masks of nodes (0), left messages (1) and right messages (2) apart; signed 64 bits."""
        return int(mix(torch.tensor(_signed(self.seed + GOLDEN * purpose))))

    def node_mask(self, nodes: Tensor, like: Tensor) -> Tensor:
        """(n, D) mask for the values of nodes; `like` gives shape and dtype."""
        return self._mask(self.keys[nodes], like, self.stream(0))

    def message_mask(self, nodes: Tensor, like: Tensor, *, side: int) -> Tensor:
        """(n, D) mask for the messages that nodes send to their left (side 0) or right (side 1) children."""
        return self._mask(self.keys[nodes], like, self.stream(1 + side))

    def _mask(self, keys: Tensor, like: Tensor, stream: int) -> Tensor:
        size = like.shape[1]
        blocks = -(-size // BLOCK)
        counters = torch.arange(1, blocks * BLOCK // LANES + 1, device=keys.device) * _signed(GOLDEN)
        hashes = mix((keys ^ stream)[:, None] + counters)  # (n, blocks * 16)
        hashes = hashes.reshape(len(keys), blocks, 1, BLOCK // LANES)
        shifts = torch.arange(0, 64, 16, device=keys.device)[:, None]  # (4, 1)
        lanes = (hashes >> shifts) & 0xFFFF  # (n, blocks, 4, 16); the mask also takes away the copied sign
        keep = lanes.reshape(len(keys), blocks * BLOCK)[:, :size] >= self.threshold  # (n, D)
        return keep.to(like.dtype) * self.scale
