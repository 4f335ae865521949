"""Which space a vector belongs to, and the refusal to mix two."""

from __future__ import annotations

from typing import Protocol

from sentence_transformers import SentenceTransformer

from relrep_hf.folding import read_tag


class HasId(Protocol):
    """A ``RelativeSpace``: anything with a space id."""

    @property
    def id(self) -> str:
        """Space id."""
        ...


def space_id(model: SentenceTransformer | HasId) -> str | None:
    """Id of the space that a model is attached to.

    Args:
        model: a model or a space.

    Returns:
        16 hexadecimal digits, or ``None`` for a model that is not attached.
    """
    if not isinstance(model, SentenceTransformer):
        return model.id
    tag = read_tag(model)
    return tag.space_id if tag else None


def check_same_space(first: SentenceTransformer | HasId, second: SentenceTransformer | HasId) -> str:
    """Refuse to compare vectors of two spaces.

    Args:
        first: attached model or space.
        second: attached model or space.

    Returns:
        the id they share.

    Raises:
        ValueError: the ids differ, or one is not attached.
    """
    ids = space_id(first), space_id(second)
    if ids[0] is None or ids[1] is None:
        which = "first" if ids[0] is None else "second"
        raise ValueError(f"The {which} model is in no relative space (ids: {ids[0]} and {ids[1]}); attach it first.")
    if ids[0] != ids[1]:
        raise ValueError(
            f"Space {ids[0]} is not space {ids[1]}: their vectors must not be compared, even if the dimensions agree. "
            "Attach both encoders to one space."
        )
    return ids[0]
