"""The command line: what works, and that every mistake is one sentence and leaves nothing damaged."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from support import grammar_sentences
from transformers import AutoConfig, BertConfig

from banyan_hf.evaluation.sts import read_pairs, spearman
from banyan_hf.persistence import load_encoder
from banyan_hf.trees import parse

TINY = ["--vocab-size", 150, "--dims", 16, "--channels", 8, "--epochs", 1, "--batch-size", 16, "--negatives", 0]
CSV = "sent1,sent2,score\nthe old cat sleeps,the cat sleeps,4.5\na bus stops,the king speaks,0\na dog,a dog,5\n"


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(grammar_sentences(60, seed=4)) + "\n")
    return path


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text(CSV)
    return path


@pytest.fixture
def model(trained) -> Path:
    return trained.folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(outcome, *words):
    """Exit code 1 and one line that names the values."""
    code, printed = outcome
    assert code == 1, printed
    assert "Traceback" not in printed
    line = printed[printed.index("Error:") :].replace(" ", "")  # the terminal's width breaks lines
    assert all(str(word).replace(" ", "") in line for word in words), line


def test_help(cli):
    code, printed = cli("--help")
    assert code == 0
    assert all(name in printed for name in ("train", "encode", "similarity", "parse", "evaluate"))


def test_train_then_use(cli, text, pairs, tmp_path):
    folder = tmp_path / "model"
    code, printed = cli("train", text, "-o", folder, *TINY, "--eval-sts", pairs, "--eval-steps", 2)
    assert code == 0, printed
    assert "60 sentences" in printed
    assert "nan tokens/s" not in printed
    assert json.loads((folder / "run.json").read_text())["recipe"]["num_negatives"] is None
    vectors = SentenceTransformer(str(folder), device="cpu").encode(["the cat sleeps"])
    assert vectors.shape == (1, 16)
    found = cli("similarity", "the cat sleeps", "the cat sleeps", "a bus stops", "--model", folder)
    assert found[0] == 0
    assert "1.000 the cat sleeps" in found[1]


class TestUse:
    def test_encode(self, cli, text, model, tmp_path):
        target = tmp_path / "vectors.npy"
        code, printed = cli("encode", text, "-o", target, "-m", model, "--batch-size", 7)
        assert code == 0
        assert "60 vectors of 32" in printed
        lines = text.read_text().splitlines()
        assert np.array_equal(np.load(target), SentenceTransformer(str(model), device="cpu").encode(lines))
        assert not list(tmp_path.glob("*.tmp"))
        with gzip.open(tmp_path / "text.txt.gz", "wt") as file:
            file.write(text.read_text())
        assert cli("encode", tmp_path / "text.txt.gz", "-o", tmp_path / "again.npy", "-m", model)[0] == 0
        assert np.array_equal(np.load(tmp_path / "again.npy"), np.load(target))

    def test_encode_keeps_lines_and_rows_together(self, cli, model, tmp_path):
        source, target = tmp_path / "odd.txt", tmp_path / "v.npy"
        source.write_text("the cat\n\n\u2028a bus\x0cstops\nlast", encoding="utf-8")
        assert cli("encode", source, "-o", target, "-m", model)[0] == 0
        assert np.load(target).shape == (4, 32)

    def test_similarity_is_sorted(self, cli, model):
        code, printed = cli("similarity", "the cat", "a bus", "the cat", "[bold]", "-m", model)
        assert code == 0
        assert printed.startswith("1.000 the cat")
        assert "[bold]" in printed

    def test_parse(self, cli, model):
        code, printed = cli("parse", "the old cat sleeps", "-m", model, "--no-draw")
        assert code == 0
        assert printed == str(parse(["the old cat sleeps"], *load_encoder(str(model)))[0])
        code, printed = cli("parse", "the cat", "", "-m", model)
        assert code == 0
        assert "(the cat) the cat" in printed
        assert "()" in printed

    def test_evaluate(self, cli, model, pairs, tmp_path):
        code, printed = cli("evaluate", model, pairs, "-o", tmp_path / "results")
        assert code == 0, printed
        encoder = SentenceTransformer(str(model), device="cpu")
        expected = spearman(lambda texts: encoder.encode(texts, convert_to_tensor=True), read_pairs(pairs))
        assert f"pairs: {expected:.2f}" in printed
        assert f"| files | pairs | {expected:.2f} |" in (tmp_path / "results" / "table.md").read_text()


class TestBadText:
    @pytest.mark.parametrize(
        ("content", "words"), [(b"", "is empty"), (bytes(range(256)), "UTF-8"), (b"a\n", "4 to 200 tokens")]
    )
    def test_content(self, cli, tmp_path, content, words):
        (tmp_path / "bad.txt").write_bytes(content)
        refused(cli("train", tmp_path / "bad.txt", "-o", tmp_path / "m", *TINY), words)

    def test_missing(self, cli, tmp_path):
        refused(cli("train", tmp_path / "no.txt", "-o", tmp_path / "m", *TINY), "no.txt is not a file")

    def test_second_try_after_a_typing_error(self, cli, text, tmp_path):
        """A mistake in the name of the text must not claim the folder."""
        refused(cli("train", tmp_path / "no.txt", "-o", tmp_path / "m", *TINY), "no.txt is not a file")
        code, printed = cli("train", text, "-o", tmp_path / "m", *TINY)
        assert code == 0, printed

    def test_tokenizer(self, cli, text, tmp_path):
        refused(cli("train", text, "-o", tmp_path / "m", *TINY[2:], "--tokenizer", tmp_path / "none"), "none")
        refused(
            cli("train", text, "-o", tmp_path / "m", *TINY, "--tokenizer", tmp_path), "--vocab-size 150", "one of them"
        )
        (tmp_path / "bad.model").write_bytes(b"\xff\x00\x01")
        refused(cli("train", text, "-o", tmp_path / "k", *TINY[2:], "--tokenizer", tmp_path / "bad.model"), "bad.model")

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["--dims", 10, "--channels", 4], ["hidden_size=10", "num_channels=4"]),
            (["--vocab-size", 3], ["vocab_size=3"]),
            (["--dropout", 2], ["dropout=2"]),
            (["--negatives", -5], ["-5"]),
            (["--batch-size", 0], ["batch_size=0"]),
            (["--save-steps", 0], ["save_steps", "0"]),
            (["--recipe", "none"], ["none", "default", "paper"]),
            (["--min-tokens", 9, "--max-tokens", 5], ["9", "5"]),
        ],
    )
    def test_settings(self, cli, text, tmp_path, options, words):
        refused(cli("train", text, "-o", tmp_path / "m", *TINY, *options), *words)
        assert not (tmp_path / "m").exists()

    def test_sentences_longer_than_the_usual_limit(self, cli, text, model, tmp_path):
        with text.open("a") as file:
            file.write("the old cat sleeps. " * 120 + "\n")
        options = [*TINY[2:], "--max-tokens", 700]
        code, printed = cli("train", text, "-o", tmp_path / "m", *TINY[:2], *options)
        assert code == 0, printed
        assert AutoConfig.from_pretrained(tmp_path / "m").max_position_embeddings == 700
        refused(cli("train", text, "-o", tmp_path / "k", *options, "--tokenizer", model), "max_tokens=700", "512")
        assert not (tmp_path / "k").exists()

    def test_development_sets_are_scored_after_the_last_step(self, cli, text, pairs, tmp_path):
        code, printed = cli("train", text, "-o", tmp_path / "m", *TINY, "--eval-sts", pairs)
        assert code == 0, printed
        assert re.search(r"step \d+: pairs -?\d+\.\d\d", printed)
        (tmp_path / "other").mkdir()
        shutil.copy(pairs, tmp_path / "other")
        both = ["--eval-sts", pairs, "--eval-sts", tmp_path / "other" / pairs.name]
        refused(cli("train", text, "-o", tmp_path / "k", *TINY, *both), "same name")

    def test_typed_options(self, cli, text, tmp_path):
        code, printed = cli("train", text, "-o", tmp_path / "m", "--epochs", "many")
        assert code == 2
        assert "epochs" in printed


class TestOutputFolder:
    def test_holds_a_model(self, cli, text, model):
        before = contents(model)
        for resume in ([], ["--resume"]):
            refused(cli("train", text, "-o", model, *TINY, *resume), model.name, "already holds a model")
        assert contents(model) == before

    def test_holds_something_else(self, cli, text, tmp_path):
        folder = tmp_path / "thesis"
        folder.mkdir()
        (folder / "chapter.tex").write_text("...")
        refused(cli("train", text, "-o", folder, *TINY), "thesis")
        assert contents(folder) == {"chapter.tex": b"..."}

    def test_is_a_file(self, cli, text):
        before = text.read_bytes()
        refused(cli("train", text, "-o", text, *TINY), text.name)
        assert text.read_bytes() == before

    def test_resume_without_run(self, cli, text, tmp_path):
        refused(cli("train", text, "-o", tmp_path / "m", *TINY, "--resume"), "no training run to resume")
        assert not (tmp_path / "m").exists()

    def test_resume_needs_the_flag_and_the_same_settings(self, cli, text, model, tmp_path):
        run = tmp_path / "m"
        run.mkdir()
        shutil.copy(model / "run.json", run)
        (run / "checkpoints/checkpoint-5").mkdir(parents=True)
        (run / "checkpoints/checkpoint-5/trainer_state.json").write_text('{"global_step": 5}')
        before = contents(run)
        refused(cli("train", text, "-o", run, *TINY), "unfinished run", "--resume")
        refused(cli("train", text, "-o", run, *TINY, "--resume"), "hidden_size: 32 then, 16 now", "sources")
        assert contents(run) == before

    def test_settings_may_be_mended_before_the_first_checkpoint(self, cli, text, tmp_path):
        """A mistake that only the text shows is made in a folder that is claimed already."""
        run = tmp_path / "m"
        refused(cli("train", text, "-o", run, *TINY, "--min-tokens", 90, "--max-tokens", 99), "90 to 99 tokens")
        refused(cli("train", text, "-o", run, *TINY), "unfinished run", "--resume")
        code, printed = cli("train", text, "-o", run, *TINY, "--resume")
        assert code == 0, printed
        assert json.loads((run / "run.json").read_text())["recipe"]["min_tokens"] == 4

    def test_damaged_record(self, cli, text, tmp_path):
        run = tmp_path / "m"
        run.mkdir()
        (run / "run.json").write_text("{")
        refused(cli("train", text, "-o", run, *TINY, "--resume"), "run.json")


class TestBadModel:
    COMMANDS = (["similarity", "a", "b", "-m"], ["parse", "a", "-m"])

    @pytest.mark.parametrize("command", COMMANDS)
    def test_folder_without_model(self, cli, tmp_path, command):
        refused(cli(*command, tmp_path), "holds no model")

    @pytest.mark.parametrize("command", COMMANDS)
    def test_nowhere(self, cli, tmp_path, command):
        refused(cli(*command, tmp_path / "nowhere"), "nowhere")

    def test_another_kind(self, cli, tmp_path):
        BertConfig().save_pretrained(tmp_path)
        refused(cli("parse", "a", "-m", tmp_path), "bert", "Banyan")

    @pytest.mark.parametrize("command", COMMANDS)
    def test_damaged_weights(self, cli, model, tmp_path, command):
        folder = tmp_path / "m"
        shutil.copytree(model, folder, ignore=shutil.ignore_patterns("checkpoints"))
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
        refused(cli(*command, folder))

    def test_missing_tensors(self, cli, model, tmp_path):
        from safetensors.torch import load_file, save_file

        folder = tmp_path / "m"
        shutil.copytree(model, folder, ignore=shutil.ignore_patterns("checkpoints"))
        tensors = load_file(folder / "model.safetensors")
        del tensors["compose.bias"]
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        refused(cli("parse", "a", "-m", folder), "compose.bias")
        refused(cli("similarity", "a", "b", "-m", folder), "compose.bias")


class TestBadFiles:
    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("", ["sent1, sent2, score"]),
            ("a,b,c\n1,2,3\n", ["'a'", "sent1"]),
            ("sent1,sent2\nx,y\n", ["score is missing"]),
            (CSV + "x,y,high\n", ["line 5", "'high'"]),
            (CSV + "x,y\n", ["line 5"]),
            (CSV + '"open,y,3\nx,y,3\n', ["line 6", "quotation mark"]),
            (CSV + "a cat, black,a dog,3\n", ["line 5 has more fields"]),
            ("score,sent1,sent2\n1,a,b\n2,a\n", ["line 3", "fewer fields"]),
            (CSV + '"x\nx",y,1\nx,y,high\n', ["line 7", "'high'"]),
            ("sent1,sent2,score\nx,y,1\nx,z,1\n", ["every pair the score 1.0"]),
            (CSV + "x,y,nan\n", ["line 5", "nan"]),
            ("sent1,sent2,score\nx,y,1\n", ["1 pairs"]),
        ],
    )
    def test_pairs(self, cli, model, tmp_path, content, words):
        path = tmp_path / "bad.csv"
        path.write_text(content)
        refused(cli("evaluate", model, path), "bad.csv", *words)

    def test_binary_pairs(self, cli, model, tmp_path):
        (tmp_path / "bad.csv").write_bytes(b"sent1,sent2,score\n\xff\xfe,\x80,1\n")
        refused(cli("evaluate", model, tmp_path / "bad.csv"), "bad.csv")

    def test_missing_pairs(self, cli, model, tmp_path):
        refused(cli("evaluate", model, tmp_path / "no.csv"), "no.csv is not a file")

    def test_encode(self, cli, model, text, tmp_path):
        (tmp_path / "empty.txt").touch()
        (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x80\n")
        target = tmp_path / "v.npy"
        for source, words in (("no.txt", "not a file"), ("empty.txt", "empty"), ("binary.txt", "binary.txt")):
            refused(cli("encode", tmp_path / source, "-o", target, "-m", model), words)
        refused(cli("encode", text, "-o", tmp_path / "none/v.npy", "-m", model), "none")
        assert not list(tmp_path.glob("*.npy*"))
