"""MTEB as the engine: scores that other code agrees with, results that survive a failure, one-sentence errors."""

from __future__ import annotations

import gzip
import json
import logging
import random
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sklearn.metrics import ndcg_score
from support import ROOT, SHARED, grammar_sentences
from test_cli import refused

import banyan_hf
from banyan_hf.evaluation import suites
from banyan_hf.evaluation.formats import read_labelled, read_qrels, read_records, read_word_pairs
from banyan_hf.evaluation.probe import probe_scores
from banyan_hf.evaluation.report import chart, markdown, read_results
from banyan_hf.evaluation.runner import evaluate, model_hash
from banyan_hf.evaluation.sts import read_pairs, spearman
from banyan_hf.tokenizer import train_tokenizer

mteb = pytest.importorskip("mteb")


def quiet(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A data folder in the layout of the suites, with texts of the grammar."""
    folder = tmp_path_factory.mktemp("data")
    rng, texts = random.Random(0), list(dict.fromkeys(grammar_sentences(400, seed=9)))
    english, semrel = folder / "eval" / "english", folder / "eval" / "semrel"
    for parent in (english, semrel, folder / "retrieval" / "scifact" / "qrels", folder / "retrieval" / "quora_small"):
        parent.mkdir(parents=True)

    def pairs(path: Path, scores: list[float], n: int = 24) -> None:
        rows = [f"{rng.choice(texts)},{rng.choice(texts)},{scores[i % len(scores)]}" for i in range(n)]
        path.write_text("sent1,sent2,score\n" + "\n".join(rows) + "\n")

    for name in suites.ENGLISH:
        pairs(english / f"{name}_test.csv", [0.5, 1.0, 3.5, 4.25])
    for code in suites.SEMREL:
        pairs(semrel / f"{code}_test.csv", [0.1, 0.6, 0.9])
    for split in ("train", "test"):
        pairs(english / f"mrpc_{split}.csv", [0, 1])
    for file in suites.LEXICAL.values():
        (english / file).write_text("cat\tdog\t7.5\ncat\tbus\t1\nking\tclerk\t6\nking\ttrain\t0.5\n")
    labelled = [f"{text} \t{int('sleeps' in text or 'runs' in text or 'eats' in text)}" for text in texts]
    with gzip.open(english / "sst_train.tsv.gz", "wt") as file:
        file.write("sentence\tlabel\n" + "\n".join(labelled[:200]) + "\n")
    (english / "sst_dev.tsv").write_text("sentence\tlabel\n" + "\n".join(labelled[200:260]) + "\n")
    for name in suites.TOPICS:
        topic = folder / "classification" / name
        topic.mkdir(parents=True)
        for split, rows in (("train", labelled[:100]), ("test", labelled[100:140])):
            (topic / f"{split}.tsv").write_text("\n".join("\t".join(r.split("\t")[::-1]) for r in rows) + "\n")
    scifact = folder / "retrieval" / "scifact"
    records = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts[:60])]
    (scifact / "corpus.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    asked = [{"_id": f"q{i}", "text": text} for i, text in enumerate(texts[100:112])]
    (scifact / "queries.jsonl").write_text("\n".join(map(json.dumps, asked)) + "\n")
    judged = [f"q{i}\td{(7 * i + j) % 60}\t1" for i in range(10) for j in range(3)]
    (scifact / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(judged) + "\n")
    quora = folder / "retrieval" / "quora_small"
    quora.rmdir()
    shutil.copytree(scifact, quora)
    return folder


@pytest.fixture(scope="module")
def encoder(trained) -> SentenceTransformer:
    return SentenceTransformer(str(trained.folder), device="cpu")


@pytest.fixture(scope="module")
def scored(trained, data, tmp_path_factory) -> Path:
    """All local suites, scored once."""
    output = tmp_path_factory.mktemp("results")
    names = [name for name in suites.LOCAL if name != "semrel"]  # the same code as english
    scores = evaluate(str(trained.folder), suites.entries(names, data), output, say=quiet)
    assert None not in scores.values()
    return output


def result(output: Path, name: str) -> dict:
    (path,) = output.glob(f"*/{name}.json")
    return json.loads(path.read_text())


def main_score(output: Path, name: str) -> float:
    return result(output, name)["scores"]["test"][0]["main_score"]


def ndcg_of_scifact(data: Path, encoder: SentenceTransformer, *, query: str = "", document: str = "") -> float:
    """NDCG@10 by scikit-learn, with a prompt before each query and document."""
    folder = data / "retrieval" / "scifact"
    relevant = read_qrels(folder / "qrels" / "test.tsv")
    corpus = read_records(folder / "corpus.jsonl")
    queries = [record for record in read_records(folder / "queries.jsonl") if record["id"] in relevant]
    truth = np.array([[relevant[q["id"]].get(d["id"], 0) for d in corpus] for q in queries])
    asked, documents = (
        encoder.encode([prompt + record["text"] for record in records])
        for prompt, records in ((query, queries), (document, corpus))
    )
    return ndcg_score(truth, encoder.similarity(asked, documents).numpy(), k=10)


def copy_with_pooling(model: Path, target: Path, pooling: str) -> None:
    shutil.copytree(model, target, ignore=shutil.ignore_patterns("checkpoints"))
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "pooling": pooling}))


class TestScores:
    """Each kind of task beside a computation that does not use MTEB."""

    @pytest.mark.parametrize("name", ["sts12", "sick"])
    def test_pairs(self, scored, data, encoder, name):
        pairs = read_pairs(data / "eval" / "english" / f"{name}_test.csv")
        expected = spearman(lambda texts: encoder.encode(texts, convert_to_tensor=True), pairs)
        assert 100 * main_score(scored, name) == pytest.approx(expected, abs=1e-3)

    def test_words(self, scored, data, encoder):
        pairs = read_word_pairs(data / "eval" / "english" / "simlex.tsv")
        expected = spearman(lambda texts: encoder.encode(texts, convert_to_tensor=True), pairs)
        assert 100 * main_score(scored, "simlex") == pytest.approx(expected, abs=1e-3)

    def test_retrieval(self, scored, data, encoder):
        assert main_score(scored, "scifact") == pytest.approx(ndcg_of_scifact(data, encoder), abs=1e-4)

    def test_probe(self, scored, data, encoder):
        """Five seeds, their mean and spread; on texts that any classifier can tell apart it is nearly perfect."""
        scores = result(scored, "sst2_paper")["scores"]["test"][0]
        runs = [run["accuracy"] for run in scores["scores_per_experiment"]]
        assert len(runs) == 5
        assert scores["main_score"] == pytest.approx(np.mean(runs), abs=1e-5)
        assert scores["accuracy_std"] == pytest.approx(np.std(runs, ddof=1), abs=1e-5)
        folder = data / "eval" / "english"
        form = {"header": True, "label_first": False}
        (x, y), (x2, y2) = (read_labelled(folder / f, **form) for f in ("sst_train.tsv.gz", "sst_dev.tsv"))
        arrays = encoder.encode(x), np.array(y, int), encoder.encode(x2), np.array(y2, int)
        assert probe_scores(*arrays, seed=3)["accuracy"] == pytest.approx(runs[3], abs=1e-5)

    def test_probe_learns_and_chance_does_not(self):
        rng = np.random.default_rng(0)
        x, noise = rng.normal(size=(700, 3)), rng.normal(size=(700, 3))
        y = (np.abs(x[:, 0]) > 0.67).astype(int)  # no line separates this: the hidden layer is needed
        assert probe_scores(x[:400], y[:400], x[400:], y[400:], seed=0)["accuracy"] > 0.85
        assert 0.4 < probe_scores(noise[:400], y[:400], noise[400:], y[400:], seed=0)["accuracy"] < 0.6

    def test_pair_classification_of_paraphrases(self, scored):
        scores = result(scored, "mrpc_mteb")["scores"]["test"][0]
        assert scores["main_score"] == scores["cosine_f1"]
        assert "f1_std" in result(scored, "mrpc_paper")["scores"]["test"][0]

    @pytest.mark.skipif(not (SHARED / "data" / "eval").is_dir(), reason="needs ../shared/data")
    def test_the_box_agrees_with_its_card(self, tmp_path):
        card = (ROOT / "model_cards" / "banyan-english.md").read_text()
        (row,) = [line for line in card.splitlines() if line.startswith("| **pure: root** |")]
        expected = [cell.strip() for cell in row.split("|")[2:-1]]
        english = suites.entries(["english"], SHARED / "data")
        said: list[str] = []
        scores = list(evaluate(banyan_hf.default_model(), english, tmp_path, say=said.append).values())
        assert None not in scores, said
        assert [f"{score:.2f}" for score in (*scores, sum(scores) / len(scores))] == expected


class TestResults:
    def test_manifest(self, scored, data, trained):
        (path,) = scored.glob("*/manifest.json")
        manifest = json.loads(path.read_text())
        assert manifest["model_hash"] == model_hash(str(trained.folder))
        assert path.parent.name == f"model-{manifest['model_hash'][:8]}"
        assert {"date", "versions", "python"} <= set(manifest)
        task = manifest["tasks"]["sts13"]
        assert (task["suite"], task["seed"]) == ("english", 42)
        assert result(scored, "sts13")["dataset_revision"] == task["data"]["revision"]
        revisions = {entry["data"]["revision"] for entry in manifest["tasks"].values()}
        assert len(revisions) == 14  # of 18 tasks: equal files have equal revisions

    def test_table_and_chart(self, scored):
        models, rows = read_results(scored)
        assert models == ["model"]
        mean = next(scores for suite, name, scores in rows if (suite, name) == ("english", "mean"))
        assert mean == [pytest.approx(np.mean([100 * main_score(scored, name) for name in suites.ENGLISH]), abs=1e-3)]
        assert (scored / "table.md").read_text() == markdown(models, rows) + "\n"
        assert "<svg" in (scored / "chart.svg").read_text()

    def test_chart_is_the_same_every_time(self, tmp_path):
        rows = [("english", "sts12", [50.0, None]), ("english", "sts13", [-3.0, 60.0])]
        for name in ("a.svg", "b.svg", "c.png"):
            chart(["one", "two"], rows, tmp_path / name)
        assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
        assert not list(tmp_path.glob("*.tmp"))

    def test_two_models_in_one_table(self, trained, data, tmp_path):
        """Another pooling is another model: neither may be given the other's scores."""
        other = tmp_path / "model"
        copy_with_pooling(trained.folder, other, "mean")
        rows = suites.file_entries([data / "eval" / "english" / "sts12_test.csv"])
        scores = [evaluate(str(folder), rows, tmp_path / "out", say=quiet) for folder in (trained.folder, other)]
        assert scores[0] != scores[1]
        models, table = read_results(tmp_path / "out")
        assert sorted(models) == sorted(f"model ({model_hash(str(f))[:8]})" for f in (trained.folder, other))
        assert sorted(table[0][2]) == sorted(s["sts12_test"] for s in scores)

    def test_data_that_differ_are_rows_of_their_own(self, trained, tmp_path):
        path = tmp_path / "mine.csv"
        for pooling, scores in (("root", "123"), ("mean", "132")):
            model = tmp_path / pooling
            copy_with_pooling(trained.folder, model, pooling)
            pairs = zip(("the cat,the dog", "a bus,the king", "the cat,a bus"), scores, strict=True)
            path.write_text("sent1,sent2,score\n" + "".join(f"{pair},{score}\n" for pair, score in pairs))
            evaluate(str(model), suites.file_entries([path]), tmp_path / "out", say=quiet)
        _, rows = read_results(tmp_path / "out")
        assert len(rows) == 2
        assert all(re.fullmatch(r"mine \(data [0-9a-f]{6}\)", name) for _, name, _ in rows)
        assert sorted(row.index(None) for _, _, row in rows) == [0, 1]

    def test_no_mean_of_unlike_scores(self, scored):
        kinds = {suite: name for suite, name, _ in read_results(scored)[1] if name == "mean"}
        assert set(kinds) == {"english", "lexical", "retrieval"}  # classification has accuracies and F1

    def test_prompts_go_before_the_texts(self, trained, data, encoder, tmp_path):
        rows = suites.entries(["english", "retrieval"], data)
        prompts = {"all": "the cat ", "query": "a bus ", "document": "the king "}
        scores = evaluate(str(trained.folder), rows, tmp_path, prompts=prompts, say=quiet)
        pairs = read_pairs(data / "eval" / "english" / "sts12_test.csv")

        def prompted(texts):
            return encoder.encode(["the cat " + text for text in texts], convert_to_tensor=True)

        assert scores["sts12"] == pytest.approx(spearman(prompted, pairs), abs=1e-3)
        expected = ndcg_of_scifact(data, encoder, query="a bus ", document="the king ")
        assert scores["scifact"] == pytest.approx(100 * expected, abs=1e-2)
        (manifest,) = tmp_path.glob("*/manifest.json")
        assert json.loads(manifest.read_text())["prompts"] == prompts
        assert model_hash(str(trained.folder)) != model_hash(str(trained.folder), prompts=prompts)

    def test_a_linked_module_is_part_of_the_model(self, tmp_path):
        hashes = []
        for mode in ("mean", "cls"):
            (tmp_path / f"{mode}_pooling").mkdir()
            (tmp_path / f"{mode}_pooling/config.json").write_text(json.dumps({"mode": mode}))
            (tmp_path / mode).mkdir()
            (tmp_path / mode / "1_Pooling").symlink_to(tmp_path / f"{mode}_pooling")
            hashes.append(model_hash(str(tmp_path / mode)))
        assert hashes[0] != hashes[1]

    def test_a_chart_of_many_models_with_long_names(self, tmp_path):
        models = [f"a-model-with-a-rather-long-name-{i}" for i in range(14)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            chart(models, [("english", "sts12", [50.0] * 14)], tmp_path / "a.svg")
            chart(models[:1], [("english", "sts12", [50.0])], tmp_path / "b.svg")
        bars = re.findall(
            r"style=\"fill: ([^;]+); stroke: #000000; stroke-width: 0.6", (tmp_path / "a.svg").read_text()
        )
        assert len(set(bars)) == 11  # of a dozen; black is not written


class TestFailures:
    @pytest.mark.parametrize("damage", ["[]", "{}", "null", '{"a": 1}', "{", '{"scores": {}}'])
    def test_damaged_files_are_made_again(self, trained, data, tmp_path, damage):
        rows = suites.file_entries([data / "eval" / "english" / "sts12_test.csv"])
        scores = evaluate(str(trained.folder), rows, tmp_path, say=quiet)
        for path in tmp_path.glob("*/*.json"):
            path.write_text(damage)
        (tmp_path / "other").mkdir()
        (tmp_path / "other/manifest.json").write_text(damage)
        assert evaluate(str(trained.folder), rows, tmp_path, resume=True, say=quiet) == scores
        assert read_results(tmp_path)[0] == ["model"]

    def test_a_score_that_is_no_number_is_a_failure(self, trained, tmp_path):
        """Of empty texts all similarities are equal."""
        path, lines = tmp_path / "empty.csv", []
        path.write_text("sent1,sent2,score\n,,1\n,,2\n,,3\n")
        scores = evaluate(str(trained.folder), suites.file_entries([path]), tmp_path / "out", say=lines.append)
        assert scores == {"empty": None}
        assert "not a number" in lines[0]
        assert not list((tmp_path / "out").glob("*/empty.json"))

    def test_what_a_kept_result_was_made_with_stays(self, trained, data, tmp_path):
        rows = suites.file_entries([data / "eval" / "english" / "sts12_test.csv"])
        evaluate(str(trained.folder), rows, tmp_path, say=quiet)
        (path,) = tmp_path.glob("*/manifest.json")
        manifest = json.loads(path.read_text())
        manifest["tasks"]["sts12_test"]["date"] = "2020"
        path.write_text(json.dumps(manifest))
        evaluate(str(trained.folder), rows, tmp_path, resume=True, say=quiet)
        again = json.loads(path.read_text())
        assert again["tasks"]["sts12_test"]["date"] == "2020"
        assert again["date"] != "2020"

    def test_one_task_loses_no_other_and_resume_finishes(self, trained, data, tmp_path, monkeypatch):
        rows, lines = suites.entries(["english"], data), []
        run = type(rows[2].task).evaluate

        def crash(*_: object, **__: object) -> None:
            raise RuntimeError("the disk\nis full")

        monkeypatch.setattr(type(rows[2].task), "evaluate", crash)
        scores = evaluate(str(trained.folder), rows, tmp_path, say=lines.append)
        assert [name for name, score in scores.items() if score is None] == ["sts14"]
        assert "sts14: failed. RuntimeError: the disk is full" in lines
        written = {path.stem for path in tmp_path.glob("*/*.json")} - {"manifest"}
        assert written == set(suites.ENGLISH) - {"sts14"}
        table = (tmp_path / "table.md").read_text()
        assert "| english | sts14 | - |" in table
        assert "| english | **mean** | - |" in table  # no mean of five is shown as one of six

        monkeypatch.setattr(type(rows[2].task), "evaluate", run)
        with pytest.raises(ValueError, match="--resume"):
            evaluate(str(trained.folder), rows, tmp_path, say=quiet)
        lines.clear()
        next(tmp_path.glob("*/sts13.json")).write_text("{")  # damaged: made again, like the one that is missing
        again = evaluate(str(trained.folder), rows, tmp_path, resume=True, say=lines.append)
        assert [line.endswith("(kept)") for line in lines] == [name not in ("sts13", "sts14") for name in again]
        assert again["sts14"] is not None
        assert again["sts13"] == scores["sts13"]
        assert again["sts12"] == pytest.approx(scores["sts12"], abs=1e-4)  # MTEB writes six digits

    def test_resume_scores_again_when_the_data_changed(self, trained, tmp_path):
        path, lines = tmp_path / "mine.csv", []
        for score in ("1", "5"):
            path.write_text(f"sent1,sent2,score\nthe cat,the dog,{score}\na bus,the king,2\nthe cat,a bus,3\n")
            evaluate(str(trained.folder), suites.file_entries([path]), tmp_path / "out", resume=True, say=lines.append)
        assert not any("kept" in line for line in lines)
        assert lines[0] != lines[1]


class TestCommand:
    def test_suite(self, cli, trained, data, tmp_path):
        code, printed = cli("evaluate", trained.folder, "--suite", "lexical", "--data", data, "-o", tmp_path)
        assert code == 0, printed
        assert all(f"{name}: " in printed for name in suites.LEXICAL)
        assert "mean of lexical" in printed

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ([], ["--suite"]),
            (["--suite", "englsh"], ["no suite 'englsh'", "english"]),
            (["--suite", "mteb:STS12,Stupid"], ["no task 'Stupid'"]),
            (["--suite", "mteb:"], ["No suite"]),
            (["--suite", "lexical"], ["--data"]),
            (["--suite", "english", "--suite", "english"], ["twice"]),
            (["--suite", "english", "--data", "nowhere"], ["nowhere is not a folder"]),
            (["x.csv", "--data", "nowhere"], ["--data nowhere is for suites"]),
            (["x.csv", "--document-prompt", "passage: "], ["--document-prompt needs --prompt"]),
            (["--suite", "english", "--data", ROOT / "tests"], ["sts12_test.csv is not a file"]),
        ],
    )
    def test_bad_requests(self, cli, trained, tmp_path, arguments, words):
        refused(cli("evaluate", trained.folder, *arguments, "-o", tmp_path / "out"), *words)
        assert not (tmp_path / "out").exists()

    def test_bad_outputs(self, cli, trained, data, tmp_path):
        pairs = data / "eval" / "english" / "sts12_test.csv"
        (tmp_path / "file").touch()
        refused(cli("evaluate", trained.folder, pairs, "-o", tmp_path / "file"), "file is a file")
        refused(cli("evaluate", trained.folder, pairs, "-o", trained.folder / "results"), "in the model's own folder")
        for name in ("mean", "manifest"):
            shutil.copy(pairs, tmp_path / f"{name}.csv")
            refused(cli("evaluate", trained.folder, tmp_path / f"{name}.csv", "-o", tmp_path / "out"), name, "Rename")

    def test_damaged_model(self, cli, trained, data, tmp_path):
        model = tmp_path / "model"
        shutil.copytree(trained.folder, model, ignore=shutil.ignore_patterns("checkpoints"))
        weights = model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
        pairs = data / "eval" / "english" / "sts12_test.csv"
        refused(cli("evaluate", model, pairs, "-o", tmp_path / "out"), "model cannot be opened")

    def test_no_model(self, cli, data, tmp_path):
        (tmp_path / "config.json").write_text("{}")
        for folder in (tmp_path, tmp_path / "nowhere"):
            refused(cli("evaluate", folder, "--suite", "english", "--data", data, "-o", tmp_path / "out"), folder.name)
        assert not (tmp_path / "out").exists()

    def test_hub_tasks_have_the_names_that_mteb_knows(self):
        assert [row.name for row in suites.entries(["retrieval", "classification"])] == [
            "QuoraRetrieval", "ArguAna", "SciFact", "NewsClassification.v2",
        ]  # fmt: skip
        assert [row.task.hf_subsets for row in suites.entries(["semrel"])][:2] == [["afr"], ["amh"]]


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("eval/english/stsb_test.csv", "a,b\n1,2\n", "sent1"),
        ("eval/english/stsb_test.csv", "sent1,sent2,score\nx,y,3\nz,w,3\n", "every pair the score 3.0"),
        ("eval/english/simlex.tsv", "cat\tdog\tmuch\n", "line 1"),
        ("eval/english/simlex.tsv", "cat\tdog\t3\n", "at least 2"),
        ("eval/english/simlex.tsv", "", "is empty"),
        ("eval/english/sst_dev.tsv", "sentence\tlabel\nno tab here\n", "line 2"),
        ("eval/english/mrpc_test.csv", "sent1,sent2,score\nx,y,1\nz,w,2\n", "0 (no paraphrase) and 1"),
        ("classification/trec/test.tsv", "7\tthe cat\n0\ta dog\n", "label '7'"),
        ("classification/trec/train.tsv", "1\tthe cat\n1\ta dog\n", "at least 2"),
        ("retrieval/scifact/corpus.jsonl", "{\n", "line 1"),
        ("retrieval/scifact/queries.jsonl", '{"_id": "q0", "text": "x"}\n', "judges query"),
        ("retrieval/scifact/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq0\td999\t1\n", "'d999'"),
        ("retrieval/scifact/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq0\td1\thigh\n", "line 2"),
        ("retrieval/scifact/qrels/test.tsv", "query-id\tcorpus-id\tscore\n", "no relevant"),
        ("retrieval/scifact/qrels/test.tsv", "q0\td1\t1\nq1\td1\t1\n", "first line must be a header"),
        ("retrieval/scifact/corpus.jsonl", '{"_id": "d", "text": null}\n', "line 1"),
        ("retrieval/scifact/corpus.jsonl", '{"_id": "d", "title": 3, "text": "x"}\n', "line 1"),
    ],
)
def test_bad_files(data, tmp_path, file, content, words):
    """The file is named, and so is the line where there is one; nothing was scored before."""
    shutil.copytree(data, tmp_path / "data")
    (tmp_path / "data" / file).write_text(content)
    with pytest.raises(ValueError, match=re.escape(Path(file).name)) as caught:
        suites.entries(list(suites.LOCAL), tmp_path / "data")
    assert words in str(caught.value)


