"""The ``relrep`` command: parse arguments, call one function, print."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import numpy as np
import typer
from rich.console import Console
from safetensors import SafetensorError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from relrep_hf.report_tasks import Task

app = typer.Typer(
    help="One shared space for any sentence-transformers encoders: fit, attach, report, translate.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
console = Console()
CHARTS = (".png", ".svg", ".pdf")

Cache = Annotated[Optional[Path], typer.Option(help="Folder for embeddings, so that no text is encoded twice.")]  # noqa: UP045
Trust = Annotated[bool, typer.Option(help="Allow encoders that bring their own code.")]


def read_lines(path: Path, limit: int | None = None) -> list[str]:
    """Read a text file, one text a line, gzip or plain; blank lines are dropped.

    Args:
        path: the file.
        limit: stop after so many texts.

    Returns:
        the texts.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    texts: list[str] = []
    with opener(path, "rt", encoding="utf-8") as handle:
        for line in handle:
            if limit is not None and len(texts) >= limit:
                break
            if line.strip():
                texts.append(line.strip())
    return texts


def read_task(specification: str) -> tuple[str, Task]:
    """Read ``name=train.tsv,test.tsv``; the files hold label TAB text.

    Args:
        specification: as on the command line.

    Returns:
        name and ``report_tasks.Task``.

    Raises:
        ValueError: it has another shape.
    """
    from relrep_hf.report_tasks import Task

    name, _, files = specification.partition("=")
    paths = files.split(",")
    if not name or len(paths) != 2:
        raise ValueError(f"--task must look like name=train.tsv,test.tsv, not {specification!r}.")
    columns: list[list[str]] = []
    for path in paths:
        rows = [line.split("\t", 1) for line in read_lines(Path(path))]
        wrong = next((row for row in rows if len(row) != 2), None)
        if wrong is not None:
            raise ValueError(f"{path}: every line must be label TAB text, but one is {wrong[0][:60]!r}.")
        columns += [[row[1] for row in rows], [row[0] for row in rows]]
    return name, Task(*columns)


def load_encoders(specifications: list[str], *, trust: bool) -> dict[str, SentenceTransformer]:
    """Load encoders given as ``path`` or ``name=path``.

    Args:
        specifications: as on the command line.
        trust: whether their own code may run.

    Returns:
        name -> SentenceTransformer.

    Raises:
        ValueError: two encoders have one name.
    """
    from sentence_transformers import SentenceTransformer

    encoders: dict[str, SentenceTransformer] = {}
    for specification in specifications:
        name, equals, path = specification.partition("=")
        if Path(specification).exists():  # a path may hold the sign
            equals = ""
        path = path if equals else specification
        name = name if equals else Path(path).name
        if name in encoders:
            raise ValueError(f"Two encoders are called {name!r}; write name=path to tell them apart.")
        encoders[name] = SentenceTransformer(path, trust_remote_code=trust)
    return encoders


@app.command()
def fit(
    encoders: Annotated[list[str], typer.Argument(help="Encoders: path, Hub name or name=path.")],
    texts: Annotated[Path, typer.Option(help="Texts to fit on, one a line (may be .gz).")],
    output: Annotated[Path, typer.Option(help="Folder for the space.")],
    anchors: Annotated[int, typer.Option(help="Dimensions of relative vectors.")] = 300,
    similarity: Annotated[str, typer.Option(help="wip or cosine.")] = "wip",
    selector: Annotated[str, typer.Option(help="param, random, kmeans or farthest.")] = "param",
    limit: Annotated[int, typer.Option(help="Use the first so many texts.")] = 8000,
    support: Annotated[Optional[int], typer.Option(help="Support texts; the rest are held-out pairs.")] = None,  # noqa: UP045
    seed: Annotated[
        int, typer.Option(help="Same seed, same bits, on one machine with the same number of threads.")
    ] = 0,
    cache: Cache = None,
    trust_remote_code: Trust = False,
) -> None:
    """Fit a space on one or more encoders and save it.

    Example: relrep fit minilm=all-MiniLM-L6-v2 mpnet=all-mpnet-base-v2 --texts sentences.txt --output space
    """
    from relrep_hf.space import RelativeSpace

    with _errors():
        space = RelativeSpace.fit(
            load_encoders(encoders, trust=trust_remote_code),
            read_lines(texts, limit),
            anchors=anchors,
            similarity=similarity,  # type: ignore[arg-type]
            selector=selector,  # type: ignore[arg-type]
            support=support,
            seed=seed,
            cache=cache,
        )
        space.save(output)
    console.print(f"space {space.id}: {space.anchors} anchors over {len(space.support)} texts, saved in {output}")


