"""Publish models and a space, and open them as a stranger would, against a Hub that runs in this very process.

1. Train two small Banyans on a toy language, push one with `banyan push`.
2. In a Python where banyan_hf is not installed (nor numba), open it by all four doors: equal checksums.
3. Fit a space on both, push it with its retention report, and push the other encoder.
4. In another process, with nothing but names on the Hub: attach, stitch, search; push the stitched model.
5. The stranger opens the stitched model too.

    python examples/publish_and_open.py
    python examples/publish_and_open.py --encoder DIR     # any sentence-transformers model as the second one

Nothing leaves this machine. About a minute on two free cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from hub_server import TOKEN, Hub
from stranger import Stranger

HUB, WORK = Hub(), tempfile.TemporaryDirectory(prefix="publish-and-open-")
# Read once, when huggingface_hub is imported, so they are set before.
os.environ.update(
    HF_ENDPOINT=HUB.url, HF_TOKEN=TOKEN, HF_HOME=f"{WORK.name}/home", HF_HUB_DISABLE_XET="1", HF_HUB_OFFLINE="0",
    HF_HUB_DISABLE_PROGRESS_BARS="1", OMP_WAIT_POLICY="PASSIVE", TOKENIZERS_PARALLELISM="false",
)  # fmt: skip

import datasets
import torch
from rich.console import Console
from sentence_transformers import SentenceTransformer
from train_small import sentences
from transformers import AutoModel, AutoTokenizer, logging

from banyan_hf import cards
from banyan_hf.hub import plan_banyan, publish
from banyan_hf.training.recipe import Recipe
from banyan_hf.training.run import train
from relrep_hf import RelativeSpace, retention_report, space_id

TEXTS = ["the kitten naps on the couch after lunch.", "the central bank cuts interest rates this week.", ""]
QUERY = "a small dog rests on the sofa."
RECIPE = Recipe.named(
    "paper", vocab_size=300, hidden_size=64, num_channels=32, num_negatives=100, epochs=2, batch_size=128,
    learning_rate=0.01, schedule="linear",
)  # fmt: skip
console = Console(highlight=False)
say = console.print

DOORS = """
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel, AutoTokenizer, pipeline

    repo, texts = sys.argv[1], json.loads(sys.argv[2])
    trust = {"trust_remote_code": True}
    tokenizer = AutoTokenizer.from_pretrained(repo, **trust)
    model = AutoModel.from_pretrained(repo, **trust).eval()
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        pooled = model(**batch).pooler_output
    features = pipeline("feature-extraction", model=repo, device="cpu", **trust)
    show({
        "AutoTokenizer": digest(batch["input_ids"].numpy()),
        "AutoModel": digest(pooled.numpy()),
        "SentenceTransformer": digest(SentenceTransformer(repo, device="cpu", **trust).encode(texts)),
        "pipeline": digest(features(texts[0], return_tensors=True).numpy()),
        "code": type(model).__module__.partition(".")[0],
        "numba": importlib.util.find_spec("numba") is not None,
    })
"""

ATTACH = """
import hashlib, json, sys
from sentence_transformers import SentenceTransformer
from relrep_hf import RelativeSpace, space_id, stitch
from relrep_hf.hub import add_card, plan_push, push

space_name, query_name, document_name, stitched_name = sys.argv[1:5]
query, documents = json.loads(sys.argv[5])
space = RelativeSpace.from_pretrained(space_name)
encoders = [SentenceTransformer(name, device="cpu") for name in (query_name, document_name)]
model = stitch(query=space.attach(encoders[0]), document=space.attach(encoders[1]))
model.save_pretrained("stitched")
plan, card = plan_push("stitched", stitched_name)  # from here on: what `relrep push` does
add_card(plan, card, stitched_name)
push(plan, stitched_name)
vectors = model.encode_query([query]), model.encode_document(documents)
scores = model.similarity(*vectors)[0]
print("SHOW " + json.dumps({
    "space": space_id(model),
    "checksum": hashlib.sha256(vectors[0].tobytes() + vectors[1].tobytes()).hexdigest(),
    "found": [(round(float(scores[n]), 3), documents[n]) for n in scores.argsort(descending=True)[:3].tolist()],
}))
"""

STITCHED = """
    from sentence_transformers import SentenceTransformer
    query, documents = json.loads(sys.argv[2])
    model = SentenceTransformer(sys.argv[1], device="cpu", trust_remote_code=True)
    both = model.encode_query([query]).tobytes() + model.encode_document(documents).tobytes()
    show(hashlib.sha256(both).hexdigest())