def test_binary_and_missing_files(data, tmp_path):
    shutil.copytree(data, tmp_path / "data")
    path = tmp_path / "data" / "eval" / "english" / "sst_train.tsv.gz"
    path.write_bytes(b"not gzip")
    with pytest.raises(ValueError, match=r"sst_train\.tsv\.gz is not UTF-8 text, or a damaged"):
        suites.entries(["classification"], tmp_path / "data")
    path.unlink()
    with pytest.raises(ValueError, match="is not a file"):
        suites.entries(["classification"], tmp_path / "data")


def test_mteb_accepts_the_model(encoder):
    """Some of `mteb.mock_run`'s offline tasks, one of each kind; benchmarks/mteb_acceptance.py runs all."""
    from mteb.mocks.mock_run import get_compatible_mock_tasks
    from mteb.models import SentenceTransformerEncoderWrapper

    logging.getLogger("mteb").setLevel(logging.ERROR)
    wrapped = SentenceTransformerEncoderWrapper(encoder)
    kinds = {task.metadata.type: task for task in get_compatible_mock_tasks(wrapped)}
    assert len(kinds) > 8
    results = mteb.evaluate(wrapped, list(kinds.values()), cache=None, co2_tracker=False, show_progress_bar=False)
    assert {found.task_name for found in results.task_results} == {task.metadata.name for task in kinds.values()}


