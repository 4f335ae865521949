"""Model cards: metadata that the Hub takes, figures from result files only, what people wrote kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hub_server import metadata_errors
from huggingface_hub import HfApi, ModelCard
from sentence_transformers import SentenceTransformer
from support import ROOT

from banyan_hf import cards, default_model
from banyan_hf.cards import Results, banyan_card, refresh, score_table

SCORES = {"sts12": 52.1771, "sts13": 64.0303}


@pytest.fixture
def results(tmp_path):
    """A folder as `banyan evaluate` makes it; figures are given by task."""

    def write(name: str, scores: dict[str, float | None], *, suite: str = "english") -> str:
        tasks = {
            task: {"suite": suite, "type": "STS", "main_score": "cosine_spearman", "score": score,
                   "data": {"path": f"local/{task}", "revision": "1"}}
            for task, score in scores.items()
        }  # fmt: skip
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "manifest.json").write_text(json.dumps({"model": name, "tasks": tasks}))
        return str(tmp_path / name)

    return write


def test_template_with_everything(trained, results):
    chosen = {"language": "en", "license": "cc-by-sa-3.0", "datasets": ["wikimedia/wikipedia"]}
    own, other = Results.read(f"root={results('a', SCORES)}"), Results.read(results("b", {"sts12": 1, "sts13": 2}))
    card = banyan_card(trained.folder, name="me/model", results=[own, other], chosen=chosen)
    assert not metadata_errors(str(card))
    data = ModelCard(str(card)).data
    assert data.to_dict() | {"tags": None} == data.to_dict() | chosen | {"tags": None}
    assert data.pipeline_tag == "sentence-similarity"
    assert data.model_name == "model"
    assert [(r.dataset_name, r.metric_type, r.metric_value) for r in data.eval_results] == [
        ("sts12", "cosine_spearman", 52.18), ("sts13", "cosine_spearman", 64.03),
    ]  # fmt: skip
    for words in (
        'SentenceTransformer("me/model", trust_remote_code=True)', "| root | 52.18 | 64.03 | 58.10 |",
        "| b | 1.00 | 2.00 | 1.50 |", "32 numbers, compared by cosine", "learning rate 0.02", "batches of 32",
        f"{trained.steps:,} steps ({trained.passes:.1f} passes over 600 sentences",
    ):  # fmt: skip
        assert words in card.text, words
    config = SentenceTransformer(str(trained.folder), device="cpu")[0].auto_model
    assert f"| parameters | {config.num_parameters():,}, of which" in card.text


def test_template_with_nothing(trained):
    folder = trained.folder
    card = banyan_card(folder, name="me/model")
    assert not metadata_errors(str(card))
    assert card.data.license is None
    assert card.data.eval_results is None
    assert "Not measured." in card.text
    assert "None" not in str(card)
    assert "{{" not in str(card)


def test_suites_get_a_table_each(results):
    both = json.loads(Path(results("a", SCORES), "manifest.json").read_text())["tasks"]
    both["simlex"] = both["sts12"] | {"suite": "lexical", "score": 40.0}
    table = score_table([Results("m", both)])
    assert table.count("| model |") == 2
    assert "| m | 40.00 | 40.00 |" in table


def test_bad_results(results, tmp_path, trained):
    with pytest.raises(ValueError, match=r"holds no manifest.json.*banyan evaluate"):
        Results.read(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"no score of sts13.*--resume"):
        Results.read(results("a", {"sts12": 1.0, "sts13": None}))
    with pytest.raises(ValueError, match="no score of all"):
        Results.read(results("b", {}))
    (tmp_path / "b/manifest.json").write_text("[")
    with pytest.raises(ValueError, match="no manifest of an evaluation"):
        Results.read(str(tmp_path / "b"))
    less = Results.read(results("c", {"sts12": 1.0}))
    with pytest.raises(ValueError, match="c has no score of sts13, which d has"):
        score_table([Results.read(results("d", SCORES)), less])


class TestRefresh:
    @pytest.fixture
    def fresh(self, trained, results) -> ModelCard:
        return banyan_card(trained.folder, name="me/x", results=[Results.read(f"root={results('a', SCORES)}")])

    def test_is_idempotent(self, fresh):
        assert str(refresh(str(fresh), fresh, chosen={})) == str(fresh)

    def test_keeps_words_and_renews_figures(self, fresh, trained, results):
        text = (
            str(fresh)
            .replace("## Limits", "## Limits\n\n- Mine.")
            .replace("library_name:", "license: mit\nlibrary_name:")
        )
        text = text.replace("- banyan\n", "- mine\n").replace("| vectors | 32", "| vectors | 77")
        newer = banyan_card(
            trained.folder, name="me/x", results=[Results.read(f"root={results('a', {'sts12': 1.0, 'sts13': 3.0})}")],
            chosen={"language": "en"},
        )  # fmt: skip
        card = refresh(text, newer, chosen={"language": "en"})
        assert "- Mine." in card.text
        assert "| root | 1.00 | 3.00 | 2.00 |" in card.text
        assert "52.18" not in str(card)
        assert "| vectors | 32" in card.text
        assert [r.metric_value for r in card.data.eval_results] == [1.0, 3.0]
        assert card.data.license == "mit"
        assert card.data.language == "en"
        assert {"mine", "banyan"} <= set(card.data.tags)

    def test_without_new_results_the_old_stay(self, fresh, trained):
        card = refresh(str(fresh), banyan_card(trained.folder, name="me/x"), chosen={})
        assert "| root | 52.18" in card.text
        assert len(card.data.eval_results) == 2

    def test_what_was_asked_for_wins(self, fresh, trained):
        text = str(fresh).replace("library_name:", "license: mit\nlibrary_name:")
        asked = {"license": "apache-2.0"}
        assert (
            refresh(text, banyan_card(trained.folder, name="x", chosen=asked), chosen=asked).data.license
            == "apache-2.0"
        )

    def test_a_card_without_marks_or_metadata(self, fresh):
        card = refresh("# My own words\n", fresh, chosen={})
        assert card.text == "# My own words\n"
        assert card.data.library_name == "sentence-transformers"

    def test_broken_metadata(self, fresh):
        with pytest.raises(ValueError, match="cannot be read"):
            refresh("---\n[1, 2]\n---\n", fresh, chosen={})


class TestSecondPush:
    @pytest.fixture
    def pushed(self, cli, hub, trained, tmp_path):
        folder = tmp_path / "model"
        shutil.copytree(trained.folder, folder, ignore=shutil.ignore_patterns("checkpoints"))
        assert cli("push", folder, "me/x", "--license", "mit")[0] == 0
        text = hub.files("me/x")["README.md"].decode().replace("## Limits", "## Limits\n\n- Written on the Hub.")
        HfApi().upload_file(path_or_fileobj=text.encode(), path_in_repo="README.md", repo_id="me/x")
        return folder

    def test_edits_stay(self, cli, hub, pushed, results):
        code, printed = cli("push", pushed, "me/x", "--results", f"root={results('a', SCORES)}")
        assert code == 0, printed
        assert "the one on the Hub is kept" in printed
        card = ModelCard(hub.files("me/x")["README.md"].decode())
        assert "- Written on the Hub." in card.text
        assert "| root | 52.18 |" in card.text
        assert card.data.license == "mit"

    def test_edits_stay_on_a_new_branch(self, cli, hub, pushed):
        assert cli("push", pushed, "me/x", "--revision", "next")[0] == 0
        assert b"- Written on the Hub." in hub.files("me/x", "next")["README.md"]

    def test_replace(self, cli, hub, pushed):
        printed = cli("push", pushed, "me/x", "--replace-card")[1]
        assert "new, from the template" in printed
        assert b"- Written on the Hub." not in hub.files("me/x")["README.md"]

    def test_own_card_in_the_folder(self, cli, hub, pushed):
        (pushed / "README.md").write_text("# From the folder\n")
        assert cli("push", pushed, "me/fresh")[0] == 0
        assert b"# From the folder" in hub.files("me/fresh")["README.md"]
        assert cli("push", pushed, "me/x")[0] == 0  # the card on the Hub goes before it
        assert b"- Written on the Hub." in hub.files("me/x")["README.md"]

    def test_cards_that_libraries_write_give_way(self, cli, hub, pushed, tmp_path):
        encoder = SentenceTransformer(str(pushed), device="cpu")
        encoder.model_card_data.generate_widget_examples = False
        encoder.save(str(tmp_path / "st"))
        assert (tmp_path / "st/README.md").exists()
        assert cli("push", tmp_path / "st", "me/st")[0] == 0
        assert b"arxiv.org/abs/2407.17771" in hub.files("me/st")["README.md"]
        from banyan_hf import BanyanModel

        BanyanModel.from_pretrained(pushed).push_to_hub("me/object")
        assert cli("push", pushed, "me/object")[0] == 0
        assert b"## Scores" in hub.files("me/object")["README.md"]


def test_card_command(cli, trained, results, tmp_path):
    target = tmp_path / "card.md"
    arguments = ("card", trained.folder, "-o", target, "--name", "me/x", "--results", f"root={results('a', SCORES)}")
    assert cli(*arguments)[0] == 0
    target.write_text(target.read_text().replace("handful", "FEW"))
    assert cli(*arguments, "--license", "mit")[0] == 0
    assert "FEW" in target.read_text()
    assert ModelCard.load(target).data.license == "mit"


def test_templates_are_valid_with_metadata_only():
    for path in cards.TEMPLATES.glob("*_template.md"):
        assert path.read_text(encoding="utf-8").startswith("---\n{{ card_data }}\n---\n")
    assert cards.TEMPLATES == ROOT / "model_cards"


def test_card_of_the_box():
    """Nothing in its generated parts was typed: made anew from its results, the card is the same to the last byte."""
    path = ROOT / "model_cards/banyan-english.md"
    text = path.read_text(encoding="utf-8")
    assert not metadata_errors(text)
    rows = {
        "root": "**pure: root**",
        "mean": "token mean",
        "root_mean": "root + token mean",
        "paper": "paper, Banyan (root)",
    }
    scores = [
        Results.read(f"{label}={ROOT / 'model_cards/results/banyan-english' / name}") for name, label in rows.items()
    ]
    fresh = banyan_card(default_model(), name="owner/banyan-english", results=scores)
    assert str(refresh(text, fresh, chosen={})) == text
    assert len(ModelCard(text).data.eval_results) == 6
