"""Error of a forecaster on the windows that it was trained on: what paper D's claims about descent speak of."""

from __future__ import annotations

from repro.evaluate.series_evidence import SeriesEvidence
from repro.records.measured import Measured

INFO = {
    "title": "forecast error, training windows",
    "says": "mean squared error over all numbers of the training windows, standardised units, float64",
    "rules": 1,
    "task": "forecast",
    "values": {"train_mse": {"unit": "sd squared", "better": "lower", "low": 0}},
}


def compute(evidence: SeriesEvidence) -> Measured:
    """n counts numbers: windows x positions x variables."""
    errors = evidence.fitted
    return Measured({"train_mse": errors.mse}, errors.count, {"windows": errors.windows})
