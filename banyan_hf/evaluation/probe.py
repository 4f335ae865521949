"""The Banyan paper's classification, as an MTEB task: frozen embeddings, a small classifier, five seeds."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTask
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, f1_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader

SEEDS = 5
HIDDEN, EPOCHS = 128, 20  # of the classifier; a tenth of the training set says when to stop before


class Probe(AbsTask):
    """Trains a classifier with one hidden layer on the embeddings of `train`, and scores it on `test`.

    Rows hold `text`, or `sentence1` and `sentence2`; the features of a pair (u, v) are [|u - v|, u * v] (Conneau et al.
    2017). Reported: mean and standard deviation, over seeds, of accuracy and of the F1 of label 1.
    """

    abstask_prompt = "Classify user passages."
    seeds = tuple(range(SEEDS))

    def _evaluate_subset(
        self, model: Any, data_split: DatasetDict, *, hf_split: str, hf_subset: str, encode_kwargs: Any, **_: Any
    ) -> Mapping[str, Any]:
        def features(rows: Dataset) -> np.ndarray:
            columns = ["text"] if "text" in rows.column_names else ["sentence1", "sentence2"]
            texts = [rows.select_columns(column).rename_columns({column: "text"}) for column in columns]
            encoded = [
                model.encode(
                    DataLoader(column, batch_size=encode_kwargs["batch_size"]),
                    task_metadata=self.metadata,
                    hf_split=hf_split,
                    hf_subset=hf_subset,
                    **encode_kwargs,
                )
                for column in texts
            ]
            return pair_features(*encoded) if len(encoded) == 2 else np.asarray(encoded[0])

        train, test = data_split["train"], data_split["test"]
        inputs, targets = features(train), np.asarray(train["label"])
        test_inputs, test_targets = features(test), np.asarray(test["label"])
        scores = [probe_scores(inputs, targets, test_inputs, test_targets, seed=seed) for seed in self.seeds]
        summary = {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
        spread = {f"{name}_std": float(np.std([score[name] for score in scores], ddof=1)) for name in scores[0]}
        return {**summary, **spread, "scores_per_experiment": scores}

    def _calculate_descriptive_statistics_from_split(self, split: str, **_: Any) -> Any:
        raise NotImplementedError("Statistics are for tasks on the Hub.")


def pair_features(first: Any, second: Any) -> np.ndarray:
    """[|u - v|, u * v] of two (n, D) arrays, (n, 2 D).

    Example:
        >>> pair_features(np.array([[1.0, 2.0]]), np.array([[3.0, 0.5]])).tolist()
        [[2.0, 1.5, 3.0, 1.0]]
    """
    first, second = np.asarray(first), np.asarray(second)
    return np.concatenate([np.abs(first - second), first * second], axis=1)


def probe_scores(
    inputs: np.ndarray, targets: np.ndarray, test_inputs: np.ndarray, test_targets: np.ndarray, *, seed: int
) -> dict[str, float]:
    """Train once, score once.

    Args:
        inputs, targets: (n, D) features and (n,) labels to learn from.
        test_inputs, test_targets: to score on.
        seed: of the classifier's start values, batches and held-out tenth.

    Returns:
        `accuracy`, and `f1` of label 1 where there are two labels (macro F1 otherwise).
    """
    batch = min(max(len(inputs) // 100, 16), 256)  # a small set needs steps as well
    network = MLPClassifier(
        HIDDEN, batch_size=batch, max_iter=EPOCHS, early_stopping=True, n_iter_no_change=3, random_state=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # all epochs may be used
        classifier = make_pipeline(StandardScaler(), network).fit(inputs, targets)
    guesses = classifier.predict(test_inputs)
    average = "binary" if len(np.unique(targets)) == 2 else "macro"
    return {
        "accuracy": float(accuracy_score(test_targets, guesses)),
        "f1": float(f1_score(test_targets, guesses, average=average)),
    }
