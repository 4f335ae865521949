"""Shards: whole or absent, each row once, whoever is killed; the old index untouched, the new one says what it is."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset, load_dataset
from sentence_transformers import SentenceTransformer

import banyan_hf
from relrep_hf import RelativeSpace
from relrep_hf.cli import app
from relrep_hf.migration import migrate, nearest, recall
from relrep_hf.provenance import read_provenance
from relrep_hf.sharding import write_shards
from relrep_hf.vector_files import open_vectors, read_vectors, vector_array

WORDS = ["river", "stone", "king", "engine", "letter", "cloud", "farmer", "ship", "moon", "road", "bird", "house"]


def texts_of(n: int, *, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 6)) + f" {row % 97}" for row in range(n)]


def table_of(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("part-*.parquet"))])


# -- the shards themselves


@dataclasses.dataclass(frozen=True)
class Squares:
    """Rows number and square; a worker that comes to `deadly` kills itself once, as the machine's killer would."""

    deadly: int = -1
    record: str = ""

    def __call__(self, start, stop):
        if start == self.deadly and not os.path.exists(self.record):
            Path(self.record).touch()
            yield self._batch(start, start + 1)  # half a shard is on the disk
            os.kill(os.getpid(), signal.SIGKILL)
        yield self._batch(start, stop)

    def _batch(self, start, stop):
        rows = np.arange(start, stop)
        return pa.RecordBatch.from_arrays([pa.array(rows), pa.array(rows**2)], schema=SCHEMA)


SCHEMA = pa.schema({"id": pa.int64(), "square": pa.int64()})


def write(folder, rows=None, **options):
    settings = {"count": 10, "schema": SCHEMA, "plan": {"what": "squares"}, "rows_per_shard": 4} | options
    return write_shards(rows or Squares(), folder, **settings)


def test_every_row_once_and_in_order(tmp_path):
    files = write(tmp_path / "out")
    assert [pq.read_metadata(file).num_rows for file in files] == [4, 4, 2]
    assert table_of(tmp_path / "out")["square"].to_pylist() == [n * n for n in range(10)]
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert index["files"] == [file.name for file in files]
    assert (index["rows"], index["what"]) == (10, "squares")
    opened = load_dataset("parquet", data_files=str(tmp_path / "out/*.parquet"), cache_dir=str(tmp_path / "cache"))
    assert opened["train"]["id"][:] == list(range(10))


def test_finished_shards_are_not_made_again(tmp_path):
    files = write(tmp_path)
    before = [file.stat().st_mtime_ns for file in files]
    files[1].unlink()
    (tmp_path / "index.json").unlink()
    (tmp_path / ".part-00001-of-00003.parquet.tmp").write_bytes(b"half")
    write(tmp_path)
    after = [file.stat().st_mtime_ns for file in files]
    assert [a == b for a, b in zip(after, before, strict=True)] == [True, False, True]
    assert (tmp_path / "index.json").exists()
    assert not list(tmp_path.glob("*.tmp")) + list(tmp_path.glob(".*.tmp"))


def test_a_failing_shard_leaves_nothing_half_written(tmp_path):
    def fails(start, stop):
        yield Squares()._batch(start, start + 1)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write(tmp_path, fails)
    assert not list(tmp_path.glob("*.parquet")) + list(tmp_path.glob(".part*"))
    with pytest.raises(RuntimeError, match="shard 0 has 1 rows, not 4"):
        write(tmp_path, lambda start, stop: iter([Squares()._batch(start, start + 1)]))
    assert not list(tmp_path.glob("*.parquet"))


def test_refusals(tmp_path):
    write(tmp_path / "a")
    with pytest.raises(ValueError, match="what: 'squares' then, 'cubes' now"):
        write(tmp_path / "a", plan={"what": "cubes"})
    with pytest.raises(ValueError, match="rows_per_shard: 4 then, 5 now"):
        write(tmp_path / "a", rows_per_shard=5)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "photo.jpg").touch()
    with pytest.raises(ValueError, match="holds no shards of ours"):
        write(tmp_path / "mine")
    with pytest.raises(ValueError, match="is a file"):
        write(tmp_path / "mine" / "photo.jpg")
    with pytest.raises(ValueError, match="must be at least 1"):
        write(tmp_path / "b", workers=0)
    with pytest.raises(ValueError, match="'spark' is not one of datasets, ray"):
        write(tmp_path / "b", engine="spark")
    assert not (tmp_path / "b").exists()


