"""The command line: parse arguments, call one function, print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

app = typer.Typer(
    help="Sentence embeddings for your language or domain, from a text file, on a laptop.\n\n"
    "Start with:  banyan train my_sentences.txt --output my-model",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
console = Console()
UNLIMITED_EPOCHS = 1000.0  # where the clock ends a run

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", help="Folder or Hub name of a trained Banyan.", show_default="the English model in the box"
    ),
]


@app.command()
def train(
    text: Annotated[
        list[str],
        typer.Argument(help="Text files, one sentence a line (plain, .gz), or a dataset with a 'text' column."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the model; must not hold one already.")],
    recipe: Annotated[
        str, typer.Option(help="'default', 'paper', or a .yaml file. Options below change it.")
    ] = "default",
    epochs: Annotated[float | None, typer.Option(help="Passes over the text.")] = None,
    max_minutes: Annotated[
        float | None,
        typer.Option(
            help="Stop after this time; the learning rate falls with the clock. Without --epochs: all passes that fit."
        ),
    ] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Entries of the tokenizer that is trained.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Use this tokenizer (folder, or SentencePiece .model) instead of training one.")
    ] = None,
    dims: Annotated[int | None, typer.Option(help="Numbers in an embedding.")] = None,
    channels: Annotated[int | None, typer.Option(help="Channels that share the composition weights.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Sentences whose trees are entangled.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", "--lr", help="Of Adam, at the start.")
    ] = None,
    negatives: Annotated[
        int | None,
        typer.Option(help="Sampled tokens each target is told from; 0: the whole vocabulary (slower)."),
    ] = None,
    subsample: Annotated[
        float | None, typer.Option(help="Thin out tokens more frequent than this share of the text; 0: keep all.")
    ] = None,
    dropout: Annotated[float | None, typer.Option(help="At leaves, nodes and messages.")] = None,
    min_tokens: Annotated[int | None, typer.Option(help="Leave out shorter sentences.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Leave out longer sentences.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in --output.")] = False,
    save_steps: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 500,
    eval_sts: Annotated[
        list[str] | None, typer.Option(help="CSV (sent1, sent2, score) to score on the way. May be given again.")
    ] = None,
    eval_steps: Annotated[int, typer.Option(help="Steps between scores.")] = 500,
) -> None:
    """Train a tokenizer and a Banyan on text.

    [bold]Example:[/]  banyan train sentences.txt.gz --output my-model --max-minutes 10

    Afterwards the folder opens with AutoModel and SentenceTransformer. An interrupted run goes on with the same
    command and --resume.
    """
    from dataclasses import replace

    from .training.recipe import Recipe
    from .training.run import train as run

    plan = Recipe.named(
        recipe,
        epochs=epochs,
        max_minutes=max_minutes,
        vocab_size=vocab_size,
        hidden_size=dims,
        num_channels=channels,
        batch_size=batch_size,
        learning_rate=learning_rate,
        num_negatives=negatives or None,
        subsample=subsample or None,
        dropout=dropout,
        min_tokens=min_tokens,
        max_tokens=max_tokens,
        seed=seed,
    )
    if negatives == 0:
        plan = replace(plan, num_negatives=None)
    if subsample == 0:
        plan = replace(plan, subsample=None)
    if max_minutes is not None and epochs is None:
        plan = replace(plan, epochs=UNLIMITED_EPOCHS)
    result = run(
        text,
        output,
        recipe=plan,
        tokenizer=tokenizer,
        resume=resume,
        save_steps=save_steps,
        eval_sts=eval_sts or (),
        eval_steps=eval_steps,
        say=lambda line: console.print(line, highlight=False, markup=False),
    )
    console.print(
        f"Trained {result.steps:,} steps in {result.seconds / 60:.1f} minutes "
        f"({result.tokens_per_second:,.0f} tokens/s), last loss {result.loss:.3f}."
    )
    console.print(f"The model is in {result.folder}. Try:  banyan similarity TEXT OTHER --model {result.folder}",
                  markup=False)  # fmt: skip


@app.command()
def encode(
    text: Annotated[
        list[str], typer.Argument(help="Text files, one text a line (plain, .gz), or a dataset with a 'text' column.")
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="A .npy file (float32, a row per line), or a folder for parquet shards."),
    ],
    model: ModelOption = None,
    batch_size: Annotated[int, typer.Option(help="Texts at a time.")] = 1024,
    workers: Annotated[int, typer.Option(help="Processes (shards only).")] = 1,
    rows_per_shard: Annotated[
        int, typer.Option(help="Texts in a shard; a killed worker loses at most one shard.")
    ] = 100_000,
    engine: Annotated[str, typer.Option(help="Who runs the workers: 'datasets' or 'ray'.")] = "datasets",
) -> None:
    """Turn every line of a file into a vector.

    [bold]Example:[/]  banyan encode sentences.txt --output vectors.npy

    A corpus goes into a folder of parquet shards; run the same command again and the missing ones are made:

    [bold]Example:[/]  banyan encode corpus-*.txt.gz --output vectors --workers 8
    """
    from .encoding import encode_corpus, encode_file

    if output.suffix == ".npy":
        if len(text) != 1 or workers != 1:
            raise ValueError("A .npy file takes one text file and one worker; name a folder as --output for shards.")
        shape = encode_file(Path(text[0]), output, _sentence_transformer(model), batch_size=batch_size)
    else:
        shape = encode_corpus(
            text,
            output,
            _checked(model),
            batch_size=batch_size,
            rows_per_shard=rows_per_shard,
            workers=workers,
            engine=engine,
        )
    console.print(f"Wrote {shape[0]:,} vectors of {shape[1]} numbers to {output}.", markup=False)


@app.command()
def similarity(
    first: Annotated[str, typer.Argument(help="A text.")],
    others: Annotated[list[str], typer.Argument(help="One or more texts to compare it with.")],
    model: ModelOption = None,
) -> None:
    """Compare a text with others: cosine similarity, most alike first.

    [bold]Example:[/]  banyan similarity "a cat sleeps" "the kitten naps" "stocks fell"
    """
    encoder = _sentence_transformer(model)
    scores = encoder.similarity(encoder.encode([first]), encoder.encode(others))[0].tolist()
    for score, other in sorted(zip(scores, others, strict=True), key=lambda pair: -pair[0]):
        console.print(f"{score:6.3f}  {other}", markup=False, highlight=False)


@app.command()
def parse(
    texts: Annotated[list[str], typer.Argument(help="One or more texts.")],
    model: ModelOption = None,
    draw: Annotated[bool, typer.Option(help="Also draw each tree.")] = True,
) -> None:
    """Show the tree that the model induces.

    [bold]Example:[/]  banyan parse "the old cat slept on the mat"
    """
    from .persistence import default_model, load_encoder
    from .trees import parse as induce

    for tree in induce(texts, *load_encoder(model or default_model())):
        console.print(str(tree), markup=False, highlight=False, soft_wrap=True)
        if draw:
            console.print(tree.to_rich())


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="Folder or Hub name of any sentence-transformers model.")],
    files: Annotated[list[Path], typer.Argument(help="CSV files with the columns sent1, sent2, score.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write the scores here, as JSON.")] = None,
) -> None:
    """Score a model on sentence pairs: Spearman x 100 of cosine against human scores.

    [bold]Example:[/]  banyan evaluate my-model sts12.csv sts13.csv
    """
    from .evaluation.sts import read_pairs, spearman

    pairs = {path.stem: read_pairs(path) for path in files}  # all files are read before the first is scored
    encoder = _sentence_transformer(model)

    def vectors(texts: list[str]) -> Any:
        return encoder.encode(texts, convert_to_tensor=True, batch_size=256)

    scores = {name: spearman(vectors, data) for name, data in pairs.items()}
    mean = sum(scores.values()) / len(scores)
    table = Table("", Column("Spearman x 100", justify="right"))  # a row each: many columns fit no terminal
    for name, score in scores.items():
        table.add_row(name, f"{score:.2f}")
    table.add_section()
    table.add_row("mean", f"{mean:.2f}")
    console.print(table)
    if output is not None:
        output.write_text(json.dumps({"model": model, "spearman": scores, "mean": mean}, indent=2) + "\n")


@app.command()
def pack(
    source: Annotated[Path, typer.Argument(help="Folder of a trained Banyan.")],
    target: Annotated[Path, typer.Argument(help="Folder to make; must not exist.")],
) -> None:
    """Copy a model with half the bytes: vectors in float16. It still loads and answers in float32.

    [bold]Example:[/]  banyan pack my-model my-model-small
    """
    from .persistence import pack as copy

    console.print(f"{target}: {copy(source, target) / 1e6:.1f} MB.", markup=False, highlight=False)


def _sentence_transformer(model: str | None) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(_checked(model))


def _checked(model: str | None) -> str:
    from .persistence import check_name, default_model

    model = model or default_model()
    check_name(model)
    return model


def main() -> None:
    """Run the command line; a mistake of the user is one sentence, not a traceback."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import logging

    logging.disable_progress_bar()  # of loading eight tensors; training draws its own
    try:
        app()
    except (ValueError, ImportError, OSError, StrictDataclassError) as error:
        Console(stderr=True).print(f"[bold red]Error:[/] {escape(' '.join(str(error).split()))}", highlight=False)
        sys.exit(1)
