"""A training run in a folder: tokenizer, corpus, model, checkpoints, and at the end a folder that opens anywhere."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase, set_seed

from ..evaluation.sts import SentencePairs, read_pairs
from ..model.modeling_banyan import BanyanForPreTraining
from ..persistence import RUN_FILE, write_text
from ..sentencepiece_models import convert_sentencepiece
from ..tokenizer import train_tokenizer, unigram_trainer
from .corpus import batches, check_sources, load_texts, tokenize
from .recipe import Recipe

MAX_LENGTH = 512  # tokens in an input, where neither tokenizer nor recipe asks for more
RECORDED = ("sentences", "tokens", "steps", "passes", "seconds", "loss")  # of the result, in the run's file


@dataclass(frozen=True)
class TrainingResult:
    """What a run did.

    Args:
        folder: of the finished model.
        sentences, tokens: that it was trained on.
        steps, passes, seconds, loss: of the training loop; the loss is the last one logged.
        tokens_per_second: of the training loop in this process.
    """

    folder: Path
    sentences: int
    tokens: int
    steps: int
    passes: float
    seconds: float
    loss: float
    tokens_per_second: float


def train(
    sources: Sequence[str],
    output: str | os.PathLike,
    *,
    recipe: Recipe | None = None,
    tokenizer: str | None = None,
    resume: bool = False,
    save_steps: int = 500,
    eval_sts: Sequence[str] = (),
    eval_steps: int = 500,
    say: Callable[[str], None] = print,
) -> TrainingResult:
    """Train a Banyan on text, in this process or, where torchrun started several, in all of them together.

    Args:
        sources: text files with one sentence a line (plain or .gz), or the name of a dataset with a `text` column.
        output: folder of the model; checkpoints go to `output/checkpoints`.
        recipe: default: `Recipe.named("default")`.
        tokenizer: a folder with a tokenizer, or a SentencePiece `.model` file; default: one is trained on the text.
        resume: go on from the last checkpoint in `output`.
        save_steps: between checkpoints.
        eval_sts: CSV files (sent1, sent2, score) to score every `eval_steps` steps.
        eval_steps: see `eval_sts`.
        say: takes one-line messages.

    Returns:
        A `TrainingResult`.

    Raises:
        ValueError: the text, the output folder or the recipe is not usable; see the message.
    """
    from .trainer import BanyanTrainer, processes  # needs accelerate, which inference does not

    recipe = recipe or Recipe.named("default")
    folder = Path(output)
    # Everything that can be wrong with the request comes before the folder is touched.
    if save_steps < 1 or eval_steps < 1:
        raise ValueError(f"save_steps={save_steps} and eval_steps={eval_steps} must be at least 1.")
    check_sources(sources)
    sts = _development_sets(eval_sts)
    given = None if tokenizer is None else _open_tokenizer(tokenizer, max_tokens=recipe.max_tokens)
    if given is None and recipe.tokenizer_kind == "unigram":
        unigram_trainer()
    plan = {"recipe": recipe.to_dict(), "sources": list(sources), "tokenizer": tokenizer}
    team = processes()
    if recipe.batch_size % team.num_processes:
        raise ValueError(
            f"batch_size={recipe.batch_size} cannot be shared by {team.num_processes} processes; give a multiple."
        )
    if not team.is_main_process:
        say = _silent

    work = folder / "checkpoints"
    with team.main_process_first():  # the others find what it made
        if team.is_main_process:
            _claim(folder, plan, resume=resume)
        texts = load_texts(sources, work / "corpus")
        tok = given or _trained_tokenizer(texts, recipe, saved=work / "tokenizer")
        corpus = tokenize(
            texts,
            tok,
            min_tokens=recipe.min_tokens,
            max_tokens=recipe.max_tokens,
            cache_file=work / "corpus" / "tokens.arrow",
        )
    say(
        f"{len(corpus.sentences):,} sentences, {corpus.n_tokens:,} tokens, a vocabulary of {len(tok):,}. Left out: "
        f"{corpus.n_too_short:,} sentences shorter than {recipe.min_tokens} and {corpus.n_too_long:,} longer than "
        f"{recipe.max_tokens} tokens."
    )

    set_seed(recipe.seed)
    config = recipe.config(
        vocab_size=len(tok), pad_token_id=tok.pad_token_id, max_position_embeddings=tok.model_max_length
    )
    model = BanyanForPreTraining(config)
    trainer = BanyanTrainer(
        model,
        recipe=recipe,
        corpus=corpus,
        tokenizer=tok,
        folder=work,
        save_steps=save_steps,
        sts=sts,
        eval_steps=eval_steps,
    )
    checkpoint = last_complete_checkpoint(work) if resume else None
    if checkpoint:
        say(f"Resuming from step {checkpoint.name.split('-')[-1]}.")
    outcome = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    result = TrainingResult(
        folder=folder,
        sentences=len(corpus.sentences),
        tokens=corpus.n_tokens,
        steps=outcome.global_step,
        passes=outcome.global_step * recipe.batch_size / len(corpus.sentences),
        seconds=trainer.seconds,
        loss=logged[-1]["loss"] if logged else outcome.training_loss,
        tokens_per_second=trainer.tokens_per_second,
    )
    if team.is_main_process:
        _record(folder, {**plan, "result": {name: getattr(result, name) for name in RECORDED}})
        _publish(model, tok, folder)
    team.wait_for_everyone()
    if team.is_main_process:
        shutil.rmtree(work / "corpus", ignore_errors=True)
    return result


def _development_sets(paths: Sequence[str]) -> dict[str, SentencePairs]:
    """Pairs by the name of their file."""
    sets = {Path(path).stem: read_pairs(path) for path in paths}
    if len(sets) < len(paths):
        raise ValueError(f"Two of {', '.join(paths)} have the same name, which their scores would share. Rename one.")
    return sets


def _silent(line: str) -> None:
    """What all processes but the first have to say."""


def _claim(folder: Path, plan: dict[str, Any], *, resume: bool) -> None:
    """Make the folder this run's own, or refuse: nothing that is there is ever overwritten."""
    if (folder / "config.json").exists():
        raise ValueError(f"{folder} already holds a model. Choose another --output, or delete that folder yourself.")
    record = folder / RUN_FILE
    if not record.exists():
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty and holds no training run. Choose another --output.")
        if resume:
            raise ValueError(f"{folder} holds no training run to resume. Leave out --resume to start one.")
        folder.mkdir(parents=True, exist_ok=True)
        _record(folder, plan)
        return
    try:
        before = json.loads(record.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{record} is damaged ({error}). Delete the folder, or choose another --output.") from error
    if not resume:
        raise ValueError(
            f"{folder} holds an unfinished run. Add --resume to go on with it, or choose another --output."
        )
    same = all(before.get(key) == plan[key] for key in plan)
    if not same and last_complete_checkpoint(folder / "checkpoints") is None:  # nothing was learned yet
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        _record(folder, plan)
    elif not same:
        changed = [
            f"{key}: {before['recipe'].get(key)!r} then, {value!r} now"
            for key, value in plan["recipe"].items()
            if before["recipe"].get(key) != value
        ] + [
            f"{key}: {before[key]!r} then, {plan[key]!r} now"
            for key in ("sources", "tokenizer")
            if before[key] != plan[key]
        ]
        raise ValueError(f"{folder} was begun with other settings ({'; '.join(changed)}). Resume with the same ones.")


def _record(folder: Path, what: dict[str, Any]) -> None:
    write_text(folder / RUN_FILE, json.dumps(what, indent=2) + "\n")


def last_complete_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end.

    A run killed while saving leaves a folder without a readable `trainer_state.json`, which is written last.
    """
    found = []
    for path in folder.glob("checkpoint-*"):
        try:
            found.append((json.loads((path / "trainer_state.json").read_text())["global_step"], path))
        except (OSError, ValueError, KeyError):
            continue
    return max(found)[1] if found else None


def _open_tokenizer(name: str, *, max_tokens: int) -> PreTrainedTokenizerBase:
    """The tokenizer that the user names, with what training needs of it."""
    if name.endswith(".model"):
        return convert_sentencepiece(name, max_length=max(MAX_LENGTH, max_tokens))
    tok = _saved_tokenizer(name)
    if max_tokens > tok.model_max_length:
        raise ValueError(
            f"max_tokens={max_tokens} keeps sentences that are longer than the {tok.model_max_length} tokens which "
            f"the tokenizer in {name} allows. Lower --max-tokens."
        )
    return tok


def _saved_tokenizer(name: str) -> PreTrainedTokenizerBase:
    try:
        tok = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ValueError(f"{name!r} holds no tokenizer: give a folder or Hub name, or a .model file.") from error
    if tok.pad_token is None:
        raise ValueError(f"The tokenizer in {name} has no padding token; set one: tokenizer.pad_token = '<pad>'.")
    if tok.model_max_length > 1_000_000:  # transformers' way to say "not set"
        tok.model_max_length = MAX_LENGTH
    return tok


def _trained_tokenizer(texts: Any, recipe: Recipe, *, saved: Path) -> PreTrainedTokenizerBase:
    """The tokenizer that this run trained before, or a new one."""
    if not (saved / "tokenizer_config.json").exists():
        tok = train_tokenizer(
            batches(texts),
            recipe.vocab_size,
            kind=recipe.tokenizer_kind,
            word_power=recipe.word_power,
            max_length=max(MAX_LENGTH, recipe.max_tokens),
            length=len(texts),
        )
        tok.save_pretrained(saved)
    return AutoTokenizer.from_pretrained(saved)


def _publish(model: BanyanForPreTraining, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Put the encoder (without the output layer) and its tokenizer into the folder, `config.json` last."""
    staging = folder / ".saving"
    shutil.rmtree(staging, ignore_errors=True)
    encoder = model.banyan.eval()
    encoder.save_pretrained(staging)
    tokenizer.save_pretrained(staging)
    for path in sorted(staging.iterdir(), key=lambda path: path.name == "config.json"):
        os.replace(path, folder / path.name)
    staging.rmdir()
