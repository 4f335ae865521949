"""A model on the Hub, opened by somebody who never heard of banyan_hf: every door gives the same bits.

Starting a Python that imports torch, transformers and sentence-transformers takes seconds, and so does compiling the
kernels, so there are only two processes: one with numba and the Hub, and then one with neither.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hub_server import TOKEN, Hub
from huggingface_hub import constants
from sentence_transformers import SentenceTransformer
from stranger import Stranger
from support import HUB, grammar_sentences
from transformers import AutoModel, AutoTokenizer

from banyan_hf import BanyanModel
from banyan_hf.hub import plan_banyan, push
from banyan_hf.model.code_files import AUTO_MAP

TEXTS = ["the old cat sleeps.", "", "a bus", *grammar_sentences(5, seed=3)]

OPEN = """
    import os
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers import AutoConfig, AutoModel, AutoModelForPreTraining, AutoTokenizer, pipeline

    trust = {"trust_remote_code": True}
    repo, commit, texts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])

    def pooled(model, tokenizer):
        with torch.inference_mode():
            return digest(model.eval()(**tokenizer(texts, padding=True, return_tensors="pt")).pooler_output.numpy())

    tokenizer = AutoTokenizer.from_pretrained(repo, **trust)
    model = AutoModel.from_pretrained(repo, **trust)
    found = {"AutoModel": pooled(model, tokenizer)}
    encoder = SentenceTransformer(repo, device="cpu", **trust)
    found["SentenceTransformer"] = digest(encoder.encode(texts))
    with torch.inference_mode():
        hidden = model(**tokenizer(texts[:1], return_tensors="pt")).last_hidden_state
    features = pipeline("feature-extraction", model=repo, device="cpu", **trust)(texts[0], return_tensors=True)
    found["pipeline is last_hidden_state"] = torch.equal(features, hidden)
    found["pinned"] = pooled(AutoModel.from_pretrained(repo, revision=commit, **trust), tokenizer)
    found["kernels"] = sys.modules[type(model).__module__].numba_backend is not None
"""

OFFLINE = """
    import socket
    attempts = []

    def refuse(*arguments):
        attempts.append(arguments[-1])
        raise ConnectionRefusedError("this machine has no network")

    socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
    assert not importlib.util.find_spec("numba")
"""

SAVE = """
    # What was opened can be saved and opened again, from "." too.
    encoder.model_card_data.generate_widget_examples = False
    encoder.save("again")
    AutoModelForPreTraining.from_pretrained("again", **trust).save_pretrained("head")
    tokenizer.save_pretrained("head")
    found["saved by sentence-transformers"] = digest(SentenceTransformer("again", device="cpu", **trust).encode(texts))
    found["saved with the head"] = pooled(AutoModel.from_pretrained("head", **trust), tokenizer)
    found["auto_map"] = AutoConfig.from_pretrained("head", **trust).auto_map
    os.chdir("again")
    here = AutoTokenizer.from_pretrained(".", **trust)
    found["AutoModel of ."] = pooled(AutoModel.from_pretrained(".", **trust), here)
    dot = SentenceTransformer(".", device="cpu", **trust)
    found["SentenceTransformer of ."] = digest(dot.encode(texts))
    found["attempts"] = len(attempts)

    # A worker process unpickles the remote class; it talks to this one through a local socket.
    del socket.socket.connect, socket.socket.connect_ex
    pool = encoder.start_multi_process_pool(["cpu"])
    found["worker"] = digest(encoder.encode(texts, pool=pool, chunk_size=3))
    encoder.stop_multi_process_pool(pool)
"""

SHOW = """
    show(found)
"""


@pytest.fixture(scope="module")
def published(trained):
    """A Hub with the model on it, a newer commit on top, and the bits that its owner gets, without any trust flag."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setenv("HF_TOKEN", TOKEN)
        push(plan_banyan(trained.folder), "me/stranger")
        commit = HUB.repos["me/stranger"].branches["main"]
        vectors = SentenceTransformer("me/stranger", device="cpu").encode(TEXTS)
        model, tokenizer = AutoModel.from_pretrained("me/stranger"), AutoTokenizer.from_pretrained("me/stranger")
    assert type(model) is BanyanModel  # registered: the class of the installed package, not the one on the Hub
    with torch.inference_mode():
        pooled = model.eval()(**tokenizer(TEXTS, padding=True, return_tensors="pt")).pooler_output
    assert torch.equal(pooled, torch.from_numpy(vectors))
    hub = Hub()  # its own, since other tests empty theirs
    hub.repos.update(HUB.repos)
    yield SimpleNamespace(hub=hub, commit=commit, digest=hashlib.sha256(vectors.tobytes()).hexdigest())
    hub.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("stranger")


def test_every_door(published, home):
    """With numba, from the Hub."""
    arguments = ("me/stranger", published.commit, json.dumps(TEXTS))
    found = Stranger(home / "with-numba").run(OPEN + SHOW, *arguments, home=home / "home", endpoint=published.hub.url)
    assert found.pop("kernels")
    assert found.pop("pipeline is last_hidden_state")
    assert found == dict.fromkeys(("AutoModel", "SentenceTransformer", "pinned"), published.digest)


def test_offline_afterwards_and_without_numba(published, home):
    """In the home of the test before: what was downloaded then is enough now, and nothing asks for the network."""
    arguments = ("me/stranger", published.commit, json.dumps(TEXTS))
    stranger = Stranger(home / "without-numba", without=("numba", "llvmlite"))
    found = stranger.run(OFFLINE + OPEN + SAVE + SHOW, *arguments, home=home / "home")
    assert found.pop("attempts") == 0
    assert not found.pop("kernels")
    assert found.pop("pipeline is last_hidden_state")
    assert found.pop("auto_map") == AUTO_MAP
    assert found == dict.fromkeys(found, published.digest)
    assert len(found) == 8
