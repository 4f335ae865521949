"""How many short sentences a second are encoded by Banyan, a StaticEmbedding of the same size, and MiniLM-L6.

What, on the sentences of stsb_test.csv (both sides), all in one run:

1. `model only`: `BanyanModel.get_text_features` on batches that are tokenised beforehand.
2. `encode`: from strings to vectors through `SentenceTransformer.encode`, for Banyan, for a sentence-transformers
   `StaticEmbedding` with the same tokenizer and table size, and for MiniLM-L6 if `BANYAN_HF_ENCODERS` has it; with 1
   and 2 threads (torch and the tokenizer both), each thread count in a process of its own; batch sizes 32 (the default
   of `encode`) and 256. Repetitions are interleaved, the median is reported; ratios are of medians. CPU time (all
   threads) stands beside wall time: on a machine that others use it is the steadier of the two.
3. `--profile`: CPU microseconds a sentence of each stage of Banyan's `encode`, each measured alone; a stage contains
   those that are indented under it.

Time: 2 minutes on two free cores, nearly all of it MiniLM-L6.

    BANYAN_HF_ENCODERS=DIR python benchmarks/banyan_encoding_speed.py --model DIR --profile
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from banyan_common import data_folder, encoder_folder, parser, print_table, save
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from banyan_hf import BanyanConfig, BanyanModel
from banyan_hf.encoding import tokenize_batch
from banyan_hf.evaluation.sts import read_pairs
from banyan_hf.model.st_files import AS_ARRAYS, WITHOUT_MASK
from banyan_hf.persistence import load_encoder
from banyan_hf.tokenizer import train_tokenizer

BATCH_SIZES = (32, 256)
BANYAN, STATIC, MINILM = "Banyan", "StaticEmbedding", "MiniLM-L6"


def random_model(folder: Path) -> None:
    """25,000 x 256 untrained numbers and a tokenizer of the English corpus: as fast as a trained one."""
    with gzip.open(data_folder() / "text" / "en.txt.gz", "rt", encoding="utf-8") as file:
        tokenizer = train_tokenizer(islice(file, 100_000), 25000, show_progress=False)
    torch.manual_seed(0)
    BanyanModel(BanyanConfig(vocab_size=len(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def static_like(folder: str) -> SentenceTransformer:
    """A StaticEmbedding with Banyan's tokenizer and a table of the same shape."""
    model, tokenizer = load_encoder(folder)
    table = np.random.default_rng(0).standard_normal(model.embeddings.weight.shape, np.float32)
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=table)], device="cpu")


def model_only(folder: str, sentences: Sequence[str], batch_size: int) -> Callable[[], Any]:
    """Banyan without its tokenizer; batches sorted by length, as `encode` makes them."""
    model, tokenizer = load_encoder(folder)
    ordered = sorted(sentences, key=len, reverse=True)
    starts = range(0, len(ordered), batch_size)
    batches = [tokenize_batch(ordered[start : start + batch_size], model, tokenizer) for start in starts]

    @torch.inference_mode()
    def run() -> None:
        for batch in batches:
            model.get_text_features(**batch)

    return run


def contestants(folder: str, minilm: Path | None, sentences: list[str]) -> dict[tuple[str, str, int], Callable]:
    """(model, what, batch size) -> a function that encodes all sentences once."""
    models = {BANYAN: SentenceTransformer(folder, device="cpu"), STATIC: static_like(folder)}
    if minilm:
        models[MINILM] = SentenceTransformer(str(minilm), device="cpu")
    runs: dict[tuple[str, str, int], Callable] = {}
    for size in BATCH_SIZES:
        runs[BANYAN, "model only", size] = model_only(folder, sentences, size)
        for name, model in models.items():
            runs[name, "encode", size] = lambda m=model, s=size: m.encode(sentences, batch_size=s)
    return runs


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """Wall seconds, and CPU seconds of all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def measure(folder: str, minilm: Path | None, sentences: list[str], repeats: int) -> list[dict[str, Any]]:
    """Sentences a second of every contestant, repetitions interleaved; MiniLM, slow and steady, is timed twice."""
    runs = contestants(folder, minilm, sentences)
    spent: dict[tuple[str, str, int], list[tuple[float, float]]] = {key: [] for key in runs}
    for repeat in range(-1, repeats):
        for key, run in runs.items():
            if repeat < 0 and key[0] != MINILM:
                run()  # compiles the kernels, warms the caches
            elif 0 <= repeat < (2 if key[0] == MINILM else repeats):
                spent[key].append(timed(run))
    speed = {key: len(sentences) / statistics.median(wall for wall, _ in times) for key, times in spent.items()}
    cpu = {key: 1e6 * statistics.median(cpu for _, cpu in times) / len(sentences) for key, times in spent.items()}
    return [
        {
            "model": name,
            "what": what,
            "batch size": size,
            "sentences/s": round(value),
            "x StaticEmbedding": value / speed[STATIC, "encode", size] if what == "encode" else None,
            "x MiniLM-L6": value / speed[MINILM, "encode", size] if what == "encode" and minilm else None,
            "CPU us/sentence": round(cpu[name, what, size], 1),
            "x StaticEmbedding, CPU": cpu[STATIC, "encode", size] / cpu[name, what, size] if what == "encode" else None,
        }
        for (name, what, size), value in speed.items()
    ]


def stages(folder: str, sentences: list[str], size: int) -> dict[str, Callable[[], Any]]:
    """What Banyan's `encode` is made of; indented stages are part of the one above."""
    st = SentenceTransformer(folder, device="cpu")
    static = static_like(folder)
    module, tokenizer = st[0], st.tokenizer
    rust = tokenizer.backend_tokenizer
    ordered = sorted(sentences, key=len, reverse=True)
    parts = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    with torch.inference_mode():
        features = [module.preprocess(part) for part in parts]

    def each(function: Callable[[Any], Any], inputs: Sequence[Any] = parts) -> Callable[[], None]:
        @torch.inference_mode()
        def run() -> None:
            for part in inputs:
                function(part)

        return run

    asked = AS_ARRAYS["common"] | WITHOUT_MASK["text"]  # what the folder's sentence_bert_config.json asks for

    def tokenize(part: list[str]) -> Any:
        return tokenizer(part, padding=True, truncation="longest_first", **asked)

    def raw(name: str) -> Callable[[], None]:
        """The Rust tokenizer without padding or truncation."""

        def encode_batch(part: list[str]) -> Any:
            return [e.ids for e in getattr(rust, name)(part, add_special_tokens=False)]

        def run() -> None:
            rust.no_padding()
            rust.no_truncation()
            each(encode_batch)()

        return run

    def encoded(part: dict[str, Any]) -> Any:
        return st.forward(dict(part))

    return {
        "SentenceTransformer.encode": lambda: st.encode(ordered, batch_size=size),
        "  Transformer.preprocess": each(module.preprocess),
        "    tokenizer(..., padding, tensors)": each(tokenize),
        "      Rust encode_batch, ids": raw("encode_batch"),
        "      Rust encode_batch_fast, ids": raw("encode_batch_fast"),
        "  SentenceTransformer.forward": each(encoded, features),
        "    get_text_features": each(
            lambda f: module.model.get_text_features(f["input_ids"], f.get("attention_mask")), features
        ),
        "StaticEmbedding encode": lambda: static.encode(ordered, batch_size=size),
        "  StaticEmbedding.preprocess": each(static[0].preprocess),
    }


