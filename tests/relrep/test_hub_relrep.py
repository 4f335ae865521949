"""Spaces, attached and stitched models on the loopback Hub."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hub_server import TOKEN, metadata_errors
from huggingface_hub import HfApi, ModelCard, hf_hub_download
from huggingface_hub.errors import RepositoryNotFoundError
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner

from relrep_hf import RelativeSpace, retention_report, space_id, stitch
from relrep_hf.cli import app
from relrep_hf.hub import plan_push
from relrep_hf.report_view import chart


@pytest.fixture(scope="module")
def report(_encoders, _space, held_out):
    pair = {name: _encoders[name] for name in ("s50", "s64")}
    return retention_report(_space, pair, held_out[:60], rivals=False)


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_space(hub, space, report):
    url = space.push_to_hub("me/space", report=report, private=True)
    assert url.startswith(f"{hub.url}/me/space/commit/")
    files = hub.files("me/space")
    assert set(files) == {"space.json", "mixing.safetensors", "report.json", "report.svg", "README.md"}
    pulled = RelativeSpace.from_pretrained("me/space")
    assert pulled.id == space.id
    assert np.array_equal(pulled.mixing, space.mixing)
    card = ModelCard.load("me/space")
    card.validate()
    assert not metadata_errors(str(card))
    own = report["pairs"][0]["methods"]["this space"]["r@1"]["value"]
    for words in (
        space.id, f"| anchors | {space.anchors},", f"| similarity | {space.similarity}", "- s50: 50 dimensions",
        "- s64: 64 dimensions", f"| this space | {100 * own:.1f} ", "![R@1", "(report.svg)", report["verdict"][0],
        'from_pretrained("me/space")',
    ):  # fmt: skip
        assert words in card.text, words
    with pytest.raises(RepositoryNotFoundError):
        RelativeSpace.from_pretrained("me/nothing")


def test_revision_of_a_space(hub, space):
    space.push_to_hub("me/revised")
    smaller = space.sparsified(3)
    smaller.push_to_hub("me/revised", revision="sparse")
    assert RelativeSpace.from_pretrained("me/revised").id == space.id
    assert RelativeSpace.from_pretrained("me/revised", revision="sparse").id == smaller.id


def test_card_keeps_what_people_wrote(hub, space, report):
    space.push_to_hub("me/kept")
    path = Path(hf_hub_download("me/kept", "README.md"))
    text = path.read_text(encoding="utf-8").replace("## Limits", "## Limits\n\n- Only for recipes.")
    text = text.replace("library_name:", "license: mit\nlibrary_name:")
    HfApi().upload_file(path_or_fileobj=text.encode(), path_in_repo="README.md", repo_id="me/kept")
    space.push_to_hub("me/kept", report=report)
    card = ModelCard.load("me/kept")
    assert "- Only for recipes." in card.text
    assert card.data.license == "mit"
    assert report["verdict"][0] in card.text
    space.push_to_hub("me/kept")  # without a report: the figures stay
    assert report["verdict"][0] in ModelCard.load("me/kept").text


def test_command_line(hub, space, report, tmp_path):
    folder = tmp_path / "space"
    space.save(folder)
    (folder / "report.json").write_text(json.dumps(report))
    chart(report, folder / "report.png")
    (folder / "embeddings.pkl").write_bytes(b"x")
    printed = run("push", folder, "me/cli", "--dry-run")
    assert hub.log == []
    assert "Not uploaded (not safetensors: opening it could run code): embeddings.pkl" in printed
    assert "mixing.safetensors" in printed
    printed = run("push", folder, "me/cli", "--license", "mit", "--language", "en", "--base-model", "a/b", "--private")
    assert TOKEN not in printed
    assert hub.repos["me/cli"].private
    assert "embeddings.pkl" not in hub.files("me/cli")
    card = ModelCard.load("me/cli")
    assert (card.data.license, card.data.language, card.data.base_model) == ("mit", ["en"], ["a/b"])
    assert "(report.png)" in card.text
    hub.fail("POST", "/commit/", how=403)
    (folder / "more.json").write_text("{}")
    assert "hf auth login" in run("push", folder, "me/cli", code=1)


def test_refusals(hub, space, encoders, report, tmp_path):
    assert "not a folder" in run("push", tmp_path / "no", "me/x", code=1)
    encoders["s50"].save_pretrained(str(tmp_path / "plain"))
    assert "neither a space" in run("push", tmp_path / "plain", "me/x", code=1)
    space.save(tmp_path / "space")
    other = report | {"space": report["space"] | {"id": "0" * 16}}
    (tmp_path / "space/report.json").write_text(json.dumps(other))
    message = run("push", tmp_path / "space", "me/x", code=1)
    assert space.id in message
    assert "0" * 16 in message
    assert hub.log == []


@pytest.mark.parametrize("kind", ["attached", "stitched"])
def test_models_open_without_a_flag(hub, space, encoders, held_out, tmp_path, kind):
    model = space.attach(encoders["bert"])
    if kind == "stitched":
        model = stitch(query=encoders["s50"], document=encoders["bert"], space=space)
    model.save_pretrained(str(tmp_path / "model"))
    run("push", tmp_path / "model", f"me/{kind}", "--base-model", "a/b")
    opened = SentenceTransformer(f"me/{kind}", device="cpu", trust_remote_code=False)
    assert space_id(opened) == space.id
    assert np.array_equal(opened.encode_query(held_out[:4]), model.encode_query(held_out[:4]))
    assert np.array_equal(opened.encode_document(held_out[:4]), model.encode_document(held_out[:4]))
    card = ModelCard.load(f"me/{kind}")
    assert not metadata_errors(str(card))
    assert space.id in card.text
    assert f'SentenceTransformer("me/{kind}")' in card.text
    assert "relative-representations" in card.data.tags
    assert card.data.base_model == ["a/b"]
    model.push_to_hub(f"me/{kind}-by-itself")  # sentence-transformers' own method writes the same card
    assert space.id in ModelCard.load(f"me/{kind}-by-itself").text


def test_plan_knows_the_code_of_an_encoder_inside_a_router(space, encoders, tmp_path):
    """It is looked for in the root of a repository, wherever the encoder lies."""
    stitch(query=encoders["s50"], document=encoders["bert"], space=space).save_pretrained(str(tmp_path / "m"))
    inner = next(path for path in (tmp_path / "m").iterdir() if path.is_dir())
    (inner / "modeling_x.py").write_text("")
    plan, _ = plan_push(tmp_path / "m", "me/x")
    assert plan.files["modeling_x.py"] == inner / "modeling_x.py"
