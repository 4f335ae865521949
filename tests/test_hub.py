"""`banyan push` and the protocol behind it, against the loopback Hub."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hub_server import TOKEN, metadata_errors
from huggingface_hub import HfApi, ModelCard, constants
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from support import assert_same

from banyan_hf import BanyanForPreTraining, BanyanModel, cards
from banyan_hf.hub import plan_banyan, plan_folder, push
from banyan_hf.model.code_files import AUTO_MAP, code_files
from banyan_hf.persistence import load_encoder

CODE = {path.name for path in code_files()}
ST_FILES = {"modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"}
TOKENIZER = {"tokenizer.json", "tokenizer_config.json"}
COMPLETE = {"config.json", "model.safetensors", "README.md"} | CODE | ST_FILES | TOKENIZER


@pytest.fixture
def folder(trained, tmp_path) -> Path:
    """A finished run, with the rubbish that lies beside a model."""
    target = tmp_path / "model"
    shutil.copytree(trained.folder, target)
    assert (target / "checkpoints").is_dir()
    for name in ("optimizer.pt.tmp", ".secret", "notes.pkl", "__pycache__/x.pyc", "sub/scheduler.pt"):
        (target / name).parent.mkdir(exist_ok=True)
        (target / name).write_text("x")
    return target


def puts(hub) -> list[str]:
    return [line for line in hub.log if line.startswith("PUT")]


def test_push_and_pull(cli, hub, folder):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code, printed = cli("push", folder, "me/new", "--language", "en", "--license", "apache-2.0")
    assert code == 0, printed
    assert f"{hub.url}/me/new/commit/" in printed
    assert set(hub.files("me/new")) == COMPLETE
    assert hub.repos["me/new"].titles == ["initial commit", "Upload with banyan-hf"]  # one commit: never half a model
    assert json.loads(hub.files("me/new")["config.json"])["auto_map"] == AUTO_MAP
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    model, tokenizer = load_encoder("me/new")
    local, _ = load_encoder(str(folder))
    for name, value in local.state_dict().items():
        assert_same(model.state_dict()[name], value)
    assert tokenizer("the old cat").input_ids


def test_files_for_sentence_transformers_are_never_missing(folder):
    """Without them it would take the mean of the token vectors, silently."""
    for name in ST_FILES:
        (folder / name).unlink()
    assert set(plan_banyan(folder).files) >= ST_FILES


def test_dry_run_sends_nothing(cli, hub, folder):
    code, printed = cli("push", folder, "me/dry", "--dry-run")
    assert code == 0, printed
    assert hub.log == []
    assert all(name in printed for name in COMPLETE)
    size = (folder / "model.safetensors").stat().st_size
    assert f"{size:,}" in printed
    for word in ("checkpoint", "training state", "not safetensors", "hidden", "run.json", "nothing was uploaded"):
        assert word in printed, word


def test_what_lies_beside_a_model_stays(folder):
    """A training text and its vectors are often private, and never needed to open the model."""
    beside = ("train.txt", "deep/sentences.txt.gz", "vectors.npy", "credentials.json", "id.pem", "pairs.csv", "run.log")
    part_of_models = ("vocab.txt", "merges.txt", "LICENSE.txt", "1_Dense/config.json", "picture.png")
    for name in (*beside, *part_of_models):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    plan = plan_banyan(folder)
    assert not set(beside) & set(plan.files)
    assert set(beside) <= set(plan.stays)
    assert set(part_of_models) <= set(plan.files)


def test_no_token_is_printed_or_uploaded(cli, hub, folder):
    printed = [cli("push", folder, "me/token")[1], cli("push", folder, "me/token", "--revision", "v2")[1]]
    hub.fail("POST", "commit", how=403)
    (folder / "more.json").write_text("{}")
    code, refusal = cli("push", folder, "me/token")
    assert code == 1
    assert "hf auth login" in refusal
    assert TOKEN not in "".join(printed) + refusal
    assert not any(TOKEN.encode() in content for content in hub.files("me/token").values())


def test_wrong_token(cli, hub, folder, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_somebody_else")
    code, printed = cli("push", folder, "me/x")
    assert code == 1
    assert "hf auth login" in printed
    assert "somebody_else" not in printed
    assert not hub.repos


@pytest.mark.parametrize("offline", [False, True])
def test_no_hub(cli, hub, folder, monkeypatch, offline):
    """The Hub does not answer, or one is offline: one sentence, and no card was decided on that is not known."""
    if offline:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    else:
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        hub.fail("HEAD", "/resolve/", times=20)
        hub.fail("GET", "/", times=20)
    code, printed = cli("push", folder, "me/x")
    hub.faults.clear()
    assert code == 1
    assert "cannot be reached" in printed
    assert not hub.repos


class TestRefusals:
    def test_checkpoint(self, cli, hub, folder):
        checkpoint = next((folder / "checkpoints").glob("checkpoint-*"))
        code, printed = cli("push", checkpoint, "me/x")
        assert code == 1
        assert "is a checkpoint of a training run" in printed
        assert hub.log == []

    def test_large_file(self, folder):
        with pytest.raises(ValueError, match=r"has [\d,]+ bytes, more than the limit of 999"):
            plan_folder(folder, max_file_size=999)

    def test_large_file_on_the_command_line(self, cli, hub, folder):
        with (folder / "video.mp4").open("wb") as file:
            file.truncate(3_000_001)
        code, printed = cli("push", folder, "me/x", "--max-file-size", 3)
        assert code == 1
        assert "video.mp4 has 3,000,001 bytes" in printed
        assert hub.log == []

    def test_link_out_of_the_folder(self, folder, tmp_path):
        (tmp_path / "id_rsa").write_text("private")
        (folder / "notes.md").symlink_to(tmp_path / "id_rsa")
        with pytest.raises(ValueError, match=r"notes.md is a link to .*id_rsa"):
            plan_folder(folder)
        (folder / "notes.md").unlink()
        (folder / "assets").symlink_to(tmp_path)
        with pytest.raises(ValueError, match="assets is a link"):
            plan_folder(folder)

    def test_no_weights(self, folder):
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(b"x")
        with pytest.raises(ValueError, match="holds no weights"):
            plan_folder(folder)

    def test_no_tokenizer(self, folder):
        (folder / "tokenizer.json").unlink()
        with pytest.raises(ValueError, match="no tokenizer"):
            plan_banyan(folder)

    def test_another_model(self, folder):
        (folder / "config.json").write_text('{"model_type": "bert"}')
        with pytest.raises(ValueError, match="'bert'"):
            plan_banyan(folder)

    @pytest.mark.parametrize("name", ["a/b/c", "me/..", "-x/y", "me/x.git", "me/a b", "alone"])
    def test_names(self, cli, hub, folder, name):
        code, printed = cli("push", "--", folder, name)
        assert code == 1
        assert "owner/name" in printed
        assert hub.log == []

    def test_public_where_private_is_wanted(self, cli, hub, folder):
        HfApi().create_repo("me/open")
        code, printed = cli("push", folder, "me/open", "--private")
        assert code == 1
        assert "public" in printed
        assert not hub.files("me/open")

    def test_card_that_the_hub_would_refuse(self, cli, hub, folder):
        code, printed = cli("push", folder, "me/bad", "--language", "english!")
        assert code == 1
        assert "ISO 639" in printed
        assert not hub.repos


def test_private(cli, hub, folder, monkeypatch):
    assert cli("push", folder, "me/mine", "--private")[0] == 0
    assert hub.repos["me/mine"].private
    assert cli("push", folder, "me/mine", "--private")[0] == 0
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(RepositoryNotFoundError):
        HfApi().model_info("me/mine")


def test_revisions(cli, hub, folder):
    """A branch of its own, a tag, and a pinned commit that later pushes do not move."""
    assert cli("push", folder, "me/rev")[0] == 0
    first = hub.repos["me/rev"].branches["main"]
    HfApi().create_tag("me/rev", tag="v1")
    model = BanyanModel.from_pretrained(folder)
    model.compose.bias.data += 1
    model.save_pretrained(folder)
    assert cli("push", folder, "me/rev", "--revision", "next")[0] == 0
    assert hub.repos["me/rev"].branches["main"] == first
    bias = {
        name: float(BanyanModel.from_pretrained("me/rev", revision=name).compose.bias.detach().flatten()[0])
        for name in ("main", "next", "v1", first)
    }
    assert bias["main"] == bias["v1"] == bias[first] == pytest.approx(bias["next"] - 1)
    with pytest.raises((RevisionNotFoundError, OSError)):
        BanyanModel.from_pretrained("me/rev", revision="nowhere")
    refs = HfApi().list_repo_refs("me/rev")
    assert {ref.name for ref in refs.branches} == {"main", "next"}
    assert [ref.name for ref in refs.tags] == ["v1"]


def test_nothing_new(cli, hub, folder):
    assert cli("push", folder, "me/same")[0] == 0
    commits = len(hub.repos["me/same"].titles)
    hub.log.clear()
    assert cli("push", folder, "me/same")[0] == 0
    assert len(hub.repos["me/same"].titles) == commits
    assert not puts(hub)


def test_connection_cut_in_the_middle_of_the_weights(hub, folder, monkeypatch):
    """The client tries again by itself, and what arrives is whole."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.fail("PUT", "/lfs/")
    push(plan_banyan(folder), "me/cut")
    assert len(puts(hub)) == 2
    assert hub.files("me/cut")["model.safetensors"] == (folder / "model.safetensors").read_bytes()


