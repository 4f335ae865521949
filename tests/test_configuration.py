"""BanyanConfig: types, ranges, sizes that must agree, and the numbers of the paper."""

from __future__ import annotations

import json

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from banyan_hf import BanyanConfig, BanyanForPreTraining, BanyanModel

SELF_STRAE = {"composition": "linear", "num_channels": 16, "entangled": False, "objective": "contrastive"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", "many"), ("vocab_size", 2.0), ("hidden_size", True), ("entangled", "yes"), ("dropout", "0.1"),
        ("composition", "dense"), ("structure", "greedily"), ("objective", "mlm"), ("backend", "cuda"),
        ("pooling", "max"), ("num_negatives", 1.5), ("pad_token_id", "0"),
    ],
)  # fmt: skip
def test_wrong_type_is_refused(field, value):
    with pytest.raises(StrictDataclassError, match=field):
        BanyanConfig(**{field: value})


@pytest.mark.parametrize(
    ("fields", "numbers"),
    [
        ({"vocab_size": 0}, ["vocab_size=0"]),
        ({"hidden_size": -8}, ["hidden_size=-8"]),
        ({"num_channels": 0}, ["num_channels=0"]),
        ({"max_position_embeddings": 0}, ["max_position_embeddings=0"]),
        ({"hidden_size": 100, "num_channels": 16}, ["hidden_size=100", "num_channels=16"]),
        ({"num_negatives": 0}, ["num_negatives=0"]),
        ({"num_negatives": 51, "vocab_size": 50}, ["num_negatives=51", "vocab_size=50"]),
        ({"pad_token_id": 50, "vocab_size": 50}, ["pad_token_id=50", "vocab_size=50"]),
        ({"pad_token_id": -1}, ["pad_token_id=-1"]),
        ({"dropout": 1}, ["dropout=1"]),
        ({"dropout": -0.1}, ["dropout=-0.1"]),
        ({"token_dropout": 1}, ["token_dropout=1"]),
        ({"temperature": 0}, ["temperature=0"]),
        ({"temperature": float("nan")}, ["temperature=nan"]),
        ({"initializer_range": 0.0}, ["initializer_range=0.0"]),
        ({"backend": "numba", "composition": "linear"}, ["numba", "linear"]),
    ],
)
def test_value_out_of_range_names_the_values(fields, numbers):
    with pytest.raises(StrictDataclassError) as caught:
        BanyanConfig(**fields)
    assert all(number in str(caught.value) for number in numbers)


def test_misspelt_field_is_refused_and_foreign_one_kept():
    with pytest.raises(ValueError, match=r"num_chanels.*num_channels"):
        BanyanConfig(num_chanels=16)
    assert BanyanConfig(written_by_a_newer_release=3).written_by_a_newer_release == 3


def test_assignment_is_checked():
    config = BanyanConfig()
    with pytest.raises(StrictDataclassError):
        config.dropout = "much"


def test_structural_parameters_of_the_paper():
    assert BanyanConfig().num_structural_parameters == 14
    assert BanyanConfig(**SELF_STRAE).num_structural_parameters == 1072


@pytest.mark.parametrize("fields", [{}, SELF_STRAE])
def test_structural_parameters_are_those_of_the_model(fields):
    model = BanyanModel(BanyanConfig(vocab_size=20, **fields))
    counted = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("embeddings"))
    assert counted == model.config.num_structural_parameters


def test_contrastive_model_has_no_output_layer():
    model = BanyanForPreTraining(BanyanConfig(vocab_size=20, **SELF_STRAE))
    assert not [name for name, _ in model.named_parameters() if name.startswith("lm_head")]


def test_round_trip(tmp_path):
    config = BanyanConfig(
        vocab_size=70, hidden_size=48, dropout=0, num_negatives=9, pad_token_id=3, pooling="mean",
        **{k: v for k, v in SELF_STRAE.items() if k != "objective"},
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "banyan"
    again = AutoConfig.from_pretrained(tmp_path)
    assert type(again) is BanyanConfig
    assert again.to_diff_dict() | {"transformers_version": ""} == config.to_diff_dict() | {"transformers_version": ""}


def test_damaged_file_is_refused(tmp_path):
    BanyanConfig().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_channels": 7}))
    with pytest.raises(StrictDataclassError, match=r"hidden_size=256.*num_channels=7"):
        AutoConfig.from_pretrained(tmp_path)
