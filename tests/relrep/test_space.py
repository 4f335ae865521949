from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize

from relrep_hf import EmbeddingCache, RelativeSpace, check_same_space, space_id
from relrep_hf import embedding as embedding_module
from relrep_hf.embedding import encoder_id
from relrep_hf.folding import fold, read_map
from relrep_hf.metrics import ranks
from relrep_hf.similarity import unit

FRESH = """
import json, sys
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
vectors = model.encode(json.loads(sys.argv[2]))
model.model_card_data.generate_widget_examples = False
model.save_pretrained(sys.argv[1] + "-again")
assert not any(name.startswith("relrep_hf") for name in sys.modules)
print("OUT" + json.dumps({"vectors": vectors.astype(float).tolist(), "names": list(model._modules)}))
"""


def in_fresh_process(folder: Path, texts: list[str]) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(folder), json.dumps(texts)], capture_output=True, text=True, cwd=folder.parent
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.split("OUT")[1])


def own_fit(encoders, texts, **options) -> RelativeSpace:
    return RelativeSpace.fit(encoders, texts, show_progress=False, **options)


def test_fitted_space_aligns_held_out_texts(space, encoders, held_out) -> None:
    a, b = (space.attach(encoders[name], name=name) for name in ("s50", "s64"))
    assert (ranks(a.encode(held_out), b.encode(held_out)) == 1).mean() > 0.95
    assert check_same_space(a, b) == space.id == space_id(a)
    late = space.attach(encoders["s24"])  # was not in fit
    assert (ranks(a.encode(held_out), late.encode(held_out)) == 1).mean() > 0.8


@pytest.mark.parametrize("similarity", ["wip", "cosine"])
@pytest.mark.parametrize("selector", ["param", "random", "kmeans", "farthest"])
def test_every_combination_folds_to_the_rich_map(similarity, selector, encoders, texts) -> None:
    pair = {name: encoders[name] for name in ("s50", "s64")}
    space = own_fit(pair, texts[:300], anchors=15, similarity=similarity, selector=selector)
    for encoder in pair.values():
        absolute = encoder.encode(texts[300:340])
        rich = space.map_for(encoder.encode(space.support))(absolute)
        folded = space.attach(encoder).encode(texts[300:340])
        assert folded.shape == (40, 15)
        # The fold itself is exact; what an encoder adds is the rounding of a float32 matrix product.
        features = {"sentence_embedding": torch.tensor(absolute, dtype=torch.float64)}
        for module in fold(space.map_for(encoder.encode(space.support)), dtype=torch.float64):
            features = module(features)
        exact = features["sentence_embedding"].detach().numpy()
        assert np.abs(exact - rich).max() / np.abs(rich).max() < 1e-6
        assert np.abs(folded - rich).max() / np.abs(rich).max() < 1e-5


def test_one_and_three_encoders(encoders, texts, held_out) -> None:
    alone = own_fit(encoders["s50"], texts, anchors=30)
    assert alone.attach(encoders["s50"]).encode(held_out[:3]).shape == (3, 30)
    three = {name: encoders[name] for name in ("s50", "s24", "s64")}
    space = own_fit(three, texts, anchors=100)  # m larger than every dimension
    vectors = {name: space.attach(encoder).encode(held_out) for name, encoder in three.items()}
    assert (ranks(vectors["s24"], vectors["s64"]) == 1).mean() > 0.9


def test_round_trip_in_a_fresh_process_without_the_package(space, encoders, held_out, tmp_path) -> None:
    for name in ("s64", "bert"):
        attached = space.attach(encoders[name])
        attached.save_pretrained(str(tmp_path / name))
        types = [entry["type"] for entry in json.loads((tmp_path / name / "modules.json").read_text())]
        assert all(entry.startswith("sentence_transformers.") for entry in types)
        fresh = in_fresh_process(tmp_path / name, held_out[:5])
        np.testing.assert_allclose(fresh["vectors"], attached.encode(held_out[:5]), atol=1e-5)
        again = SentenceTransformer(str(tmp_path / f"{name}-again"), device="cpu")
        assert space_id(again) == space.id  # the id outlived load and save by plain sentence-transformers
        check_same_space(again, space)


