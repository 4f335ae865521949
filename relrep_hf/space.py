"""``RelativeSpace``: the artefact that encoders share. It knows texts and mixtures of texts, no encoder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sentence_transformers import SentenceTransformer

from relrep_hf import folding, persistence
from relrep_hf.anchors import Selector, check_count, sparsify
from relrep_hf.choosing import HELD_OUT, check_choices, choose_mixing
from relrep_hf.embedding import EmbeddingCache, encoder_id, texts_hash
from relrep_hf.fitting import ParamSettings
from relrep_hf.inputs import Encoders, check_texts, named, same_texts
from relrep_hf.similarity import AffineMap, Similarity, relative_map, unit
from relrep_hf.statistics import as_matrix, fit_statistics

#: Raised when the meaning of a saved space changes; older numbers stay readable.
FORMAT_VERSION = 1


@dataclass(frozen=True, eq=False)
class RelativeSpace:
    """A shared relative space (PAPERS section 2): support texts, mixing matrix, similarity.

    Args:
        support: K texts, all different.
        mixing: (m, K) row-stochastic; anchors of an encoder are ``mixing @ encoder.encode(support)``.
        similarity: ``"wip"`` or ``"cosine"``.
        shrinkage: of WIP's covariance: ``None``, a number or ``"ledoit-wolf"``.
        selector: how the anchors were found.
        settings: how P was learned, for the record.
        encoders: name -> id and dimension of those it was fitted on, for the record; not part of the id.
    """

    support: list[str]
    mixing: NDArray[np.float32]
    similarity: Similarity = "wip"
    shrinkage: float | str | None = "ledoit-wolf"
    selector: str = "param"
    settings: dict[str, Any] = field(default_factory=dict)
    encoders: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that texts and mixing matrix belong together."""
        if self.mixing.ndim != 2 or self.mixing.shape[1] != len(self.support):
            raise ValueError(f"mixing has shape {self.mixing.shape}, but there are {len(self.support)} support texts.")
        if self.mixing.min() < 0 or not np.allclose(self.mixing.sum(axis=1), 1, atol=1e-4):
            raise ValueError("mixing must be row-stochastic: weights >= 0 that sum to 1 in every row.")
        # The id is computed once, so what it stands for must not change: a copy of our own, read-only.
        mixing = np.array(self.mixing, dtype=np.float32)
        mixing.setflags(write=False)
        object.__setattr__(self, "mixing", mixing)

    def __eq__(self, other: object) -> bool:
        """Two spaces are equal if their vectors may be compared."""
        return isinstance(other, RelativeSpace) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def anchors(self) -> int:
        """Number of anchors m, the dimensions of relative vectors."""
        return len(self.mixing)

    @cached_property
    def id(self) -> str:
        """Content hash of all that decides relative coordinates: 16 hexadecimal digits."""
        head = [FORMAT_VERSION, texts_hash(self.support), self.similarity, self.shrinkage, list(self.mixing.shape)]
        body = np.ascontiguousarray(self.mixing, dtype="<f4").tobytes()
        return hashlib.sha256(json.dumps(head).encode() + body).hexdigest()[:16]

    @classmethod
    def fit(
        cls,
        encoders: Encoders,
        texts: Sequence[str],
        *,
        anchors: int = 300,
        similarity: Similarity = "wip",
        selector: Selector = "param",
        support: int | None = None,
        shrinkage: float | str | None = "ledoit-wolf",
        settings: ParamSettings | None = None,
        seed: int = 0,
        cache: str | os.PathLike[str] | None = None,
        batch_size: int = 32,
        show_progress: bool = True,
    ) -> RelativeSpace:
        """Fit a space on one, two or more encoders.

        Args:
            encoders: sentence-transformers models: one, a list, or a mapping from names.
            texts: a few thousand plain sentences of the domain; 8,000 is enough, 2,000 works.
            anchors: m, dimensions of the relative vectors.
            similarity: ``"wip"`` or ``"cosine"``.
            selector: ``"param"`` (learned), ``"random"``, ``"kmeans"`` or ``"farthest"``.
            support: use that many texts as support and the rest as held-out pairs; ``None`` makes all texts
                support, after early stopping was decided on a tenth of them.
            shrinkage: of WIP's covariance.
            settings: of PARAM.
            seed: decides every random choice; the same seed gives the same bits.
            cache: folder for embeddings.
            batch_size: texts in one forward pass.
            show_progress: draw progress bars.

        Returns:
            the space.

        Raises:
            ValueError: too few texts for the anchors or the covariance, NaN embeddings, or other unusable input.
        """
        models, texts = named(encoders), check_texts(texts)
        check_choices(similarity=similarity, selector=selector, shrinkage=shrinkage)
        check_count(anchors, min(support or len(texts), len(texts)))
        store = EmbeddingCache(cache)
        ids = {name: encoder_id(model) for name, model in models.items()}
        embeddings = store.embed_each(models, texts, ids=ids, batch_size=batch_size, show_progress=show_progress)
        space = cls.fit_embeddings(
            embeddings,
            texts,
            anchors=anchors,
            similarity=similarity,
            selector=selector,
            support=support,
            shrinkage=shrinkage,
            settings=settings,
            seed=seed,
            show_progress=show_progress,
        )
        records = {name: {"id": ids[name], "dim": int(x.shape[1])} for name, x in embeddings.items()}
        return dataclasses.replace(space, encoders=records)

    @classmethod
    def fit_embeddings(
        cls,
        embeddings: Mapping[str, ArrayLike],
        texts: Sequence[str] | Mapping[str, Sequence[str]],
        *,
        anchors: int = 300,
        similarity: Similarity = "wip",
        selector: Selector = "param",
        support: int | None = None,
        shrinkage: float | str | None = "ledoit-wolf",
        settings: ParamSettings | None = None,
        seed: int = 0,
        show_progress: bool = False,
    ) -> RelativeSpace:
        """Fit a space on embeddings that are ready, for example rows of an index.

        Args:
            embeddings: name -> (N, d_i), row n being text n in every matrix.
            texts: the N texts, all different; or name -> texts, which must be the same lists in the same order.
            anchors: see ``fit``.
            similarity: see ``fit``.
            selector: see ``fit``.
            support: see ``fit``.
            shrinkage: see ``fit``.
            settings: see ``fit``.
            seed: see ``fit``.
            show_progress: see ``fit``.

        Returns:
            the space.

        Raises:
            ValueError: rows do not match the texts, or the texts of two encoders differ in content or order.

        >>> x = np.random.default_rng(0).normal(size=(60, 3))
        >>> both = {"a": x, "b": x @ [[1, 2], [0, 1], [1, 1]]}
        >>> space = RelativeSpace.fit_embeddings(both, list(map(str, range(60))), anchors=4)
        >>> space.anchors, len(space.support), len(space.id)
        (4, 60, 16)
        """
        texts = same_texts(texts)
        spaces = {name: as_matrix(x, name=name) for name, x in embeddings.items()}
        for name, matrix in spaces.items():
            if len(matrix) != len(texts):
                raise ValueError(f"{name} has {len(matrix)} rows for {len(texts)} texts; row n must be text n.")
        size = len(texts) if support is None else min(support, len(texts))
        check_count(anchors, size)
        order = np.random.default_rng(seed).permutation(len(texts))
        chosen, rest = np.sort(order[:size]), order[size : size + HELD_OUT]

        mixing, steps = choose_mixing(
            spaces,
            chosen,
            rest,
            anchors=anchors,
            similarity=similarity,
            selector=selector,
            shrinkage=shrinkage,
            settings=settings,
            seed=seed,
            show_progress=show_progress,
        )
        settings = settings or ParamSettings()
        record = {"seed": seed} | ({**dataclasses.asdict(settings), "steps": steps} if selector == "param" else {})
        return cls(
            support=[texts[row] for row in chosen],
            mixing=mixing.astype(np.float32),
            similarity=similarity,
            shrinkage=shrinkage if similarity == "wip" else None,
            selector=selector,
            settings=record,
            encoders={name: {"id": None, "dim": int(x.shape[1])} for name, x in spaces.items()},
        )

    def map_for(self, support_embeddings: ArrayLike, *, name: str = "encoder") -> AffineMap:
        """Map of one encoder into the space, from its embeddings of the support.

        Args:
            support_embeddings: (K, d), row k being ``support[k]``.
            name: what errors call the encoder.

        Returns:
            the map, in float64.

        Raises:
            ValueError: not one row a support text, NaN, or too few texts for the covariance.
        """
        x = as_matrix(support_embeddings, name=name)
        if len(x) != len(self.support):
            raise ValueError(f"{name} has {len(x)} rows, but the space has {len(self.support)} support texts.")
        mixing = self.mixing.astype(np.float64)
        # float32 rows sum to 1 within 1e-7; exactly 1 keeps the anchors of WIP exact around the mean.
        mixing /= mixing.sum(axis=1, keepdims=True)
        if self.similarity == "cosine":
            return relative_map(mixing @ unit(x), similarity="cosine")
        stats = fit_statistics(x, shrinkage=self.shrinkage, name=name)
        return relative_map(mixing @ x, similarity="wip", stats=stats)

    def attach(
        self,
        encoder: SentenceTransformer,
        *,
        name: str | None = None,
        cache: str | os.PathLike[str] | None = None,
        batch_size: int = 32,
        show_progress: bool = False,
    ) -> SentenceTransformer:
        """Bring any encoder into the space by encoding the support texts.

        Args:
            encoder: any sentence-transformers model, whether it was in ``fit`` or not. It is left as it was; the
                result shares its modules.
            name: its name in ``fit``, to have it checked against the record.
            cache: folder for embeddings.
            batch_size: texts in one forward pass.
            show_progress: draw a progress bar.

        Returns:
            a SentenceTransformer with m dimensions made of built-in modules. Its vectors compare by cosine. A text
            whose embedding equals the mean of the support has the zero vector under WIP.

        Raises:
            ValueError: attached already, NaN embeddings, or the encoder has another dimension than the record says.
        """
        if folding.read_tag(encoder) is not None:
            raise ValueError(
                f"This model is already attached to space {folding.read_tag(encoder).space_id}; pass the encoder."  # type: ignore[union-attr]
            )
        known = self.encoders.get(name or "")
        if known is not None:  # one text tells the dimension, before all the others are encoded
            dim = encoder.get_embedding_dimension() or encoder.encode(self.support[:1]).shape[1]
            if known["dim"] != dim:
                raise ValueError(
                    f"{name} has {dim} dimensions, but had {known['dim']} when the space was fitted: it is another "
                    "model now. Attach it under a new name, and make vectors of the old one anew or translate them."
                )
        vectors = EmbeddingCache(cache).embed(
            encoder, self.support, batch_size=batch_size, show_progress=show_progress, name=name or "encoder"
        )
        affine = self.map_for(vectors, name=name or "encoder")
        return folding.append(encoder, affine, similarity=self.similarity, space_id=self.id)

    def translate(self, vectors: ArrayLike, source: Any, target: Any, **options: Any) -> NDArray[np.float32]:
        """Move absolute vectors of one encoder into the absolute space of another: see ``migration.translate``."""
        from relrep_hf.migration import translate

        return translate(vectors, source=source, target=target, space=self, **options)

    def sparsified(self, top_k: int) -> RelativeSpace:
        """Keep the k largest weights of every anchor: a smaller file, another space (with another id).

        Args:
            top_k: weights to keep in a row.

        Returns:
            a new space; look at its retention report before you use it.
        """
        return dataclasses.replace(self, mixing=sparsify(self.mixing, top_k=top_k).astype(np.float32))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the space as JSON and safetensors, whole or not at all.

        Args:
            path: a folder.
        """
        config = {
            "format_version": FORMAT_VERSION,
            "id": self.id,
            "anchors": self.anchors,
            "similarity": self.similarity,
            "shrinkage": self.shrinkage,
            "selector": self.selector,
            "settings": self.settings,
            "encoders": self.encoders,
            "support": self.support,
        }
        persistence.write_space(path, config, self.mixing)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RelativeSpace:
        """Read a saved space and check that it is what it says.

        Args:
            path: the folder.

        Returns:
            the space.

        Raises:
            ValueError: files are missing, made by a newer version, or changed since they were saved.
        """
        config, mixing = persistence.read_space(path)
        version = config.get("format_version")
        if not isinstance(version, int) or version > FORMAT_VERSION:
            raise ValueError(
                f"{path} has format version {version}, this package reads up to {FORMAT_VERSION}: upgrade."
            )
        names = [item.name for item in dataclasses.fields(cls) if item.name != "mixing"]
        space = cls(mixing=mixing, **{name: config[name] for name in names if name in config})
        if space.id != config["id"]:
            raise ValueError(
                f"{path} says it is space {config['id']}, but its content is {space.id}: files were mixed."
            )
        return space

    def push_to_hub(
        self,
        repo_id: str,
        *,
        report: Mapping[str, Any] | None = None,
        private: bool | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
    ) -> str:
        """Upload the space with a card; a card that is there already keeps what people wrote into it.

        Args:
            repo_id: ``owner/name``.
            report: of ``retention_report``; it and its chart go along and into the card.
            private: whether a new repository is private.
            revision: branch; made if it does not exist.
            token: of the Hub.

        Returns:
            address of the commit. Hubs other than huggingface.co may need ``HF_HUB_DISABLE_XET=1``.
        """
        from relrep_hf import hub
        from relrep_hf.report_view import chart

        with tempfile.TemporaryDirectory() as folder:
            self.save(folder)
            if report is not None:
                (Path(folder) / hub.REPORT).write_text(json.dumps(report, indent=1), encoding="utf-8")
                chart(report, Path(folder) / hub.CHARTS[0])
            plan, card = hub.plan_push(folder, repo_id)
            hub.add_card(plan, card, repo_id, on_hub=hub.card_on_hub(repo_id, revision=revision, token=token))
            message = f"Relative space {self.id}"
            return hub.push(plan, repo_id, private=bool(private), revision=revision, token=token, message=message)

    @classmethod
    def from_pretrained(
        cls, name: str, *, revision: str | None = None, token: str | bool | None = None, cache_dir: str | None = None
    ) -> RelativeSpace:
        """Open a space from a folder or from the Hub.

        Args:
            name: folder or ``owner/name``.
            revision: branch or commit.
            token: of the Hub.
            cache_dir: of the Hub's cache.

        Returns:
            the space.
        """
        return cls.load(persistence.pull_folder(str(name), revision=revision, token=token, cache_dir=cache_dir))
