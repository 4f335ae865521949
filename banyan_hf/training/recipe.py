"""A recipe: every number that decides what training does."""

from __future__ import annotations

import difflib
import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import yaml
from huggingface_hub.errors import StrictDataclassError

from ..model.configuration_banyan import BanyanConfig
from ..tokenizer import check_vocabulary

FOLDER = Path(__file__).parent / "recipes"
FIELD_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("vocab_size", "min_tokens", "max_tokens", "batch_size", "seed"), (int,)),
    **dict.fromkeys(
        ("word_power", "epochs", "learning_rate", "dropout", "token_dropout", "negative_power"), (int, float)
    ),
    "max_minutes": (int, float, type(None)),
    **dict.fromkeys(("num_negatives", "span_tokens", "min_steps"), (int, type(None))),
}
CHOICES = {
    "schedule": ("linear", "constant"),
    "tokenizer_kind": ("bpe", "unigram"),
}


@dataclass(frozen=True)
class Recipe:
    """Everything besides the text that decides what training does. The defaults are the recipe `default`.

    Args:
        tokenizer_kind, vocab_size, word_power: of the tokenizer, if one is trained; see `train_tokenizer`.
        hidden_size, num_channels, composition, entangled, objective, structure, dropout, token_dropout,
            num_negatives: of the model; see `BanyanConfig`.
        negative_power: negatives are drawn with a token's frequency to this power; 0: uniformly, which estimates the
            exact softmax; 0.75: as word2vec does, which learns how much likelier a token is here than elsewhere.
        min_tokens, max_tokens: shorter and longer sentences are left out.
        span_tokens: sentences are cut into spans of about so many tokens, anew each time; `None`: trained on whole.
        epochs: passes over the text.
        min_steps: batches in all, at least: a small text is read more often; `None`: as many as the epochs need.
        max_minutes: stop (and end the learning-rate schedule) after this time; `None`: when the epochs are done.
        batch_size: sentences in a step, whose graph is entangled; several processes entangle their shares of them.
        learning_rate: of Adam, at the start.
        schedule: `"linear"` to zero, or `"constant"`.
        seed: of everything random.

    Example:
        >>> Recipe.named("default", epochs=1) == Recipe(epochs=1)
        True
        >>> Recipe.named("paper").learning_rate
        0.001
    """

    tokenizer_kind: Literal["bpe", "unigram"] = "unigram"
    vocab_size: int = 16000
    word_power: float = 1.0
    hidden_size: int = 256
    num_channels: int = 128
    composition: Literal["diagonal", "linear"] = "diagonal"
    entangled: bool = True
    objective: Literal["cross_entropy", "contrastive"] = "cross_entropy"
    structure: Literal["greedy", "left", "right", "balanced", "random"] = "greedy"
    dropout: float = 0.0
    token_dropout: float = 0.3
    num_negatives: int | None = 1000
    negative_power: float = 0.75
    min_tokens: int = 4
    max_tokens: int = 200
    span_tokens: int | None = 12
    epochs: float = 3
    min_steps: int | None = None
    max_minutes: float | None = None
    batch_size: int = 128
    learning_rate: float = 5e-3
    schedule: Literal["linear", "constant"] = "linear"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kinds in FIELD_TYPES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kinds):
                wanted = " or ".join("none" if kind is type(None) else kind.__name__ for kind in kinds)
                hint = " (YAML reads 5e-3 as text: write 5.0e-3)" * (isinstance(value, str) and float in kinds)
                raise ValueError(f"{name}={value!r} in a recipe must be {wanted}{hint}.")
        for name in ("epochs", "min_steps", "batch_size", "learning_rate", "max_minutes", "span_tokens"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value} must be positive.")
        if not 1 <= self.min_tokens <= self.max_tokens:
            raise ValueError(f"min_tokens={self.min_tokens} and max_tokens={self.max_tokens} leave no sentence length.")
        if not 0 <= self.negative_power <= 1:
            raise ValueError(f"negative_power={self.negative_power} must lie between 0 (uniform) and 1 (frequency).")
        if math.isinf(self.epochs):
            raise ValueError("epochs=inf: give a number, or let max_minutes end the run.")
        check_vocabulary(self.vocab_size, self.word_power)
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {', '.join(allowed)}.")
        try:  # the fields that are the model's
            self.config(vocab_size=self.vocab_size, pad_token_id=None, max_position_embeddings=1)
        except StrictDataclassError as error:
            raise ValueError(str(error.__cause__ or error)) from None

    @classmethod
    def named(cls, name: str, **changes: Any) -> Recipe:
        """A recipe that comes with the package, or a YAML file, with changes.

        Args:
            name: `"default"`, `"paper"`, ... (the files in `recipes/`), or the path of a `.yaml` file.
            **changes: fields to set; those that are `None` keep the recipe's value. Epochs take the place of
                `min_steps`.

        Raises:
            ValueError: there is no such recipe, or it has a field that does not exist.
        """
        path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
        if not path.is_file():
            known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.yaml")))
            raise ValueError(f"There is no recipe {name!r}. Known: {known}; or give the path of a .yaml file.")
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a YAML file: {error}") from error
        if not isinstance(values, dict):
            raise ValueError(f"{path} holds a {type(values).__name__}; a recipe is lines of 'field: value'.")
        known_fields = [field.name for field in fields(cls)]
        for key in values:
            if key not in known_fields:
                close = difflib.get_close_matches(key, known_fields, n=1)
                raise ValueError(
                    f"{path.name} sets {key!r}, which is no field of a recipe." + f" {close[0]!r}?" * bool(close)
                )
        if changes.get("epochs") is not None:
            values["min_steps"] = None
        return replace(cls(**values), **{key: value for key, value in changes.items() if value is not None})

    def config(self, *, vocab_size: int, pad_token_id: int | None, max_position_embeddings: int) -> BanyanConfig:
        """The model's configuration, for a tokenizer of that size."""
        return BanyanConfig(
            vocab_size=vocab_size,
            hidden_size=self.hidden_size,
            num_channels=self.num_channels,
            composition=self.composition,
            entangled=self.entangled,
            objective=self.objective,
            structure=self.structure,
            dropout=self.dropout,
            token_dropout=self.token_dropout,
            num_negatives=None if self.num_negatives is None else min(self.num_negatives, vocab_size),
            max_position_embeddings=max_position_embeddings,
            pad_token_id=pad_token_id,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)
