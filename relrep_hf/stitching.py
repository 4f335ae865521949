"""Queries through one encoder, documents through another, as one sentence-transformers model."""

from __future__ import annotations

import os
from collections import OrderedDict

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router

from relrep_hf.folding import read_tag, rebuild, tag_name
from relrep_hf.identity import check_same_space
from relrep_hf.space import RelativeSpace


def stitch(
    *,
    query: SentenceTransformer,
    document: SentenceTransformer,
    space: RelativeSpace | None = None,
    cache: str | os.PathLike[str] | None = None,
    show_progress: bool = False,
) -> SentenceTransformer:
    """Join two encoders into one model with a ``Router``.

    Args:
        query: encoder of queries, or a model that is attached to the space already.
        document: encoder of documents, or a model that is attached to the space already.
        space: where they meet; may be left out if both are attached.
        cache: folder for embeddings of the support.
        show_progress: draw a progress bar.

    Returns:
        a model whose ``encode_query`` and ``encode_document`` use the two encoders, each with its own prompt; plain
        ``encode`` takes the document side. It saves, loads and evaluates like any model.

    Raises:
        ValueError: an encoder is in another space, or no space was given for one that is in none.
    """
    sides = {}
    for side, model in (("query", query), ("document", document)):
        if read_tag(model) is None:
            if space is None:
                raise ValueError(f"The {side} encoder is in no space: give space=..., or attach it first.")
            model = space.attach(model, cache=cache, show_progress=show_progress)
        elif space is not None:
            check_same_space(space, model)
        sides[side] = model
    shared = check_same_space(sides["query"], sides["document"])
    router = Router.for_query_document(
        query_modules=list(sides["query"].children()),  # type: ignore[arg-type]
        document_modules=list(sides["document"].children()),  # type: ignore[arg-type]
    )
    model = rebuild(sides["document"], OrderedDict([(tag_name("stitched", shared), router)]))
    model.prompts = {side: _prompt(sides[side], side) for side in sides}
    model.default_prompt_name = None if not model.prompts["document"] else "document"
    model.module_kwargs = {}
    return model


def _prompt(model: SentenceTransformer, side: str) -> str:
    """The prompt that an encoder would use by itself on this side."""
    names = ("query",) if side == "query" else ("document", "passage", "corpus")  # as sentence-transformers looks
    own = next((text for name in names if (text := model.prompts.get(name))), "")
    return own or model.prompts.get(model.default_prompt_name or "") or ""
