"""Work on a corpus in shards: parquet files written whole or not at all, by N workers, skipped when they are there.

The unit of work, of progress and of restart is one shard. Workers come from an engine that exists: processes of
``datasets.Dataset.map``, or tasks of Ray Data on one machine or many. Whatever is killed, finished shards stay and the
same command makes the others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from banyan_hf.persistence import write_text

Engine = Literal["datasets", "ray"]
#: Rows ``[start, stop)`` as record batches. It travels to the workers, so it must pickle.
Rows = Callable[[int, int], Iterator[pa.RecordBatch]]
#: What a run was asked for; and what it made, written when all shards are there.
PLAN, INDEX = "plan.json", "index.json"


@dataclass(frozen=True)
class Job:
    """One shard after another; a worker's whole task.

    Args:
        folder: of the shards.
        rows: makes the rows.
        schema: of every shard, with its metadata.
        ranges: rows ``[start, stop)`` of each shard.
    """

    folder: Path
    rows: Rows
    schema: pa.Schema
    ranges: Sequence[tuple[int, int]]

    def path(self, shard: int) -> Path:
        """File of a shard."""
        return self.folder / f"part-{shard:05d}-of-{len(self.ranges):05d}.parquet"

    @property
    def missing(self) -> list[int]:
        """Shards that are not there yet."""
        return [shard for shard in range(len(self.ranges)) if not self.path(shard).exists()]

    def __call__(self, shard: int) -> None:
        """Write a shard: under a temporary name, to the disk, then renamed."""
        path, (start, stop) = self.path(shard), self.ranges[shard]
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            with temporary.open("wb") as file:
                with pq.ParquetWriter(file, self.schema, use_dictionary=False) as writer:  # floats hardly repeat
                    for batch in self.rows(start, stop):
                        writer.write_batch(batch)
                file.flush()
                os.fsync(file.fileno())
            if (count := pq.read_metadata(temporary).num_rows) != stop - start:
                raise RuntimeError(f"shard {shard} has {count} rows, not {stop - start}")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_shards(
    rows: Rows,
    folder: str | os.PathLike[str],
    *,
    count: int,
    schema: pa.Schema,
    plan: Mapping[str, Any],
    rows_per_shard: int = 100_000,
    workers: int = 1,
    engine: Engine = "datasets",
) -> list[Path]:
    """Write ``count`` rows as parquet shards into a folder; a second call with the same plan makes what is missing.

    Args:
        rows: makes rows ``[start, stop)``; the same rows every time.
        folder: made if needed. Of the same plan, or empty.
        count: rows in all.
        schema: of the shards.
        plan: JSON-ready; everything that decides what the rows are. Another plan in the folder is refused.
        rows_per_shard: rows in a file; also what a killed worker loses at most.
        workers: processes; 1 works in this one (under ``"datasets"``).
        engine: ``"datasets"`` or ``"ray"`` (``pip install 'banyan-hf[ray]'``; the folder must be seen by all machines).

    Returns:
        the files, in the order of the rows.

    Raises:
        ValueError: the folder belongs to another plan, or another process is at work in it.
        RuntimeError: a worker died; call again.
    """
    if rows_per_shard < 1 or workers < 1:
        raise ValueError(f"rows_per_shard={rows_per_shard} and workers={workers} must be at least 1.")
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r} is not one of {', '.join(ENGINES)}.")
    folder = Path(folder).absolute()
    ranges = [(start, min(start + rows_per_shard, count)) for start in range(0, count, rows_per_shard)]
    job = Job(folder, rows, schema, ranges)
    record = {**plan, "rows": count, "rows_per_shard": rows_per_shard}
    with _claim(folder, record):
        for leftover in folder.glob(".part-*.tmp"):  # of a killed run; nobody else is at work here
            leftover.unlink()
        if missing := job.missing:
            ENGINES[engine](job, missing, workers)
        files = [job.path(shard) for shard in range(len(ranges))]
        write_text(folder / INDEX, _as_json({**record, "files": [file.name for file in files]}))
    return files


@contextmanager
def _claim(folder: Path, plan: dict[str, Any]) -> Iterator[None]:
    """Hold the folder for this process and this plan, or refuse."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give the name of a folder for the shards.")
    record = folder / PLAN
    if not record.exists() and folder.exists() and any(path.name != ".lock" for path in folder.iterdir()):
        raise ValueError(f"{folder} is not empty and holds no shards of ours. Choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            if record.exists():
                before = json.loads(record.read_text(encoding="utf-8"))
                now = json.loads(json.dumps(plan))
                changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
                if changed:
                    differences = "; ".join(f"{key}: {before.get(key)!r} then, {now.get(key)!r} now" for key in changed)
                    raise ValueError(
                        f"{folder} was begun with other settings ({differences}). Finish it with the same ones, or "
                        "choose another folder."
                    )
            else:
                write_text(record, _as_json(plan))
            yield
    except Timeout as error:
        raise ValueError(f"Another process is at work in {folder}; wait for it, or choose another folder.") from error


def _as_json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1) + "\n"


def _with_datasets(job: Job, shards: Sequence[int], workers: int) -> None:
    """Processes of ``Dataset.map``; a worker that dies ends the run with a RuntimeError."""
    from datasets import Dataset

    def write(row: dict[str, int]) -> None:
        job(row["shard"])

    workers = min(workers, len(shards))
    with _fresh_processes(type(job.rows).__module__):
        Dataset.from_dict({"shard": list(shards)}).map(
            write,
            num_proc=workers if workers > 1 else None,
            keep_in_memory=True,
            new_fingerprint="shards",  # nothing of this is cached: no hashing of the job
            desc="Writing shards",
        )


@contextmanager
def _fresh_processes(module: str) -> Iterator[None]:
    """Workers are forked from a clean process that has only imported what they need, not from this one.

    A child of a process with running threads (OpenMP, tokenizers) inherits their locks without them and may wait for
    ever.
    """
    import multiprocess  # what datasets takes its processes from

    before = multiprocess.get_start_method(allow_none=True)
    if "forkserver" in multiprocess.get_all_start_methods():
        multiprocess.set_start_method("forkserver", force=True)
        multiprocess.set_forkserver_preload(["__main__", __name__, "datasets", module])
    else:
        multiprocess.set_start_method("spawn", force=True)
    try:
        yield
    finally:
        multiprocess.set_start_method(before, force=True)


def _with_ray(job: Job, shards: Sequence[int], workers: int) -> None:
    """Tasks of Ray Data, one a shard; Ray itself starts those of a dead worker again."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ValueError("engine='ray' needs Ray Data: pip install 'banyan-hf[ray]'.") from error

    def write(row: dict[str, int]) -> dict[str, int]:
        job(row["shard"])
        return row

    started = not ray.is_initialized()
    if started:
        cluster = "RAY_ADDRESS" in os.environ
        ray.init(num_cpus=None if cluster else workers, include_dashboard=None if cluster else False)
    try:
        tasks = ray.data.from_items([{"shard": shard} for shard in shards], override_num_blocks=len(shards))
        tasks.map(write, concurrency=workers).materialize()
    finally:
        if started:
            ray.shutdown()


ENGINES: dict[str, Callable[[Job, Sequence[int], int], None]] = {"datasets": _with_datasets, "ray": _with_ray}
