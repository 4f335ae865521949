"""Encode texts once: an encoder's identity, and a disk cache of its embeddings.

Everything downstream asks for the same few thousand texts again and again (fit, attach, report), and encoding is by
far the dearest step, so embeddings are kept on disk under (encoder id, hash of the text).
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from sentence_transformers import SentenceTransformer

#: Texts are encoded and written in chunks of this many, so memory does not grow with the corpus.
CHUNK = 2048


def text_hash(text: str) -> bytes:
    """Hash one text.

    Args:
        text: any string.

    Returns:
        16 bytes.

    >>> text_hash("a") == text_hash("a"), text_hash("a") == text_hash("b"), len(text_hash(""))
    (True, False, 16)
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


def texts_hash(texts: Sequence[str]) -> str:
    """Hash a list of texts; the order counts, because row k of every encoder must be the same text.

    Args:
        texts: the texts.

    Returns:
        32 hexadecimal digits.

    >>> texts_hash(["a", "b"]) == texts_hash(["b", "a"])
    False
    """
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text_hash(text))
    return digest.hexdigest()[:32]


def _tokenizer_state(module: torch.nn.Module) -> str:
    """Describe the tokenizer of a module without the truncation and padding that a call to encode leaves in it."""
    tokenizer: Any = getattr(module, "tokenizer", None)
    tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(tokenizer, "to_str"):
        return type(tokenizer).__name__
    state = json.loads(tokenizer.to_str())
    return json.dumps({key: value for key, value in state.items() if key not in ("truncation", "padding")})


def _architecture(module: object) -> str:
    """Describe the transformers configuration of a module, without where and by which version it was saved."""
    config: Any = getattr(module, "config", None)
    if not hasattr(config, "to_dict"):
        return ""
    aside = ("transformers_version", "auto_map", "dtype", "architectures")  # the weights' own dtype counts anyway
    kept = {key: value for key, value in config.to_dict().items() if not key.startswith("_") and key not in aside}
    return json.dumps(kept, sort_keys=True, default=str)


def encoder_id(encoder: SentenceTransformer) -> str:
    """Name an encoder by what decides its output: modules, settings, architecture, tokenizer, prompts and weights.

    Args:
        encoder: any sentence-transformers model. Its device does not count; its dtype does.

    Returns:
        16 hexadecimal digits, equal in every process for equal encoders.
    """
    digest = hashlib.sha256()
    for module in encoder.modules():
        describe: Any = getattr(module, "get_config_dict", None)
        if describe is not None:
            config = json.dumps(describe(), sort_keys=True, default=str)
            described = f"{type(module).__name__}{config}{_architecture(module)}{_tokenizer_state(module)}"
            digest.update(described.encode())
    settings = [encoder.prompts, encoder.default_prompt_name, encoder.truncate_dim, encoder.max_seq_length]
    digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy() if flat.numel() else b"")
    return digest.hexdigest()[:16]


