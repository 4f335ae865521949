"""Drawings: every word and node once, nothing from outside, no markup from a text."""

from __future__ import annotations

import html
import json
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
import torch

import banyan_hf
from banyan_hf.drawing import Figure, draw, node_vectors, page, tree_svg
from banyan_hf.trees import Tree, parse

CHAIN = Tree(tuple(f"w{n}" for n in range(60)), tuple((0 if n == 0 else 59 + n, n + 1) for n in range(59)))


@pytest.fixture(scope="module")
def box():
    return banyan_hf.load_encoder(banyan_hf.default_model())


def elements(svg, name):
    return ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}" + name)


@pytest.mark.parametrize("tree", [Tree((), ()), Tree(("yes",), ()), Tree(("a", "b", "c"), ((1, 2), (0, 3))), CHAIN])
def test_every_word_and_node_is_inside_the_picture_once(tree):
    svg = tree_svg(tree)
    root = ElementTree.fromstring(svg)
    width, height = float(root.get("width")), float(root.get("height"))
    assert width <= 920
    words = list(elements(svg, "text"))
    assert [word.text for word in words] == list(tree.tokens)
    circles = [(float(c.get("cx")), float(c.get("cy"))) for c in elements(svg, "circle")]
    assert len(circles) == len(tree.tokens) + len(tree.merges) == len(set(circles))
    for x, y in [*circles, *((float(word.get("x")), float(word.get("y"))) for word in words)]:
        assert 0 <= x <= width
        assert 0 <= y <= height
    assert len(list(elements(svg, "path"))) == 2 * len(tree.merges)


def test_words_never_overlap():
    for tree in (CHAIN, Tree(("short", "sentence", "here"), ((0, 1), (3, 2)))):
        words = [(float(w.get("x")), float(w.get("y")), len(w.text)) for w in elements(tree_svg(tree), "text")]
        for (x, y, n), (u, v, m) in pairwise(words):
            assert v - y >= 16 or u - x >= 7.6 * (n + m) / 2


def test_spans_of_the_nodes():
    tree = Tree(("a", "b", "c"), ((1, 2), (0, 3)))
    nodes = list(elements(tree_svg(tree), "g"))
    assert [json.loads(node.get("data-card"))[0] for node in nodes] == tree.spans
    assert [node.get("data-words") for node in nodes] == ["0-1", "1-2", "2-3", "1-3", "0-3"]


def test_a_page_is_one_file_and_texts_stay_texts():
    nasty = Tree(('<script>alert("x")</script>', "&amp;", "'\"]]>"), ((0, 1), (3, 2)))
    near = [[("<img src=x onerror=alert(1)>", 0.5)]] * 5
    text = page([Figure("<b>bold</b> & so", nasty, near), Figure("", Tree((), ()))], title="<i>T</i>")
    outside = r"(src|href)\s*=|url\(|@import|https?:(?!//www\.w3\.org/2000/svg)"
    assert not re.search(outside, re.sub(r"&lt;.*?&gt;", "", text))
    assert text.count("<script>") == 1
    for tag in ("<img", "<b>bold", "<i>"):
        assert tag not in text
    cards = re.findall(r'data-card="([^"]*)"', text)
    assert json.loads(html.unescape(cards[0])) == [nasty.tokens[0], [[near[0][0][0], 0.5]]]


def test_a_node_has_the_vector_of_its_phrase(box):
    text = "The old king of France lived in a castle."
    (tree,) = parse([text], *box)
    vectors = node_vectors(text, tree, *box)
    assert vectors.shape == (len(tree.spans), box[0].config.hidden_size)
    whole = torch.nn.functional.normalize(banyan_hf.encoding.encode([text], *box), dim=1)
    torch.testing.assert_close(vectors[-1:], whole, atol=1e-6, rtol=0)
    (figure,) = draw([text], *box, phrases=["king of france", "stock market", "The Old"], k=2)
    spans = dict(zip(tree.spans, figure.neighbours, strict=True))
    assert spans["castle"][0][0] != "stock market"
    for span, near in spans.items():
        assert len(near) <= 2
        assert span not in [phrase.lower() for phrase, _ in near]
        assert sorted((score for _, score in near), reverse=True) == [score for _, score in near]
    assert draw([], *box) == []
    assert draw(["", "x"], *box, phrases=["a b"])[0].tree.tokens == ()
