"""Accuracy for `evaluate.load`, with its exact interval and the split it was made on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import datasets  # type: ignore[import-untyped]
import evaluate  # type: ignore[import-untyped]
import numpy as np

from repro.evaluate.accuracy import accuracy


class Accuracy(evaluate.Metric):
    """compute(predictions, references, split="unnamed") -> accuracy, low, high, correct, n, split."""

    def _info(self) -> evaluate.MetricInfo:
        # Numbers of any kind: as integers, a score of 0.7 would be taken for class 0.
        features = datasets.Features(dict.fromkeys(("predictions", "references"), datasets.Value("float64")))
        return evaluate.MetricInfo(
            description="Share of predicted classes that equal their labels, with the Clopper-Pearson interval.",
            citation="",
            inputs_description="predictions, references: whole numbers from 0; split: name of the data",
            features=features,
        )

    def _compute(self, predictions: list[float], references: list[float], split: str = "unnamed") -> dict[str, Any]:
        result = asdict(accuracy(_whole(predictions), _whole(references), split))
        return {"accuracy": result.pop("value"), **result}


def _whole(values: list[float]) -> Any:
    """Integers where all values are whole; else the values as they are, which the metric refuses."""
    array = np.asarray(values, dtype=np.float64)
    return array.astype(np.int64) if np.array_equal(array, np.floor(array)) else array
