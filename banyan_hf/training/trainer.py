"""`transformers.Trainer`, with tokens per second, a learning rate that can follow the clock, and STS on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    PreTrainedTokenizerBase,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback

from ..encoding import encode
from ..evaluation.sts import SentencePairs, spearman
from .corpus import Corpus, collate, cut, token_counts
from .recipe import Recipe

SCHEDULES: dict[str, Callable[[float], float]] = {
    "linear": lambda done: 1 - done,
    "constant": lambda done: 1.0,
}


def processes() -> PartialState:
    """The processes that torchrun started, or this one alone."""
    return PartialState(cpu=not torch.accelerator.is_available())


class BanyanTrainer(Trainer):
    """A Trainer that counts tokens and knows how much of its time is gone.

    Args:
        model: a `BanyanForPreTraining`.
        recipe: what to do.
        corpus: the sentences.
        tokenizer: saved with every checkpoint.
        folder: of the checkpoints.
        save_steps: between checkpoints.
        sts: development pairs by name, scored every `eval_steps` steps.
        eval_steps: see `sts`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        recipe: Recipe,
        corpus: Corpus,
        tokenizer: PreTrainedTokenizerBase,
        folder: Path,
        save_steps: int = 500,
        sts: dict[str, SentencePairs] | None = None,
        eval_steps: int = 500,
    ) -> None:
        self.recipe = recipe
        self.n_tokens = 0  # seen since this process began
        self._seconds_before = 0.0  # spent by the processes that this one resumes
        self._started = time.monotonic()
        needed = math.ceil(recipe.epochs * math.ceil(len(corpus.sentences) / recipe.batch_size))
        arguments = TrainingArguments(
            output_dir=str(folder),
            max_steps=max(needed, recipe.min_steps or 0),
            # A step is the same sentences on any number of processes, so a run may be resumed on another number.
            per_device_train_batch_size=recipe.batch_size // processes().num_processes,
            ddp_find_unused_parameters=False,  # every step uses all of them
            use_cpu=not torch.accelerator.is_available(),  # else torchrun on CPUs would start runs that do not meet
            learning_rate=recipe.learning_rate,
            optim="adamw_torch_fused",
            weight_decay=0.0,  # plain Adam, as the reference
            max_grad_norm=0.0,  # no clipping, as the reference
            logging_steps=math.gcd(20, save_steps),  # a resumed run averages its losses over the same steps
            logging_nan_inf_filter=False,
            save_steps=save_steps,
            save_total_limit=2,
            seed=recipe.seed,
            dataloader_pin_memory=torch.accelerator.is_available(),
            report_to="none",
        )
        arguments._n_gpu = min(
            arguments.n_gpu, 1
        )  # else Trainer would spread a batch over all GPUs it sees, and multiply it
        self._noise: Tensor | None = None  # (V,) what negatives are drawn from, if not uniformly
        if recipe.num_negatives is not None and recipe.negative_power > 0:
            counts = torch.from_numpy(token_counts(corpus, len(tokenizer)))
            self._noise = counts.double().pow(recipe.negative_power).float()
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=corpus.sentences,
            data_collator=collate,
            processing_class=tokenizer,
        )
        self.pop_callback(ProgressCallback)
        self.pop_callback(PrinterCallback)
        self.add_callback(ProgressBar())
        self.add_callback(Clock(self))
        if sts:
            self.add_callback(StsEvaluation(self, sts, tokenizer, eval_steps))

    @property
    def seconds(self) -> float:
        """Training time so far, that of resumed processes included."""
        return self._seconds_before + time.monotonic() - self._started

    @property
    def agreed_seconds(self) -> float:
        """`seconds` of the first process: all must stop, and lower the learning rate, at the same time."""
        if self.args.world_size == 1:
            return self.seconds
        return float(broadcast(torch.tensor(self.seconds, device=self.args.device)))

    @property
    def tokens_per_second(self) -> float:
        """Of all processes (their shares are alike), since the first step of this one."""
        return self.n_tokens * self.args.world_size / max(time.monotonic() - self._started, 1e-9)

    def fraction_done(self, step: int) -> float:
        """How much of the run is over, 0 to 1: by steps, or by the clock if that is further."""
        done = step / max(self.state.max_steps, 1)
        if self.recipe.max_minutes is not None:
            done = max(done, self.agreed_seconds / (60 * self.recipe.max_minutes))
        return min(done, 1.0)

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LambdaLR:
        """The recipe's schedule, over steps or over the clock."""
        shape = SCHEDULES[self.recipe.schedule]

        def factor(step: int) -> float:
            return shape(self.fraction_done(step))

        optimizer = optimizer if optimizer is not None else self.optimizer
        assert optimizer is not None
        self.lr_scheduler = LambdaLR(optimizer, factor)
        return self.lr_scheduler

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """One step, on the recipe's spans, with its negatives, counted in tokens."""
        # Both are drawn here, not in the collator: data are fetched ahead, and a resumed run must draw the same.
        if self.recipe.span_tokens is not None:
            inputs = cut(inputs, self.recipe.span_tokens)
        if self._noise is not None:
            assert self.recipe.num_negatives is not None
            inputs["negatives"] = torch.multinomial(self._noise, self.recipe.num_negatives, replacement=True)
        self.n_tokens += int(inputs["attention_mask"].sum())
        return super().training_step(model, inputs, *args, **kwargs)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> None:
        """Nothing is clipped, and a norm for the log alone would read and write every gradient once more."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add what was spent to every line of the log."""
        if "loss" in logs:
            logs = {**logs, "tokens_per_second": round(self.tokens_per_second), "seconds": round(self.seconds, 2)}
        super().log(logs, start_time)


