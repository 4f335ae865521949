"""What transformers expects of a model, after the names of its ModelTesterMixin."""

from __future__ import annotations

import inspect
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import AWKWARD, assert_same, pad, small_model
from transformers import AutoModel, AutoModelForPreTraining, PreTrainedModel

from banyan_hf import BanyanConfig, BanyanForPreTraining, BanyanModel
from banyan_hf.model.modeling_banyan import BanyanModelOutput, BanyanPreTrainedModel

KINDS = [BanyanModel, BanyanForPreTraining]
LINEAR = {"composition": "linear", "entangled": False, "objective": "contrastive"}
ENCODER = [
    "embeddings.weight",
    *(f"compose.{name}" for name in ("left_scale", "right_scale", "bias")),
    *(f"decompose.{name}" for name in ("left_scale", "right_scale", "left_bias", "right_bias")),
]


HEAD = 24**-0.5
INITIAL = {
    "scale": (0.6, 0.9),
    "_bias": (0, 0),
    "compose.bias": (0, 0),
    "embeddings.weight": (-0.05, 0.05),
    "lm_head.weight": (-HEAD, HEAD),
    "lm_head.bias": (-HEAD, HEAD),
}


def tiny(kind=BanyanModel, **fields):
    torch.manual_seed(0)
    return kind(BanyanConfig(**{"vocab_size": 12, "hidden_size": 24, "num_channels": 4} | fields))


def assert_same_state(model, other):
    state, expected = model.state_dict(), other.state_dict()
    assert state.keys() == expected.keys()
    for name in state:
        assert state[name].dtype == expected[name].dtype
        assert_same(state[name], expected[name])