def test_two_runs_in_one_folder(tmp_path):
    def second(start, stop):
        with pytest.raises(ValueError, match="Another process is at work"):
            write(tmp_path)
        yield Squares()._batch(start, stop)

    write(tmp_path, second)


@pytest.mark.parametrize("engine", ["datasets", "ray"])
def test_a_killed_worker_loses_nothing_and_doubles_nothing(tmp_path, engine):
    if engine == "ray":
        if not os.environ.get("BANYAN_HF_RAY_TEST"):
            pytest.skip("set BANYAN_HF_RAY_TEST=1 where the extra 'ray' is installed; starting Ray takes half a minute")
        from ray.cloudpickle import register_pickle_by_value

        register_pickle_by_value(sys.modules[__name__])  # Ray's workers do not know this folder
    out, rows = tmp_path / "out", Squares(deadly=20, record=str(tmp_path / "died"))
    options = {"count": 40, "rows_per_shard": 5, "workers": 2, "engine": engine}
    if engine == "datasets":
        with pytest.raises(RuntimeError, match="died"):
            write(out, rows, **options)
        assert not (out / "index.json").exists()
        for part in out.glob("part-*.parquet"):
            assert pq.read_metadata(part).num_rows == 5  # what is there is whole
        assert not (out / "part-00004-of-00008.parquet").exists()
    write(out, rows, **options)  # Ray starts the task again by itself
    assert (tmp_path / "died").exists()
    assert table_of(out)["id"].to_pylist() == list(range(40))
    assert not list(out.glob(".part*"))


# -- vectors as they lie about


def test_vector_files(tmp_path):
    x = np.random.default_rng(0).normal(size=(25, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "ids.txt").write_text("\n".join(f"doc {n}" for n in range(25)) + "\n")
    ids = [f"doc {n}" for n in range(25)]
    schema = pa.schema({"id": pa.string(), "vector": pa.list_(pa.float64()), "page": pa.int32()})
    folder = tmp_path / "parquet"
    folder.mkdir()
    for name, rows in (("a", range(10)), ("b", range(10, 10)), ("c", range(10, 25))):
        columns = [[ids[n] for n in rows], [x[n].tolist() for n in rows], list(rows)]
        table = pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema)
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=4)
    Dataset.from_dict({"id": ids, "vector": x.tolist()}).save_to_disk(str(tmp_path / "dataset"))
    opened = [
        open_vectors([tmp_path / "x.npy"], ids=tmp_path / "ids.txt"),
        open_vectors([folder]),
        open_vectors(sorted(folder.iterdir())),
        open_vectors([tmp_path / "dataset"]),
    ]
    for vectors in opened:
        assert (vectors.count, vectors.dims) == (25, 3)
        for start in range(25):
            for stop in (start, start + 1, min(start + 9, 25), 25):
                batches = list(vectors(start, stop))
                assert [n for batch in batches for n in batch.column("id").to_pylist()] == ids[start:stop]
                if batches:
                    got = np.concatenate([read_vectors(batch.column("vector")) for batch in batches])
                    np.testing.assert_array_equal(got.astype(np.float32), x[start:stop])
    assert [n for batch in opened[1](8, 12) for n in batch.column("page").to_pylist()] == [8, 9, 10, 11]
    assert [n for b in open_vectors([tmp_path / "x.npy"])(3, 5) for n in b.column("id").to_pylist()] == [3, 4]


