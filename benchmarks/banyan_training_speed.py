"""How fast a Banyan trains, how fast trees are induced, and how much memory a step takes.

What, on the English corpus (vocabulary 25,000 x 256, batches of 512 sentences of 4 to 200 tokens, dropout 0.1):

1. Tokens per CPU second (`time.process_time`: all threads of the process) and per wall second of full training steps:
   padding the batch, forward, backward, and Adam with the trainer's settings. Reading and tokenising are not in it.
   Restricted candidates (`num_negatives=1000`) and the exact softmax, both backends, 1 and 2 threads. One step
   before the clock starts compiles the kernels and makes Adam's state. Beside it the 2,150 tokens per CPU second
   that others measured for the authors' code on such batches: that figure is quoted, not measured here.
2. Seconds to induce the trees of 512 random sentences of 128 tokens (values from the start distribution).
3. Peak memory of one step of 512 sentences beyond model and Adam (gradients count): growth of the resident set
   (`VmHWM` of a fresh process; Linux only).

Time: 4 minutes on two free cores. `--quick` leaves out the torch backend and the second thread: 1 minute.

    python benchmarks/banyan_training_speed.py --output results/training_speed.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core

import argparse
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from banyan_common import data_folder, parser, print_table, save
from banyan_runs import PLAIN
from transformers import AutoTokenizer, PreTrainedTokenizerBase, set_seed

from banyan_hf.model import induction, numba_backend
from banyan_hf.model.modeling_banyan import BanyanForPreTraining
from banyan_hf.tokenizer import train_tokenizer
from banyan_hf.training.corpus import collate
from banyan_hf.training.recipe import Recipe

REFERENCE = 2150  # tokens per CPU second of the authors' code, batch 512: measured by others, see shared/docs/DESIGN.md
LOSSES = {"restricted, 1000": 1000, "exact softmax": None}
Batch = list[dict[str, list[int]]]  # rows as `collate` takes them


def read_lines(limit: int) -> list[str]:
    with gzip.open(data_folder() / "text" / "en.txt.gz", "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in islice(file, limit)]


def make_tokenizer(folder: str | None) -> PreTrainedTokenizerBase:
    """The given one, or one trained on a part of the corpus."""
    if folder:
        return AutoTokenizer.from_pretrained(folder)
    return train_tokenizer(read_lines(100_000), 25000, show_progress=False)


def make_batches(tokenizer: PreTrainedTokenizerBase, count: int, size: int) -> list[Batch]:
    """The first sentences of the corpus that are 4 to 200 tokens long."""
    ids = tokenizer(read_lines(2 * count * size)).input_ids
    rows = [{"input_ids": sentence} for sentence in ids if 4 <= len(sentence) <= 200]
    return [rows[start : start + size] for start in range(0, count * size, size)]


class Stepper:
    """A model and its Adam, stepping as `BanyanTrainer` does."""

    def __init__(self, vocab_size: int, recipe: Recipe, *, backend: str = "auto", fused: bool = True) -> None:
        set_seed(0)
        config = recipe.config(vocab_size=vocab_size, pad_token_id=None, max_position_embeddings=512)
        config.backend = backend
        self.model = BanyanForPreTraining(config).train()
        parameters = self.model.parameters()
        self.adam = torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=0.0, fused=fused)

    def step(self, rows: Batch) -> int:
        """One optimiser step; returns the tokens of the batch."""
        batch = collate(rows)
        loss = self.model(**batch).loss
        loss.backward()
        self.adam.step()
        self.adam.zero_grad()
        return int(batch["attention_mask"].sum())


def training_rows(batches: Sequence[Batch], vocab_size: int, *, quick: bool) -> list[dict[str, Any]]:
    rows = []
    for backend in ("numba",) if quick else ("numba", "torch"):
        for loss, negatives in LOSSES.items():
            for threads in (1,) if quick else (1, 2):
                torch.set_num_threads(threads)
                stepper = Stepper(vocab_size, replace(PLAIN, num_negatives=negatives), backend=backend)
                stepper.step(batches[0])
                cheap = backend == "numba" and negatives is not None
                used = batches[1:] if cheap else batches[1:4]
                wall, cpu = time.perf_counter(), time.process_time()
                tokens = sum(stepper.step(batch) for batch in used)
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                rows.append(
                    {
                        "backend": backend,
                        "loss": loss,
                        "threads": threads,
                        "steps": len(used),
                        "tokens/step": tokens // len(used),
                        "tokens/CPU s": round(tokens / cpu),
                        "tokens/wall s": round(tokens / wall),
                        "x reference": tokens / cpu / REFERENCE,
                    }
                )
                print(".", end="", flush=True)
    print()
    return rows


def induction_rows(*, quick: bool, sentences: int = 512, length: int = 128) -> list[dict[str, Any]]:
    """Trees alone, from random token ids of the whole vocabulary."""
    torch.set_num_threads(1)
    stepper = Stepper(25000, PLAIN)
    model = stepper.model.banyan
    tokens = torch.randint(25000, (sentences * length,))
    offsets = torch.arange(0, sentences * length + 1, length)
    leaf_tokens, token_leaf = torch.unique(tokens, return_inverse=True)
    table = model.embeddings.weight.detach()
    coefficients = tuple(c.detach() for c in model.compose.coefficients(torch.float32))

    def with_numba() -> None:
        leaves = table[leaf_tokens]
        numba_backend.induce(leaves, token_leaf, offsets, coefficients, identity=leaf_tokens, share=True)

    def with_torch() -> None:
        induction.induce(table[tokens], offsets, model.compose, identity=tokens)

    rows = []
    for backend, induce in (("numba", with_numba),) if quick else (("numba", with_numba), ("torch", with_torch)):
        if backend == "numba":
            induce()  # compiles
        wall, cpu = time.perf_counter(), time.process_time()
        induce()
        rows.append({"induction": backend, "sentences": sentences, "tokens each": length, "wall s": _since(wall)})
        rows[-1]["CPU s"] = time.process_time() - cpu
    return rows


def _since(start: float) -> float:
    return time.perf_counter() - start


def memory_rows(tokenizer: PreTrainedTokenizerBase, batches: Sequence[Batch], *, quick: bool) -> list[dict[str, Any]]:
    """One fresh process for each case: what an earlier case freed would hide the growth."""
    rows = []
    for backend in ("numba",) if quick else ("numba", "torch"):
        for loss, negatives in LOSSES.items():
            case = {"rows": batches[0], "vocab_size": len(tokenizer), "negatives": negatives, "backend": backend}
            command = [sys.executable, __file__, "--memory-case"]
            done = subprocess.run(command, input=json.dumps(case), capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"The memory case {backend}, {loss} failed:\n{done.stderr}")
            growth = json.loads(done.stdout.splitlines()[-1])
            rows.append({"memory of a step": backend, "loss": loss, "sentences": len(batches[0]), **growth})
    return rows


def memory_case() -> None:
    """The process that `memory_rows` starts: prints the growth of one step as JSON."""
    case = json.loads(sys.stdin.read())
    torch.set_num_threads(2)
    stepper = Stepper(case["vocab_size"], replace(PLAIN, num_negatives=case["negatives"]), backend=case["backend"])
    stepper.step(case["rows"][:8])  # compiles, and makes Adam's state
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far (VmHWM) becomes the present size
    before = _status("VmRSS")
    stepper.step(case["rows"])
    print(json.dumps({"before MB": round(before / 1e6), "growth MB": round((_status("VmHWM") - before) / 1e6)}))


def _status(field: str) -> int:
    """Bytes of a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--tokenizer", help="folder; default: one is trained on 100,000 lines (10 seconds)")
    arguments.add_argument("--batch-size", type=int, default=512)
    arguments.add_argument("--steps", type=int, default=12, help="timed steps of numba with restricted candidates")
    arguments.add_argument("--quick", action="store_true", help="numba on one thread only")
    arguments.add_argument("--memory-case", action="store_true", help=argparse.SUPPRESS)
    args = arguments.parse_args()
    if args.memory_case:
        memory_case()
        return

    tokenizer = make_tokenizer(args.tokenizer)
    batches = make_batches(tokenizer, 1 + args.steps, args.batch_size)
    speed = training_rows(batches, len(tokenizer), quick=args.quick)
    print(f"Training, batch {args.batch_size}; reference (quoted): {REFERENCE:,} tokens per CPU second")
    print_table(speed)
    print()
    print_table(trees := induction_rows(quick=args.quick))
    print()
    memory = memory_rows(tokenizer, batches, quick=args.quick) if sys.platform == "linux" else []
    if memory:
        print_table(memory)
    save(args.output, reference_tokens_per_cpu_second=REFERENCE, training=speed, induction=trees, memory=memory)


if __name__ == "__main__":
    main()
