"""From a text file to a model that opens anywhere, in about a minute, offline.

It writes 20,000 sentences of a toy grammar, trains a small Banyan on them, opens the result with transformers and with
sentence-transformers, and prints similarities and a tree. Run it with `make demo-train`.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here needs the network

import torch
from rich import print
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer, logging

from banyan_hf.training.recipe import Recipe
from banyan_hf.training.run import train
from banyan_hf.trees import parse

OUTPUT = Path("out/train_small")
TOPICS = [
    {
        "who": ["the cat", "the kitten", "the dog", "the puppy", "an old cat", "a small dog"],
        "does": ["sleeps", "naps", "rests", "plays"],
        "where": ["on the sofa", "on the couch", "in the garden", "near the door"],
        "when": ["all day", "after lunch", "in the sun", "every evening"],
    },
    {
        "who": ["the bank", "the central bank", "the market", "the fund", "an investor"],
        "does": ["raises", "cuts", "watches", "expects"],
        "where": ["interest rates", "share prices", "the price of oil", "higher profits"],
        "when": ["this week", "this quarter", "next year", "in early trading"],
    },
    {
        "who": ["the chef", "the cook", "the baker", "my grandmother"],
        "does": ["bakes", "fries", "serves", "prepares"],
        "where": ["fresh bread", "a fish soup", "an apple pie", "roast potatoes"],
        "when": ["in the kitchen", "for dinner", "with butter", "for the guests"],
    },
]


def sentences(n: int, seed: int = 0) -> list[str]:
    """n sentences of the grammar; words of one topic share contexts, words of two topics do not."""
    draw = random.Random(seed)
    return [" ".join(draw.choice(part) for part in draw.choice(TOPICS).values()) + "." for _ in range(n)]


def main() -> None:
    logging.disable_progress_bar()
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    text, folder = OUTPUT / "sentences.txt", OUTPUT / "model"
    text.write_text("\n".join(sentences(20_000)) + "\n", encoding="utf-8")

    print(f"[bold]1. Train[/] on {text}")
    # A toy language has few words, all of them frequent: each is one piece (BPE), and nothing of it is hidden.
    recipe = Recipe.named(
        "paper", vocab_size=300, hidden_size=64, num_channels=32, num_negatives=100, epochs=4, batch_size=256,
        learning_rate=0.01, schedule="linear",
    )  # fmt: skip
    train([str(text)], folder, recipe=recipe)

    print("\n[bold]2. Open it with transformers and with sentence-transformers[/]")
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    encoder = SentenceTransformer(str(folder))
    texts = [
        "the kitten naps on the couch after lunch.",
        "the dog rests near the door in the sun.",
        "the central bank cuts interest rates this week.",
        "the baker prepares fresh bread for dinner.",
    ]
    vectors = encoder.encode(texts)
    with torch.no_grad():
        pooled = model(**tokenizer(texts, padding=True, return_tensors="pt")).pooler_output
    print(f"Both give the same vectors, bit for bit: {torch.equal(pooled, torch.from_numpy(vectors))}")

    print(f"\n[bold]3. Compare[/] with: {texts[0]}")
    for score, other in zip(encoder.similarity(vectors[:1], vectors[1:])[0].tolist(), texts[1:], strict=True):
        print(f"  {score:6.3f}  {other}")

    print("\n[bold]4. See the tree[/]")
    tree = parse(texts[:1], model, tokenizer)[0]
    print(tree.to_rich())
    print(f"\nThe model is in {folder}: " + ", ".join(sorted(p.name for p in folder.iterdir() if p.is_file())))


if __name__ == "__main__":
    main()