class Clock(TrainerCallback):
    """Starts the clock with the first step, takes over the time of a resumed run, and stops when time is up."""

    def __init__(self, trainer: BanyanTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The log of the resumed checkpoint says how long it took to make."""
        self.trainer._started = time.monotonic()
        self.trainer._seconds_before = max((entry.get("seconds", 0.0) for entry in state.log_history), default=0.0)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """`max_minutes` ends the run."""
        minutes = self.trainer.recipe.max_minutes
        if minutes is not None and self.trainer.agreed_seconds >= 60 * minutes:
            control.should_training_stop = True


class ProgressBar(ProgressCallback):
    """transformers' progress bar, with loss and speed beside it instead of a line per log entry."""

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any
    ) -> None:
        """Show loss and speed on the bar; write evaluation results above it."""
        if self.training_bar is None or not logs:
            return
        if "loss" in logs:
            self.training_bar.set_postfix_str(f"loss {logs['loss']:.3f}, {logs['tokens_per_second']:,} tokens/s")
        elif scores := {name: value for name, value in logs.items() if name.startswith("sts_")}:
            line = ", ".join(f"{name.removeprefix('sts_')} {value:.2f}" for name, value in scores.items())
            self.training_bar.write(f"step {state.global_step}: {line}")


class StsEvaluation(TrainerCallback):
    """Scores the encoder on sentence pairs every so many steps; draws no random numbers."""

    def __init__(
        self, trainer: BanyanTrainer, sts: dict[str, SentencePairs], tokenizer: PreTrainedTokenizerBase, steps: int
    ) -> None:
        self.trainer, self.sts, self.tokenizer, self.steps = trainer, sts, tokenizer, steps

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Score and log, in one process; after the last step too."""
        last = state.global_step >= state.max_steps or control.should_training_stop
        if (last or state.global_step % self.steps == 0) and state.is_world_process_zero:
            encoder = self.trainer.accelerator.unwrap_model(self.trainer.model).banyan
            self.trainer.log(
                {
                    f"sts_{name}": spearman(lambda texts: encode(texts, encoder, self.tokenizer), pairs)
                    for name, pairs in self.sts.items()
                }
            )