@app.command()
def attach(
    space: Annotated[str, typer.Argument(help="Space: folder or Hub name.")],
    encoder: Annotated[str, typer.Argument(help="Encoder: path, Hub name or name=path.")],
    output: Annotated[Path, typer.Option(help="Folder for the attached model.")],
    cache: Cache = None,
    trust_remote_code: Trust = False,
) -> None:
    """Bring an encoder into a space; the result opens with plain sentence-transformers.

    Example: relrep attach space e5=intfloat/multilingual-e5-small --output e5-relative
    """
    from relrep_hf.persistence import write_folder
    from relrep_hf.space import RelativeSpace

    with _errors():
        if output.exists():
            raise ValueError(f"{output} exists already; give the name of a new folder.")
        opened = RelativeSpace.from_pretrained(space)
        ((name, model),) = load_encoders([encoder], trust=trust_remote_code).items()
        attached = opened.attach(model, name=name, cache=cache, show_progress=True)
        write_folder(output, lambda folder: attached.save_pretrained(str(folder)))
    console.print(f"{name} attached to space {opened.id}, saved in {output}")


@app.command()
def report(
    space: Annotated[str, typer.Argument(help="Space: folder or Hub name.")],
    encoders: Annotated[list[str], typer.Argument(help="One or more encoders: path, Hub name or name=path.")],
    texts: Annotated[Path, typer.Option(help="Held-out texts, one a line (may be .gz).")],
    output: Annotated[Optional[Path], typer.Option(help="JSON file.")] = None,  # noqa: UP045
    chart: Annotated[Optional[Path], typer.Option(help="Image file (.png, .svg, .pdf).")] = None,  # noqa: UP045
    task: Annotated[Optional[list[str]], typer.Option(help="Labelled set: name=train.tsv,test.tsv.")] = None,  # noqa: UP045
    limit: Annotated[int, typer.Option(help="Use the first so many texts.")] = 2000,
    cache: Cache = None,
    trust_remote_code: Trust = False,
) -> None:
    """Measure what a space keeps, beside the closed forms, with 95 % intervals.

    Example: relrep report space minilm=all-MiniLM-L6-v2 mpnet=all-mpnet-base-v2 --texts dev.txt --output report.json
    """
    from relrep_hf.report import retention_report
    from relrep_hf.report_view import chart as draw
    from relrep_hf.report_view import tables
    from relrep_hf.space import RelativeSpace

    with _errors():
        if chart is not None and len(encoders) == 1:  # said before the work, not after it
            raise ValueError("--chart shows pairs of encoders, but only one was given; name another, or leave it out.")
        for path in (output, chart):
            if path is not None and not path.parent.is_dir():
                raise ValueError(f"{path.parent}, the folder of {path.name}, does not exist. Make it first.")
        if chart is not None and chart.suffix not in CHARTS:
            raise ValueError(f"--chart {chart} ends in {chart.suffix!r}; known: {', '.join(CHARTS)}.")
        result = retention_report(
            RelativeSpace.from_pretrained(space),
            load_encoders(encoders, trust=trust_remote_code),
            read_lines(texts, limit),
            tasks=dict(read_task(item) for item in task or []),
            cache=cache,
            show_progress=True,
        )
        console.print(tables(result))
        if output is not None:
            output.write_text(json.dumps(result, indent=1), encoding="utf-8")
        if chart is not None:
            draw(result, chart)


@app.command()
def translate(
    space: Annotated[str, typer.Argument(help="Space: folder or Hub name.")],
    vectors: Annotated[Path, typer.Argument(help="Absolute vectors of the source encoder: .npy (texts, dimensions).")],
    source: Annotated[str, typer.Option(help="Encoder the vectors were made with.")],
    target: Annotated[str, typer.Option(help="Encoder to move to.")],
    output: Annotated[Path, typer.Option(help="New .npy file.")],
    cache: Cache = None,
    trust_remote_code: Trust = False,
) -> None:
    """Move an index from one encoder to another without its texts.

    Example: relrep translate space old.npy --source all-MiniLM-L6-v2 --target all-mpnet-base-v2 --output new.npy
    """
    from relrep_hf.space import RelativeSpace
    from relrep_hf.vector_files import NumpyVectors

    with _errors():
        if output.suffix != ".npy" or output.exists() or not output.parent.is_dir():
            raise ValueError(f"--output {output} must be a new .npy file in a folder that exists.")
        opened = RelativeSpace.from_pretrained(space)
        rows = NumpyVectors(vectors).rows  # it looks at what the file holds
        encoders = load_encoders([f"source={source}", f"target={target}"], trust=trust_remote_code)
        width = int(encoders["target"].get_embedding_dimension() or 0)
        temporary = output.with_name(f".{output.name}.tmp")
        try:
            out = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float32, shape=(len(rows), width))
            opened.translate(rows, encoders["source"], encoders["target"], out=out, cache=cache)
            out.flush()
            temporary.replace(output)
        finally:
            temporary.unlink(missing_ok=True)
    console.print(f"{len(rows)} vectors of {rows.shape[1]} dimensions moved to {width}, saved in {output}")


