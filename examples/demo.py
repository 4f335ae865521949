"""The English model in the box, offline, in seconds: nearest neighbours, a similarity table, a tree.

Run it with `make demo`. The model was trained from scratch on 10 million words on two CPU cores; see its model card.
"""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here needs the network

from rich.console import Console
from rich.table import Table
from sentence_transformers import SentenceTransformer
from transformers import logging

import banyan_hf
from banyan_hf.trees import parse

SENTENCES = [
    "The orchestra performed a symphony at the concert hall.",
    "A violinist played classical music for the audience.",
    "The army attacked the city at dawn.",
    "Soldiers captured the fortress after a long battle.",
    "The river flows through the valley into the sea.",
    "Heavy rain caused flooding along the coast.",
    "The company reported higher profits this quarter.",
    "Shares fell after the bank announced losses.",
    "The bird builds its nest in tall trees.",
    "Wolves hunt deer in the northern forests.",
    "The senator won the election by a few votes.",
    "Parliament passed a new law on taxes.",
]
QUERIES = ["a pianist gave a concert", "the troops fought the enemy", "birds and other animals of the woods"]
console = Console()


def neighbours(encoder: SentenceTransformer) -> None:
    scores = encoder.similarity(encoder.encode(QUERIES), encoder.encode(SENTENCES))  # (3, 12)
    for query, row in zip(QUERIES, scores, strict=True):
        console.print(f"[bold]{query}[/]")
        for score, index in zip(*row.topk(3), strict=True):
            console.print(f"   {score:.2f}  {SENTENCES[index]}", highlight=False)


def similarity_table(encoder: SentenceTransformer) -> None:
    words = ["moon", "planet", "violin", "cello", "river", "valley"]
    table = Table("", *words, title="Words: cosine similarity")
    for word, row in zip(words, encoder.similarity(encoder.encode(words), encoder.encode(words)), strict=True):
        table.add_row(word, *(f"{score:.2f}" for score in row.tolist()))
    console.print(table)


def main() -> None:
    logging.disable_progress_bar()
    folder = banyan_hf.default_model()
    encoder = SentenceTransformer(folder)
    neighbours(encoder)
    similarity_table(encoder)
    model, tokenizer = banyan_hf.load_encoder(folder)
    tree = parse(["he was born in new york and died in paris"], model, tokenizer)[0]
    console.print("[bold]The tree it induced[/]")
    console.print(tree.to_rich())
    size = sum(p.numel() for p in model.parameters())
    table_size = model.embeddings.weight.numel()
    console.print(
        f"{size:,} parameters: {table_size:,} in the token table and {size - table_size} that make the trees."
    )


if __name__ == "__main__":
    main()
