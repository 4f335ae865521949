"""Trees of sentences as people and other tools want them: brackets, nltk trees, a drawing in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from rich.text import Text
from rich.tree import Tree as RichTree
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .encoding import evaluating, tokenize_batch
from .model.modeling_banyan import BanyanModel
from .tokenizer import SPACE

if TYPE_CHECKING:
    import nltk

T = TypeVar("T")


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

    def _fold(self, leaves: Sequence[T], join: Callable[[T, T], T]) -> list[T]:
        """A value for every node, from the leaves up; a loop, since a tree may be deeper than Python recurses."""
        nodes = list(leaves)
        for left, right in self.merges:
            nodes.append(join(nodes[left], nodes[right]))
        return nodes

    def __str__(self) -> str:
        """The tree in brackets; `()` for a text without tokens."""
        nodes = self._fold(self.tokens, lambda left, right: f"({left} {right})")
        return nodes[-1] if nodes else "()"

    @property
    def height(self) -> int:
        """Longest path from the root to a token."""
        return max(self._fold([0] * len(self.tokens), lambda left, right: max(left, right) + 1), default=0)

    @property
    def spans(self) -> list[str]:
        """The words under each node: tokens first, then merges; the last is the whole text."""
        return self._fold(self.tokens, lambda left, right: f"{left} {right}")

    def to_nltk(self) -> nltk.Tree:
        """The tree for nltk (`pip install nltk`); composed nodes have the empty label."""
        from nltk import Tree as NltkTree

        nodes: list[Any] = self._fold(list(self.tokens), lambda left, right: NltkTree("", [left, right]))
        return nodes[-1] if self.merges else NltkTree("", list(self.tokens))

    def to_rich(self) -> RichTree:
        """The tree for a terminal: `rich.print(tree.to_rich())`."""
        spans, n = self.spans, len(self.tokens)
        drawing = RichTree(Text(spans[-1] if spans else "(no tokens)"))
        todo = [(drawing, len(spans) - 1)]
        while todo:
            branch, node = todo.pop()
            for child in self.merges[node - n] if node >= n else ():
                todo.append((branch.add(Text(spans[child], style="bold" if child < n else "dim")), child))
        return drawing


def parse(
    texts: Sequence[str], model: BanyanModel, tokenizer: PreTrainedTokenizerBase, *, batch_size: int = 256
) -> list[Tree]:
    """Induce the tree of each text.

    Args:
        texts: any number of strings; a long one is truncated as for encoding.
        model: of any mode; it is parsed in evaluation mode.
        tokenizer: the model's own.
        batch_size: texts at a time; trees do not depend on it.

    Returns:
        One `Tree` per text; tokens are shown as in the vocabulary, without the mark that begins a word.
    """
    if isinstance(texts, str):
        raise ValueError("A list of texts is needed, not one string: parse([text], ...).")
    trees = []
    for start in range(0, len(texts), batch_size):
        batch = tokenize_batch(texts[start : start + batch_size], model, tokenizer)
        with evaluating(model), torch.inference_mode():
            merges = model(**batch, output_trees=True).trees  # (B, L-1, 2)
        real = batch["attention_mask"].bool() & (batch["input_ids"] != tokenizer.pad_token_id)
        for ids, mask, rows in zip(batch["input_ids"], real, merges.tolist(), strict=True):
            pieces = tokenizer.convert_ids_to_tokens(ids[mask].tolist())
            tokens = tuple(piece.removeprefix(SPACE) or SPACE for piece in pieces)
            trees.append(Tree(tokens, tuple((left, right) for left, right in rows if left >= 0)))
    return trees