def test_vector_files_refuse(tmp_path):
    np.save(tmp_path / "flat.npy", np.zeros(3))
    np.save(tmp_path / "x.npy", np.zeros((3, 2), np.float32))
    pq.write_table(pa.table({"id": [1], "emb": [[1.0]]}), tmp_path / "other.parquet")
    (tmp_path / "one.txt").write_text("a\n")
    (tmp_path / "twice.txt").write_text("a\u2028b\na\u2028b\nc\n", encoding="utf-8")
    for name in ("ours", "theirs"):
        table = pa.table({"vector": [[1.0]]}).replace_schema_metadata({"relrep": name})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    for sources, options, words in (
        (["flat.npy"], {}, r"float64 of shape \(3,\)"),
        (["none.npy"], {}, "not a file"),
        (["x.npy"], {"ids": tmp_path / "one.txt"}, "1 ids for 3 vectors"),
        (["x.npy"], {"ids": tmp_path / "twice.txt"}, "Only 2 of the 3 ids"),
        (["ours.parquet", "theirs.parquet"], {}, "made by another encoder"),
        (["other.parquet"], {}, "no 'vector'"),
        (["other.parquet"], {"ids": tmp_path / "one.txt"}, "belongs to a .npy file"),
        (["none.parquet"], {}, "not a parquet file"),
        (["x.npy", "x.npy"], {}, "."),
    ):
        with pytest.raises((ValueError, pa.ArrowInvalid), match=words):
            open_vectors([tmp_path / name for name in sources], **options)
    with pytest.raises(ValueError, match="different lengths"):
        read_vectors(pa.array([[1.0], [1.0, 2.0]]))
    with pytest.raises(ValueError, match="1 rows have no vector"):
        read_vectors(pa.array([[1.0], None]))
    with pytest.raises(ValueError, match="1 rows have no vector"):
        read_vectors(pa.array([None, [1.0, 2.0]], pa.list_(pa.float32(), 2)))


def test_vector_column_round_trip():
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    column = vector_array(x)
    np.testing.assert_array_equal(read_vectors(column), x)
    np.testing.assert_array_equal(read_vectors(column.slice(2, 2)), x[2:4])


# -- migration


@pytest.fixture(scope="module")
def index(tmp_path_factory, bert_folder_pair):
    """Two encoders, a space of both, an old index of 230 texts in .npy, and texts that nobody has seen."""
    folder = tmp_path_factory.mktemp("index")
    old, new = (SentenceTransformer(str(path)) for path in bert_folder_pair)
    space = RelativeSpace.fit(
        {"old": old, "new": new}, texts_of(300, seed=0), anchors=30, selector="random", show_progress=False
    )
    space.save(folder / "space")
    texts = texts_of(230, seed=1)
    np.save(folder / "old.npy", old.encode(texts))
    (folder / "held.txt").write_text("\n".join(texts_of(120, seed=2)) + "\n")
    return folder, space, old, new, texts


@pytest.fixture(scope="module")
def bert_folder_pair(tmp_path_factory):
    """The English model in the box, and one with another pooling and other tokens: two real encoders, offline."""
    folder = tmp_path_factory.mktemp("encoders")
    for name, pooling in (("root", "root"), ("mean", "mean")):
        model, tokenizer = banyan_hf.load_encoder(banyan_hf.default_model())
        model.config.pooling = pooling
        if pooling == "mean":
            with torch.no_grad():
                model.embeddings.weight.add_(
                    torch.randn(model.config.hidden_size, generator=torch.Generator().manual_seed(0)) / 10
                )
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder / "root", folder / "mean"


def test_nearest_and_recall():
    rng = np.random.default_rng(0)
    q, x = rng.normal(size=(7, 5)), rng.normal(size=(40, 5))
    scores = (q / np.linalg.norm(q, axis=1, keepdims=True)) @ (x / np.linalg.norm(x, axis=1, keepdims=True)).T
    np.testing.assert_array_equal(nearest(q, x, k=4, block=2), np.argsort(-scores, axis=1)[:, :4])
    rotation = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    assert recall(q, x, q @ rotation, x @ rotation).min() == 1
    assert recall(q, x, q, rng.normal(size=(40, 5))).mean() < 0.6
    with pytest.raises(ValueError, match="k=41 nearest of 40"):
        nearest(q, x, k=41)


