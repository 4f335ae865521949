"""Trees as SVG, and a page of them: one HTML file that needs nothing else, on a screen or on paper."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .encoding import encode, evaluating, tokenize_batch
from .model.modeling_banyan import BanyanModel
from .trees import Tree, parse

Neighbours = Sequence[tuple[str, float]]  # phrase and cosine, most alike first

CHARACTER, GAP, LINE, LEVEL, DEEPEST, MARGIN = 7.6, 14, 20, 26, 320, 10  # pixels; monospaced text of 12.7 px
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1f24; max-width: 960px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } figure { margin: 0 0 2rem; break-inside: avoid; } figcaption { font-weight: 600; }
figcaption small { font-weight: 400; color: #57606a; } svg { display: block; max-width: 100%; height: auto; }
svg text { font: 12.7px ui-monospace, "DejaVu Sans Mono", monospace; fill: #1b1f24; }
svg path { fill: none; stroke: #8c959f; stroke-width: 1.2; }
svg circle { fill: #fff; stroke: #0969da; stroke-width: 1.5; }
svg g:hover > circle, svg g:focus > circle { fill: #0969da; }
svg g:focus { outline: none; } svg .on { font-weight: 700; fill: #0550ae; }
#card { position: fixed; display: none; max-width: 24rem; background: #fff; border: 1px solid #d0d7de;
  border-radius: 6px; box-shadow: 0 4px 12px #0003; padding: .5rem .75rem; font-size: .9rem; pointer-events: none; }
#card b { display: block; } #card td { padding: 0 .75rem 0 0; color: #57606a; }
@media print { body { margin: 0; max-width: none; } #card, .hint { display: none !important; } }
"""
SCRIPT = """
const card = document.getElementById("card");
function show(node) {
  const [span, rows] = JSON.parse(node.dataset.card), tree = node.closest("svg");
  card.replaceChildren(Object.assign(document.createElement("b"), {textContent: span}));
  const table = card.appendChild(document.createElement("table"));
  for (const [phrase, score] of rows) {
    const row = table.insertRow();
    row.insertCell().textContent = score.toFixed(2); row.insertCell().textContent = phrase;
  }
  const [first, last] = node.dataset.words.split("-").map(Number);
  tree.querySelectorAll("text").forEach((word, n) => word.classList.toggle("on", first <= n && n < last));
  const box = node.querySelector("circle").getBoundingClientRect();
  card.style.display = "block";
  card.style.left = Math.min(box.right + 8, innerWidth - card.offsetWidth - 8) + "px";
  card.style.top = Math.min(box.bottom + 8, innerHeight - card.offsetHeight - 8) + "px";
}
function hide(node) {
  card.style.display = "none";
  node.closest("svg").querySelectorAll(".on").forEach(word => word.classList.remove("on"));
}
for (const node of document.querySelectorAll("g[data-card]")) {
  for (const event of ["mouseenter", "focus"]) node.addEventListener(event, () => show(node));
  for (const event of ["mouseleave", "blur"]) node.addEventListener(event, () => hide(node));
}
"""


@dataclass(frozen=True)
class Figure:
    """A text, its tree, and what is near to each of its nodes.

    Args:
        text: as it was written.
        tree: its tree.
        neighbours: for every node (tokens first, then merges), phrases with their cosine; or none at all.
    """

    text: str
    tree: Tree
    neighbours: Sequence[Neighbours] = field(default=())


def tree_svg(tree: Tree, neighbours: Sequence[Neighbours] = (), *, width: int = 920) -> str:
    """A tree as SVG. Words stand side by side if they fit in the width, else below one another.

    Args:
        tree: of any size; depth is squeezed, words never are.
        neighbours: see `Figure`; shown by the page's script, and as plain tooltips without it.
        width: in pixels.

    Returns:
        An `<svg>` element.

    Example:
        >>> svg = tree_svg(Tree(("a", "<b>"), ((0, 1),)))
        >>> svg.count("<circle"), "&lt;b&gt;" in svg
        (3, True)
    """
    widths = [CHARACTER * len(token) + GAP for token in tree.tokens]
    across = sum(widths) + 2 * MARGIN <= width  # words in one line
    nodes = _layout(tree, [w if across else LINE for w in widths])
    deepest = max((node.height for node in nodes), default=0)
    level = min(LEVEL, DEEPEST / max(deepest, 1))
    length = sum(widths) if across else LINE * len(widths)
    depth = level * deepest

    def place(along: float, height: float) -> tuple[float, float]:
        """Where a node stands; heights count from the words towards the root, at the top or at the left."""
        if across:
            return MARGIN + along, MARGIN + depth - level * height
        return MARGIN + depth - level * height, MARGIN + along

    lines, marks = [], []
    for number, node in enumerate(nodes):
        x, y = place(node.along, node.height)
        if number < len(tree.tokens):
            word = html.escape(tree.tokens[number])
            at = f'x="{x:.1f}" y="{y + 20:.1f}" text-anchor="middle"' if across else f'x="{x + 10:.1f}" y="{y + 4:.1f}"'
            lines.append(f"<text {at}>{word}</text>")
        else:
            for child in tree.merges[number - len(tree.tokens)]:
                cx, cy = place(nodes[child].along, nodes[child].height)
                lines.append(
                    f'<path d="M{x:.1f} {y:.1f}' + (f"H{cx:.1f}V{cy:.1f}" if across else f"V{cy:.1f}H{cx:.1f}") + '"/>'
                )
        near = list(neighbours[number]) if neighbours else []
        tip = html.escape("\n".join([node.span, *(f"{score:.2f}  {phrase}" for phrase, score in near)]))
        card = html.escape(json.dumps([node.span, [[phrase, round(score, 4)] for phrase, score in near]]))
        marks.append(
            f'<g tabindex="0" data-words="{node.first}-{node.last}" data-card="{card}"><title>{tip}</title>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{2.5 if number < len(tree.tokens) else 4}"/></g>'
        )
    longest = max(widths, default=0)
    w, h = (length, depth + 28) if across else (depth + longest + 10, length)
    w, h = w + 2 * MARGIN, h + 2 * MARGIN
    label = html.escape(" ".join(tree.tokens))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{w:.0f}" height="{h:.0f}" viewBox="0 0 {w:.0f} {h:.0f}" '
        f'role="img" aria-label="{label}">' + "".join(lines + marks) + "</svg>"
    )


