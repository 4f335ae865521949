"""Trees of sentences as people and other tools want them: brackets, nltk trees, a drawing in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from rich.tree import Tree as RichTree
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .model.modeling_banyan import BanyanModel

if TYPE_CHECKING:
    import nltk


def merge_spans(merges: Tensor, n_tokens: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The token spans that each merge joins, half open, in merge order.

    Args:
        merges: (n-1 or more, 2) int64, one row of `BanyanModelOutput.trees`; rows of -100 are padding.
        n_tokens: n.

    Example:
        >>> merge_spans(torch.tensor([[1, 2], [0, 3], [-100, -100]]), 3)
        [((1, 2), (2, 3)), ((0, 1), (1, 3))]
    """
    span = [(i, i + 1) for i in range(n_tokens)]
    joined = []
    for left, right in merges.tolist():
        if left >= 0:
            joined.append((span[left], span[right]))
            span.append((span[left][0], span[right][1]))
    return joined


@dataclass(frozen=True)
class Tree:
    """The induced tree of one text.

    Args:
        tokens: n strings.
        merges: n-1 pairs of node numbers; tokens are 0 .. n-1, the k-th merge is n+k.

    Example:
        >>> tree = Tree(tokens=("the", "old", "cat"), merges=((1, 2), (0, 3)))
        >>> print(tree)
        (the (old cat))
        >>> tree.height
        2
    """

    tokens: tuple[str, ...]
    merges: tuple[tuple[int, int], ...]

    def _fold(self, leaf: list, join) -> list:  # type: ignore[no-untyped-def,type-arg]
        """Combine values bottom up, in a loop: a tree may be deeper than Python's recursion limit."""
        nodes = list(leaf)
        for left, right in self.merges:
            nodes.append(join(nodes[left], nodes[right]))
        return nodes

    def __str__(self) -> str:
        nodes = self._fold(list(self.tokens), lambda left, right: f"({left} {right})")
        return nodes[-1] if nodes else "()"

    @property
    def height(self) -> int:
        """Longest path from the root to a token."""
        return max(self._fold([0] * len(self.tokens), lambda left, right: max(left, right) + 1), default=0)

    def to_nltk(self) -> nltk.Tree:
        """The tree for nltk (`pip install nltk`); composed nodes have the empty label."""
        from nltk import Tree as NltkTree

        nodes = self._fold(list(self.tokens), lambda left, right: NltkTree("", [left, right]))
        return nodes[-1] if self.merges else NltkTree("", list(self.tokens))

    def to_rich(self) -> RichTree:
        """The tree for a terminal: `rich.print(tree.to_rich())`."""
        spans = self._fold([t for t in self.tokens], lambda left, right: f"{left} {right}")
        drawing = RichTree(f"[bold]{spans[-1]}[/]" if spans else "(no tokens)")
        todo = [(drawing, len(spans) - 1)]
        n = len(self.tokens)
        while todo:
            branch, node = todo.pop()
            if node >= n:
                for child in reversed(self.merges[node - n]):
                    todo.append((branch, child))
        return drawing


def parse(texts: Sequence[str], model: BanyanModel, tokenizer: PreTrainedTokenizerBase) -> list[Tree]:
    """Induce the tree of each text.

    Args:
        texts: any number of strings.
        model: in `eval()` mode.
        tokenizer: the model's own.

    Returns:
        One `Tree` per text; tokens are shown as written in the vocabulary, without the word-begin mark.
    """
    raise NotImplementedError
