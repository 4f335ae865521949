"""Training: what it learns, and that a killed run goes on as if nothing had happened."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from support import TINY, grammar_sentences
from transformers import AutoTokenizer

from banyan_hf import BanyanConfig, BanyanForPreTraining
from banyan_hf.model.objectives import cross_entropy
from banyan_hf.training.corpus import collate
from banyan_hf.training.recipe import Recipe
from banyan_hf.training.run import last_complete_checkpoint, train


def held_out(folder, n=320, batch_size=32):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [{"input_ids": ids} for ids in tokenizer(grammar_sentences(n, seed=77)).input_ids]
    return [collate(rows[start : start + batch_size]) for start in range(0, n, batch_size)]


@torch.no_grad()
def mean_loss(model, data, *, shuffled=False):
    """Mean over targets; with `shuffled`, each target is read off another leaf's vector."""
    total, targets, generator = 0.0, 0, torch.Generator().manual_seed(0)
    for batch in data:
        graph, _, down = model.banyan.entangle(**batch, down="leaves")
        order = torch.randperm(len(down), generator=generator) if shuffled else torch.arange(len(down))
        loss = cross_entropy(down[order], model.lm_head.weight, model.lm_head.bias, graph.leaf_tokens)
        total, targets = total + float(loss) * len(down), targets + len(down)
    return total / targets


def test_held_out_loss_falls_below_what_is_possible_without_reading(trained):
    """The bound is the entropy of the targets themselves.

    A model whose output does not depend on its input gives every target the same distribution q; its mean loss is the
    cross-entropy of the held-out targets with q, which is at least their entropy, whatever q is, however long it was
    trained. (The targets are the distinct tokens of each batch, so the entropy is close to the logarithm of the number
    of words.) A model that does get below it reads the vector it is given. That vector comes down from the roots of
    the sentences that hold the leaf, so the control reads it off *another* leaf of the same batch: same model, same
    vectors, wrong places; its loss must be above the bound.
    """
    model = BanyanForPreTraining.from_pretrained(last_complete_checkpoint(trained.folder / "checkpoints")).eval()
    data = held_out(trained.folder)
    counts = Counter(
        token for batch in data for token in set(batch["input_ids"][batch["attention_mask"] == 1].tolist())
    )
    n = sum(counts.values())
    entropy = -sum(c / n * math.log(c / n) for c in counts.values())

    untrained = BanyanForPreTraining(model.config).eval()
    trained_loss = mean_loss(model, data)
    assert trained_loss < entropy / 2
    assert mean_loss(model, data, shuffled=True) > entropy
    assert mean_loss(untrained, data) > entropy


def test_result_and_files(trained):
    folder = trained.folder
    assert {"config.json", "model.safetensors", "modules.json", "tokenizer.json", "run.json"} <= {
        path.name for path in folder.iterdir()
    }
    assert trained.steps == math.ceil(trained.sentences / TINY.batch_size) * TINY.epochs
    assert trained.tokens_per_second > 0
    assert trained.passes == pytest.approx(TINY.epochs, rel=0.05)
    result = json.loads((folder / "run.json").read_text())["result"]
    assert (result["steps"], result["passes"], result["tokens"]) == (trained.steps, trained.passes, trained.tokens)
    assert not (folder / "checkpoints/corpus").exists()
    assert not [name for name in load_file(folder / "model.safetensors") if name.startswith(("banyan.", "lm_head"))]


SMALL = replace(TINY, epochs=6, dropout=0.2, num_negatives=20, batch_size=8, learning_rate=0.01)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n".join(grammar_sentences(160, seed=3)) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def uninterrupted(text, tmp_path_factory):
    return train([text], tmp_path_factory.mktemp("run") / "whole", recipe=SMALL, save_steps=10, say=lambda line: None)


def curve(folder):
    """The logged losses, without the time they took."""
    state = json.loads((last_complete_checkpoint(folder / "checkpoints") / "trainer_state.json").read_text())
    return [{k: e[k] for k in ("step", "loss", "learning_rate")} for e in state["log_history"] if "loss" in e]


def assert_same_run(folder, expected):
    weights, wanted = (load_file(path / "model.safetensors") for path in (folder, expected))
    assert weights.keys() == wanted.keys()
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
    assert len(curve(expected)) > 3
    assert curve(folder) == curve(expected)


