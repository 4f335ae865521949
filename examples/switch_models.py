"""Switch the embedding model of an index without encoding its documents again.

What: an index of 5,000 questions was built with all-MiniLM-L6-v2. From now on queries are to be encoded by
all-mpnet-base-v2. The old vectors are moved, without their texts, in two ways: (a) old vectors and new queries both
into one relative space; (b) old vectors into mpnet's own space (`translate`). Beside them stand the closed forms CCA
and Procrustes, and what moving is meant to save: encoding everything anew. The maps are learned from 3,200 questions
that are not in the index; 800 more measure what would be lost before anything is written (`--min-recall`).

Store: LanceDB, embedded. It is Arrow inside, so it takes the migrated shards as they come, batch by batch, keeps the
space id that travels in their schema, and leaves vectors as they are (a store that normalises them under cosine asks
for a space that was fitted on normalised vectors). Search is exact here: what is lost is not the store's.

    python examples/switch_models.py            # about 6 CPU minutes, 1 when the embeddings are on disk
    python examples/switch_models.py --small    # seconds, no data, no download: docstrings of Python's own library

Full runs need BANYAN_HF_DATA, and BANYAN_HF_ENCODERS or the Hub; both need `pip install 'banyan-hf[index]'`. Prints,
last, a table: recall@10 against encoding anew, nDCG@10 against the duplicates that people marked, CPU seconds.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import ROOT, Embeddings, console, docstrings, encoder, ndcg, quora, word_vectors
from rich.table import Table

from relrep_hf import RelativeSpace
from relrep_hf.closed_forms import cca, procrustes
from relrep_hf.migration import migrate, nearest
from relrep_hf.provenance import KEY, Provenance
from relrep_hf.vector_files import open_vectors, vector_array, vector_type


def store(db: lancedb.DBConnection, name: str, batches, schema: pa.Schema) -> lancedb.table.Table:
    """A table of vectors; the schema says which space they are in."""
    return db.create_table(name, batches, schema=schema)


def ask(table: lancedb.table.Table, model, queries: np.ndarray) -> np.ndarray:
    """Ids of the 10 nearest documents of each query (Q, 10), if the model's queries belong to this table."""
    Provenance.from_json(table.schema.metadata[KEY.encode()]).check(model)
    answer = table.search(list(queries)).distance_type("cosine").select(["id", "_distance"]).limit(10).to_arrow()
    order = np.lexsort([answer["_distance"].to_numpy(), answer["query_index"].to_numpy()])
    return answer["id"].to_numpy()[order].reshape(len(queries), 10)


