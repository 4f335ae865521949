"""Banyan: a recursive encoder that induces its own trees (arXiv 2407.17771), as a transformers model.

A sentence travels: ids -> leaves -> induction -> graph -> upward pass -> root. A batch in pre-training goes on:
root -> downward pass -> distinct leaves -> objective.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.utils import ModelOutput, logging

from .configuration_banyan import BanyanConfig
from .counter_dropout import CounterDropout, hidden_leaves, leaf_keys, node_keys
from .graph import EntangledGraph, entangle
from .induction import induce
from .message_passing import Compose, Decompose, LinearCompose, LinearDecompose, downward, upward
from .objectives import contrastive, cross_entropy, sampled_cross_entropy
from .pretrained_banyan import BanyanPreTrainedModel

try:
    from . import numba_backend
    from .numba_backend import EntangledPass  # names its file in the one way that transformers follows (code_files.py)
except ImportError:  # numba is optional: the torch backend does everything
    numba_backend = None  # type: ignore[assignment]

logger = logging.get_logger(__name__)
# torch.compile can follow neither numba nor loops whose length depends on values; it leaves these methods as they are.
not_compiled = torch.compiler.disable


@dataclass
class BanyanModelOutput(ModelOutput):
    """What `BanyanModel` returns.

    Args:
        last_hidden_state: (B, L, D), downward value of each token in its own sentence's tree; 0 at padding.
        pooler_output: (B, D), the sentence embedding: the upward value of the root, or `config.pooling`'s choice.
        trees: (B, L'-1, 2) int64 with `output_trees=True`, L' the most tokens in a sentence; the merges in order, as
            node numbers of the sentence's own (tokens 0 .. n-1, then one per merge), padded with -100.
    """

    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    trees: Tensor | None = None


@dataclass
class BanyanForPreTrainingOutput(ModelOutput):
    """What `BanyanForPreTraining` returns.

    Args:
        loss: () the objective over the batch.
        logits: (n_leaves, V) with `output_logits=True`, scores at the distinct leaves.
        leaf_tokens: (n_leaves,) int64, the token of each distinct leaf, which is also its target.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    leaf_tokens: Tensor | None = None


class BanyanModel(BanyanPreTrainedModel):
    """The encoder: token table, compose, decompose.

    Args:
        config: a `BanyanConfig`.

    Example:
        >>> model = BanyanModel(BanyanConfig(vocab_size=50, hidden_size=8, num_channels=4)).eval()
        >>> batch = torch.tensor([[3, 4, 5, 0], [7, 0, 0, 0]])
        >>> out = model(batch, attention_mask=batch != 0, output_trees=True)
        >>> out.pooler_output.shape, out.last_hidden_state.shape, out.trees.shape
        (torch.Size([2, 8]), torch.Size([2, 4, 8]), torch.Size([2, 2, 2]))
    """

    def __init__(self, config: BanyanConfig) -> None:
        super().__init__(config)
        sizes = (config.channel_size, config.num_channels)
        linear = config.composition == "linear"
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.compose = LinearCompose(*sizes) if linear else Compose(*sizes)
        self.decompose = LinearDecompose(*sizes) if linear else Decompose(*sizes)
        self._warned_of_truncation = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The token table."""
        return self.embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token table."""
        self.embeddings = value  # type: ignore[assignment]

    @not_compiled
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_trees: bool = False,
        return_dict: bool | None = None,
    ) -> BanyanModelOutput | tuple[Tensor, ...]:
        """Encode a batch; every sentence by itself, so its result does not depend on the others.

        Args:
            input_ids: (B, L) int64 token ids.
            attention_mask: (B, L), nonzero at real tokens, which may stand anywhere in a row. Default: all. A token
                `config.pad_token_id` never counts, so a text that spells "<pad>" has one vector by every route.
            inputs_embeds: (B, L, D) token vectors in place of `input_ids`.
            output_trees: also return the merges.
            return_dict: `False` for a plain tuple.

        Returns:
            A `BanyanModelOutput`. A row without tokens gets the unit vector whose coordinates are all equal: it is
            finite and not zero, since a zero vector has no cosine.

        Raises:
            ValueError: ids, mask and embeddings disagree, an id lies outside the vocabulary, or a row is too long.
        """
        mask = self._mask(input_ids, attention_mask, inputs_embeds)
        offsets = self._offsets(mask)
        table, identity = self._leaves(input_ids, inputs_embeds, mask, offsets)
        token_leaf = torch.arange(len(table), device=table.device)  # occurrences stay apart: no sharing
        graph, up, down = self._propagate(table, token_leaf, offsets, identity=identity, share=False, down="leaves")
        assert down is not None
        hidden = table.new_zeros(*mask.shape, table.shape[1])  # (B, L, D)
        hidden[mask] = down
        output = BanyanModelOutput(
            last_hidden_state=hidden.to(self.dtype),
            pooler_output=self._pool(graph, up),
            trees=graph.merges() if output_trees else None,
        )
        use_dict = self.config.return_dict if return_dict is None else return_dict
        return output if use_dict else output.to_tuple()

    @not_compiled
    def get_text_features(
        self, input_ids: Tensor | np.ndarray, attention_mask: Tensor | np.ndarray | None = None
    ) -> BanyanModelOutput:
        """Only `pooler_output`, without the downward pass; what sentence-transformers calls.

        Args:
            input_ids, attention_mask: as in `forward`, or NumPy arrays, which a tokenizer makes faster.

        Returns:
            A `BanyanModelOutput` with the same `pooler_output` as `forward`, bit for bit.
        """
        table = self.embeddings.weight
        input_ids = torch.as_tensor(input_ids, device=table.device)  # `self.device` walks through all parameters
        if attention_mask is not None:
            attention_mask = torch.as_tensor(attention_mask, device=table.device)
        mask = self._mask(input_ids, attention_mask, None)
        plain = not self.training and not torch.is_grad_enabled() and self.config.pooling == "root"
        if plain and self._use_numba(table.device) and table.dtype == torch.float32:
            assert isinstance(self.compose, Compose)
            if mask.shape[1] >= self.config.max_position_embeddings:
                self._offsets(mask)  # warns of what is cut, or refuses what is too long, before any work is done
            numbers, structure = self.compose.numbers(torch.float32), self.config.structure
            roots, inside = numba_backend.encode(
                table, input_ids.long(), mask, numbers, structure=structure, neutral=self._neutral
            )
            if not inside:
                self._tokens(input_ids, mask)  # says which id is wrong
            return BanyanModelOutput(pooler_output=roots)
        offsets = self._offsets(mask)
        table, identity = self._leaves(input_ids, None, mask, offsets)
        token_leaf = torch.arange(len(table), device=table.device)
        graph, up, _ = self._propagate(table, token_leaf, offsets, identity=identity, share=False, down="none")
        return BanyanModelOutput(pooler_output=self._pool(graph, up))

    @not_compiled
    def entangle(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, down: str = "nodes"
    ) -> tuple[EntangledGraph, Tensor, Tensor]:
        """The batch as one graph, and both values of every node: what pre-training looks at.

        Args:
            input_ids, attention_mask: as in `forward`.
            down: whose downward values are wanted, of all `"nodes"` or only of the `"leaves"` (less work).

        Returns:
            The graph (nodes shared if `config.entangled`), the upward values (N, D) and the downward values, (N, D) or
            (n_leaves, D).
        """
        mask = self._mask(input_ids, attention_mask, None)
        offsets = self._offsets(mask)
        tokens = self._tokens(input_ids, mask)
        if self.config.entangled:
            leaf_tokens, token_leaf = torch.unique(tokens, return_inverse=True)
            identity = leaf_tokens
        else:
            leaf_tokens, token_leaf = tokens, torch.arange(len(tokens), device=tokens.device)
            identity = token_leaf
        leaves = self._compute_dtype(self.embeddings(leaf_tokens))  # (n_leaves, D)
        if self.training and self.config.token_dropout > 0:
            # One number is drawn, however many leaves there are: processes with other sentences go on drawing alike.
            seed = int(torch.randint(2**62, ()))
            hidden = hidden_leaves(leaf_keys(identity), probability=self.config.token_dropout, seed=seed)
            leaves = leaves.masked_fill(hidden[:, None], 0.0)
        graph, up, below = self._propagate(
            leaves, token_leaf, offsets, identity=identity, share=self.config.entangled, down=down
        )
        assert below is not None
        graph = EntangledGraph(leaf_tokens, graph.left, graph.right, graph.roots, graph.token_leaf, graph.offsets)
        return graph, up, below

    def _propagate(
        self,
        leaves: Tensor,
        token_leaf: Tensor,
        offsets: Tensor,
        *,
        identity: Tensor,
        share: bool,
        down: str,
    ) -> tuple[EntangledGraph, Tensor, Tensor | None]:
        """Induce trees from the leaves (n_leaves, D) and carry values up and down, on the chosen backend.

        `down` says whose downward values are wanted: of all `"nodes"`, the `"leaves"`, or `"none"`.
        """
        structure, dropout = self.config.structure, None
        if self.training and self.config.dropout > 0:
            dropout = (float(self.config.dropout), int(torch.randint(2**62, ())))
            mask = CounterDropout(*dropout, keys=leaf_keys(identity))
            leaves = leaves * mask.node_mask(torch.arange(len(leaves), device=leaves.device), leaves)

        if self._use_numba(leaves.device):
            assert isinstance(self.compose, Compose)
            assert isinstance(self.decompose, Decompose)
            left_scale, right_scale, bias = (c.detach() for c in self.compose.coefficients(torch.float32))
            graph, keys, values = numba_backend.induce(
                leaves.detach(), token_leaf, offsets, (left_scale, right_scale, bias),
                identity=identity, share=share, structure=structure, dropout=dropout,
            )  # fmt: skip
            if down == "none" and not torch.is_grad_enabled() and leaves.dtype == torch.float32:
                return graph, values, None
            masks = None if dropout is None else CounterDropout(*dropout, keys=keys)
            ready = [values] if leaves.dtype == torch.float32 else None
            scales_and_biases = torch.stack(self.decompose.coefficients(leaves.dtype)).split(2)  # (2, D) each
            up, below = EntangledPass.apply(
                graph, masks, ready, graph.n_nodes if down == "nodes" else graph.n_leaves, leaves,
                *self.compose.coefficients(leaves.dtype), *scales_and_biases,
            )  # fmt: skip
            return graph, up, below

        graph = induce(
            leaves[token_leaf],
            offsets,
            self.compose,
            identity=identity[token_leaf],
            structure=structure,
            dropout=dropout,
        )
        if share:
            graph = entangle(graph, identity[token_leaf])
        masks = None if dropout is None else CounterDropout(*dropout, keys=node_keys(graph, identity))
        up = upward(graph, leaves, self.compose, dropout=masks)
        if down == "none":
            return graph, up, None
        below = downward(graph, up, self.decompose, dropout=masks)
        return graph, up, below if down == "nodes" else below[: graph.n_leaves]

    def _use_numba(self, device: torch.device) -> bool:
        possible = numba_backend is not None and device.type == "cpu" and self.config.composition == "diagonal"
        if self.config.backend == "numba" and not possible:
            why = (
                "numba cannot be imported (pip install numba)" if numba_backend is None else f"the model is on {device}"
            )
            raise ValueError(f'backend="numba" but {why}. Set config.backend="auto" to use torch in such cases.')
        return possible and self.config.backend != "torch"

    def _compute_dtype(self, x: Tensor) -> Tensor:
        """Half precision is computed in float32: trees are always induced from float32 values."""
        return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x

    def _mask(self, input_ids: Tensor | None, attention_mask: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Which positions are tokens, (B, L) bool."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give exactly one of input_ids and inputs_embeds.")
        shape = input_ids.shape if input_ids is not None else inputs_embeds.shape[:-1]  # type: ignore[union-attr]
        if inputs_embeds is not None and inputs_embeds.shape[-1] != self.config.hidden_size:
            raise ValueError(
                f"inputs_embeds holds vectors of {inputs_embeds.shape[-1]} numbers but the model's have "
                f"hidden_size={self.config.hidden_size}: were they made by another model?"
            )
        if len(shape) != 2:
            raise ValueError(f"input_ids must be (batch, length), not {tuple(shape)}. Is a batch dimension missing?")
        if attention_mask is not None and attention_mask.shape != shape:
            raise ValueError(
                f"attention_mask is {tuple(attention_mask.shape)} but the input is {tuple(shape)}: "
                "pass the mask that the tokenizer returned together with these ids."
            )
        no_padding = input_ids is None or self.config.pad_token_id is None
        real = None if no_padding else input_ids != self.config.pad_token_id
        if attention_mask is None:
            return torch.ones(shape, dtype=torch.bool, device=self.device) if real is None else real
        return attention_mask.bool() if real is None else attention_mask.bool() & real

    def _offsets(self, mask: Tensor) -> Tensor:
        """Where each sentence's tokens begin, (B+1,) int64; warns of full inputs once, and refuses longer ones."""
        lengths, limit = mask.sum(dim=1), self.config.max_position_embeddings  # (B,)
        if (longest := int(lengths.max()) if len(lengths) else 0) > limit:
            raise ValueError(
                f"An input has {longest} tokens, more than max_position_embeddings={limit}. Truncate it "
                f"(tokenizer(..., truncation=True, max_length={limit})), split it, or raise the limit in the config."
            )
        if longest == limit > 1 and not self.training and not self._warned_of_truncation:
            self._warned_of_truncation = True
            logger.warning(
                f"{int((lengths == limit).sum())} of {len(lengths)} inputs fill all {limit} tokens "
                "(max_position_embeddings): the tokenizer has probably cut what came after. Split long texts to have "
                "all of them encoded. (Said once per model.)"
            )
        offsets = lengths.new_zeros(len(lengths) + 1)
        torch.cumsum(lengths, dim=0, out=offsets[1:])
        return offsets

    def _leaves(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None, mask: Tensor, offsets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Value of every token occurrence (T, D) in compute precision, and its identity (T,) for `leaf_keys`.

        In training the identity is the occurrence itself, so that each has a dropout mask of its own. Else it is the
        token, or the place in the sentence where ids are unknown: nothing that depends on the rest of the batch.
        """
        place = torch.arange(int(mask.sum()), device=mask.device)  # (T,)
        if input_ids is None:
            starts = torch.repeat_interleave(offsets[:-1], offsets.diff())  # (T,)
            return self._compute_dtype(inputs_embeds[mask]), place if self.training else place - starts  # type: ignore[index]
        tokens = self._tokens(input_ids, mask)
        return self._compute_dtype(self.embeddings(tokens)), place if self.training else tokens

    def _tokens(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Ids of the batch's tokens (T,) int64, all inside the vocabulary."""
        tokens, size = input_ids[mask].long(), len(self.embeddings.weight)
        if len(tokens) and not (int(tokens.min()) >= 0 and int(tokens.max()) < size):
            bad = tokens[(tokens < 0) | (tokens >= size)][0].item()
            raise ValueError(
                f"input_ids holds {bad} but the token table has {size} rows (vocab_size): were these ids made by "
                "another model's tokenizer?"
            )
        return tokens

    def _pool(self, graph: EntangledGraph, up: Tensor) -> Tensor:
        """One vector per sentence, (B, D)."""
        if not graph.n_nodes:
            return self._or_neutral(up.new_empty(len(graph.roots), up.shape[1]), graph.offsets)
        pooled = up[graph.roots.clamp(min=0)]  # (B, D)
        if self.config.pooling != "root":
            lengths = graph.offsets.diff()  # (B,)
            sentence = torch.repeat_interleave(lengths)  # (T,)
            total = torch.zeros_like(pooled).index_add(0, sentence, up[graph.token_leaf])
            mean = total / lengths.clamp(min=1)[:, None]
            pooled = mean if self.config.pooling == "mean" else F.normalize(pooled) + F.normalize(mean)
        return self._or_neutral(pooled, graph.offsets)

    def _or_neutral(self, pooled: Tensor, offsets: Tensor) -> Tensor:
        """The vectors (B, D), with the fixed unit vector in the rows of sentences without tokens."""
        return torch.where(offsets.diff()[:, None] > 0, pooled, self._neutral).to(self.dtype)

    @property
    def _neutral(self) -> float:
        """Every coordinate of the vector of a sentence without tokens: finite, of length 1."""
        return float(self.config.hidden_size**-0.5)


class BanyanForPreTraining(BanyanPreTrainedModel):
    """A Banyan with its output layer and objective over the batch's graph.

    Args:
        config: a `BanyanConfig`.

    Example:
        >>> model = BanyanForPreTraining(BanyanConfig(vocab_size=50, hidden_size=8, num_channels=4)).eval()
        >>> out = model(torch.tensor([[3, 4, 5], [3, 4, 6]]), output_logits=True)
        >>> out.logits.shape, out.leaf_tokens.tolist(), bool(out.loss > 0)
        (torch.Size([4, 50]), [3, 4, 5, 6], True)
    """

    def __init__(self, config: BanyanConfig) -> None:
        super().__init__(config)
        self.banyan = BanyanModel(config)
        # Self-StrAE's objective needs no output layer, and a parameter without gradient would stop DDP.
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size) if config.objective == "cross_entropy" else None
        self.post_init()

    def get_output_embeddings(self) -> nn.Module | None:
        """The output layer; its own table, not tied to the token table."""
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the output layer."""
        self.lm_head = new_embeddings

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        negatives: Tensor | None = None,
        output_logits: bool = False,
        return_loss: bool = True,
        return_dict: bool | None = None,
    ) -> BanyanForPreTrainingOutput | tuple[Tensor, ...]:
        """The objective of a batch: one term per distinct token (entangled) or per token occurrence.

        Args:
            input_ids, attention_mask: as in `BanyanModel.forward`.
            negatives: (M,) int64, the tokens that targets are told from in training; see `sampled_cross_entropy`.
                Default: `config.num_negatives` different ones, uniformly drawn.
            output_logits: also return the scores at the leaves, over the whole vocabulary: (n_leaves, V).
            return_loss: `Trainer` reads this name to know that the model makes its own loss.
            return_dict: `False` for a plain tuple.

        Returns:
            A `BanyanForPreTrainingOutput`. In `eval()` the loss is over the whole vocabulary, never sampled.
        """
        wanted = "nodes" if self.lm_head is None else "leaves"
        graph, up, down = self.banyan.entangle(input_ids, attention_mask, down=wanted)
        hidden, targets = down[: graph.n_leaves].to(self.dtype), graph.leaf_tokens
        loss = self._loss(hidden, targets, up, down, negatives) if return_loss else None
        logits = self.lm_head(hidden) if output_logits and self.lm_head is not None else None
        output = BanyanForPreTrainingOutput(loss=loss, logits=logits, leaf_tokens=targets)
        use_dict = self.config.return_dict if return_dict is None else return_dict
        return output if use_dict else output.to_tuple()

    def _loss(self, hidden: Tensor, targets: Tensor, up: Tensor, down: Tensor, negatives: Tensor | None) -> Tensor:
        if self.lm_head is None:
            return contrastive(up, down, temperature=self.config.temperature)
        weight, bias = self.lm_head.weight, self.lm_head.bias
        if self.training and self.config.num_negatives is not None:
            if negatives is None:
                negatives = torch.randperm(len(weight), device="cpu")[: self.config.num_negatives]
            return sampled_cross_entropy(hidden, weight, bias, targets, negatives.to(weight.device))
        return cross_entropy(hidden, weight, bias, targets)
