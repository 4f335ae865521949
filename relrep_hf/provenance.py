"""What the vectors of an index are, kept with them, so that no query is asked in another space."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow.parquet as pq
from sentence_transformers import SentenceTransformer

from relrep_hf.embedding import encoder_id
from relrep_hf.folding import read_tag

#: Key of the record in a parquet file's metadata, and in a vector store's.
KEY = "relrep"


@dataclass(frozen=True)
class Provenance:
    """The space that vectors live in.

    Args:
        space: id of the relative space that they are in, or that translated them; ``None`` if neither.
        encoder: ``encoder_id`` of the encoder whose absolute space they are in; ``None`` for relative vectors, which
            every encoder attached to ``space`` may query.

    >>> mine = Provenance(space="0123456789abcdef", encoder=None)
    >>> Provenance.from_json(mine.to_json()) == mine
    True
    """

    space: str | None
    encoder: str | None

    def __post_init__(self) -> None:
        if self.space is None and self.encoder is None:
            raise ValueError("Vectors are in a relative space or in an encoder's own; space and encoder are both None.")

    @classmethod
    def of(cls, model: SentenceTransformer) -> Provenance:
        """Where the vectors of a model are: in its space if it is attached, else in its own."""
        tag = read_tag(model)
        return cls(tag.space_id, None) if tag else cls(None, encoder_id(model))

    @classmethod
    def from_json(cls, text: str | bytes) -> Provenance:
        """Read what ``to_json`` wrote."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """A line of JSON for the metadata of a file or of a collection in a vector store."""
        return json.dumps(asdict(self))

    def check(self, model: SentenceTransformer) -> None:
        """Refuse a model whose queries do not belong to these vectors.

        Args:
            model: that is about to encode queries.

        Raises:
            ValueError: it is in another space; the message names both.
        """
        tag = read_tag(model)
        if self.encoder is None:
            if tag is None:
                raise ValueError(
                    f"The vectors are in relative space {self.space}, but this model is in none: query with "
                    "space.attach(encoder)."
                )
            if tag.space_id != self.space:
                raise ValueError(
                    f"The vectors are in relative space {self.space}, but this model is attached to {tag.space_id}: "
                    "attach the encoder to the space of the vectors."
                )
            return
        if tag is not None:
            raise ValueError(
                f"The vectors are in the absolute space of encoder {self.encoder}, but this model is attached to "
                f"space {tag.space_id}: query with the encoder itself."
            )
        identity = encoder_id(model)
        if identity != self.encoder:
            raise ValueError(
                f"The vectors are in the space of encoder {self.encoder}, but this model is {identity}: another model, "
                "or its weights, tokenizer, prompts or dtype have changed."
            )


def read_provenance(path: str | os.PathLike[str]) -> Provenance:
    """Provenance of a folder of shards, or of one parquet file.

    Args:
        path: as ``relrep migrate`` and ``banyan encode`` write them.

    Returns:
        the record.

    Raises:
        ValueError: there is none.
    """
    path = Path(path)
    file = min(path.glob("*.parquet"), default=None) if path.is_dir() else path
    if file is None or not file.is_file():
        raise ValueError(f"{path} holds no parquet file.")
    record = (pq.read_schema(file).metadata or {}).get(KEY.encode())
    if record is None:
        raise ValueError(f"{file} does not say which space its vectors are in: it was not written by this package.")
    return Provenance.from_json(record)