class EmbeddingCache:
    """A folder of embeddings, one sub-folder an encoder, append-only shards in it.

    Args:
        folder: where to keep them; ``None`` keeps nothing and encodes every time.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = None if folder is None else Path(folder)

    def _shards(self, encoder: str) -> Iterator[tuple[Path, list[bytes]]]:
        """Yield (vector file, text hashes of its rows) of one encoder, oldest first."""
        if self.folder is None:
            return
        for index in sorted((self.folder / encoder).glob("*.idx")):
            raw = index.read_bytes()
            yield index.with_suffix(".npy"), [raw[i : i + 16] for i in range(0, len(raw), 16)]

    def _append(self, encoder: str, hashes: Sequence[bytes], vectors: np.ndarray) -> None:
        """Add a shard: vectors first, index last, both by rename, so a killed run leaves no half shard."""
        assert self.folder is not None
        folder = self.folder / encoder
        folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(b"".join(hashes)).hexdigest()[:24]
        for suffix, write in (
            (".npy", lambda handle: np.save(handle, vectors)),
            (".idx", lambda handle: handle.write(b"".join(hashes))),
        ):
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as handle:
                write(handle)
            os.replace(handle.name, folder / (name + suffix))

    def embed_each(
        self,
        encoders: Mapping[str, SentenceTransformer],
        texts: Sequence[str],
        *,
        ids: Mapping[str, str],
        batch_size: int = 32,
        show_progress: bool = False,
    ) -> dict[str, np.ndarray]:
        """Encode texts by several encoders.

        Args:
            encoders: name -> encoder.
            texts: N strings.
            ids: name -> ``encoder_id``, where it is known already.
            batch_size: see ``embed``.
            show_progress: see ``embed``.

        Returns:
            name -> (N, d) float32.
        """
        return {
            name: self.embed(
                encoder, texts, batch_size=batch_size, show_progress=show_progress, name=name, identity=ids.get(name)
            )
            for name, encoder in encoders.items()
        }

    def embed(
        self,
        encoder: SentenceTransformer,
        texts: Sequence[str],
        *,
        batch_size: int = 32,
        show_progress: bool = False,
        name: str = "encoder",
        identity: str | None = None,
    ) -> np.ndarray:
        """Encode texts, reading from disk what was encoded before.

        Args:
            encoder: a sentence-transformers model.
            texts: N strings; equal ones are encoded once.
            batch_size: texts in one forward pass.
            show_progress: draw a progress bar.
            name: what errors and the progress bar call the encoder.
            identity: the encoder's id if it is known already; hashing a large model takes about a second.

        Returns:
            (N, d) float32, whatever the dtype of the encoder.

        Raises:
            ValueError: an embedding is not finite, or the encoder has ``truncate_dim`` set.
        """
        if encoder.truncate_dim is not None:
            raise ValueError(
                f"{name} has truncate_dim={encoder.truncate_dim}: its modules give other vectors than its encode(). "
                "Set encoder.truncate_dim = None; a relative space brings its own number of dimensions."
            )
        identity = identity or (encoder_id(encoder) if self.folder is not None else "")
        wanted = [text_hash(text) for text in texts]
        missing = dict(zip(wanted, texts, strict=True))
        rows: dict[bytes, np.ndarray] = {}
        for path, hashes in self._shards(identity):
            hits = [row for row, key in enumerate(hashes) if key in missing]
            if hits:
                vectors = np.load(path, mmap_mode="r")[hits]
                rows.update(zip((hashes[row] for row in hits), vectors, strict=True))
                for row in hits:
                    missing.pop(hashes[row], None)
        keys = sorted(missing, key=lambda key: len(missing[key]))  # short texts together: less padding
        starts = range(0, len(keys), CHUNK)
        for start in track(starts, description=f"encoding with {name}", disable=not show_progress or not keys):
            part = keys[start : start + CHUNK]
            vectors = _encode(encoder, [missing[key] for key in part], batch_size=batch_size, name=name)
            if self.folder is not None:
                self._append(identity, part, vectors)
            rows.update(zip(part, vectors, strict=True))
        if not wanted:
            return np.zeros((0, int(encoder.get_embedding_dimension() or 0)), np.float32)
        return np.stack([rows[key] for key in wanted])


def _encode(encoder: SentenceTransformer, texts: list[str], *, batch_size: int, name: str) -> np.ndarray:
    """Encode with no normalisation on top and check that every number is finite."""
    output: Any = encoder.encode(
        texts, batch_size=batch_size, show_progress_bar=False, convert_to_numpy=True, normalize_embeddings=False
    )
    vectors = np.asarray(output, dtype=np.float32)  # (n, d)
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise ValueError(
            f"{name} gave NaN or infinity for {len(bad)} of {len(texts)} texts, first for {texts[bad[0]][:60]!r}. "
            "An empty text or half-precision overflow is the usual cause: drop those texts or call encoder.float()."
        )
    return vectors