def page(figures: Sequence[Figure], *, title: str = "Induced trees") -> str:
    """One HTML file with every tree: no network, no files beside it; points of a tree answer to mouse and Tab.

    Args:
        figures: in order.
        title: of the page.

    Returns:
        The file's text.

    Example:
        >>> text = page([Figure("a b", Tree(("a", "b"), ((0, 1),)))])
        >>> text.startswith("<!doctype html>"), "http:" in text.replace("http://www.w3.org/2000/svg", "")
        (True, False)
    """
    body = "\n".join(
        f"<figure><figcaption>{html.escape(figure.text)} <small>{len(figure.tree.tokens)} tokens, height "
        f"{figure.tree.height}</small></figcaption>{tree_svg(figure.tree, figure.neighbours)}</figure>"
        for figure in figures
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>\n'
        f'<h1>{html.escape(title)}</h1><p class="hint">Point at a circle: the phrase below it, and what is nearest '
        f'to it.</p>\n{body}\n<div id="card"></div><script>{SCRIPT}</script></body></html>\n'
    )


@torch.inference_mode()
def draw(
    texts: Sequence[str],
    model: BanyanModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    phrases: Sequence[str] = (),
    k: int = 4,
) -> list[Figure]:
    """Parse texts and find what is near to each of their nodes.

    Args:
        texts: any number of strings.
        model: of any mode.
        tokenizer: the model's own.
        phrases: what to compare nodes with; a node's own words are left out.
        k: phrases a node.

    Returns:
        One `Figure` per text.
    """
    figures = []
    trees = parse(texts, model, tokenizer)
    of_phrases = _phrase_vectors(phrases, model, tokenizer)
    for text, tree in zip(texts, trees, strict=True):
        nodes = node_vectors(text, tree, model, tokenizer) if phrases else torch.empty(0)
        near: list[Neighbours] = []
        for span, scores in zip(tree.spans, nodes @ of_phrases.T if len(nodes) else (), strict=False):
            own = "".join(span.split())
            best = scores.topk(min(k + 1, len(phrases)))
            found = [(phrases[i], float(s)) for s, i in zip(best.values, best.indices.tolist(), strict=True)]
            near.append([(phrase, s) for phrase, s in found if "".join(phrase.lower().split()) != own][:k])
        figures.append(Figure(text, tree, near))
    return figures


def node_vectors(text: str, tree: Tree, model: BanyanModel, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """Unit vectors of every node of a tree, (2n-1, D): tokens first, then merges; the last is the sentence's."""
    ids = tokenize_batch([text], model, tokenizer)["input_ids"][0]
    with evaluating(model):
        nodes = list(model.embeddings(ids[: len(tree.tokens)]).unbind())
        for left, right in tree.merges:
            nodes.append(model.compose(nodes[left], nodes[right]))
    return F.normalize(torch.stack(nodes), dim=1) if nodes else torch.empty(0, model.config.hidden_size)


def _phrase_vectors(phrases: Sequence[str], model: BanyanModel, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """Unit roots (n, D) of the phrases: what their nodes would be inside of a sentence."""
    pooling, model.config.pooling = model.config.pooling, "root"
    try:
        return F.normalize(encode(phrases, model, tokenizer), dim=1)
    finally:
        model.config.pooling = pooling


@dataclass(frozen=True)
class _Node:
    """Where a node stands: along the words, above them, and the words `[first, last)` below it."""

    along: float
    height: int
    first: int
    last: int
    span: str


def _layout(tree: Tree, extents: Sequence[float]) -> list[_Node]:
    """Every node, tokens first; a parent stands in the middle of its children."""
    nodes, begun = [], 0.0
    for number, (token, extent) in enumerate(zip(tree.tokens, extents, strict=True)):
        nodes.append(_Node(begun + extent / 2, 0, number, number + 1, token))
        begun += extent
    for left, right in tree.merges:
        a, b = nodes[left], nodes[right]
        nodes.append(_Node((a.along + b.along) / 2, max(a.height, b.height) + 1, a.first, b.last, f"{a.span} {b.span}"))
    return nodes
