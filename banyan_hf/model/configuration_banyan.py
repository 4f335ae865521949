"""The configuration of a Banyan: its fields, and the checks that two fields agree."""

# No `from __future__ import annotations` here: @strict checks no field whose annotation is a string.
import difflib
from dataclasses import fields
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig


@strict
class BanyanConfig(PreTrainedConfig):
    """Configuration of a Banyan encoder (arXiv 2407.17771) or of its predecessor Self-StrAE.

    Args:
        vocab_size: number of token vectors V.
        hidden_size: length D of an embedding. D = num_channels * channel_size.
        num_channels: K, the channels that share one set of composition weights.
        composition: `"diagonal"` (Banyan: scales and a bias) or `"linear"` (Self-StrAE: a 2U x U matrix).
        entangled: in pre-training, equal nodes of a batch are one node.
        objective: `"cross_entropy"` (predict the token at each leaf) or `"contrastive"` (upward against
            downward value of each node).
        structure: how trees are made. `"greedy"` is the model; `"left"`, `"right"`, `"balanced"` and `"random"` are
            controls that ignore the vectors.
        pooling: what stands for the sentence. `"root"` is the paper's model; `"mean"` is the mean of the token vectors,
            `"root_mean"` the sum of both, each normalised.
        num_negatives: pre-training contrasts each target with this many sampled tokens, in place of the whole
            vocabulary (`None`: exact softmax).
        temperature: of the contrastive objective.
        dropout: probability at distinct leaves, composed nodes and downward messages, in training only.
        token_dropout: probability that a leaf's whole vector is hidden from a batch in pre-training: its token must be
            predicted from the others. Without it a token is predicted from a tree that holds it, and tokens need not
            learn to resemble each other.
        initializer_range: r; token vectors start uniform in (-r, r).
        max_position_embeddings: longest input, in tokens. The name is the one that sentence-transformers reads.
        backend: `"numba"` (CPU kernels), `"torch"` (any device), or `"auto"`: numba where it can, else torch.
        pad_token_id: tokens with this id are padding, whatever a mask says. `None`: there is no such token.

    Raises:
        StrictDataclassFieldValidationError: a field has the wrong type.
        StrictDataclassClassValidationError: two fields disagree, or a value is out of range.

    Example:
        >>> config = BanyanConfig()
        >>> config.channel_size, config.num_structural_parameters
        (2, 14)
        >>> BanyanConfig(composition="linear", num_channels=16).num_structural_parameters
        1072
    """

    model_type = "banyan"

    vocab_size: int = 25000
    hidden_size: int = 256
    num_channels: int = 128
    composition: Literal["diagonal", "linear"] = "diagonal"
    entangled: bool = True
    objective: Literal["cross_entropy", "contrastive"] = "cross_entropy"
    structure: Literal["greedy", "left", "right", "balanced", "random"] = "greedy"
    pooling: Literal["root", "mean", "root_mean"] = "root"
    num_negatives: int | None = None
    temperature: float | int = 0.2
    dropout: float | int = 0.1
    token_dropout: float | int = 0.0
    initializer_range: float | int = 0.1
    max_position_embeddings: int = 512
    backend: Literal["auto", "torch", "numba"] = "auto"
    pad_token_id: int | None = None
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        # Unknown keys are legal (a newer release may have written them), a misspelt one is not.
        known = [field.name for field in fields(self)]
        for key in kwargs:
            if key not in known and (close := difflib.get_close_matches(key, known, n=1, cutoff=0.8)):
                raise ValueError(f"BanyanConfig has no field {key!r}. Did you mean {close[0]!r}?")
        super().__post_init__(**kwargs)

    @property
    def channel_size(self) -> int:
        """U, the numbers in one channel."""
        return self.hidden_size // self.num_channels

    @property
    def num_structural_parameters(self) -> int:
        """Learned numbers besides the token table (and the output layer): 14 for the default Banyan."""
        u = self.channel_size
        return 7 * u if self.composition == "diagonal" else 2 * (2 * u * u) + u + 2 * u

    def validate_sizes(self) -> None:
        """Sizes are positive, and channels divide the hidden size."""
        for name in ("vocab_size", "hidden_size", "num_channels", "max_position_embeddings"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1.")
        if self.hidden_size % self.num_channels:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of num_channels={self.num_channels}: every channel "
                f"needs the same number of coordinates. Try num_channels={self.hidden_size // 2 or 1}."
            )
        if self.num_negatives is not None and not 1 <= self.num_negatives <= self.vocab_size:
            raise ValueError(
                f"num_negatives={self.num_negatives} must lie between 1 and vocab_size={self.vocab_size}; "
                "None means the exact softmax."
            )
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(
                f"pad_token_id={self.pad_token_id} is outside the vocabulary of vocab_size={self.vocab_size}. "
                "Set pad_token_id=None if the tokenizer has no padding token."
            )

    def validate_rates(self) -> None:
        """Probabilities and ranges are in their domain."""
        for name in ("dropout", "token_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie in [0, 1).")
        for name in ("initializer_range", "temperature"):
            if not getattr(self, name) > 0:  # also refuses nan
                raise ValueError(f"{name}={getattr(self, name)} must be positive.")

    def validate_backend(self) -> None:
        """The numba kernels know the diagonal functions only."""
        if self.backend == "numba" and self.composition == "linear":
            raise ValueError(
                'backend="numba" has kernels for composition="diagonal", not "linear". Use backend="auto" or "torch".'
            )
