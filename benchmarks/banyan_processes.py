"""What training on several processes changes: each entangles its own share of a batch, and gradients are averaged.

Two sentences that meet in one graph share nodes; in two graphs they do not. This script does in one process what N
processes do (N graphs a step, the mean of their losses; `tests/test_distributed.py` shows that it is the same), on the
first lines of the English text, and prints for N = 1, 2, 4, 8: nodes a step, and after the same number of steps the
exact loss on held-out text (in batches of one graph, so that figures compare) and Spearman x 100 on STS16, the
development set.

    python benchmarks/banyan_processes.py [--steps 150] [--shares 1 2 4 8]    # about 30 CPU seconds for each N
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import gzip
import time
from itertools import islice

import torch
from banyan_common import data_folder
from rich.console import Console
from rich.table import Table
from torch.optim.lr_scheduler import LinearLR

from banyan_hf import BanyanConfig, BanyanForPreTraining, default_model, load_encoder
from banyan_hf.encoding import encode
from banyan_hf.evaluation.sts import read_pairs, spearman
from banyan_hf.training.corpus import collate

BATCH, HELD_OUT = 256, 1024


def main() -> None:
    arguments = argparse.ArgumentParser(description="Entangling shares of a batch.")
    arguments.add_argument("--steps", type=int, default=150)
    arguments.add_argument("--shares", type=int, nargs="+", default=[1, 2, 4, 8])
    options = arguments.parse_args()
    folder = data_folder()
    _, tokenizer = load_encoder(default_model())
    pairs = read_pairs(folder / "eval" / "dev" / "sts16.csv")

    def batches(name: str, sentences: int) -> list[dict[str, torch.Tensor]]:
        with gzip.open(folder / "text" / name, "rt", encoding="utf-8") as file:
            ids = tokenizer([line.strip() for line in islice(file, 2 * sentences)]).input_ids
        rows = [{"input_ids": row} for row in ids if 4 <= len(row) <= 200][:sentences]
        return [collate(rows[start : start + BATCH]) for start in range(0, len(rows), BATCH)]

    train, held_out = batches("en.txt.gz", BATCH * options.steps), batches("en.dev.txt.gz", HELD_OUT)
    table = Table("processes", "sentences in a graph", "nodes a step", "held-out loss", "STS16", "CPU s a step")
    for shares in options.shares:
        torch.manual_seed(0)
        config = BanyanConfig(vocab_size=len(tokenizer), num_negatives=1000, pad_token_id=tokenizer.pad_token_id)
        model = BanyanForPreTraining(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0, fused=True)
        schedule = LinearLR(optimizer, 1.0, 0.0, total_iters=options.steps)
        begun = time.process_time()
        for batch in train:
            state = torch.get_rng_state()  # processes draw alike: their generators have one seed
            for rows in zip(*(tensor.chunk(shares) for tensor in batch.values()), strict=True):
                torch.set_rng_state(state)
                (model(*rows).loss / shares).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        seconds = (time.process_time() - begun) / len(train)
        model.eval()
        with torch.no_grad():
            loss = sum(float(model(**batch).loss) for batch in held_out) / len(held_out)
            nodes = sum(
                model.banyan.entangle(*rows, down="leaves")[0].n_nodes
                for rows in zip(*(tensor.chunk(shares) for tensor in train[-1].values()), strict=True)
            )
        score = spearman(lambda texts, model=model: encode(texts, model.banyan, tokenizer), pairs)
        table.add_row(str(shares), str(BATCH // shares), f"{nodes:,}", f"{loss:.3f}", f"{score:.2f}", f"{seconds:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
