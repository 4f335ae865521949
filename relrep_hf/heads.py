"""``RelativeHead``: a linear classifier or regressor on relative vectors, tied to its space."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from relrep_hf.identity import space_id
from relrep_hf.persistence import write_folder
from relrep_hf.similarity import unit

CONFIG, TENSORS, FORMAT_VERSION = "head.json", "head.safetensors", 1
#: Inverse strengths of regularisation that are tried, for rows of length 1.
STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class RelativeHead:
    """A linear head for every encoder of a space.

    It works on rows of length 1: direction carries what encoders share, length is how far one encoder thinks a text
    lies from its mean. Any other estimator may be used on ``attached.encode(...)`` directly; this class adds the check
    of the space, a file without pickle, and re-centring: where the texts of a task differ in kind from those the space
    was fitted on, encoders disagree on how far off they lie; a few hundred unlabelled texts of the task say how much.

    Args:
        coefficients: (classes or 1, m).
        intercept: (classes or 1,).
        space: id of the space it was trained in.
        classes: labels; ``None`` for a regressor.
        mean: (m,) mean relative vector of the training texts; only ``predict(..., centre_on=...)`` needs it.

    >>> head = RelativeHead(np.array([[1.0, -1.0]]), np.zeros(1), space="0" * 16, classes=["no", "yes"])
    >>> head.predict(np.array([[3.0, 0.0], [0.0, 3.0]])).tolist()
    ['yes', 'no']
    """

    def __init__(
        self,
        coefficients: ArrayLike,
        intercept: ArrayLike,
        *,
        space: str,
        classes: Sequence[Any] | None = None,
        mean: ArrayLike | None = None,
    ) -> None:
        self.coefficients = np.atleast_2d(np.asarray(coefficients, dtype=np.float64))
        self.intercept = np.atleast_1d(np.asarray(intercept, dtype=np.float64))
        self.space = space
        self.classes = None if classes is None else [getattr(label, "item", lambda x=label: x)() for label in classes]
        rows = len(self.coefficients)
        if self.classes is not None and rows != len(self.classes) and (rows, len(self.classes)) != (1, 2):
            raise ValueError(f"{len(self.classes)} classes do not fit coefficients of shape {self.coefficients.shape}.")
        if len(self.intercept) not in (1, rows):
            raise ValueError(f"An intercept of {len(self.intercept)} numbers does not fit {rows} rows of coefficients.")
        self.mean = None if mean is None else np.asarray(mean, dtype=np.float64)
        if self.mean is not None and self.mean.shape != self.coefficients.shape[1:]:
            raise ValueError(
                f"The mean has shape {self.mean.shape}, but the head {self.coefficients.shape[1]} anchors."
            )

    @classmethod
    def fit(
        cls,
        model: SentenceTransformer,
        texts: Sequence[str],
        labels: Sequence[Any],
        *,
        strengths: Sequence[float] = STRENGTHS,
        folds: int = 3,
        batch_size: int = 32,
    ) -> RelativeHead:
        """Train L2-regularised logistic regression, its strength chosen by cross-validation on this encoder.

        Args:
            model: attached model.
            texts: N texts.
            labels: N labels.
            strengths: inverse regularisation strengths C to try. Strong regularisation travels best.
            folds: of the cross-validation.
            batch_size: texts in one forward pass.

        Returns:
            the head.

        Raises:
            ValueError: the model is in no space, or texts and labels differ in number.
        """
        identity = _space(model)
        if len(texts) != len(labels):
            raise ValueError(f"There are {len(texts)} texts, but {len(labels)} labels.")
        vectors = model.encode(list(texts), batch_size=batch_size, show_progress_bar=False)
        head = fit_logistic(vectors, labels, strengths=strengths, folds=folds)
        return cls.from_estimator(head, space=identity, mean=np.mean(vectors, axis=0))

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, space: str | SentenceTransformer, mean: ArrayLike | None = None
    ) -> RelativeHead:
        """Take over a linear scikit-learn estimator or a ``torch.nn.Linear`` trained on unit-length relative vectors.

        Args:
            estimator: with ``coef_`` and ``intercept_`` (and ``classes_``), or a Linear.
            space: id of the space, or a model attached to it.
            mean: (m,) mean of its training vectors before they were brought to length 1.

        Returns:
            the head.

        Raises:
            ValueError: the estimator is not linear, or predicts otherwise than ``coef_`` and ``intercept_`` say (one
                against one, a link function).
        """
        identity = space if isinstance(space, str) else _space(space)
        if isinstance(estimator, torch.nn.Linear):
            weight = estimator.weight.detach().cpu().double().numpy()
            bias = np.zeros(len(weight)) if estimator.bias is None else estimator.bias.detach().cpu().double().numpy()
            labels = None if len(weight) == 1 else list(range(len(weight)))
            return cls(weight, bias, space=identity, classes=labels, mean=mean)
        if not hasattr(estimator, "coef_"):
            raise ValueError(
                f"{type(estimator).__name__} has no coef_: only fitted linear heads can be saved. Use other "
                "estimators on attached.encode(...) directly."
            )
        classes = getattr(estimator, "classes_", None)
        head = cls(estimator.coef_, estimator.intercept_, space=identity, classes=classes, mean=mean)
        rows = unit(np.random.default_rng(0).normal(size=(256, head.coefficients.shape[1])))
        ours, theirs = head.predict(rows), estimator.predict(rows)
        if not (np.allclose(ours, theirs) if classes is None else np.array_equal(ours, theirs)):
            raise ValueError(
                f"{type(estimator).__name__} predicts otherwise than its coef_ and intercept_ say (one class against "
                "one, or a link function): it is no linear head. Use it on attached.encode(...) directly."
            )
        return head

    def scores(self, vectors: ArrayLike) -> NDArray[np.float64]:
        """Decision values.

        Args:
            vectors: (N, m) relative vectors of any length.

        Returns:
            (N, classes or 1).

        Raises:
            ValueError: m differs.
        """
        matrix = unit(np.asarray(vectors, dtype=np.float64))
        if matrix.ndim != 2 or matrix.shape[1] != self.coefficients.shape[1]:
            raise ValueError(
                f"The head needs (texts, {self.coefficients.shape[1]}) relative vectors, not shape {matrix.shape}: "
                "absolute vectors or another space?"
            )
        if not np.isfinite(matrix).all():
            raise ValueError("The vectors hold NaN or infinity; drop such rows first.")
        return matrix @ self.coefficients.T + self.intercept

    def predict(
        self,
        inputs: ArrayLike | Sequence[str],
        model: SentenceTransformer | None = None,
        *,
        centre_on: ArrayLike | Sequence[str] | None = None,
    ) -> NDArray[Any]:
        """Predict labels (or values).

        Args:
            inputs: (N, m) relative vectors, or N texts if a model is given.
            model: any model attached to the head's space.
            centre_on: a few hundred unlabelled texts of the task (or their relative vectors), through the encoder that
                made the inputs: the inputs are shifted so that the mean of these falls on that of the training texts.

        Returns:
            (N,) labels, or (N,) values of a regressor ((N, outputs) if it has several).

        Raises:
            ValueError: the model is in another space (both ids are named), or the head knows no mean to shift to.
        """
        if model is not None and _space(model) != self.space:
            raise ValueError(f"The head belongs to space {self.space}, the model to {_space(model)}; refit or attach.")

        def vectors(given: ArrayLike | Sequence[str]) -> NDArray[np.float64]:
            if isinstance(given, str):
                raise ValueError(f"Give a list of texts, not the one string {given[:40]!r}.")
            if not len(given) or not all(isinstance(item, str) for item in given):  # type: ignore[union-attr,arg-type]
                return np.asarray(given, dtype=np.float64)
            if model is None:
                raise ValueError("Texts need the model that is to encode them: predict(texts, model).")
            return np.asarray(model.encode(list(given), show_progress_bar=False), dtype=np.float64)  # type: ignore[arg-type]

        relative = vectors(inputs)
        if centre_on is not None:
            if self.mean is None:
                raise ValueError("This head does not know the mean of its training vectors; make it with mean=...")
            relative = relative - (vectors(centre_on).mean(axis=0) - self.mean)
        scores = self.scores(relative)
        if self.classes is None:
            return scores[:, 0] if scores.shape[1] == 1 else scores
        best = (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(axis=1)
        alike = len({type(label) for label in self.classes}) == 1
        return np.asarray(self.classes, dtype=None if alike else object)[best]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write head and space id as JSON and safetensors, whole or not at all.

        Args:
            path: a folder.
        """

        def write(folder: Path) -> None:
            arrays = {"coefficients": np.ascontiguousarray(self.coefficients), "intercept": self.intercept}
            save_file(arrays | ({} if self.mean is None else {"mean": self.mean}), folder / TENSORS)
            config = {
                "format_version": FORMAT_VERSION, "space": self.space, "classes": self.classes,
                "tensors": _file_hash(folder / TENSORS),
            }  # fmt: skip
            (folder / CONFIG).write_text(json.dumps(config, ensure_ascii=False, indent=1), encoding="utf-8")

        write_folder(path, write)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RelativeHead:
        """Read a saved head.

        Args:
            path: the folder.

        Returns:
            the head.

        Raises:
            ValueError: files are missing, damaged, mixed, or made by a newer version.
        """
        folder = Path(path)
        if not (folder / CONFIG).is_file() or not (folder / TENSORS).is_file():
            raise ValueError(f"{folder} holds no head: {CONFIG} or {TENSORS} is missing.")
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if config["format_version"] > FORMAT_VERSION:
            raise ValueError(f"{folder} has format {config['format_version']}, this package reads {FORMAT_VERSION}.")
        if "tensors" in config and config["tensors"] != _file_hash(folder / TENSORS):
            raise ValueError(f"{folder} mixes the {CONFIG} of one head with the {TENSORS} of another. Save it again.")
        tensors = load_file(folder / TENSORS)
        weights, bias = tensors["coefficients"], tensors["intercept"]
        return cls(weights, bias, space=config["space"], classes=config["classes"], mean=tensors.get("mean"))


