"""Mean absolute error for `evaluate.load`: windows of numbers or of lists of numbers, each counted once."""

from __future__ import annotations

from typing import Any

import datasets  # type: ignore[import-untyped]
import evaluate  # type: ignore[import-untyped]

from repro.evaluate.forecast import forecast_errors


class Mae(evaluate.Metric):
    """compute(predictions, references) -> mae; one number, a row or a table of numbers in each window."""

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("float64")
        shapes = (number, datasets.Sequence(number), datasets.Sequence(datasets.Sequence(number)))
        return evaluate.MetricInfo(
            description="Mean absolute error over all numbers of all windows, summed in float64.",
            citation="",
            inputs_description="predictions, references: windows of one shape",
            features=[datasets.Features(dict.fromkeys(("predictions", "references"), shape)) for shape in shapes],
        )

    def _compute(self, predictions: list[Any], references: list[Any]) -> dict[str, float]:
        return {"mae": forecast_errors([(predictions, references)], len(references)).mae}
