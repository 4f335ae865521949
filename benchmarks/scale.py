"""Arithmetic of a billion sentences, from rates measured here: encoding them, moving their vectors, keeping them.

Sentences are lines of the English development text (22 words on average); rates are per CPU second, of all threads, so
that they do not depend on what else the machine does. Money is `--price` a core hour.

    python benchmarks/scale.py [--price 0.04]    # about 40 CPU seconds; BANYAN_HF_ENCODERS for MiniLM and mpnet
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import gzip
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from banyan_common import data_folder, encoder_folder
from rich.console import Console
from rich.table import Table
from sentence_transformers import SentenceTransformer

from banyan_hf import default_model
from banyan_hf.encoding import encode_corpus
from relrep_hf import RelativeSpace
from relrep_hf.migration import MoveRows, Translation
from relrep_hf.sharding import write_shards
from relrep_hf.vector_files import NumpyVectors, vector_type

BILLION, VECTORS = 1_000_000_000, 40_000


def main() -> None:
    arguments = argparse.ArgumentParser(description="What a billion sentences cost.")
    arguments.add_argument("--price", type=float, default=0.04, help="of a core hour")
    options = arguments.parse_args()
    with gzip.open(data_folder() / "text" / "en.dev.txt.gz", "rt", encoding="utf-8") as file:
        texts = [line.strip() for line in file]
    rates: dict[str, tuple[float, int]] = {}  # what -> sentences a CPU second, bytes a sentence
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        encode_corpus([str(folder / "texts.txt")], folder / "warm", default_model())
        begun = time.process_time()
        encode_corpus([str(folder / "texts.txt")], folder / "vectors", default_model())
        size = sum(path.stat().st_size for path in (folder / "vectors").glob("*.parquet"))
        rates["encode: Banyan, text to shards"] = len(texts) / (time.process_time() - begun), size // len(texts)
        for name, label, count in (("minilm-l6", "all-MiniLM-L6-v2", 256), ("mpnet", "all-mpnet-base-v2", 96)):
            if found := encoder_folder(name):
                model = SentenceTransformer(str(found), device="cpu")
                model.encode(texts[:32], show_progress_bar=False)
                begun = time.process_time()
                model.encode(texts[:count], show_progress_bar=False)
                dims = int(model.get_embedding_dimension() or 0)
                rates[f"encode: {label}"] = count / (time.process_time() - begun), 4 * dims

        rng = np.random.default_rng(0)  # speed does not ask what the numbers mean
        a, b = rng.normal(size=(2000, 384)), rng.normal(size=(2000, 768))
        space = RelativeSpace.fit_embeddings(
            {"a": a, "b": b}, list(map(str, range(2000))), anchors=300, selector="random"
        )  # fmt: skip
        np.save(folder / "old.npy", rng.normal(size=(VECTORS, 384)).astype(np.float32))
        schema = pa.schema({"id": pa.int64(), "vector": vector_type(768)})
        rows = MoveRows(NumpyVectors(folder / "old.npy"), Translation.between(space, a, b), schema)
        begun = time.process_time()
        write_shards(rows, folder / "new", count=VECTORS, schema=schema, plan={})
        size = sum(path.stat().st_size for path in (folder / "new").glob("*.parquet"))
        rates["move: 384 to 768 numbers, m = 300"] = VECTORS / (time.process_time() - begun), size // VECTORS
    table = Table(
        "", "a CPU second", "core hours", "price", "hours on 64 cores", "terabytes", title="1,000,000,000 sentences"
    )
    for label, (rate, size) in rates.items():
        hours = BILLION / rate / 3600
        table.add_row(
            label, f"{rate:,.0f}", f"{hours:,.0f}", f"{hours * options.price:,.2f}", f"{hours / 64:,.1f}",
            f"{size * BILLION / 1e12:.2f}",
        )  # fmt: skip
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
