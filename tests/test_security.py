"""What a hostile file, a hostile repository or a careless upload could do, and does not."""

from __future__ import annotations

import ast
import os
import pickle
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi
from sentence_transformers import SentenceTransformer
from support import ROOT
from transformers import AutoModel, AutoTokenizer
from transformers.dynamic_module_utils import get_imports

from banyan_hf import BanyanModel, hub
from banyan_hf.model.code_files import code_files
from relrep_hf import RelativeSpace

# What the code that travels with a model may import; numba only inside `try`.
ALLOWED = {"torch", "transformers", "numpy", "huggingface_hub"} | set(sys.stdlib_module_names)
MODULES = {"pickle", "dill", "joblib", "marshal", "shelve", "cloudpickle"}
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "torch.load", "torch.save"}
KEYWORDS = {"allow_pickle", "shell"}  # with True


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


def dangers(source: str) -> list[str]:
    """What in a file could open a pickle or run text as code."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found += [node.module] * ((node.module or "").partition(".")[0] in MODULES)
        elif isinstance(node, ast.Call):
            found += [ast.unparse(node.func)] * (ast.unparse(node.func) in CALLS)
            found += [str(k.arg) for k in node.keywords if k.arg in KEYWORDS and ast.unparse(k.value) != "False"]
    return found


def test_no_pickle_in_our_code():
    for path in sources("banyan_hf", "relrep_hf"):
        assert not dangers(path.read_text(encoding="utf-8")), path


def test_dangers_are_seen():
    for line in (
        "import pickle",
        "from joblib import load",
        "torch.load(f)",
        "np.load(f, allow_pickle=True)",
        "exec(x)",
    ):
        assert dangers(line)
    for line in ("model.eval()", "np.load(f, allow_pickle=False)", "import torch", "'pickle'"):
        assert not dangers(line)


def test_no_pickle_is_shipped():
    endings = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".joblib", ".npy"}
    assert not [path for folder in ("banyan_hf", "relrep_hf", "model_cards") for path in (ROOT / folder).rglob("*")
                if path.suffix in endings]  # fmt: skip


@pytest.fixture
def bombed(trained, tmp_path) -> tuple[Path, Path]:
    """A model's folder with pickles in all the places where libraries once looked."""
    folder, proof = tmp_path / "model", tmp_path / "exploded"
    shutil.copytree(trained.folder, folder, ignore=shutil.ignore_patterns("checkpoints"))
    content = pickle.dumps(Bomb(proof))
    for name in (
        "pytorch_model.bin",
        "training_args.bin",
        "optimizer.pt",
        "model.pt",
        "model.pkl",
        "adapter_model.bin",
    ):
        (folder / name).write_bytes(content)
    torch.save({"x": Bomb(proof)}, folder / "rng_state.pth")
    return folder, proof


def test_the_bomb_works(bombed):
    folder, proof = bombed
    with (folder / "model.pkl").open("rb") as file:
        pickle.load(file)
    assert proof.is_dir()


def test_pickles_are_not_opened(bombed):
    folder, proof = bombed
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    encoder = SentenceTransformer(str(folder), device="cpu")
    with torch.no_grad():
        expected = model.eval()(**tokenizer(["the old cat"], return_tensors="pt")).pooler_output.numpy()
    assert np.array_equal(encoder.encode(["the old cat"]), expected)
    assert not proof.exists()


def test_pickled_weights_alone_are_refused(bombed):
    folder, proof = bombed
    (folder / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"safetensors"):
        BanyanModel.from_pretrained(folder)
    with pytest.raises(OSError, match=r"safetensors"):
        SentenceTransformer(str(folder), device="cpu")
    with pytest.raises(ValueError, match=r"use_safetensors=False"):
        BanyanModel.from_pretrained(folder, use_safetensors=False)
    assert not proof.exists()


def test_pickles_are_not_uploaded(cli, hub, bombed):
    folder, proof = bombed
    for name in ("optimizer.pt", "training_args.bin"):
        (folder / name).unlink()
    assert cli("push", folder, "me/safe")[0] == 0
    assert not [name for name in hub.files("me/safe") if Path(name).suffix in (".bin", ".pt", ".pkl", ".pth")]
    assert not proof.exists()


