"""In `eval()` a sentence's result does not depend on its batch."""

from __future__ import annotations

import random

import pytest
import torch
from support import AWKWARD, PLACES, STRUCTURES, assert_same, merges_of, pad, random_sentences, small_model

SENTENCES = AWKWARD + random_sentences(3) + [[4, 5], [4, 5]]
LONG = [random.Random(1).randrange(12) for _ in range(100)]
CASES = [
    *({"backend": b, "structure": s} for b in ("torch", "numba") for s in STRUCTURES),
    *({"backend": b, "pooling": p} for b in ("torch", "numba") for p in ("mean", "root_mean")),
    {"backend": "auto", "composition": "linear"},
]


def encode(model, sentences, **padding):
    """Per sentence: merges, pooled vector, hidden states."""
    with torch.no_grad():
        ids, mask = pad(sentences, **padding)
        out = model(ids, mask, output_trees=True)
    return [
        (merges_of(out.trees, row), out.pooler_output[row], out.last_hidden_state[row][mask[row] == 1])
        for row in range(len(sentences))
    ]


def check(model, *, relative=0.0):
    alone = {tuple(s): encode(model, [s])[0] for s in SENTENCES}
    rng = random.Random(0)
    for place in PLACES:
        for extra in (0, 5):
            batch = rng.sample(SENTENCES, len(SENTENCES)) + [LONG] * (extra > 0)
            found = encode(model, batch, place=place, extra=extra, seed=extra)
            for sentence, (merges, pooled, hidden) in zip(batch[: len(SENTENCES)], found, strict=False):
                expected = alone[tuple(sentence)]
                assert merges == expected[0]
                assert_same(pooled, expected[1], relative=relative)
                assert_same(hidden, expected[2], relative=relative) if len(hidden) else None


@pytest.mark.parametrize("fields", CASES, ids=lambda fields: "-".join(map(str, fields.values())))
def test_alone_or_in_company(fields):
    model = small_model(**fields).banyan
    check(model, relative=1e-6 if fields.get("pooling") or fields.get("composition") else 0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(backend, dtype):
    """Finite, independent, and the trees of the same weights in float32."""
    model = small_model(backend=backend).banyan.to(dtype)
    check(model)
    out = encode(model, SENTENCES)
    wide = encode(model.float(), SENTENCES)
    for (merges, pooled, _), (merges_32, pooled_32, _) in zip(out, wide, strict=True):
        assert pooled.dtype == dtype
        assert bool(pooled.isfinite().all())
        assert merges == merges_32
        assert_same(pooled, pooled_32.to(dtype))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_get_text_features_is_forward(backend, structure, place):
    model = small_model(backend=backend, structure=structure).banyan
    ids, mask = pad(SENTENCES, place=place, extra=2)
    expected = model(ids, mask).pooler_output
    assert_same(model.get_text_features(ids, mask).pooler_output, expected)
    with torch.inference_mode():  # a path of its own
        expected = model(ids, mask).pooler_output
        assert_same(model.get_text_features(ids, mask).pooler_output, expected)
        assert_same(model.get_text_features(ids.int().numpy(), mask.bool().numpy()).pooler_output, expected)
        turned = ids.T.contiguous().T, mask.bool().T.contiguous().T  # column after column in memory
        assert_same(model.get_text_features(*turned).pooler_output, expected)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_get_text_features_without_tokens(backend, shape):
    model = small_model(backend=backend).banyan
    with torch.inference_mode():
        found = model.get_text_features(torch.zeros(shape, dtype=torch.int64)).pooler_output
    assert_same(found, torch.full((shape[0], 24), 24**-0.5))


def test_pad_token_stands_in_for_a_mask(backend):
    model = small_model(backend=backend, pad_token_id=0).banyan
    sentences = [[3, 4, 5], [7], []]
    ids, mask = pad(sentences, filler=0, extra=1)
    assert_same(model(ids).pooler_output, model(ids, mask).pooler_output)


def test_pretraining_trees_are_those_of_eval(backend):
    model = small_model(backend=backend)
    ids, mask = pad(SENTENCES)
    graph = model.banyan.entangle(ids, mask)[0]
    out = model.banyan(ids, mask, output_trees=True)
    for row, sentence in enumerate(SENTENCES):
        spans = []
        for merges in (graph.tree(row), merges_of(out.trees, row)):
            nodes = [(i, i + 1) for i in range(len(sentence))]
            for left, right in merges:
                nodes.append((nodes[left][0], nodes[right][1]))
            spans.append(set(nodes))
        assert spans[0] == spans[1]