"""


def checksum(array: Any) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def push(folder: Path, name: str) -> None:
    """What `banyan push FOLDER NAME --language en` does."""
    plan, chosen = plan_banyan(folder), {"language": "en"}
    publish(plan, cards.banyan_card(folder, name=name, chosen=chosen), name, chosen=chosen, say=lambda what: None)
    say(f"   pushed {name}: {len(HUB.files(name))} files, {sum(map(len, HUB.files(name).values())):,} bytes")


def compare(rows: dict[str, tuple[str, str]]) -> None:
    """Print checksums side by side; end the program where two differ."""
    for name, (here, there) in rows.items():
        say(f"   {name:20} here {here[:12]}  there {there[:12]}  {'equal' if here == there else 'DIFFERENT'}")
    if any(here != there for here, there in rows.values()):
        sys.exit("Checksums differ.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", help="sentence-transformers model to use as the second encoder")
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    work, began = Path(WORK.name), time.monotonic()

    say("[bold]1. Train[/] and push")
    (work / "text.txt").write_text("\n".join(sentences(6_000)) + "\n", encoding="utf-8")
    train([str(work / "text.txt")], work / "first", recipe=RECIPE, say=lambda line: None)
    push(work / "first", "me/first")

    say("[bold]2. A stranger[/] without banyan_hf opens it by four doors")
    model, tokenizer = AutoModel.from_pretrained("me/first").eval(), AutoTokenizer.from_pretrained("me/first")
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        pooled = model(**batch).pooler_output.numpy()
        hidden = model(**tokenizer(TEXTS[:1], return_tensors="pt")).last_hidden_state.numpy()
    here = {
        "AutoTokenizer": batch["input_ids"].numpy(),
        "AutoModel": pooled,
        "SentenceTransformer": pooled,
        "pipeline": hidden,
    }
    stranger = Stranger(work / "stranger", without=("numba", "llvmlite"))
    there = stranger.run(DOORS, "me/first", json.dumps(TEXTS), home=work / "stranger-home", endpoint=HUB.url)
    say(f"   its code comes from {there['code']}, numba there: {there['numba']}")
    compare({door: (checksum(array), there[door]) for door, array in here.items()})

    say("[bold]3. A space[/] for two encoders, with its report")
    first = SentenceTransformer("me/first", device="cpu")
    if arguments.encoder:
        second = SentenceTransformer(arguments.encoder, device="cpu")
        second.push_to_hub("me/second")
    else:
        small = Recipe(**{**RECIPE.to_dict(), "hidden_size": 48, "num_channels": 24, "seed": 1})
        train([str(work / "text.txt")], work / "second", recipe=small, say=lambda line: None)
        push(work / "second", "me/second")
    second = SentenceTransformer("me/second", device="cpu")
    texts = list(dict.fromkeys(sentences(4_000, seed=1)))
    encoders = {"first": first, "second": second}
    space = RelativeSpace.fit(encoders, texts[:-200], anchors=40, show_progress=False)
    report = retention_report(space, encoders, texts[-200:])
    space.push_to_hub("me/space", report=report)
    say(f"   pushed me/space ({space.id}): {', '.join(sorted(HUB.files('me/space')))}")
    for sentence in report["verdict"]:
        say(f"   {sentence}")

    say("[bold]4. Another process[/] attaches, stitches, searches")
    search = json.dumps([QUERY, documents := texts[-200:-170]])
    done = subprocess.run(
        [sys.executable, "-c", ATTACH, "me/space", "me/first", "me/second", "me/stitched", search],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=work, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    found = json.loads(done.stdout.rpartition("SHOW ")[2])
    a, b = space.attach(first), space.attach(second)
    own = hashlib.sha256(a.encode_query([QUERY]).tobytes() + b.encode_document(documents).tobytes()).hexdigest()
    compare({"space id": (str(space_id(a)), found["space"]), "vectors": (own, found["checksum"])})
    say(f"   {QUERY}")
    for score, text in found["found"]:
        say(f"   {score:6.3f}  {text}")

    say("[bold]5. The stranger[/] opens the stitched model")
    there = stranger.run(STITCHED, "me/stitched", search, home=work / "stranger-home", endpoint=HUB.url)
    compare({"stitched": (own, there)})
    say(f"All checksums are equal. {time.monotonic() - began:.0f} seconds.")


if __name__ == "__main__":
    main()
