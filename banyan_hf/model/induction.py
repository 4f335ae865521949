"""Inducing trees: greedy merging of each sentence's frontier, in readable torch.

The frontier of a sentence starts as its tokens. Repeat until one node is left: compose the adjacent pair with the
highest score, and put the parent in its place; of equal scores the leftmost wins (PAPERS: Banyan, "induce structure").
Sentences never look at one another, so a tree cannot depend on the batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .counter_dropout import CounterDropout, leaf_keys, pair_keys
from .graph import EntangledGraph

NO_PAIR = -torch.inf


def cosine(left: Tensor, right: Tensor) -> Tensor:
    """Cosine similarity of rows, (..., D), (..., D) -> (...) float32.

    Sums run in float64 and the result is rounded to float32. So the order of summation, which differs between
    backends and batch shapes, does not show; and cosines that are equal in exact arithmetic are equal here, so that
    the rule for ties decides and not the noise of rounding.
    """
    wide = torch.float32 if left.device.type == "mps" else torch.float64  # MPS has no float64
    left, right = left.to(wide), right.to(wide)
    norms = left.square().sum(-1).sqrt() * right.square().sum(-1).sqrt()
    return ((left * right).sum(-1) / norms.clamp(min=1e-30)).float()


@torch.no_grad()
def induce(
    leaves: Tensor,
    offsets: Tensor,
    compose: nn.Module,
    *,
    identity: Tensor,
    structure: str = "greedy",
    dropout: tuple[float, int] | None = None,
) -> EntangledGraph:
    """Build the tree of every sentence.

    Args:
        leaves: (T, D), value of every token occurrence; sentences one after the other.
        offsets: (B+1,) int64, where each sentence's tokens begin and end.
        compose: `Compose` or `LinearCompose`.
        identity: (T,) int64, what makes two leaves the same node: seeds the node keys.
        structure: `"greedy"` scores a pair by its cosine. Controls: `"left"` and `"right"` branch to one side,
            `"balanced"` merges the lowest pair, `"random"` draws a score from the pair's key.
        dropout: (probability, seed); trees are then induced from the dropped-out values.

    Returns:
        The graph, not entangled; its `leaf_tokens` are the identities.
    """
    leaves = leaves.float()
    lengths = offsets.diff()  # (B,)
    n_tokens, width = leaves.shape[0], int(lengths.max()) if len(lengths) else 0
    column = torch.arange(width, device=leaves.device)
    real = column < lengths[:, None]  # (B, L)

    # The frontier is a linked list over token columns: a node lives in the column of its first token.
    node = torch.full_like(real, -1, dtype=torch.int64)  # (B, L) node id
    node[real] = torch.arange(n_tokens, device=leaves.device)
    value = leaves.new_zeros(*real.shape, leaves.shape[1])  # (B, L, D)
    value[real] = leaves
    key = torch.zeros_like(node)  # (B, L)
    key[real] = leaf_keys(identity)
    height = torch.zeros_like(node)  # (B, L)
    following = (column + 1).expand_as(node).clone()  # (B, L) column of the right neighbour
    previous = (column - 1).expand_as(node).clone()  # (B, L)

    def score_at(rows: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """Score of merging frontier columns `left` and `right` of sentences `rows`."""
        score = SCORES[structure]
        return score(value[rows, left], value[rows, right], key[rows, left], key[rows, right], height[rows, left],
                     height[rows, right], left)  # fmt: skip

    scores = leaves.new_full(real.shape, NO_PAIR)  # (B, L) score of the pair that begins in this column
    rows, left = torch.nonzero(column < lengths[:, None] - 1, as_tuple=True)
    scores[rows, left] = score_at(rows, left, left + 1)

    merges = (lengths - 1).clamp(min=0)  # (B,)
    first = n_tokens + merges.cumsum(0) - merges  # (B,) id of each sentence's first composed node
    children = torch.empty(int(merges.sum()), 2, dtype=torch.int64, device=leaves.device)
    keys = torch.cat([leaf_keys(identity), identity.new_empty(len(children))])  # (N,)
    mask = None if dropout is None else CounterDropout(probability=dropout[0], seed=dropout[1], keys=keys)

    for step in range(width - 1):
        rows = torch.nonzero(merges > step).flatten()  # (b,) sentences still merging
        left = scores[rows].argmax(dim=1)  # (b,) argmax takes the first of equals
        right = following[rows, left]
        parent = first[rows] + step  # (b,) node ids
        children[parent - n_tokens] = torch.stack([node[rows, left], node[rows, right]], dim=-1)
        keys[parent] = pair_keys(key[rows, left], key[rows, right])
        composed = compose(value[rows, left], value[rows, right])
        value[rows, left] = composed if mask is None else composed * mask.node_mask(parent, composed)
        node[rows, left], key[rows, left] = parent, keys[parent]
        height[rows, left] = torch.maximum(height[rows, left], height[rows, right]) + 1

        scores[rows, right] = NO_PAIR
        after, before = following[rows, right], previous[rows, left]
        following[rows, left] = after
        has_after, has_before = after < lengths[rows], before >= 0
        r, a = rows[has_after], after[has_after]
        previous[r, a] = left[has_after]
        scores[rows, left] = NO_PAIR
        scores[r, left[has_after]] = score_at(r, left[has_after], a)
        r, b = rows[has_before], before[has_before]
        scores[r, b] = score_at(r, b, left[has_before])

    roots = torch.where(lengths > 1, first + merges - 1, offsets[:-1]).masked_fill(lengths == 0, -1)
    token_leaf = torch.arange(n_tokens, device=leaves.device)
    left, right = children.unbind(-1)
    return EntangledGraph(identity, left.contiguous(), right.contiguous(), roots, token_leaf, offsets)


def _random_score(left_key: Tensor, right_key: Tensor) -> Tensor:
    return ((pair_keys(left_key, right_key) >> 40) & 0xFFFFFF).float()  # 24 bits: exact in float32


# Each takes (left, right, left key, right key, left height, right height, column of the left node).
SCORES: dict[str, Callable[..., Tensor]] = {
    "greedy": lambda left, right, *_: cosine(left, right),
    "left": lambda left, right, lk, rk, lh, rh, column: -column.float(),
    "right": lambda left, right, lk, rk, lh, rh, column: column.float(),
    "balanced": lambda left, right, lk, rk, lh, rh, column: -torch.maximum(lh, rh).float(),
    "random": lambda left, right, lk, rk, lh, rh, column: _random_score(lk, rk),
}
