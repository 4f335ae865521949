"""EntangledGraph: properties of random batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import BACKENDS, merges_of, names, pad, small_model

from banyan_hf.model.graph import EntangledGraph, entangle

SENTENCES = st.lists(st.lists(st.integers(0, 5), max_size=9), min_size=1, max_size=6)
MODELS = {(b, e): small_model(backend=b, entangled=e) for b in BACKENDS for e in (True, False)}
property_test = settings(max_examples=25, deadline=None, derandomize=True)


def graph_of(sentences, backend="numba", entangled=True) -> EntangledGraph:
    return MODELS[backend, entangled].banyan.entangle(*pad(sentences))[0]


def tree_of(merges, tokens):
    """The nested pairs of one sentence."""
    nodes = list(tokens)
    for left, right in merges:
        nodes.append((nodes[left], nodes[right]))
    return nodes[-1]


def parts(tree) -> set:
    """A tree's node names."""
    return {tree} if isinstance(tree, int) else {tree} | parts(tree[0]) | parts(tree[1])


@pytest.mark.parametrize(("backend", "entangled"), list(MODELS))
class TestEveryGraph:
    @property_test
    @given(sentences=SENTENCES)
    def test_children_before_parents_and_all_reachable(self, backend, entangled, sentences):
        graph = graph_of(sentences, backend, entangled)
        own = torch.arange(graph.n_leaves, graph.n_nodes)
        assert (graph.left < own).all()
        assert (graph.right < own).all()
        assert bool((torch.stack([graph.left, graph.right]) >= 0).all())
        reached, todo = set(), [root for root in graph.roots.tolist() if root >= 0]
        while todo:
            node = todo.pop()
            if node not in reached:
                reached.add(node)
                if node >= graph.n_leaves:
                    todo += [int(side[node - graph.n_leaves]) for side in (graph.left, graph.right)]
        assert reached == set(range(graph.n_nodes))

    @property_test
    @given(sentences=SENTENCES)
    def test_levels(self, backend, entangled, sentences):
        graph = graph_of(sentences, backend, entangled)
        heights, depths, inner = graph.heights(), graph.depths(), torch.arange(graph.n_leaves, graph.n_nodes)
        assert (heights[: graph.n_leaves] == 0).all()
        assert torch.equal(heights[inner], torch.maximum(heights[graph.left], heights[graph.right]) + 1)
        assert torch.equal(depths == 0, graph.parent_counts() == 0)
        for side in (graph.left, graph.right):
            assert (depths[side] > depths[inner]).all()
        assert int(graph.parent_counts().sum()) == 2 * len(graph.left)

    @property_test
    @given(sentences=SENTENCES)
    def test_spans_are_contiguous(self, backend, entangled, sentences):
        graph = graph_of(sentences, backend, entangled)
        for row, tokens in enumerate(sentences):
            span = [(i, i + 1) for i in range(len(tokens))]
            merges = graph.tree(row)
            for left, right in merges:
                assert span[left][1] == span[right][0]
                span.append((span[left][0], span[right][1]))
            assert len(merges) == max(len(tokens) - 1, 0)
            assert not tokens or span[-1] == (0, len(tokens))

    @property_test
    @given(sentences=SENTENCES)
    def test_tokens_and_roots(self, backend, entangled, sentences):
        graph = graph_of(sentences, backend, entangled)
        assert graph.offsets.diff().tolist() == [len(tokens) for tokens in sentences]
        assert graph.leaf_tokens[graph.token_leaf].tolist() == [token for tokens in sentences for token in tokens]
        assert [root < 0 for root in graph.roots.tolist()] == [not tokens for tokens in sentences]


@pytest.mark.parametrize("backend", BACKENDS)
@property_test
@given(sentences=SENTENCES)
def test_entangled_is_the_union_of_the_trees(backend, sentences):
    graph = graph_of(sentences, backend)
    found = names(graph)
    assert len(set(found)) == len(found)  # equal nodes are one node
    trees = {row: tree_of(graph.tree(row), tokens) for row, tokens in enumerate(sentences) if tokens}
    assert set(found) == set().union(*map(parts, trees.values())) if trees else not found
    for row, tree in trees.items():
        assert found[graph.roots[row]] == tree


@property_test
@given(sentences=SENTENCES)
def test_entangling_torch_trees_gives_the_numba_graph(sentences):
    apart, shared = graph_of(sentences, "torch", entangled=False), graph_of(sentences, "numba")
    ours = entangle(apart, apart.leaf_tokens)
    assert sorted(map(str, names(ours))) == sorted(map(str, names(shared)))
    assert [names(ours)[r] for r in ours.roots if r >= 0] == [names(shared)[r] for r in shared.roots if r >= 0]
    assert torch.equal(ours.roots < 0, shared.roots < 0)
    assert [names(ours)[leaf] for leaf in ours.token_leaf] == [names(shared)[leaf] for leaf in shared.token_leaf]


@pytest.mark.parametrize("backend", BACKENDS)
@property_test
@given(sentences=SENTENCES)
def test_tree_is_merges_in_another_order(backend, sentences):
    graph = graph_of(sentences, backend, entangled=False)
    merges = graph.merges()
    assert merges.shape == (len(sentences), max(0, max(map(len, sentences)) - 1), 2)
    for row, tokens in enumerate(sentences):
        if tokens:
            places = range(len(tokens))  # positions, so that equal tokens stay apart
            assert tree_of(merges_of(merges, row), places) == tree_of(graph.tree(row), places)
        else:
            assert (merges[row] == -100).all()


def test_a_tree_deeper_than_python_recurses():
    model = small_model(structure="left", max_position_embeddings=4000, backend="numba")
    graph = model.banyan.entangle(*pad([[i % 12 for i in range(3000)]]))[0]
    assert len(graph.tree(0)) == 2999
