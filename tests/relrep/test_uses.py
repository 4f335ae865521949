"""What a space is for: stitching, heads, migration, the report, the command line, the Hub."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.svm import SVC
from typer.testing import CliRunner

from relrep_hf import RelativeHead, RelativeSpace, retention_report, space_id, stitch
from relrep_hf.cli import app
from relrep_hf.metrics import ranks
from relrep_hf.report import RIVAL_SPACES
from relrep_hf.report_tasks import Task
from relrep_hf.report_view import chart, tables
from relrep_hf.similarity import unit


def labels_of(texts: list[str]) -> list[str]:
    return ["animal" if any(word in text.split()[:4] for word in ("cat", "dog", "bird")) else "other" for text in texts]


def test_stitch(space, encoders, held_out, tmp_path) -> None:
    model = stitch(query=encoders["s50"], document=encoders["bert"], space=space)
    query, document = space.attach(encoders["s50"]), space.attach(encoders["bert"])
    np.testing.assert_allclose(model.encode_query(held_out[:5]), query.encode(held_out[:5]), atol=1e-6)
    np.testing.assert_allclose(model.encode_document(held_out[:5]), document.encode(held_out[:5]), atol=1e-5)
    np.testing.assert_allclose(model.encode(held_out[:5]), document.encode(held_out[:5]), atol=1e-5)
    assert model.get_embedding_dimension() == space.anchors
    assert space_id(model) == space.id
    model.save_pretrained(str(tmp_path / "stitched"))
    again = SentenceTransformer(str(tmp_path / "stitched"), device="cpu")
    assert space_id(again) == space.id
    np.testing.assert_allclose(again.encode_query(held_out[:5]), query.encode(held_out[:5]), atol=1e-6)


def test_stitch_uses_the_prompt_of_each_side(space, encoders, held_out) -> None:
    encoders["s50"].prompts["query"] = "the old "
    encoders["s64"].prompts["document"] = "a red "
    model = stitch(query=space.attach(encoders["s50"]), document=space.attach(encoders["s64"]))
    query, document = space.attach(encoders["s50"]), space.attach(encoders["s64"])
    np.testing.assert_allclose(model.encode_query(held_out[:3]), query.encode_query(held_out[:3]), atol=1e-6)
    np.testing.assert_allclose(model.encode_document(held_out[:3]), document.encode_document(held_out[:3]), atol=1e-6)


def test_a_prompt_for_passages_is_that_of_documents(space, encoders, held_out) -> None:
    """E5 names it so; sentence-transformers' encode_document finds it by that name too."""
    encoder = copy.deepcopy(encoders["s64"])
    encoder.prompts = {"query": "a cat ", "passage": "a dog "}
    attached = space.attach(encoder)
    assert attached.prompts == encoder.prompts
    model = stitch(query=attached, document=attached)
    assert model.prompts == {"query": "a cat ", "document": "a dog "}
    np.testing.assert_allclose(model.encode_document(held_out[:3]), attached.encode_document(held_out[:3]), atol=1e-6)


def test_stitch_refuses_two_spaces(space, encoders, texts) -> None:
    other = RelativeSpace.fit(encoders["s50"], texts[:90], anchors=20, show_progress=False)
    with pytest.raises(ValueError, match=f"{space.id} is not space {other.id}"):
        stitch(query=space.attach(encoders["s50"]), document=other.attach(encoders["s64"]))
    with pytest.raises(ValueError, match="document encoder is in no space"):
        stitch(query=space.attach(encoders["s50"]), document=encoders["s64"])