def test_attach_leaves_the_encoder_alone(space, encoders, held_out) -> None:
    encoder = encoders["bert"]
    encoder.prompts["query"] = "the "
    before, names = encoder.encode(held_out[:4]), list(encoder._modules)
    attached = space.attach(encoder)
    assert list(encoder._modules) == names
    np.testing.assert_array_equal(encoder.encode(held_out[:4]), before)
    assert attached.prompts["query"] == "the "
    with pytest.raises(ValueError, match=f"already attached to space {space.id}"):
        space.attach(attached)
    encoder.truncate_dim = 8
    with pytest.raises(ValueError, match="truncate_dim=8"):
        space.attach(encoder)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("name", ["s50", "bert"])
def test_half_precision_encoders(dtype, tolerance, name, space, encoders, held_out, tmp_path) -> None:
    encoder = encoders[name].to(dtype)
    attached = space.attach(encoder)
    rich = space.map_for(EmbeddingCache().embed(encoder, space.support))(EmbeddingCache().embed(encoder, held_out))
    folded = EmbeddingCache().embed(attached, held_out)
    kept = (unit(rich) * unit(folded)).sum(axis=1)
    assert 1 - kept.mean() < tolerance  # the documented loss of folding into half precision
    attached.save_pretrained(str(tmp_path / "half"))
    fresh = SentenceTransformer(str(tmp_path / "half"), device="cpu")
    assert {p.dtype for p in fresh.parameters()} == {dtype}
    np.testing.assert_array_equal(EmbeddingCache().embed(fresh, held_out), folded)


def test_batch_independence(space, encoders, held_out) -> None:
    attached = space.attach(encoders["bert"])
    one = attached.encode(held_out[:50], batch_size=1)
    np.testing.assert_allclose(attached.encode(held_out[:50], batch_size=32), one, atol=1e-4)


def test_awkward_texts_stay_finite(space, encoders) -> None:
    for name in ("s50", "bert"):
        vectors = space.attach(encoders[name]).encode([" ", "x", "🌍", "the " * 500])
        assert np.isfinite(vectors).all()


def test_vector_equal_to_the_mean_is_zero_and_finite(space, encoders) -> None:
    support = encoders["s50"].encode(space.support)
    affine = space.map_for(support)
    at_mean = affine(support.astype(np.float64).mean(axis=0, keepdims=True))
    assert np.abs(at_mean).max() < 1e-9
    scores = SentenceTransformer(modules=[*encoders["s50"].children()], device="cpu").similarity(at_mean, at_mean)
    assert torch.isfinite(scores).all()


def test_constant_dimension_and_few_texts(encoders, texts) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 10))
    constant = np.concatenate([x, np.full((200, 1), 4.0)], axis=1)
    names = [f"t{n}" for n in range(200)]
    for shrinkage in (None, "ledoit-wolf"):
        space = RelativeSpace.fit_embeddings({"a": constant, "b": x}, names, anchors=5, shrinkage=shrinkage)
        assert np.isfinite(space.map_for(constant)(constant)).all()
    few = own_fit({"a": encoders["s50"], "b": encoders["s64"]}, texts[:30], anchors=10)
    assert np.isfinite(few.attach(encoders["s50"]).encode(texts[30:40])).all()
    with pytest.raises(ValueError, match=r"texts cannot give a covariance of full rank in 50 dimensions"):
        own_fit({"a": encoders["s50"], "b": encoders["s64"]}, texts[:30], anchors=10, shrinkage=None)