@pytest.mark.parametrize("into", ["absolute", "relative"])
def test_migrated_shards_hold_what_the_space_says(index, tmp_path, into):
    folder, space, old, new, texts = index
    before = (folder / "old.npy").read_bytes()
    done = migrate(
        open_vectors([folder / "old.npy"]),
        tmp_path / "new",
        space=space,
        source=old,
        target=new,
        into=into,
        held_out=(folder / "held.txt").read_text().splitlines(),
        min_recall=0.05,
        rows_per_shard=100,
    )
    table = table_of(tmp_path / "new")
    assert table["id"].to_pylist() == list(range(230))
    moved = read_vectors(table["vector"].combine_chunks())
    vectors = np.load(folder / "old.npy")
    expected = space.translate(vectors, old, new) if into == "absolute" else space.attach(old).encode(texts)
    np.testing.assert_allclose(moved, expected, atol=2e-4 * np.abs(expected).max())
    assert (folder / "old.npy").read_bytes() == before
    assert (done.rows, done.dims, len(done.files)) == (230, moved.shape[1], 3)
    assert 0.05 < done.recall["low"] <= done.recall["value"] <= 1
    assert done.held_out == 120

    mine = read_provenance(tmp_path / "new")
    assert mine == done.provenance
    mine.check(new if into == "absolute" else space.attach(new))
    with pytest.raises(ValueError, match="query with"):
        mine.check(space.attach(new) if into == "absolute" else new)
    other = RelativeSpace.fit(
        {"old": old, "new": new}, texts_of(200, seed=5), anchors=9, selector="random", show_progress=False
    )
    wrong = old if into == "absolute" else other.attach(new)
    with pytest.raises(ValueError, match="this model is"):
        mine.check(wrong)


def test_a_restarted_migration_notices_another_index(index, tmp_path):
    folder, space, old, new, _ = index
    vectors = np.load(folder / "old.npy")
    np.save(tmp_path / "index.npy", vectors)
    arguments = {"space": space, "source": old, "target": new, "rows_per_shard": 100}
    migrate(open_vectors([tmp_path / "index.npy"]), tmp_path / "new", **arguments)
    vectors[110:120] = vectors[:10]  # neither the first nor the last rows
    np.save(tmp_path / "index.npy", vectors)
    with pytest.raises(ValueError, match=r"vectors: .* then, .* now"):
        migrate(open_vectors([tmp_path / "index.npy"]), tmp_path / "new", **arguments)


def test_the_gate_says_by_how_much_and_writes_nothing(index, tmp_path):
    folder, space, old, new, _ = index
    arguments = {"space": space, "source": old, "target": new, "min_recall": 1.0}
    vectors = open_vectors([folder / "old.npy"])
    held_out = (folder / "held.txt").read_text().splitlines()
    with pytest.raises(ValueError, match=r"Nothing was written: recall@10 on 120 held-out texts is 0\.\d+.*below"):
        migrate(vectors, tmp_path / "new", held_out=held_out, **arguments)
    with pytest.raises(ValueError, match="0 held-out texts"):
        migrate(vectors, tmp_path / "new", **arguments)
    with pytest.raises(ValueError, match="0 held-out texts"):  # those of the support do not count
        migrate(vectors, tmp_path / "new", held_out=space.support, **arguments)
    with pytest.raises(ValueError, match="between 0 and 1"):
        migrate(vectors, tmp_path / "new", held_out=held_out, **arguments | {"min_recall": 95})
    assert not (tmp_path / "new").exists()