def profile(folder: str, sentences: list[str], repeats: int) -> list[dict[str, Any]]:
    """Median CPU microseconds a sentence of each stage, for each batch size."""
    table: dict[str, dict[str, Any]] = {}
    for size in BATCH_SIZES:
        runs = stages(folder, sentences, size)
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for repeat in range(-1, repeats):
            for name, run in runs.items():
                cpu = timed(run)[1]
                if repeat >= 0:
                    seconds[name].append(cpu)
        for name, times in seconds.items():
            row = table.setdefault(name, {"stage": name})
            row[f"CPU us/sentence, batches of {size}"] = round(1e6 * statistics.median(times) / len(sentences), 1)
    return list(table.values())


def child(arguments: dict[str, Any]) -> dict[str, Any]:
    """Measure in a process whose tokenizer and torch have that many threads; they read it once, when they start."""
    threads = str(arguments["threads"])
    env = os.environ | {"RAYON_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true"}
    command = [sys.executable, __file__, "--child", json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        sys.exit(f"The measurement with {threads} threads failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def run_child(arguments: dict[str, Any]) -> None:
    """In the child: measure, print JSON."""
    torch.set_num_threads(arguments["threads"])
    pairs = read_pairs(data_folder() / "eval" / "english" / "stsb_test.csv")
    sentences = (pairs.first + pairs.second)[: arguments["limit"]]
    minilm = Path(arguments["minilm"]) if arguments["minilm"] else None
    speed = measure(arguments["model"], minilm, sentences, arguments["repeats"])
    spent = profile(arguments["model"], sentences, arguments["repeats"]) if arguments["profile"] else []
    print(json.dumps({"sentences": len(sentences), "speed": speed, "profile": spent}))


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--model", help="folder of a trained Banyan; default: random, 25,000 x 256 (20 seconds)")
    arguments.add_argument("--repeats", type=int, default=7, help="interleaved repetitions")
    arguments.add_argument("--limit", type=int, default=None, help="only that many sentences")
    arguments.add_argument("--profile", action="store_true", help="also show where the time goes")
    arguments.add_argument("--child", help=argparse.SUPPRESS)
    args = arguments.parse_args()
    if args.child:
        run_child(json.loads(args.child))
        return

    data_folder()
    minilm = encoder_folder("minilm-l6")
    case = {"repeats": args.repeats, "limit": args.limit, "minilm": str(minilm) if minilm else None}
    results: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        if args.model is None:
            random_model(Path(temporary))
        model = str(Path(args.model or temporary).resolve())
        for threads in (1, 2):
            results[threads] = child({**case, "model": model, "threads": threads, "profile": args.profile})
    print(f"{results[1]['sentences']:,} sentences; {args.model or 'random weights, 25,000 x 256'}")
    print_table([{"threads": threads, **row} for threads, result in results.items() for row in result["speed"]])
    for threads, result in results.items():
        if result["profile"]:
            print(f"\nWhere the time goes, {threads} thread(s)")
            print_table(result["profile"])
    save(args.output, model=args.model, results={str(threads): result for threads, result in results.items()})


if __name__ == "__main__":
    main()