@app.command()
def migrate(
    space: Annotated[str, typer.Argument(help="Space: folder or Hub name.")],
    vectors: Annotated[
        list[str], typer.Argument(help="The old index: a .npy file; parquet files or a folder of them; or a dataset.")
    ],
    source: Annotated[str, typer.Option(help="Encoder the vectors were made with.")],
    target: Annotated[str, typer.Option(help="Encoder of the queries to come.")],
    output: Annotated[Path, typer.Option(help="Folder for the new index, in parquet shards.")],
    into: Annotated[
        str, typer.Option(help="absolute: the target itself queries. relative: any encoder attached to the space does.")
    ] = "absolute",
    held_out: Annotated[
        Path | None,
        typer.Option(
            help="Texts like those of the index, one a line, not in the support: measures what would be lost."
        ),
    ] = None,
    min_recall: Annotated[
        float | None,
        typer.Option(help="Write nothing if recall@10 on the held-out texts is below, for example 0.95."),
    ] = None,
    ids: Annotated[Optional[Path], typer.Option(help="Ids of a .npy file: .npy, or text with one a line.")] = None,  # noqa: UP045
    vector_column: Annotated[str, typer.Option(help="Column of the vectors in parquet files and datasets.")] = "vector",
    rows_per_shard: Annotated[
        int, typer.Option(help="Rows in a file; a killed worker loses at most one file.")
    ] = 100_000,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    engine: Annotated[str, typer.Option(help="Who runs the workers: datasets or ray.")] = "datasets",
    cache: Cache = None,
    trust_remote_code: Trust = False,
) -> None:
    """Move a whole index to another encoder without its texts, in shards; run it again to go on after a stop.

    The old index is only read. Every shard says which space its vectors are in.

    Example: relrep migrate space old/ --source all-MiniLM-L6-v2 --target all-mpnet-base-v2 --output new
    --held-out texts.txt --min-recall 0.95
    """
    from relrep_hf.migration import migrate as run
    from relrep_hf.space import RelativeSpace
    from relrep_hf.vector_files import open_vectors

    with _errors():
        rows = open_vectors(vectors, ids=ids, vector_column=vector_column)
        encoders = load_encoders([f"source={source}", f"target={target}"], trust=trust_remote_code)
        done = run(
            rows,
            output,
            space=RelativeSpace.from_pretrained(space),
            **encoders,
            into=into,  # type: ignore[arg-type]
            held_out=[] if held_out is None else read_lines(held_out),
            min_recall=min_recall,
            rows_per_shard=rows_per_shard,
            workers=workers,
            engine=engine,  # type: ignore[arg-type]
            cache=cache,
            show_progress=True,
        )
    if done.recall is not None:
        console.print(
            f"recall@10 on {done.held_out} held-out texts: {done.recall['value']:.3f} (95 % interval "
            f"{done.recall['low']:.3f} to {done.recall['high']:.3f})"
        )
    home = f"relative space {done.provenance.space}" if into == "relative" else f"the space of {target}"
    console.print(
        f"{done.rows} vectors moved to {done.dims} dimensions of {home}: {len(done.files)} shards in {output}"
    )


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(help="A saved space, or a saved model that is attached to one.")],
    repo: Annotated[str, typer.Argument(help="Where to: owner/name.")],
    private: Annotated[bool, typer.Option("--private", help="Nobody else shall see it.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch; made if it does not exist.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be uploaded.")] = False,
    license: Annotated[str | None, typer.Option(help="For the card, e.g. apache-2.0.")] = None,
    language: Annotated[list[str] | None, typer.Option(help="ISO 639 code for the card; may be given again.")] = None,
    base_model: Annotated[
        list[str] | None, typer.Option(help="Encoder on the Hub, for the card; may be given again.")
    ] = None,
    replace_card: Annotated[bool, typer.Option("--replace-card", help="Write the card anew.")] = False,
    max_file_size: Annotated[int, typer.Option(help="Refuse files with more megabytes.")] = 2000,
) -> None:
    """Upload a space (with report.json and report.svg beside it, if they are there) or an attached model.

    Example: relrep push space me/space --license apache-2.0 --dry-run
    """
    from banyan_hf.hub import publish
    from relrep_hf.hub import plan_push

    asked = {"license": license, "language": language, "base_model": base_model}
    chosen = {key: value for key, value in asked.items() if value}
    with _errors():
        plan, card = plan_push(folder, repo, max_file_size=max_file_size * 1_000_000, chosen=chosen)
        url = publish(
            plan, card, repo, private=private, revision=revision, dry_run=dry_run, replace_card=replace_card,
            chosen=chosen, say=lambda what: console.print(what, highlight=False),
        )  # fmt: skip
    console.print("Dry run: nothing was uploaded." if url is None else f"Uploaded: {url}", markup=False, soft_wrap=True)


class _errors:
    """Turn a mistake or a damaged file into one line on stderr and exit code 1; a bug keeps its trace."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (ValueError, OSError, EOFError, SafetensorError)):
            Console(stderr=True).print(f"relrep: {error}", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(1) from error
