"""The command line: parse arguments, call one function, print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from .cli_hub import card, mteb_meta, push

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
        str,
        typer.Option(help="'default', 'lang' (also for little text), 'paper', or a .yaml file."),
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

    if tokenizer is not None and vocab_size is not None:
        raise ValueError(
            f"--vocab-size {vocab_size} is for training a tokenizer, and --tokenizer names one. Give one of them."
        )
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
        dropout=dropout,
        min_tokens=min_tokens,
        max_tokens=max_tokens,
        seed=seed,
    )
    if negatives == 0:
        plan = replace(plan, num_negatives=None)
    if max_minutes is not None and epochs is None:
        plan = replace(plan, epochs=UNLIMITED_EPOCHS, min_steps=None)
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
    files: Annotated[list[Path] | None, typer.Argument(help="Your own CSV files: sent1, sent2, score.")] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(
            help="english, lexical, retrieval, classification, semrel, or mteb:Task,Task. May be given again."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with eval/, retrieval/, classification/: score on its files, not on the Hub's tasks."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of results; may hold other models'.")] = Path(
        "results"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Keep what is scored already; run what is missing.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that the model brings along.")
    ] = False,
    prompt: Annotated[
        str | None, typer.Option(help="Put before every text, instead of the model's own prompts; E5 wants 'query: '.")
    ] = None,
    document_prompt: Annotated[
        str | None, typer.Option(help="Put before documents in retrieval, where --prompt is for the queries.")
    ] = None,
) -> None:
    """Score any sentence encoder with MTEB: a JSON file per task, one table and one chart of all models in the folder.

    [bold]Example:[/]  banyan evaluate my-model --suite english --data ../shared/data --output results

    Your own pairs, Spearman x 100:  banyan evaluate my-model pairs.csv
    """
    try:
        from .evaluation.runner import evaluate as run
        from .evaluation.suites import entries, file_entries
    except ModuleNotFoundError as error:
        raise ImportError("Scoring needs MTEB: pip install 'banyan-hf[eval]'") from error

    if bool(files) == bool(suite):
        raise ValueError("Name either your own CSV files or a --suite, for example: --suite english --data FOLDER.")
    if files and data:
        raise ValueError(f"--data {data} is for suites; your own CSV files need none.")
    if document_prompt is not None and prompt is None:
        raise ValueError("--document-prompt needs --prompt, which goes before everything else.")
    # All local files are read before the model is opened.
    rows = entries(suite, data) if suite else file_entries(files or [])
    scores = run(
        model,
        rows,
        output,
        resume=resume,
        trust_remote_code=trust_remote_code,
        prompts=None if prompt is None else {"all": prompt, "query": prompt, "document": document_prompt or prompt},
        say=lambda line: console.print(line, markup=False, highlight=False),
    )
    if failed := [name for name, score in scores.items() if score is None]:
        others = f" The others are in {output}." * (len(failed) < len(rows))
        raise ValueError(f"{len(failed)} of {len(rows)} tasks failed: {', '.join(failed)}.{others}")
    for section in dict.fromkeys(row.suite for row in rows):
        found = [scores[row.name] or 0.0 for row in rows if row.suite == section]
        kinds = {row.task.metadata.main_score for row in rows if row.suite == section}
        if len(found) > 1 and len(kinds) == 1:
            console.print(f"mean of {section}: {sum(found) / len(found):.2f}", highlight=False)
    console.print(f"A table and a chart of all models are in {output}.", markup=False, highlight=False)


@app.command()
def pack(
    source: Annotated[Path, typer.Argument(help="Folder of a trained Banyan.")],
    target: Annotated[Path, typer.Argument(help="Folder to make; must not exist.")],
    bits: Annotated[int, typer.Option(help="For each number of the table: 16 or 8.")] = 16,
) -> None:
    """Copy a model with half or a quarter of the bytes. It still loads and answers in float32.

    [bold]Example:[/]  banyan pack my-model my-model-small --bits 8
    """
    from .persistence import pack as copy

    console.print(f"{target}: {copy(source, target, bits=bits) / 1e6:.1f} MB.", markup=False, highlight=False)


app.command()(push)
app.command()(card)
app.command("mteb-meta")(mteb_meta)


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
    from safetensors import SafetensorError
    from transformers import logging

    logging.disable_progress_bar()  # of loading eight tensors; training draws its own
    try:
        app()
    except (ValueError, ImportError, OSError, StrictDataclassError, SafetensorError) as error:
        Console(stderr=True).print(f"[bold red]Error:[/] {escape(' '.join(str(error).split()))}", highlight=False)
        sys.exit(1)