def test_imports_of_the_code_that_travels():
    for path in code_files():
        assert set(get_imports(path)) <= ALLOWED, path.name
        inside_try = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0):
                names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                inside_try |= {name.partition(".")[0] for name in names} - ALLOWED
        assert inside_try <= {"numba"}, path.name


def test_code_that_travels_is_whole():
    """Every file of the folder goes along, and each is flat: nothing is imported from above it."""
    folder = ROOT / "banyan_hf" / "model"
    assert {path.name for path in code_files()} == {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    for path in code_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level <= 1, path.name
                assert node.level == 0 or "." not in (node.module or ""), path.name


ESCAPES = (
    "../escaped.json",
    "../../escaped.json",
    "a/../../escaped.json",
    "/escaped-from-tests.json",
    "..\\escaped.json",
)


@pytest.mark.parametrize("name", ESCAPES)
def test_names_from_a_repository_stay_inside(hub, trained, tmp_path, monkeypatch, name):
    """The Hub would never serve such names; a hostile one might."""
    from hub_server import TOKEN, File, git_hash
    from huggingface_hub import snapshot_download

    api = HfApi(token=TOKEN)
    api.create_repo("me/hostile")
    hub_repo = hub.repos["me/hostile"]
    files = {
        path.name: File(git_hash(path.read_bytes()), path.read_bytes(), lfs=False)
        for path in Path(trained.folder).iterdir()
        if path.is_file()
    }
    files[name] = File(git_hash(b"{}"), b"{}", lfs=False)
    hub_repo.commit("main", files, "evil")
    cache = tmp_path / "a" / "b" / "cache"
    try:
        BanyanModel.from_pretrained("me/hostile", cache_dir=cache)
        snapshot_download("me/hostile", cache_dir=cache)
    except Exception:
        pass  # refusing is as good
    assert not [path for path in tmp_path.rglob("*escaped*") if cache not in path.parents]
    assert not Path("/escaped.json").exists()


def test_a_space_reads_only_its_own_files(hub, tmp_path):
    """`RelativeSpace.from_pretrained` asks for three names, whatever else a repository holds."""
    rng = np.random.default_rng(0)
    texts = [f"text {n}" for n in range(40)]
    x = rng.normal(size=(40, 3))
    RelativeSpace.fit_embeddings({"a": x, "b": x[:, ::-1]}, texts, anchors=4).push_to_hub("me/space")
    api = HfApi()
    for name in ("evil.pkl", "sub/evil.py", "space.json.py"):
        api.upload_file(path_or_fileobj=b"x", path_in_repo=name, repo_id="me/space")
    hub.log.clear()
    RelativeSpace.from_pretrained("me/space", cache_dir=str(tmp_path))
    assert not [line for line in hub.log if "evil" in line or ".py" in line]
    got = {path.name for path in tmp_path.rglob("*") if path.is_symlink() or path.suffix}
    assert {"space.json", "mixing.safetensors"} <= got
    assert not [name for name in got if "evil" in name]


def test_safetensors_that_lie(trained, tmp_path):
    """A damaged or lying header is an error, not a crash and not other memory."""
    folder = tmp_path / "m"
    shutil.copytree(trained.folder, folder, ignore=shutil.ignore_patterns("checkpoints"))
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for content in (b"", whole[:7], (2**60).to_bytes(8, "little") + whole[8:], whole[: len(whole) // 2]):
        weights.write_bytes(content)
        with pytest.raises(Exception, match=r"(?i)safetensor|header|incomplete|deserial|invalid|metadata"):
            BanyanModel.from_pretrained(folder)


def test_nothing_of_ours_prints_a_token():
    """Where a token is handled, it is handed to huggingface_hub and to nothing else."""
    for path in sources("banyan_hf", "relrep_hf"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if re.search(r"(print|say|log|f\").*\{?\btoken\b\}", line):
                pytest.fail(f"{path}:{number}: {line}")
    assert "token" not in hub.explain(ValueError("x"))