SCRIPTS = {
    "Ethiopic": ["ሰማያዊ ፓርቲ ዛሬ በወቅታዊ የሀገሪቱ ጉዳዮች ላይ ጋዜጣዊ መግለጫ ይከተላል፡፡", "ቀዳሚው የሶማሌ ክልል በ1998 ዓ.ም ፣ «ሕግ» ነው"],
    "Devanagari": ["जरुर दाल में कुछ काला है।", "क़ानून, ज़िंदगी और पढ़ाई: हिन्दी में १२ किताबें", "श्री कृष्ण ने कहा — “हाँ, क्यों नहीं?”"],
    "Arabic": ["وهي أيضا أول القرى النوبية التي هُجِّرت سنة ١٩٦٣", "هَلْ تَتَكَلَّمُ العَرَبِيَّةَ؟ نعم، قليلاً.", "آمن إِسلام ئيل ؤلد"],
    "Latin": ["'n Hoë standaard van beroepsetiek moet bevorder word.", "¿Qué pasó en 1998? ¡Nada, señor Núñez!"],
}


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_no_script_loses_anything(script, kind):
    """Tokenise and detokenise: only case, digits and spacing differ; combining marks stay on their letters."""
    import unicodedata

    texts = SCRIPTS[script]
    tokenizer = train_tokenizer(texts * 20, vocab_size=400, kind=kind, show_progress=False)

    def folded(text: str) -> str:
        kept = unicodedata.normalize("NFKC", text).lower()
        return "".join("0" if unicodedata.category(c) == "Nd" else c for c in kept if not c.isspace())

    for text in texts:
        ids = tokenizer(text).input_ids
        assert tokenizer.unk_token_id not in ids
        assert folded(tokenizer.decode(ids)) == folded(text)


def test_a_byte_order_mark_is_no_letter(tmp_path):
    (tmp_path / "words.tsv").write_text("\ufefftiger\tcat\t3\ndog\tcat\t4\n", encoding="utf-8")
    (tmp_path / "pairs.csv").write_text("\ufeffsent1,sent2,score\na,b,1\nc,d,2\n", encoding="utf-8")
    assert read_word_pairs(tmp_path / "words.tsv").first[0] == "tiger"
    assert read_pairs(tmp_path / "pairs.csv").first == ["a", "c"]