def test_wrong_input_is_named(encoders, texts) -> None:
    x, names = np.random.default_rng(0).normal(size=(40, 4)), [f"t{n}" for n in range(40)]
    with pytest.raises(ValueError, match="anchors=41, but there are only 40"):
        RelativeSpace.fit_embeddings({"a": x}, names, anchors=41)
    with pytest.raises(ValueError, match="different texts or another order"):
        RelativeSpace.fit_embeddings({"a": x, "b": x}, {"a": names, "b": names[::-1]}, anchors=3)
    with pytest.raises(ValueError, match="39 rows for 40 texts"):
        RelativeSpace.fit_embeddings({"a": x, "b": x[:39]}, names, anchors=3)
    with pytest.raises(ValueError, match="1 of 40 texts are repeated"):
        RelativeSpace.fit_embeddings({"a": x}, [*names[:39], "t0"], anchors=3)
    with pytest.raises(ValueError, match="1 of 40 rows"):
        RelativeSpace.fit_embeddings({"a": np.where(x == x[0, 0], np.nan, x)}, names, anchors=3)
    with pytest.raises(ValueError, match="similarity must be"):
        RelativeSpace.fit_embeddings({"a": x}, names, anchors=3, similarity="dot")
    with pytest.raises(ValueError, match="selector must be"):
        RelativeSpace.fit_embeddings({"a": x}, names, anchors=3, selector="best")
    with pytest.raises(ValueError, match="shrinkage must be None"):
        RelativeSpace.fit_embeddings({"a": x}, names, anchors=3, shrinkage="ledoit")
    with pytest.raises(ValueError, match="selector must be"):  # said before a text is encoded
        own_fit({"a": encoders["s50"]}, ["text \ud800 that cannot be encoded", *texts], selector="best")
    with pytest.raises(ValueError, match="No encoders"):
        own_fit({}, texts)
    with pytest.raises(ValueError, match="one string"):
        own_fit(encoders["s50"], "text")
    with pytest.raises(ValueError, match="rows of a dataset"):
        own_fit(encoders["s50"], [{"text": "x"}])
    with pytest.raises(ValueError, match="wrap it"):
        own_fit({"a": encoders["bert"][0]}, texts)
    with torch.no_grad():
        encoders["s50"][0].embedding.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"a gave NaN or infinity for 600 of 600 texts"):
        own_fit({"a": encoders["s50"]}, texts)


def test_duplicated_texts_count_once(encoders, texts) -> None:
    pair = {name: encoders[name] for name in ("s50", "s24")}
    once = own_fit(pair, texts[:100], anchors=5)
    assert own_fit(pair, texts[:100] * 3, anchors=5).id == once.id
    assert own_fit(pair, (text for text in texts[:100]), anchors=5).id == once.id  # an iterator is read once


def test_same_seed_same_bits(encoders, texts) -> None:
    pair = {name: encoders[name] for name in ("s50", "s64")}
    first = own_fit(pair, texts[:200], anchors=10)
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002 - a global seed must not matter
    second = own_fit(pair, texts[:200], anchors=10)
    assert first.id == second.id
    assert (first.mixing == second.mixing).all()
    assert own_fit(pair, texts[:200], anchors=10, seed=1).id != first.id


def test_id_stands_for_content_that_cannot_change() -> None:
    mixing = np.full((2, 4), 0.25, np.float32)
    space = RelativeSpace(["a", "b", "c", "d"], mixing)
    identity = space.id
    mixing[0] = [1, 0, 0, 0]  # the caller's array is not the space's
    assert space.id == identity == RelativeSpace(["a", "b", "c", "d"], np.full((2, 4), 0.25)).id
    with pytest.raises(ValueError, match="read-only"):
        space.mixing[0, 0] = 1
    assert RelativeSpace(["a", "b", "c", "d"], mixing).id != identity


def test_dimension_changed_since_the_fit(space, encoders) -> None:
    with pytest.raises(ValueError, match="s50 has 24 dimensions, but had 50"):
        space.attach(encoders["s24"], name="s50")
    with pytest.raises(ValueError, match="24 dimensions, but the map is for 50"):
        space.map_for(encoders["s50"].encode(space.support))(encoders["s24"].encode(["the cat"]))


