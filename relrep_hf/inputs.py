"""Check what a user hands in: encoders and texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sentence_transformers import SentenceTransformer

from relrep_hf.embedding import texts_hash

Encoders = Mapping[str, SentenceTransformer] | Sequence[SentenceTransformer] | SentenceTransformer


def named(encoders: Encoders) -> dict[str, SentenceTransformer]:
    """Give every encoder a name.

    Args:
        encoders: one, a list (named ``encoder_0`` and so on) or a mapping from names.

    Returns:
        name -> encoder.

    Raises:
        ValueError: none were given.
    """
    if isinstance(encoders, SentenceTransformer):
        encoders = [encoders]
    pairs = encoders.items() if isinstance(encoders, Mapping) else ((f"encoder_{i}", e) for i, e in enumerate(encoders))
    result = dict(pairs)
    if not result:
        raise ValueError("No encoders were given; a space needs at least one.")
    for name, encoder in result.items():
        if not isinstance(encoder, SentenceTransformer):
            raise ValueError(
                f"{name} is a {type(encoder).__name__}; wrap it: SentenceTransformer(path or modules=...)."
            )
    return result


def check_texts(texts: Sequence[str]) -> list[str]:
    """Drop repeated texts, keep the order, and refuse what is not a list of strings.

    Args:
        texts: N strings.

    Returns:
        the different ones.

    Raises:
        ValueError: a single string, or an entry that is not a string.

    >>> check_texts(["b", "a", "b"])
    ['b', 'a']
    """
    if isinstance(texts, str):
        raise ValueError(f"texts must be a list of strings, not the one string {texts[:40]!r}.")
    texts = list(texts)  # an iterator may be read only once
    strange = next((text for text in texts if not isinstance(text, str)), None)
    if strange is not None:
        raise ValueError(f"texts must be strings, but there is {strange!r}; did you pass rows of a dataset?")
    return list(dict.fromkeys(texts))


def same_texts(texts: Sequence[str] | Mapping[str, Sequence[str]]) -> list[str]:
    """Check that all encoders were given the same texts in the same order.

    Args:
        texts: one list, or name -> list.

    Returns:
        the list.

    Raises:
        ValueError: two lists differ (their hashes are named), or a text is there twice.

    >>> same_texts({"a": ["x", "y"], "b": ["y", "x"]})
    Traceback (most recent call last):
    ...
    ValueError: 'a' and 'b' were given different texts or another order ...
    """
    if isinstance(texts, Mapping):
        (first, reference), *others = texts.items()
        for name, other in others:
            if texts_hash(other) != texts_hash(reference):
                raise ValueError(
                    f"{first!r} and {name!r} were given different texts or another order (hashes "
                    f"{texts_hash(reference)} and {texts_hash(other)}). Anchors must mean the same in every encoder: "
                    "encode one list with all of them."
                )
        texts = reference
    unique = check_texts(texts)
    if len(unique) != len(texts):
        raise ValueError(f"{len(texts) - len(unique)} of {len(texts)} texts are repeated; drop the repeated rows.")
    return unique