def test_head_travels_between_encoders(space, encoders, texts, held_out, tmp_path) -> None:
    a, b = space.attach(encoders["s50"]), space.attach(encoders["s64"])
    head = RelativeHead.fit(a, texts, labels_of(texts))
    truth = np.array(labels_of(held_out))
    own = (RelativeHead.fit(b, texts, labels_of(texts)).predict(held_out, b) == truth).mean()
    assert (head.predict(held_out, b) == truth).mean() > own - 0.05
    head.save(tmp_path / "head")
    again = RelativeHead.load(tmp_path / "head")
    assert (again.predict(held_out, b) == head.predict(held_out, b)).all()
    assert again.space == space.id
    other = RelativeSpace.fit(encoders["s50"], texts[:90], anchors=20, show_progress=False)
    with pytest.raises(ValueError, match=f"belongs to space {space.id}, the model to {other.id}"):
        head.predict(held_out, other.attach(encoders["s50"]))
    with pytest.raises(ValueError, match=r"needs \(texts, 20\)"):
        head.predict(encoders["s50"].encode(held_out))
    with pytest.raises(ValueError, match="600 texts, but 3 labels"):
        RelativeHead.fit(a, texts, [1, 2, 3])
    with pytest.raises(ValueError, match="holds no head"):
        RelativeHead.load(tmp_path)


def test_head_takes_over_estimators(space, encoders, texts) -> None:
    model = space.attach(encoders["s50"])
    vectors = unit(model.encode(texts[:200]))
    three = np.arange(200) % 3
    logistic = LogisticRegression().fit(vectors, three)
    assert (RelativeHead.from_estimator(logistic, space=model).predict(vectors) == logistic.predict(vectors)).all()
    ridge = Ridge().fit(vectors, np.arange(200.0))
    np.testing.assert_allclose(
        RelativeHead.from_estimator(ridge, space=space.id).predict(vectors), ridge.predict(vectors)
    )
    linear = torch.nn.Linear(20, 4)
    with torch.no_grad():
        expected = linear(torch.tensor(vectors, dtype=torch.float32)).argmax(dim=1).numpy()
    assert (RelativeHead.from_estimator(linear, space=model).predict(vectors) == expected).all()
    with pytest.raises(ValueError, match="has no coef_"):
        RelativeHead.from_estimator(object(), space=model)


def test_head_refuses_what_is_not_linear() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 6))
    y = (x[:, :3] + 0.1).argmax(axis=1)
    for estimator, target in ((SVC(kernel="linear"), y), (PoissonRegressor(), np.exp(x[:, 0]))):
        with pytest.raises(ValueError, match="predicts otherwise"):
            RelativeHead.from_estimator(estimator.fit(x, target), space="0" * 16)
    several = Ridge().fit(x, x[:, :2])
    rows = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(
        RelativeHead.from_estimator(several, space="0" * 16).predict(x), several.predict(rows), rtol=1e-6
    )
    two = torch.nn.Linear(6, 2)
    with torch.no_grad():
        expected = two(torch.from_numpy(rows).float()).argmax(dim=1).numpy()
    head = RelativeHead.from_estimator(two, space="0" * 16)
    assert np.array_equal(head.predict(x), expected)
    assert head.predict(np.zeros((0, 6))).shape == (0,)
    with pytest.raises(ValueError, match="NaN"):
        head.predict(np.full((1, 6), np.nan))
    with pytest.raises(ValueError, match="intercept of 5"):
        RelativeHead(np.zeros((1, 6)), np.zeros(5), space="0" * 16)
    mixed = RelativeHead(np.eye(3), np.zeros(3), space="0" * 16, classes=[1, "b", 2.5])
    assert mixed.predict(np.eye(3)).tolist() == [1, "b", 2.5]


def test_files_of_two_heads_are_not_mixed(tmp_path) -> None:
    one = RelativeHead(np.ones((1, 3)), [0.0], space="0" * 16, classes=["neg", "pos"])
    other = RelativeHead(-np.ones((1, 3)), [0.0], space="0" * 16, classes=["pos", "neg"])
    one.save(tmp_path / "one")
    other.save(tmp_path / "other")
    (tmp_path / "other/head.json").replace(tmp_path / "one/head.json")
    with pytest.raises(ValueError, match=r"mixes the head\.json"):
        RelativeHead.load(tmp_path / "one")