def test_push_that_was_interrupted_is_repeated(hub, folder):
    """After the weights, before the commit: nobody sees half a model, and the weights are not sent again."""
    hub.fail("POST", "/commit/", how=400)
    with pytest.raises(HfHubHTTPError):
        push(plan_banyan(folder), "me/again")
    assert len(puts(hub)) == 1
    assert not hub.files("me/again")
    push(plan_banyan(folder), "me/again")
    assert len(puts(hub)) == 1
    assert set(hub.files("me/again")) == COMPLETE - {"README.md"}


def test_weights_go_as_lfs_and_text_does_not(cli, hub, folder):
    assert cli("push", folder, "me/lfs")[0] == 0
    files = hub.repos["me/lfs"].commits[hub.repos["me/lfs"].branches["main"]]
    assert [path for path, file in files.items() if file.lfs] == ["model.safetensors"]
    listed = {entry.path: entry for entry in HfApi().list_repo_tree("me/lfs")}
    assert listed["model.safetensors"].lfs.size == (folder / "model.safetensors").stat().st_size


@pytest.mark.parametrize("kind", [BanyanModel, BanyanForPreTraining])
def test_push_to_hub_of_a_model(hub, folder, kind):
    """transformers' own method; the card says how to open the model, and one that is there is kept."""
    model = kind.from_pretrained(folder)
    model.push_to_hub("me/object", private=True)
    files = hub.files("me/object")
    assert set(files) == COMPLETE - TOKENIZER
    assert b"trust_remote_code=True" in files["README.md"]
    assert b"More Information Needed" not in files["README.md"]
    assert not metadata_errors(files["README.md"].decode())
    api = HfApi()
    api.upload_file(path_or_fileobj=b"# mine\n", path_in_repo="README.md", repo_id="me/object")
    model.push_to_hub("me/object", revision="other")
    assert b"# mine" in hub.files("me/object", "other")["README.md"]


