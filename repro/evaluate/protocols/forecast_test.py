"""Error of a forecaster on held-out windows, with that of the forecast that nothing changes beside it."""

from __future__ import annotations

from repro.evaluate.series_evidence import SeriesEvidence
from repro.records.measured import Measured

INFO = {
    "title": "forecast error, held-out windows",
    "says": "mean squared and absolute error over every held-out window once; persistence: inputs as forecast",
    "rules": 1,
    "task": "forecast",
    "values": {
        "test_mse": {"unit": "sd squared", "better": "lower", "low": 0},
        "test_mae": {"unit": "sd", "better": "lower", "low": 0},
        "persistence_mse": {"unit": "sd squared", "better": "none", "low": 0},
    },
}


def compute(evidence: SeriesEvidence) -> Measured:
    """n counts numbers: windows x positions x variables."""
    errors = evidence.held_out
    values = {"test_mse": errors.mse, "test_mae": errors.mae, "persistence_mse": evidence.persistence.mse}
    return Measured(values, errors.count, {"windows": errors.windows})
