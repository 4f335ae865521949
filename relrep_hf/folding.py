"""Fold a relative map into sentence-transformers' own modules, and read it back.

The attached model is the encoder's modules plus ``Dense`` (WIP) or ``Normalize`` + ``Dense`` (cosine), all built in, so
its folder opens with plain sentence-transformers and without trust_remote_code.

Where the space id lives: sentence-transformers drops unknown keys of ``config_sentence_transformers.json`` and of a
module's ``config.json`` when it saves again, but it keeps the *names* of modules (``modules.json``). So the last module
is named ``relrep_<similarity>_<space id>``, and that survives any number of save and load with the package absent.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize

from banyan_hf.cards import template
from relrep_hf.similarity import AffineMap, Similarity

_TAG = re.compile(r"^relrep_(?P<similarity>wip|cosine|stitched)_(?P<id>[0-9a-f]{16})$")


class Tag(NamedTuple):
    """What the module name of an attached model says.

    Args:
        similarity: ``"wip"``, ``"cosine"`` or ``"stitched"``.
        space_id: 16 hexadecimal digits.
    """

    similarity: str
    space_id: str


def tag_name(similarity: Similarity | str, space_id: str) -> str:
    """Name of the module that marks an attached model.

    Args:
        similarity: ``"wip"``, ``"cosine"`` or ``"stitched"``.
        space_id: of the space.

    Returns:
        the name.

    >>> tag_name("wip", "0123456789abcdef")
    'relrep_wip_0123456789abcdef'
    """
    return f"relrep_{similarity}_{space_id}"


def is_tag(name: str) -> bool:
    """Whether a module of this name marks an attached model.

    Args:
        name: as in ``modules.json``.

    Returns:
        the answer.
    """
    return _TAG.match(name) is not None


def read_tag(model: SentenceTransformer) -> Tag | None:
    """Read which space a model is attached to.

    Args:
        model: any sentence-transformers model, also one that was loaded without this package.

    Returns:
        the tag, or ``None`` for a model that is not attached.
    """
    for name in reversed(list(model._modules)):
        match = _TAG.match(name)
        if match:
            return Tag(match["similarity"], match["id"])
    return None


def fold(affine: AffineMap, *, dtype: torch.dtype = torch.float32) -> list[torch.nn.Module]:
    """Write an affine map as built-in modules.

    Args:
        affine: (m, d) weight and (m,) bias.
        dtype: of the weights; sentence-transformers casts them to the encoder's dtype in any case.

    Returns:
        ``[Dense]`` or ``[Normalize, Dense]``.
    """
    size, dim = affine.weight.shape
    has_bias = bool(np.any(affine.bias))
    dense = Dense(
        dim,
        size,
        bias=has_bias,
        activation_function=None,
        init_weight=torch.tensor(affine.weight, dtype=dtype).contiguous(),
        init_bias=torch.tensor(affine.bias, dtype=dtype) if has_bias else None,
    )
    return [Normalize(), dense] if affine.normalize else [dense]


def append(
    encoder: SentenceTransformer, affine: AffineMap, *, similarity: Similarity, space_id: str
) -> SentenceTransformer:
    """Build the attached model; the encoder's modules are shared, not copied, and the encoder is left as it was.

    Args:
        encoder: a sentence-transformers model with d output dimensions.
        affine: its map into the space.
        similarity: of the space.
        space_id: of the space.

    Returns:
        a SentenceTransformer with m output dimensions, compared by cosine, on the encoder's device.

    Raises:
        ValueError: the encoder is attached already, or cuts its output.
    """
    previous = read_tag(encoder)
    if previous is not None:
        raise ValueError(
            f"This model is already attached to space {previous.space_id}: its output is relative, not absolute. "
            "Pass the original encoder."
        )
    parameter = next(encoder.parameters(), None)
    dtype = torch.float32 if parameter is None else parameter.dtype
    modules = OrderedDict(encoder.named_children())
    folded = fold(affine, dtype=dtype if dtype.is_floating_point else torch.float32)
    if len(folded) == 2:
        modules[f"relrep_normalize_{len(modules)}"] = folded[0]
    modules[tag_name(similarity, space_id)] = folded[-1]
    return rebuild(encoder, modules)


def detach(model: SentenceTransformer) -> SentenceTransformer:
    """Take the encoder back out of an attached model.

    Args:
        model: attached by this package.

    Returns:
        the encoder with its absolute vectors; modules are shared. A model that is not attached is returned as it is.

    Raises:
        ValueError: the model is stitched of two encoders.
    """
    tag = read_tag(model)
    if tag is None:
        return model
    if tag.similarity == "stitched":
        raise ValueError("A stitched model holds two encoders; pass the one that is meant.")
    return rebuild(
        model, OrderedDict((name, part) for name, part in model.named_children() if not name.startswith("relrep_"))
    )


def rebuild(encoder: SentenceTransformer, modules: OrderedDict[str, torch.nn.Module]) -> SentenceTransformer:
    """Make a model of other modules with the prompts, device and module arguments of an encoder.

    Args:
        encoder: whose settings are taken over.
        modules: name -> module.

    Returns:
        the model; its similarity is cosine.
    """
    model = SentenceTransformer(
        modules=modules,  # type: ignore[arg-type]
        device=str(encoder.device),
        prompts={key: text or "" for key, text in encoder.prompts.items()},
        default_prompt_name=encoder.default_prompt_name,
        similarity_fn_name="cosine",
    )
    model.prompts = dict(encoder.prompts)  # the constructor adds empty ones, which would hide a prompt for "passage"
    model.module_kwargs = dict(getattr(encoder, "module_kwargs", None) or {})
    model.model_card_data.generate_widget_examples = False
    model.model_card_data.add_tags("relative-representations")
    model.model_card_data.template_path = Path(template("attached"))
    return model


def read_map(model: SentenceTransformer) -> AffineMap:
    """Read the relative map back out of an attached model.

    Args:
        model: the result of ``RelativeSpace.attach``, also after save and load.

    Returns:
        the map in float64 (with the rounding of the model's dtype).

    Raises:
        ValueError: the model is not attached.
    """
    tag = read_tag(model)
    if tag is None or tag.similarity == "stitched":
        raise ValueError("This model is not attached to a space; use space.attach(encoder).")
    dense = model._modules[tag_name(*tag)]
    if not isinstance(dense, Dense):
        raise ValueError(f"The module of space {tag.space_id} is {type(dense).__name__}, not Dense: not ours.")
    weight = dense.linear.weight.detach().cpu().double().numpy()
    bias = np.zeros(len(weight)) if dense.linear.bias is None else dense.linear.bias.detach().cpu().double().numpy()
    return AffineMap(weight, bias, tag.similarity == "cosine")