# A child process trains, and kills itself with SIGKILL as soon as the checkpoint of step 40 is complete.
KILLED = """
import json, os, signal, sys
from pathlib import Path
from banyan_hf.training import trainer
from banyan_hf.training.recipe import Recipe
from banyan_hf.training.run import train
class Killer(trainer.Clock):
    def on_step_begin(self, args, state, control, **_):
        if state.global_step == 47:
            assert Path(args.output_dir, "checkpoint-40", "trainer_state.json").exists()
            os.kill(os.getpid(), signal.SIGKILL)
trainer.Clock = Killer
train([sys.argv[1]], sys.argv[2], recipe=Recipe(**json.loads(sys.argv[3])), save_steps=10)
"""


def test_killed_run_resumes_to_the_same_end(text, uninterrupted, tmp_path):
    folder = tmp_path / "killed"
    command = [sys.executable, "-c", KILLED, text, str(folder), json.dumps(SMALL.to_dict())]
    assert subprocess.run(command, capture_output=True, timeout=120).returncode == -signal.SIGKILL
    assert not (folder / "config.json").exists()
    said: list[str] = []
    result = train([text], folder, recipe=SMALL, resume=True, save_steps=10, say=said.append)
    assert "Resuming from step 40." in said
    assert result.steps == uninterrupted.steps
    assert_same_run(folder, uninterrupted.folder)


def unfinished(finished, folder, *, last):
    """The folder as it was when the run had just written the checkpoint of step `last`."""
    shutil.copytree(finished, folder)
    for path in folder.iterdir():
        if path.is_file() and path.name != "run.json":
            path.unlink()
    for path in (folder / "checkpoints").glob("checkpoint-*"):
        if int(path.name.split("-")[1]) > last:
            shutil.rmtree(path)
    return folder


def test_half_written_checkpoint_is_ignored(text, uninterrupted, tmp_path):
    steps = uninterrupted.steps
    folder = unfinished(uninterrupted.folder, tmp_path / "run", last=steps)
    (folder / f"checkpoints/checkpoint-{steps}/trainer_state.json").unlink()
    said: list[str] = []
    train([text], folder, recipe=SMALL, resume=True, save_steps=10, say=said.append)
    assert f"Resuming from step {steps - 10}." in said
    assert_same_run(folder, uninterrupted.folder)


@pytest.mark.parametrize("fields", [{"negative_power": 0.75}, {"span_tokens": 3}])
def test_what_a_step_draws_is_drawn_again_on_resuming(text, tmp_path, fields):
    """Negatives and cuts are random numbers, and data are fetched one batch ahead of the step that is saved."""
    recipe = replace(SMALL, **fields)
    whole = train([text], tmp_path / "whole", recipe=recipe, save_steps=10, say=lambda line: None)
    folder = unfinished(whole.folder, tmp_path / "run", last=whole.steps - 1)
    train([text], folder, recipe=recipe, resume=True, save_steps=10, say=lambda line: None)
    assert_same_run(folder, whole.folder)