def test_head_is_recentred_on_unlabelled_texts(space, encoders, texts, held_out, tmp_path) -> None:
    a, b = space.attach(encoders["s50"]), space.attach(encoders["s64"])
    head = RelativeHead.fit(a, texts, labels_of(texts))
    np.testing.assert_allclose(head.mean, a.encode(texts).mean(axis=0), atol=1e-5)
    # On the encoder and the texts it was trained on there is nothing to shift.
    assert (head.predict(held_out, a, centre_on=texts) == head.predict(held_out, a)).all()
    # An encoder whose vectors lie somewhere else altogether is brought back; without the shift it is lost.
    moved = b.encode(held_out) + 100 * head.coefficients[0] / np.linalg.norm(head.coefficients[0])
    centred = head.predict(moved, centre_on=moved)
    assert (centred == head.predict(held_out, b, centre_on=held_out)).all()
    assert len(set(head.predict(moved))) == 1 < len(set(centred))
    head.save(tmp_path / "head")
    again = RelativeHead.load(tmp_path / "head")
    assert (again.predict(moved, centre_on=moved) == centred).all()
    bare = RelativeHead(head.coefficients, head.intercept, space=space.id, classes=head.classes)
    with pytest.raises(ValueError, match="does not know the mean"):
        bare.predict(moved, centre_on=moved)
    with pytest.raises(ValueError, match=r"mean has shape \(3,\), but the head 20 anchors"):
        RelativeHead(head.coefficients, head.intercept, space=space.id, classes=head.classes, mean=[1, 2, 3])
    with pytest.raises(ValueError, match="Texts need the model"):
        head.predict(held_out)
    with pytest.raises(ValueError, match="not the one string"):
        head.predict(held_out[0], b)


def test_translate_moves_an_index_without_its_texts(encoders, texts, held_out, tmp_path) -> None:
    pair = {name: encoders[name] for name in ("s24", "s50")}
    space = RelativeSpace.fit(pair, texts, anchors=60, show_progress=False)
    old, new = encoders["s24"].encode(held_out), encoders["s50"].encode(held_out)
    moved = space.translate(old, encoders["s24"], encoders["s50"])
    assert moved.shape == new.shape
    assert (ranks(moved - new.mean(axis=0), new - new.mean(axis=0)) == 1).mean() > 0.9
    np.save(tmp_path / "old.npy", old)
    mapped = np.load(tmp_path / "old.npy", mmap_mode="r")
    out = np.lib.format.open_memmap(tmp_path / "new.npy", mode="w+", dtype=np.float32, shape=new.shape)
    space.translate(mapped, encoders["s24"], encoders["s50"], out=out, batch_size=7)
    np.testing.assert_allclose(out, moved, atol=1e-5)
    attached = [space.attach(encoder) for encoder in pair.values()]
    np.testing.assert_allclose(space.translate(old, *attached), moved, atol=1e-5)
    with pytest.raises(ValueError, match="source encoder has 24 dimensions"):
        space.translate(new, encoders["s24"], encoders["s50"])
    with pytest.raises(ValueError, match="out has shape"):
        space.translate(old, encoders["s24"], encoders["s50"], out=np.zeros((1, 2), np.float32))


def test_moved_vectors_have_length_one_where_the_target_s_have(encoders, texts, held_out) -> None:
    """Else an index that ranks by inner product would rank by what moving left of their lengths."""
    unit_length = SentenceTransformer(modules=[*encoders["s24"].children(), Normalize()], device="cpu")
    pair = {"unit": unit_length, "s50": encoders["s50"]}
    space = RelativeSpace.fit(pair, texts, anchors=20, selector="random", show_progress=False)
    moved = space.translate(encoders["s50"].encode(held_out), encoders["s50"], unit_length)
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 1, atol=1e-5)
    back = space.translate(unit_length.encode(held_out), unit_length, encoders["s50"])
    assert np.ptp(np.linalg.norm(back, axis=1)) > 0.01
    with pytest.raises(ValueError, match="Vector 1 is not finite"):
        space.translate(np.array([[0.0] * 50, [np.nan] * 50]), encoders["s50"], unit_length)