def main() -> None:
    arguments = argparse.ArgumentParser(description="Move an index to another model without encoding it again.")
    arguments.add_argument("--small", action="store_true", help="seconds, without data or downloads")
    arguments.add_argument("--anchors", type=int, default=None, help="dimensions of the relative space")
    arguments.add_argument("--min-recall", type=float, default=None, help="write nothing if held-out recall is lower")
    arguments.add_argument("--output", type=Path, default=ROOT / "out" / "switch_models")
    options = arguments.parse_args()
    shutil.rmtree(options.output, ignore_errors=True)
    options.output.mkdir(parents=True)

    # 1. Texts and models. Held-out questions are the last of the others: neither in the index nor in the support.
    texts = docstrings() if options.small else quora()
    cut = len(texts.others) * 4 // 5
    support, held_out = texts.others[:cut], texts.others[cut:]
    old, new = ("banyan", "word-vectors") if options.small else ("minilm-l6", "mpnet")
    models = {name: word_vectors(support) if name == "word-vectors" else encoder(name) for name in (old, new)}
    embed = Embeddings(options.output / "embeddings" if options.small else ROOT / "out" / "embeddings")

    # 2. The old index, as it lies there: ids and vectors of the old model, no texts.
    vectors, _ = embed(models[old], old, texts.documents)
    schema = pa.schema({"id": pa.int64(), "vector": vector_type(vectors.shape[1])})
    schema = schema.with_metadata({KEY: Provenance.of(models[old]).to_json()})
    rows = pa.RecordBatch.from_arrays([pa.array(range(len(vectors))), vector_array(vectors)], schema=schema)
    db = lancedb.connect(options.output / "lancedb")
    old_index = store(db, "old", [rows], schema)

    # 3. Learn the space once, on texts of the same kind. This does not grow with the index.
    pairs, spent = {}, {}
    for name in (old, new):
        others, spent[name] = embed(models[name], name, texts.others)
        pairs[name] = others[:cut]
    begun = time.process_time()
    anchors = options.anchors or (64 if options.small else 300)
    space = RelativeSpace.fit_embeddings(pairs, support, anchors=anchors, show_progress=True)
    fitting = time.process_time() - begun + sum(spent.values())

    # 4. Export the old table, move it, and load the shards into the store.
    export = options.output / "export.parquet"
    with pq.ParquetWriter(export, old_index.schema) as writer:
        for batch in old_index.search().select(["id", "vector"]).to_batches():
            writer.write_batch(batch)
    moved, seconds = {}, {}
    for way in ("relative", "absolute"):
        begun = time.process_time()
        done = migrate(
            open_vectors([export]), options.output / way, space=space, source=models[old], target=models[new],
            into=way, held_out=held_out, min_recall=options.min_recall, cache=embed.cache.folder,
        )  # fmt: skip
        seconds[way] = time.process_time() - begun
        assert done.recall is not None
        console.print(
            f"{way}: {done.rows:,} vectors moved; recall@10 on {done.held_out:,} held-out texts, measured before: "
            f"{done.recall['value']:.3f} ({done.recall['low']:.3f} to {done.recall['high']:.3f})"
        )
        shards = (batch for file in done.files for batch in pq.ParquetFile(file).iter_batches())
        moved[way] = store(db, way, shards, pq.read_schema(done.files[0]))

    # 5. What it is measured against: every document encoded by the new model.
    truth, again = embed(models[new], new, texts.documents)
    asked, _ = embed(models[new], new, texts.queries)
    best = nearest(asked, truth, k=10)
    attached = space.attach(models[new], cache=embed.cache.folder)
    relative = space.map_for(pairs[new])(asked).astype(np.float32)
    found = {
        f"{new}, documents encoded anew": (best, again),
        f"moved: relative space, m = {anchors}": (ask(moved["relative"], attached, relative), seconds["relative"]),
        f"moved: translated into {new}'s space": (ask(moved["absolute"], models[new], asked), seconds["absolute"]),
    }
    for name, method in (("CCA", cca), ("Procrustes", procrustes)):
        begun = time.process_time()
        source, target = method(pairs[old], pairs[new])
        documents = source(vectors)
        taken = time.process_time() - begun
        found[f"closed form: {name}"] = (nearest(target(asked), documents, k=10), taken)
    found[f"{old} as it was (old queries too)"] = (
        nearest(embed(models[old], old, texts.queries)[0], vectors, k=10),
        0.0,
    )
    try:
        ask(moved["relative"], models[new], asked)
    except ValueError as error:
        console.print(f"A query of the wrong space is refused: {error}", highlight=False)

    table = Table(
        "", "recall@10", "nDCG@10", "CPU s", "times faster", title=f"{len(vectors):,} documents, {old} to {new}"
    )
    for name, (ids, taken) in found.items():
        kept = np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(ids, best, strict=True)])
        speed = f"{again / taken:,.0f}" if taken else ""
        table.add_row(name, f"{kept:.3f}", f"{ndcg(ids, texts.relevant):.3f}", f"{taken:.1f}", speed)
    console.print(table)
    each, moving = again / len(vectors), seconds["absolute"] / len(vectors)  # CPU seconds a document
    console.print(
        f"Learning and measuring, once: {2 * len(texts.others):,} encoder calls, {fitting:.0f} CPU s. Saved: a call of "
        f"{new} for each of {len(vectors):,} documents. All in all, moving them was "
        f"{len(vectors) * each / (fitting + len(vectors) * moving):.1f} times faster than encoding them; by the same "
        f"figures a million would be moved {1e6 * each / (fitting + 1e6 * moving):.0f} times faster.",
        highlight=False,
    )


if __name__ == "__main__":
    main()