def fit_logistic(
    vectors: ArrayLike,
    labels: Sequence[Any],
    *,
    strengths: Sequence[float] = STRENGTHS,
    folds: int = 3,
) -> LogisticRegression:
    """L2-regularised logistic regression on unit-length rows, strength by cross-validation on these rows only.

    Of all strengths within one standard error of the best mean accuracy the most regularised wins (the rule of
    Breiman et al. 1984): on the encoder it was trained on it is as good, and it leans less on what only that one knows.

    Args:
        vectors: (N, m).
        labels: N.
        strengths: inverse strengths C.
        folds: of the cross-validation.

    Returns:
        the fitted estimator.

    >>> x = np.random.default_rng(0).normal(size=(60, 2))
    >>> fit_logistic(x, x[:, 0] > 0).coef_.shape
    (1, 2)
    """
    x, y, grid = unit(vectors), np.asarray(labels), sorted(strengths)
    scores = np.zeros((folds, len(grid)))  # accuracy
    for fold, (inside, outside) in enumerate(StratifiedKFold(folds).split(x, y)):
        # Each strength starts where the stronger regularisation ended, which is several times as fast as from zero.
        model = LogisticRegression(max_iter=500, warm_start=True)
        for number, strength in enumerate(grid):
            scores[fold, number] = model.set_params(C=strength).fit(x[inside], y[inside]).score(x[outside], y[outside])
    mean, error = scores.mean(axis=0), scores.std(axis=0) / np.sqrt(folds)
    simplest = int(np.flatnonzero(mean >= mean.max() - error[mean.argmax()])[0])
    return LogisticRegression(C=grid[simplest], max_iter=500).fit(x, y)


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _space(model: SentenceTransformer) -> str:
    """Space id of a model, or an error."""
    identity = space_id(model)
    if identity is None:
        raise ValueError("This model is in no relative space; use space.attach(encoder).")
    return identity