def test_translating_to_itself_is_the_identity_where_anchors_see_everything(encoders, texts, held_out) -> None:
    pair = {name: encoders[name] for name in ("s24", "s50")}
    for similarity in ("wip", "cosine"):
        space = RelativeSpace.fit(pair, texts, anchors=60, similarity=similarity, show_progress=False)
        old = encoders["s24"].encode(held_out)
        expected = unit(old) if similarity == "cosine" else old
        moved = space.translate(old, encoders["s24"], encoders["s24"], rcond=1e-9)
        np.testing.assert_allclose(moved, expected, atol=2e-3)


@pytest.fixture(scope="module")
def report_inputs(_encoders, _space, texts, held_out):
    pair = {name: _encoders[name] for name in ("s50", "s64")}
    task = Task(texts[:300], labels_of(texts[:300]), held_out, labels_of(held_out))
    return _space, pair, held_out, {"animals": task}


def test_report_has_every_rival_pair_and_interval(report_inputs, tmp_path) -> None:
    space, pair, held_out, tasks = report_inputs
    report = retention_report(space, pair, held_out, tasks=tasks)
    assert json.loads(json.dumps(report)) == report
    methods = {"this space", *RIVAL_SPACES, "procrustes", "ridge", "cca"}
    assert [(p["source"], p["target"]) for p in report["pairs"]] == [("s50", "s64"), ("s64", "s50")]
    for pair_record in report["pairs"]:
        assert set(pair_record["methods"]) == methods
        for record in pair_record["methods"].values():
            for key in ("r@1", "r@10", "mrr", "jaccard@10", "paired_distance"):
                assert record[key]["low"] <= record[key]["value"] <= record[key]["high"]
            assert 1 <= record["effective_rank"] <= 64
    assert {record["method"] for record in report["tasks"]["animals"]} == methods
    assert len(report["tasks"]["animals"]) == 2 * len(methods)
    assert [len(records) for records in report["alone"].values()] == [2]
    assert len(report["verdict"]) == 5
    chart(report, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 1000


def test_report_refuses_texts_it_was_fitted_on(report_inputs) -> None:
    space, pair, held_out, _ = report_inputs
    with pytest.raises(ValueError, match="1 of 3 held-out texts were used in fitting"):
        retention_report(space, pair, [space.support[0], *held_out[:2]])


def test_report_of_a_cosine_space_with_fewer_texts_than_dimensions(report_inputs, texts) -> None:
    _, pair, held_out, _ = report_inputs
    space = RelativeSpace.fit(pair, texts[:40], anchors=10, similarity="cosine", selector="random", show_progress=False)
    report = retention_report(
        space, pair, held_out[:60]
    )  # its WIP rival has to shrink, though this space has no shrinkage
    assert "random + WIP" in report["pairs"][0]["methods"]


def test_report_of_one_encoder(report_inputs, tmp_path) -> None:
    space, pair, held_out, tasks = report_inputs
    both = retention_report(space, pair, held_out, tasks=tasks, rivals=False)
    report = retention_report(space, pair["s50"], held_out, tasks=tasks)
    assert json.loads(json.dumps(report)) == report
    assert report["pairs"] == []
    assert report["tasks"] == {}
    (record,) = report["alone"]["animals"]
    assert record == both["alone"]["animals"][0] | {"encoder": "encoder_0"}  # nobody else changes what one loses
    lost = 100 * (record["absolute"]["value"] - record["relative"]["value"])
    assert record["loss_points"]["low"] <= record["loss_points"]["value"] <= record["loss_points"]["high"]
    assert record["loss_points"]["value"] == pytest.approx(lost)
    ranks_of = report["encoders"]["encoder_0"]["effective_rank"]
    assert 1 <= ranks_of["relative"] <= space.anchors
    assert 1 <= ranks_of["absolute"] <= 50
    assert len(report["verdict"]) == 1
    assert "alone loses" in report["verdict"][0]
    printed = io.StringIO()
    Console(file=printed, width=120).print(tables(report))
    assert "one encoder alone" in printed.getvalue()
    assert "two encoders" not in printed.getvalue()
    with pytest.raises(ValueError, match="this report is of one"):
        chart(report, tmp_path / "chart.png")


def test_command_line(encoders, texts, held_out, tmp_path) -> None:
    for name in ("s24", "s50"):
        encoders[name].save_pretrained(str(tmp_path / name))
    (tmp_path / "fit.txt").write_text("\n".join([*texts, ""]))
    (tmp_path / "dev.txt").write_text("\n".join(held_out))
    for name, part in (("train", texts[:200]), ("test", held_out)):
        rows = [f"{label}\t{text}" for label, text in zip(labels_of(part), part, strict=True)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(rows))

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result.output

    for command in ("fit", "attach", "report", "translate"):
        assert f"Example: relrep {command}" in " ".join(run(command, "--help").split())
    at = lambda name: str(tmp_path / name)  # noqa: E731
    models = [at("s24"), f"big={at('s50')}"]
    run("fit", *models, "--texts", at("fit.txt"), "--output", at("space"), "--anchors", "40", "--cache", at("cache"))
    space = RelativeSpace.load(tmp_path / "space")
    assert list(space.encoders) == ["s24", "big"]
    run("attach", at("space"), models[1], "--output", at("attached"), "--cache", at("cache"))
    assert space_id(SentenceTransformer(at("attached"), device="cpu")) == space.id
    assert "exists already" in run("attach", at("space"), models[1], "--output", at("attached"), code=1)
    output = run(
        "report", at("space"), *models, "--texts", at("dev.txt"), "--output", at("report.json"), "--chart", at("c.svg"),
        "--task", f"animals={at('train.tsv')},{at('test.tsv')}", "--cache", at("cache"),
    )  # fmt: skip
    assert "this space" in output
    assert "animals" in json.loads((tmp_path / "report.json").read_text())["tasks"]
    np.save(tmp_path / "old.npy", encoders["s24"].encode(held_out))
    run(
        "translate", at("space"), at("old.npy"), "--source", at("s24"), "--target", at("s50"), "--output", at("new.npy")
    )
    assert np.load(tmp_path / "new.npy").shape == (len(held_out), 50)
    sides = ("--source", at("s24"), "--target", at("s50"), "--output")
    assert "must be a new .npy file" in run("translate", at("space"), at("old.npy"), *sides, at("old.npy"), code=1)
    assert "must be a new .npy file" in run("translate", at("space"), at("old.npy"), *sides, at("no/new.npy"), code=1)
    np.save(tmp_path / "flat.npy", np.zeros(3))
    assert "shape (3,)" in run("translate", at("space"), at("flat.npy"), *sides, at("z.npy"), code=1)
    late = ("report", at("space"), *models, "--texts", at("dev.txt"))
    assert "does not exist" in run(*late, "--output", at("no/report.json"), code=1)
    assert "known: .png" in run(*late, "--chart", at("c.foo"), code=1)
    assert "not that of a space" in _with(tmp_path / "space/space.json", "[]", lambda: run(*late, code=1))
    assert "damaged space" in _with(tmp_path / "space/mixing.safetensors", "x", lambda: run(*late, code=1))
    message = run("fit", at("s24"), "--texts", at("dev.txt"), "--output", at("x"), "--anchors", "999", code=1)
    assert "anchors=999" in message
    assert not (tmp_path / "x").exists()
    run(
        "translate",
        at("space"),
        at("old.npy"),
        "--source",
        at("s50"),
        "--target",
        at("s24"),
        "--output",
        at("y.npy"),
        code=1,
    )
    assert not list(tmp_path.glob("*y*.tmp"))
    assert not list(tmp_path.glob(".y*"))


def _with(path: Path, content: str, run: Callable[[], str]) -> str:
    """What is printed while a file holds something else."""
    before = path.read_bytes()
    path.write_text(content)
    try:
        return run()
    finally:
        path.write_bytes(before)