def test_migration_refuses_what_is_not_the_index(index, tmp_path):
    folder, space, old, new, _ = index
    arguments = {"space": space, "source": old, "target": new}
    np.save(tmp_path / "narrow.npy", np.zeros((5, 3), np.float32))
    with pytest.raises(ValueError, match="have 3 dimensions, but the source encoder has 384"):
        migrate(open_vectors([tmp_path / "narrow.npy"]), tmp_path / "new", **arguments)
    broken = np.load(folder / "old.npy")
    broken[123, 7] = np.nan
    np.save(tmp_path / "nan.npy", broken)
    with pytest.raises(ValueError, match="Vector 123 is not finite"):
        migrate(open_vectors([tmp_path / "nan.npy"]), tmp_path / "new", rows_per_shard=100, **arguments)
    np.save(tmp_path / "other.npy", broken[::-1])
    with pytest.raises(ValueError, match=r"vectors: .* then, .* now"):
        migrate(open_vectors([tmp_path / "other.npy"]), tmp_path / "new", rows_per_shard=100, **arguments)


def test_an_index_that_says_who_made_it_moves_only_from_there(index, tmp_path):
    folder, space, old, new, _ = index
    there = {"space": space, "source": old, "target": new}
    first = migrate(open_vectors([folder / "old.npy"]), tmp_path / "new", **there)
    with pytest.raises(ValueError, match=f"in the space of encoder {first.provenance.encoder}, but this model is"):
        migrate(open_vectors([tmp_path / "new"]), tmp_path / "wrong", **there)
    back = migrate(open_vectors([tmp_path / "new"]), tmp_path / "back", space=space, source=new, target=old)
    assert read_provenance(tmp_path / "back") == back.provenance != first.provenance


def test_migrate_command(index, tmp_path, bert_folder_pair):
    from typer.testing import CliRunner

    folder, space, _, new, _ = index
    root, mean = map(str, bert_folder_pair)
    arguments = ["migrate", str(folder / "space"), str(folder / "old.npy"), "--source", root, "--target", mean]
    arguments += ["--output", str(tmp_path / "new"), "--rows-per-shard", "90"]
    gate = ["--held-out", str(folder / "held.txt"), "--min-recall", "0.999"]
    refused = CliRunner().invoke(app, arguments + gate)
    assert refused.exit_code == 1
    assert "Nothing was written" in refused.stderr
    for _ in range(2):  # the second time everything is there
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        assert "230 vectors moved to 384 dimensions" in done.output
    assert read_provenance(tmp_path / "new").space == space.id
    read_provenance(tmp_path / "new").check(new)


# -- a corpus to vectors


def test_encode_command_writes_shards(tmp_path, cli):
    lines = texts_of(25, seed=3)
    lines[7] = ""
    (tmp_path / "corpus.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    out = tmp_path / "vectors"
    arguments = ["encode", tmp_path / "corpus.txt", "--output", out, "--rows-per-shard", 10, "--batch-size", 4]
    code, printed = cli(*arguments)
    assert (code, "Wrote 25 vectors of 384 numbers" in printed) == (0, True), printed
    table = table_of(out)
    assert table["id"].to_pylist() == list(range(25))
    encoder = SentenceTransformer(banyan_hf.default_model())
    np.testing.assert_array_equal(read_vectors(table["vector"].combine_chunks()), encoder.encode(lines))
    read_provenance(out).check(encoder)

    (out / "part-00001-of-00003.parquet").unlink()  # a stopped run
    stamp = (out / "part-00000-of-00003.parquet").stat().st_mtime_ns
    assert cli(*arguments)[0] == 0
    assert table_of(out).equals(table)
    assert (out / "part-00000-of-00003.parquet").stat().st_mtime_ns == stamp
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "vectors"]


def test_encode_command_refuses(tmp_path, cli):
    (tmp_path / "corpus.txt").write_text("a\nb\n", encoding="utf-8")
    for arguments, words in (
        ([tmp_path / "corpus.txt", tmp_path / "corpus.txt", "-o", tmp_path / "x.npy"], "takes one text file"),
        ([tmp_path / "none.txt", "-o", tmp_path / "x"], "none.txt is not a file"),
        ([tmp_path / "corpus.txt", "-o", tmp_path / "x", "--engine", "spark"], "'spark' is not one of"),
        ([tmp_path / "corpus.txt", "-o", tmp_path / "corpus.txt"], "is a file"),
    ):
        code, printed = cli("encode", *arguments)
        assert code == 1
        assert words in printed
