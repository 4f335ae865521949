"""The one data structure of the package: the graph of a batch, in which equal nodes may be shared."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class EntangledGraph:
    """A batch of binary trees as one directed acyclic graph (Banyan paper, section "entangled trees").

    Nodes `0 .. n_leaves-1` are leaves. Node `n_leaves + k` was composed from `left[k]` and `right[k]`, both of smaller
    id: ids are a topological order, children before parents. Where the graph is *entangled*, equal tokens are one leaf
    and equal pairs of children one node; otherwise every token occurrence is a leaf of its own, and sentence b's
    nodes are its own.

    Args:
        leaf_tokens: (n_leaves,) int64, token id of each leaf (-1 where embeddings were given in place of ids).
        left, right: (n_inner,) int64, children of each composed node.
        roots: (B,) int64, root of each sentence, -1 for a sentence without tokens.
        token_leaf: (T,) int64, leaf of each token; the sentences of the batch stand one after the other.
        offsets: (B+1,) int64; sentence b owns tokens `offsets[b] .. offsets[b+1]-1`.

    Example:
        >>> a_b_a = EntangledGraph(  # "a b a" as ((a b) a), entangled
        ...     leaf_tokens=torch.tensor([7, 9]), left=torch.tensor([0, 2]), right=torch.tensor([1, 0]),
        ...     roots=torch.tensor([3]), token_leaf=torch.tensor([0, 1, 0]), offsets=torch.tensor([0, 3]))
        >>> a_b_a.n_nodes, a_b_a.heights().tolist(), a_b_a.parent_counts().tolist()
        (4, [0, 0, 1, 2], [2, 1, 1, 0])
    """

    leaf_tokens: Tensor
    left: Tensor
    right: Tensor
    roots: Tensor
    token_leaf: Tensor
    offsets: Tensor

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return self.leaf_tokens.shape[0]

    @property
    def n_nodes(self) -> int:
        """Number of leaves and composed nodes."""
        return self.n_leaves + self.left.shape[0]

    def parent_counts(self) -> Tensor:
        """How many parent edges each node has, (N,) int64; a parent made of the same node twice counts twice."""
        return torch.bincount(torch.cat([self.left, self.right]), minlength=self.n_nodes)

    def heights(self) -> Tensor:
        """Longest path down to a leaf, (N,) int64; leaves have 0."""
        height = torch.zeros(self.n_nodes, dtype=torch.int64, device=self.left.device)
        return self._relax(height, source=torch.stack([self.left, self.right]), target=self._inner().expand(2, -1))

    def depths(self) -> Tensor:
        """Longest path up to a node without parents, (N,) int64; such nodes have 0."""
        depth = torch.zeros(self.n_nodes, dtype=torch.int64, device=self.left.device)
        return self._relax(depth, source=self._inner().expand(2, -1), target=torch.stack([self.left, self.right]))

    def _inner(self) -> Tensor:
        return torch.arange(self.n_leaves, self.n_nodes, device=self.left.device)

    @staticmethod
    def _relax(level: Tensor, *, source: Tensor, target: Tensor) -> Tensor:
        """Longest-path lengths: every target is one further than its furthest source, repeated until nothing moves."""
        source, target = source.reshape(-1), target.reshape(-1)
        while True:
            longer = level.scatter_reduce(0, target, level[source] + 1, reduce="amax")
            if torch.equal(longer, level):
                return level
            level = longer

    def tree(self, sentence: int) -> list[tuple[int, int]]:
        """One sentence's tree as merges `(left, right)`, children before parents.

        The sentence's n tokens are nodes 0 .. n-1 and its k-th merge is node n+k, whatever the batch. Works on both
        kinds of graph; subtrees come left to right, not in the order in which the frontier merged them (for that, see
        `merges`).
        """
        first, last = self.offsets[sentence].item(), self.offsets[sentence + 1].item()
        left, right = self.left.tolist(), self.right.tolist()
        merges: list[tuple[int, int]] = []
        done: list[int] = []  # local ids of finished subtrees
        token = 0
        todo = [self.roots[sentence].item()] if last > first else []
        while todo:  # a loop, not a recursion: trees can be as deep as the sentence is long
            node = int(todo.pop())
            if node == -1:  # both children of a composed node are finished
                right_id, left_id = done.pop(), done.pop()
                merges.append((left_id, right_id))
                done.append(int(last - first) + len(merges) - 1)
            elif node < self.n_leaves:
                done.append(token)
                token += 1
            else:
                todo += [-1, right[node - self.n_leaves], left[node - self.n_leaves]]
        return merges

    def merges(self) -> Tensor:
        """Merges of every sentence in the order the frontier made them, (B, L-1, 2) int64, padded with -100.

        L is the longest sentence of the batch. Node numbers are the sentence's own: tokens 0 .. n-1, then n+k for the
        k-th merge. Only for graphs that are not entangled (shared nodes have no order of their own in each sentence).
        """
        lengths = self.offsets.diff()  # (B,)
        steps = (lengths - 1).clamp(min=0)  # (B,) merges of each sentence
        sentence = torch.repeat_interleave(torch.arange(len(lengths), device=steps.device), steps)  # (n_inner,)
        first = steps.cumsum(0) - steps  # (B,) each sentence's first composed node
        step = torch.arange(len(sentence), device=steps.device) - first[sentence]  # (n_inner,)
        children = torch.stack([self.left, self.right], dim=-1)  # (n_inner, 2)
        local_leaf = children - self.offsets[sentence, None]
        local_node = children - self.n_leaves - first[sentence, None] + lengths[sentence, None]
        out = children.new_full((len(lengths), int(steps.max()) if len(steps) else 0, 2), -100)
        out[sentence, step] = torch.where(children < self.n_leaves, local_leaf, local_node)
        return out


def entangle(graph: EntangledGraph, leaf_tokens: Tensor) -> EntangledGraph:
    """Share equal nodes of a graph that is not entangled.

    Two nodes are equal when their tokens are, or when their left and their right children are. Equal nodes have equal
    height, so one pass over the heights with `unique` on pairs of children finds them all; new ids are ordered by
    height, then by (left id, right id).

    Args:
        graph: one leaf per token occurrence.
        leaf_tokens: (T,) int64, token ids of those leaves.

    Returns:
        The entangled graph of the same trees.

    Example:
        >>> two = EntangledGraph(  # "a b" twice
        ...     leaf_tokens=torch.tensor([7, 9, 7, 9]), left=torch.tensor([0, 2]), right=torch.tensor([1, 3]),
        ...     roots=torch.tensor([4, 5]), token_leaf=torch.arange(4), offsets=torch.tensor([0, 2, 4]))
        >>> shared = entangle(two, two.leaf_tokens)
        >>> shared.n_nodes, shared.roots.tolist()
        (3, [2, 2])
    """
    distinct, token_leaf = torch.unique(leaf_tokens, return_inverse=True)
    heights = graph.heights()
    new_id = torch.full((graph.n_nodes,), -1, dtype=torch.int64, device=heights.device)
    new_id[: graph.n_leaves] = token_leaf
    pairs, n_nodes = [], len(distinct)
    for height in range(1, int(heights.max()) + 1 if len(heights) else 0):
        nodes = torch.nonzero(heights == height).flatten()
        inner = nodes - graph.n_leaves
        children = torch.stack([new_id[graph.left[inner]], new_id[graph.right[inner]]], dim=-1)  # (n, 2)
        shared, inverse = torch.unique(children, dim=0, return_inverse=True)
        new_id[nodes] = n_nodes + inverse
        pairs.append(shared)
        n_nodes += len(shared)
    left, right = torch.cat(pairs).unbind(-1) if pairs else (graph.left, graph.right)
    roots = torch.where(graph.roots < 0, graph.roots, new_id[graph.roots]) if graph.n_nodes else graph.roots
    return EntangledGraph(distinct, left, right, roots, token_leaf[graph.token_leaf], graph.offsets)