@pytest.mark.parametrize("fields", [{}, LINEAR])
@pytest.mark.parametrize("kind", KINDS)
def test_can_init_all_missing_weights(tmp_path, monkeypatch, kind, fields):
    """Every weight that a checkpoint lacks is filled as by the constructor, bit for bit, from the meta device."""
    original = BanyanPreTrainedModel._init_weights

    def seeded(self, module):  # the constructor of a layer draws numbers too, but not on the meta device
        torch.manual_seed(0)
        original(self, module)

    monkeypatch.setattr(BanyanPreTrainedModel, "_init_weights", seeded)
    expected = tiny(kind, **fields)
    expected.save_pretrained(tmp_path)
    save_file({"unrelated": torch.zeros(1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = super(BanyanPreTrainedModel, kind).from_pretrained(tmp_path)  # without our refusal
    assert isinstance(loaded, PreTrainedModel)
    assert_same_state(loaded, expected)


def test_initial_values():
    model = tiny(BanyanForPreTraining, vocab_size=2000, initializer_range=0.05)
    for name, value in model.named_parameters():
        low, high = next(INITIAL[end] for end in INITIAL if name.endswith(end))
        assert value.min() >= low, name
        assert value.max() <= high, name
        assert value.numel() < 1000 or float(value.detach().std()) == pytest.approx((high - low) / 12**0.5, rel=0.05)


@pytest.mark.parametrize("name", ["embeddings.weight", "compose.bias", "decompose.right_scale"])
@pytest.mark.parametrize("kind", KINDS)
def test_missing_tensor_is_refused(tmp_path, kind, name):
    tiny(kind).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = name if kind is BanyanModel else f"banyan.{name}"
    del tensors[name]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=name):
        kind.from_pretrained(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_all_tensors_are_parameters_or_persistent_buffers(kind):
    model = tiny(kind)
    for module in model.modules():
        assert not [name for name, value in vars(module).items() if isinstance(value, torch.Tensor)]
        assert not module._non_persistent_buffers_set


@pytest.mark.parametrize("kind", KINDS)
def test_meta_device(kind):
    with torch.device("meta"):
        model = tiny(kind)
    assert {p.device.type for p in model.parameters()} == {"meta"}


def test_tensor_names(tmp_path):
    tiny(BanyanModel).save_pretrained(tmp_path / "encoder")
    tiny(BanyanForPreTraining).save_pretrained(tmp_path / "head")
    shapes = {name: tuple(t.shape) for name, t in load_file(tmp_path / "encoder/model.safetensors").items()}
    assert shapes == {name: (12, 24) if name == "embeddings.weight" else (6,) for name in ENCODER}
    shapes = {name: tuple(t.shape) for name, t in load_file(tmp_path / "head/model.safetensors").items()}
    assert shapes.keys() == {f"banyan.{name}" for name in ENCODER} | {"lm_head.weight", "lm_head.bias"}
    assert shapes["lm_head.weight"] == (12, 24)
    assert shapes["lm_head.bias"] == (12,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_save_load(tmp_path, kind, dtype):
    model = tiny(kind).to(dtype).eval()
    model.save_pretrained(tmp_path)
    loaded, info = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert loaded.dtype == dtype
    assert not loaded.training
    assert_same_state(loaded, model)
    ids, mask = pad(AWKWARD)
    first, second = model(ids, mask), loaded(ids, mask)
    for name in first:
        assert_same(second[name], first[name])
    assert kind.from_pretrained(tmp_path, dtype=torch.float32).dtype == torch.float32


def test_model_base_model_prefix(tmp_path):
    """Encoder and pre-training model open one another's folders."""
    head = tiny(BanyanForPreTraining)
    head.save_pretrained(tmp_path / "head")
    encoder, info = AutoModel.from_pretrained(tmp_path / "head", output_loading_info=True)
    assert type(encoder) is BanyanModel
    assert not info["missing_keys"]
    assert_same_state(encoder, head.banyan)

    encoder.save_pretrained(tmp_path / "encoder")
    again, info = AutoModelForPreTraining.from_pretrained(tmp_path / "encoder", output_loading_info=True)
    assert type(again) is BanyanForPreTraining
    assert set(info["missing_keys"]) == {"lm_head.weight", "lm_head.bias"}
    assert_same_state(again.banyan, head.banyan)
    assert again.lm_head.weight.abs().max() <= 24**-0.5
    assert float(again.lm_head.weight.detach().std()) > 0.05
    assert_same_state(AutoModelForPreTraining.from_pretrained(tmp_path / "head"), head)


@pytest.mark.parametrize("kind", KINDS)
def test_forward_signature(kind):
    names = list(inspect.signature(kind.forward).parameters)
    assert names[:3] == ["self", "input_ids", "attention_mask"]
    assert kind.main_input_name == "input_ids"


def test_model_outputs_equivalence(pretraining_model):
    ids, mask = pad(AWKWARD)
    for module, flags in ((pretraining_model.banyan, {"output_trees": True}), (pretraining_model, {})):
        plain, named = module(ids, mask, return_dict=False, **flags), module(ids, mask, **flags)
        assert isinstance(plain, tuple)
        assert len(plain) == len(named)
        for a, b in zip(plain, named.values(), strict=True):
            assert_same(a, b)
    assert isinstance(pretraining_model.banyan(ids, mask), BanyanModelOutput)


def test_determinism(pretraining_model):
    ids, mask = pad(AWKWARD)
    first, second = pretraining_model(ids, mask), pretraining_model(ids, mask)
    assert_same(first.loss, second.loss)


def test_inputs_embeds_match_input_ids(pretraining_model):
    model = pretraining_model.banyan
    ids, mask = pad(AWKWARD, place="inside", extra=2)
    by_ids = model(ids, mask, output_trees=True)
    by_vectors = model(inputs_embeds=model.get_input_embeddings()(ids), attention_mask=mask, output_trees=True)
    for name in by_ids:
        assert_same(by_vectors[name], by_ids[name])


def test_get_set_embeddings():
    model = tiny(BanyanForPreTraining)
    assert model.get_input_embeddings() is model.banyan.embeddings
    new, head = torch.nn.Embedding(12, 24), torch.nn.Linear(24, 12)
    model.set_input_embeddings(new)
    model.set_output_embeddings(head)
    assert model.banyan.embeddings is new
    assert model.get_output_embeddings() is head


@pytest.mark.parametrize("size", [20, 9])
def test_resize_tokens_embeddings(tmp_path, size):
    model = tiny(BanyanForPreTraining)
    before, kept = model.banyan.embeddings.weight.detach().clone(), min(size, 12)
    model.resize_token_embeddings(size, mean_resizing=False)
    assert model.config.vocab_size == model.banyan.embeddings.num_embeddings == size
    assert model.lm_head.weight.shape == (size, 24)
    assert model.lm_head.bias.shape == (size,)
    assert_same(model.banyan.embeddings.weight[:kept].detach(), before[:kept])
    assert bool(model(torch.tensor([[size - 1, 0]])).loss.isfinite())
    model.save_pretrained(tmp_path)
    assert_same_state(BanyanForPreTraining.from_pretrained(tmp_path), model)


def test_train_mode_reaches_every_parameter(backend):
    for fields in ({}, {"num_negatives": 4}, {"objective": "contrastive"}, {"entangled": False}):
        model = small_model(backend=backend, **fields).train()
        model(*pad(AWKWARD)).loss.backward()
        assert not [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]


def test_token_dropout_hides_whole_tokens_in_training_only(backend):
    """A hidden token is 0 wherever it stands in the batch, gets no gradient as input, and is still a target."""
    model = small_model(backend=backend, token_dropout=0.5, dropout=0.0, vocab_size=200)
    batch = torch.arange(200).reshape(20, 10)
    twice = torch.cat([batch, batch.flip(1)])
    plain = model.banyan.entangle(twice)[1][:200]
    assert_same(plain.detach(), model.banyan.embeddings.weight.detach())
    model.train()
    torch.manual_seed(0)
    graph, up, _ = model.banyan.entangle(twice)
    hidden = (up[: graph.n_leaves] == 0).all(dim=1)
    assert 70 <= int(hidden.sum()) <= 130
    assert_same(up[: graph.n_leaves][~hidden].detach(), plain.detach()[~hidden])
    torch.manual_seed(0)
    out = model(twice, output_logits=True)
    assert out.leaf_tokens.tolist() == list(range(200))
    out.loss.backward()
    gradient = model.banyan.embeddings.weight.grad
    assert_same(gradient[hidden], torch.zeros_like(gradient[hidden]))
    assert bool((gradient[~hidden] != 0).any(dim=1).all())


def test_processes_hide_the_same_tokens_and_go_on_drawing_alike(backend):
    """Their sentences differ, and so does the number of tokens in them."""
    model = small_model(backend=backend, token_dropout=0.5, dropout=0.1, vocab_size=200)
    model.train()
    hidden, drawn = [], []
    for batch in (torch.arange(100).reshape(10, 10), torch.arange(50, 200).reshape(10, 15)):
        torch.manual_seed(0)
        graph, up, _ = model.banyan.entangle(batch)
        gone = (up[: graph.n_leaves] == 0).all(dim=1)
        hidden.append(dict(zip(graph.leaf_tokens.tolist(), gone.tolist(), strict=True)))
        drawn.append(float(torch.rand(())))
    assert drawn[0] == drawn[1]
    both = range(50, 100)
    assert [hidden[0][token] for token in both] == [hidden[1][token] for token in both]
    assert 10 < sum(hidden[0][token] for token in both) < 40


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_torch_compile_changes_nothing(backend):
    model, (ids, mask) = small_model(backend=backend).banyan, pad(AWKWARD)
    compiled = torch.compile(model, dynamic=True, backend="eager")
    with torch.no_grad():
        assert torch.equal(compiled(ids, mask).pooler_output, model(ids, mask).pooler_output)
        assert torch.equal(compiled(ids[:, :3], mask[:, :3])[0], model(ids[:, :3], mask[:, :3])[0])
    compiled.train()
    compiled(ids, mask).pooler_output.sum().backward()
    assert float(model.embeddings.weight.grad.abs().sum()) > 0


def test_encoder_can_be_fine_tuned(backend):
    model = small_model(backend=backend).banyan.train()
    model.get_text_features(*pad(AWKWARD)).pooler_output.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert name.startswith("decompose") or float(parameter.grad.abs().sum()) > 0


def test_evaluation_loss_is_exact():
    ids, mask = pad(AWKWARD)
    assert_same(small_model(num_negatives=2)(ids, mask).loss, small_model(num_negatives=None)(ids, mask).loss)


def test_loss_is_that_of_the_logits(pretraining_model):
    ids, mask = pad(AWKWARD)
    out = pretraining_model(ids, mask, output_logits=True)
    assert out.leaf_tokens.tolist() == sorted({token for sentence in AWKWARD for token in sentence})
    expected = torch.nn.functional.cross_entropy(out.logits, out.leaf_tokens)
    assert_same(out.loss.detach(), expected.detach(), relative=1e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "exactly one"),
        ({"input_ids": torch.zeros(1, 2).long(), "inputs_embeds": torch.zeros(1, 2, 24)}, "exactly one"),
        ({"input_ids": torch.zeros(3).long()}, r"\(3,\)"),
        ({"input_ids": torch.zeros(2, 3).long(), "attention_mask": torch.ones(2, 4)}, r"\(2, 4\).*\(2, 3\)"),
        ({"input_ids": torch.zeros(2, 7).long()}, "7 tokens.*max_position_embeddings=6"),
        ({"input_ids": torch.tensor([[1, 99]])}, "99.*12"),
        ({"inputs_embeds": torch.zeros(1, 2, 23)}, "23.*24"),
    ],
)
def test_bad_input_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        tiny(max_position_embeddings=6).eval()(**arguments)


@pytest.mark.parametrize(
    ("ids", "words"), [([[1] * 7], "7 tokens.*=6"), ([[1, 2], [1, 99]], "99.*12"), ([[1, 2], [-1, 3]], "-1.*12")]
)
@torch.inference_mode()
def test_bad_ids_are_refused_by_the_fast_path(backend, ids, words):
    model = tiny(max_position_embeddings=6, backend=backend).eval()
    with pytest.raises(ValueError, match=words):
        model.get_text_features(torch.tensor(ids))


@torch.inference_mode()
def test_the_fast_path_refuses_before_it_encodes(monkeypatch):
    monkeypatch.setattr("banyan_hf.model.numba_kernels.encode", None)
    with pytest.raises(ValueError, match="9 tokens"):
        tiny(max_position_embeddings=6, backend="numba").eval().get_text_features(torch.ones(1, 9, dtype=torch.int64))


@torch.inference_mode()
def test_a_table_that_was_cut_is_not_read_beyond_its_end(backend):
    model = tiny(backend=backend).eval()
    model.embeddings.weight.data = model.embeddings.weight.data[:5]
    with pytest.raises(ValueError, match=r"7.*5 rows"):
        model.get_text_features(torch.tensor([[1, 7]]))


def test_default_dtype_is_not_ours(backend):
    model = small_model(backend=backend).banyan
    ids, mask = pad(AWKWARD)
    with torch.inference_mode():
        expected = model.get_text_features(ids, mask).pooler_output
        torch.set_default_dtype(torch.float64)
        try:
            assert_same(model.get_text_features(ids, mask).pooler_output, expected)
            assert_same(model(ids, mask).pooler_output, expected)
        finally:
            torch.set_default_dtype(torch.float32)


def test_ids_under_the_mask_may_be_anything(backend):
    model = small_model(backend=backend)
    ids, mask = pad([[1, 2, 3], [4]])
    expected = model.banyan(ids, mask).pooler_output, model(ids, mask).loss
    ids[mask == 0] = -100
    assert_same(model.banyan(ids, mask).pooler_output, expected[0])
    assert_same(model(ids, mask).loss, expected[1])
    with torch.inference_mode():
        assert_same(model.banyan.get_text_features(ids, mask).pooler_output, expected[0])


@pytest.mark.parametrize("method", ["forward", "get_text_features"])
@torch.inference_mode()
def test_truncation_is_said_once(caplog, method):
    model = tiny(max_position_embeddings=4).eval()
    ids, mask = pad([[1, 2, 3, 4], [1, 2], [4, 3, 2, 1]])
    for _ in range(2):
        getattr(model, method)(ids, mask)
    said = [record.getMessage() for record in caplog.records if "max_position_embeddings" in record.getMessage()]
    assert len(said) == 1
    assert "2 of 3" in said[0]


def test_config_of_a_saved_model(tmp_path):
    tiny().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["BanyanModel"]
    assert config["dtype"] == "float32"
