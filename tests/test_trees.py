"""Trees as brackets, nltk trees and drawings; parsing of texts."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from support import grammar_sentences

from banyan_hf.persistence import load_encoder
from banyan_hf.trees import Tree, parse

OLD_CAT = Tree(("the", "old", "cat", "naps"), ((1, 2), (0, 4), (5, 3)))
ONE, NONE = Tree(("cat",), ()), Tree((), ())
DEEP = Tree(tuple("ab" * 1500), ((0, 1), *((3000 + i, i + 2) for i in range(2998))))


def drawn(tree):
    console = Console(file=io.StringIO(), width=60)
    console.print(tree.to_rich())
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("tree", "brackets", "height"), [(OLD_CAT, "((the (old cat)) naps)", 3), (ONE, "cat", 0), (NONE, "()", 0)]
)
def test_brackets(tree, brackets, height):
    assert str(tree) == brackets
    assert tree.height == height


def test_spans():
    assert OLD_CAT.spans[4:] == ["old cat", "the old cat", "the old cat naps"]


@pytest.mark.parametrize(("tree", "height"), [(OLD_CAT, 4), (ONE, 2), (NONE, 1)])
def test_nltk(tree, height):
    assert tree.to_nltk().leaves() == list(tree.tokens)
    assert tree.to_nltk().height() == height


def test_drawing_shows_every_node_once_in_order():
    lines = [line.strip(" │├└─") for line in drawn(OLD_CAT).splitlines()]
    assert lines == ["the old cat naps", "the old cat", "the", "old cat", "old", "cat", "naps"]
    assert drawn(ONE).strip() == "cat"
    assert drawn(NONE).strip() == "(no tokens)"
    assert "[bold]" in drawn(Tree(("[bold]", "[/]"), ((0, 1),)))


def test_deep_tree():
    assert DEEP.height == 2999
    assert str(DEEP).count("(") == 2999


@pytest.fixture(scope="module")
def encoder(trained):
    return load_encoder(str(trained.folder))


class TestParse:
    def test_texts(self, encoder):
        texts = grammar_sentences(5, seed=7)
        trees = parse(texts, *encoder)
        assert trees == [parse([text], *encoder)[0] for text in texts]
        for text, tree in zip(texts, trees, strict=True):
            assert "".join(tree.tokens) == text.replace(" ", "")
            assert len(tree.merges) == len(tree.tokens) - 1

    def test_batches(self, encoder):
        texts = grammar_sentences(7, seed=8)
        assert parse(texts, *encoder, batch_size=3) == parse(texts, *encoder)

    def test_a_text_that_spells_padding(self, encoder):
        (tree,) = parse(["the <pad> cat"], *encoder)
        assert str(tree) == "(the cat)"

    def test_little_text(self, encoder):
        assert parse([], *encoder) == []
        empty, one, both = parse(["", "cat", "cat ."], *encoder)
        assert empty == Tree((), ())
        assert str(one) == "cat"
        assert str(both) == "(cat .)"
        assert parse(["", ""], *encoder) == [empty, empty]

    def test_mode_is_left_alone(self, encoder):
        model, tokenizer = encoder
        model.train()
        first = parse(["the old cat sleeps"], model, tokenizer)
        assert model.training
        model.eval()
        assert parse(["the old cat sleeps"], model, tokenizer) == first