def test_last_complete_checkpoint(tmp_path):
    assert last_complete_checkpoint(tmp_path) is None
    for step, content in ((90, '{"global_step": 90}'), (100, '{"global_step": 100}'), (110, '{"glob'), (120, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if content is not None:
            (tmp_path / f"checkpoint-{step}/trainer_state.json").write_text(content)
    assert last_complete_checkpoint(tmp_path) == tmp_path / "checkpoint-100"


def test_same_seed_same_model(text, uninterrupted, tmp_path):
    torch.rand(7)
    again = train([text], tmp_path / "again", recipe=SMALL, save_steps=10, say=lambda line: None)
    assert_same_run(again.folder, uninterrupted.folder)


def test_other_configurations_train(text, tmp_path):
    """Self-StrAE is a configuration, not code."""
    recipe = replace(
        SMALL, composition="linear", entangled=False, objective="contrastive", num_channels=2, hidden_size=16, epochs=1
    )
    result = train([text], tmp_path / "m", recipe=recipe, say=lambda line: None)
    assert math.isfinite(result.loss)


def test_a_small_text_is_read_more_often(text, tmp_path):
    recipe = replace(SMALL, epochs=0.1, min_steps=13)
    assert train([text], tmp_path / "more", recipe=recipe, say=lambda line: None).steps == 13
    enough = train([text], tmp_path / "enough", recipe=replace(recipe, epochs=2), say=lambda line: None)
    assert enough.steps == 2 * math.ceil(enough.sentences / SMALL.batch_size) > 13
    assert Recipe.named("lang").min_steps == 2000
    assert Recipe.named("lang", epochs=2).min_steps is None


def test_unigram_tokenizer(text, tmp_path):
    result = train([text], tmp_path / "m", recipe=replace(SMALL, tokenizer_kind="unigram"), say=lambda line: None)
    assert type(AutoTokenizer.from_pretrained(result.folder).backend_tokenizer.model).__name__ == "Unigram"


def test_missing_sentencepiece_is_seen_before_the_folder_is_touched(text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ImportError, match="sentencepiece"):
        train([text], tmp_path / "m", recipe=replace(SMALL, tokenizer_kind="unigram"), say=lambda line: None)
    assert not (tmp_path / "m").exists()


def test_clock_ends_the_run(text, tmp_path):
    recipe = replace(SMALL, epochs=10000, max_minutes=0.02)
    result = train([text], tmp_path / "m", recipe=recipe, say=lambda line: None)
    assert result.seconds < 20
    assert (tmp_path / "m/config.json").exists()


class TestRecipe:
    @pytest.mark.parametrize(("name", "dropout"), [("default", 0.0), ("en", 0.0), ("paper", 0.1)])
    def test_ours(self, name, dropout):
        recipe = Recipe.named(name)
        config = recipe.config(vocab_size=500, pad_token_id=1, max_position_embeddings=512)
        assert config.num_structural_parameters == 14
        assert (recipe.min_tokens, recipe.max_tokens, config.dropout) == (4, 200, dropout)

    def test_paper(self):
        recipe = Recipe.named("paper")
        assert (recipe.batch_size, recipe.learning_rate, recipe.epochs, recipe.num_negatives) == (512, 1e-3, 15, None)
        assert (recipe.vocab_size, recipe.hidden_size, recipe.num_channels) == (25000, 256, 128)

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("epohs: 3", "epohs.*epochs"), ("epochs: many", "many"), ("epochs: 0", "epochs=0"),
            ("schedule: steps", "steps.*linear"), ("min_tokens: 9\nmax_tokens: 5", "9.*5"), ("- 1\n- 2", "recipe.yaml"),
            ("a: [", "recipe.yaml"), ("batch_size: 2.5", "2.5"), ("word_power: 2", "word_power=2"),
        ],
    )  # fmt: skip
    def test_bad_file(self, tmp_path, content, words):
        path = tmp_path / "recipe.yaml"
        path.write_text(content)
        with pytest.raises(ValueError, match=f"(?s){words}"):
            Recipe.named(str(path))

    def test_what_a_file_does_not_name_is_as_in_the_default_recipe(self, tmp_path):
        path = tmp_path / "recipe.yaml"
        path.write_text("epochs: 1")
        assert Recipe.named(str(path)) == Recipe(epochs=1) == Recipe.named("default", epochs=1)
        assert Recipe.named("default") == Recipe()

    def test_the_papers_recipe_is_the_papers_model(self):
        config, recipe = BanyanConfig(), Recipe.named("paper")
        shared = [name for name in recipe.to_dict() if hasattr(config, name)]
        assert len(shared) == 10
        assert {name: getattr(recipe, name) for name in shared} == {name: getattr(config, name) for name in shared}

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"dropout": 1.5}, "dropout=1.5"), ({"token_dropout": -1}, "token_dropout=-1"),
            ({"num_negatives": -5}, "num_negatives=-5"), ({"hidden_size": "256"}, "hidden_size"),
            ({"composition": "x"}, "composition"), ({"vocab_size": 3}, "vocab_size=3"), ({"epochs": math.inf}, "inf"),
            ({"negative_power": -1}, "negative_power=-1"), ({"learning_rate": "5e-3"}, "5.0e-3"),
            ({"hidden_size": 10, "num_channels": 4}, "hidden_size=10.*num_channels=4"),
        ],
    )  # fmt: skip
    def test_bad_fields(self, fields, words):
        with pytest.raises(ValueError, match=f"(?s){words}"):
            Recipe(**fields)