def test_save_and_load(space, tmp_path) -> None:
    space.save(tmp_path / "space")
    again = RelativeSpace.load(tmp_path / "space")
    assert again.id == space.id
    assert again == space
    assert again.support == space.support
    assert again.encoders == space.encoders
    (tmp_path / "space" / "README.md").write_text("mine")
    space.save(tmp_path / "space")
    assert (tmp_path / "space" / "README.md").read_text() == "mine"  # a user's card is kept
    assert [p.name for p in tmp_path.iterdir()] == ["space"]  # nothing half-written lies about
    config = json.loads((tmp_path / "space" / "space.json").read_text())
    config["future_key"] = 1
    (tmp_path / "space" / "space.json").write_text(json.dumps(config))
    assert RelativeSpace.load(tmp_path / "space").id == space.id
    config["support"][0] = "another text"
    (tmp_path / "space" / "space.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"says it is space {space.id}"):
        RelativeSpace.load(tmp_path / "space")
    config["format_version"] = 99
    (tmp_path / "space" / "space.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="format version 99"):
        RelativeSpace.load(tmp_path / "space")
    (tmp_path / "space" / "mixing.safetensors").unlink()
    with pytest.raises(ValueError, match=r"mixing\.safetensors missing"):
        RelativeSpace.load(tmp_path / "space")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        space.save(tmp_path / "file")


def test_sparse_space_round_trip(space, tmp_path) -> None:
    sparse = space.sparsified(50)
    assert sparse.id != space.id
    sparse.save(tmp_path / "sparse")
    space.save(tmp_path / "full")
    again = RelativeSpace.load(tmp_path / "sparse")
    assert (again.mixing == sparse.mixing).all()
    size = [(tmp_path / name / "mixing.safetensors").stat().st_size for name in ("sparse", "full")]
    assert size[0] < size[1] / 2


def test_spaces_do_not_mix(space, encoders, texts) -> None:
    other = own_fit(encoders["s50"], texts[:100], anchors=20)
    a, b = space.attach(encoders["s50"]), other.attach(encoders["s50"])
    assert a.get_embedding_dimension() == b.get_embedding_dimension()
    with pytest.raises(ValueError, match=f"{space.id} is not space {other.id}"):
        check_same_space(a, b)
    with pytest.raises(ValueError, match="second model is in no relative space"):
        check_same_space(a, encoders["s50"])


def test_read_map_is_what_was_folded(space, encoders) -> None:
    affine = space.map_for(encoders["s50"].encode(space.support))
    back = read_map(space.attach(encoders["s50"]))
    np.testing.assert_allclose(back.weight, affine.weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(back.bias, affine.bias, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="not attached"):
        read_map(encoders["s50"])


def test_encoder_that_ends_in_normalize_or_dense(space, encoders, texts) -> None:
    torch.manual_seed(0)
    modules = [*encoders["bert"].children(), Dense(48, 30), Normalize()]
    encoder = SentenceTransformer(modules=modules, device="cpu")
    attached = space.attach(encoder)
    rich = space.map_for(encoder.encode(space.support))(encoder.encode(texts[:9]))
    assert np.abs(attached.encode(texts[:9]) - rich).max() / np.abs(rich).max() < 1e-5


def test_cache_encodes_every_text_once(encoders, texts, tmp_path, monkeypatch) -> None:
    calls: list[int] = []
    real = embedding_module._encode

    def counted(encoder, part, **options):
        calls.append(len(part))
        return real(encoder, part, **options)

    monkeypatch.setattr(embedding_module, "_encode", counted)
    monkeypatch.setattr(embedding_module, "CHUNK", 64)
    encoder = encoders["s50"]
    first = EmbeddingCache(tmp_path).embed(encoder, texts[:200] + texts[:50])
    assert sum(calls) == 200
    assert max(calls) <= 64
    np.testing.assert_allclose(first, encoder.encode(texts[:200] + texts[:50]), atol=1e-6)
    calls.clear()
    again = EmbeddingCache(tmp_path).embed(encoder, texts[100:250][::-1])
    assert sum(calls) == 50  # only those not seen before
    np.testing.assert_allclose(again, encoder.encode(texts[100:250][::-1]), atol=1e-6)
    with torch.no_grad():
        encoder[0].embedding.weight[5] += 1
    calls.clear()
    EmbeddingCache(tmp_path).embed(encoder, texts[:10])
    assert sum(calls) == 10  # other weights, other id
    assert EmbeddingCache(tmp_path).embed(encoder, []).shape == (0, 50)


def test_encoder_id_follows_content(encoders, tmp_path) -> None:
    encoder = encoders["bert"]
    identity = encoder_id(encoder)
    encoder.encode(["the cat", "the old dog sees a bird"])  # leaves padding and truncation in the tokenizer
    assert encoder_id(encoder) == identity
    encoder.save_pretrained(str(tmp_path / "saved"))
    assert encoder_id(SentenceTransformer(str(tmp_path / "saved"), device="cpu")) == encoder_id(encoder)
    encoder.prompts["query"] = "query: "
    assert encoder_id(encoder) != identity