def test_save_pretrained_with_push(hub, folder, tmp_path):
    BanyanModel.from_pretrained(folder).save_pretrained(tmp_path / "saved", push_to_hub=True, repo_id="me/saved")
    assert set(hub.files("me/saved")) == COMPLETE - TOKENIZER


def test_mteb_registration(cli, hub, folder):
    pytest.importorskip("mteb")
    assert cli("push", folder, "me/tiny-model")[0] == 0
    code, printed = cli("mteb-meta", "me/nothing")
    assert code == 1
    code, printed = cli("mteb-meta", "me/tiny-model", "--model", folder, "--language", "eng-Latn", "--license", "mit")
    assert code == 0, printed
    from banyan_hf.registration import model_meta_code

    sha = hub.repos["me/tiny-model"].branches["main"]
    assert sha in printed
    text = model_meta_code(folder, "me/tiny-model", revision=sha, languages=["eng-Latn"], license="mit")
    entry: dict = {}
    exec(text, entry)  # what a pull request would hold
    meta = entry["tiny_model"]
    assert (meta.name, meta.revision, meta.embed_dim, meta.max_tokens) == ("me/tiny-model", sha, 32, 512)
    model = meta.load_model(device="cpu")  # by MTEB's own loader, from the Hub
    assert model.model.encode(["the old cat"]).shape == (1, 32)


def test_card_is_the_hubs(cli, hub, folder):
    """huggingface_hub's own reader and validator accept what was pushed."""
    assert cli("push", folder, "me/card", "--language", "en", "--license", "mit")[0] == 0
    card = ModelCard.load("me/card")
    card.validate()
    assert card.data.library_name == "sentence-transformers"
    assert card.data.license == "mit"
    assert "banyan" in card.data.tags
    assert not cards.is_default(str(card))
