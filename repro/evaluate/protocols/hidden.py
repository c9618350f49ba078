"""Size of the hidden state behind each block of a trained model (paper A, its figure of moments by layer)."""

from __future__ import annotations

from repro.evaluate.evidence import Evidence
from repro.records.measured import Measured

INFO = {
    "title": "moments of the hidden state",
    "says": "mean absolute value behind the last block, before the final norm; variance there over a token's entries,"
    " mean over tokens; growth, the former over the mean absolute value before the first block",
    "rules": 1,
    "values": {
        "hidden_mean_abs": {"unit": "1", "better": "lower", "low": 0},
        "hidden_variance": {"unit": "1", "better": "lower", "low": 0},
        "hidden_growth": {"unit": "1", "better": "none", "low": 0},
    },
}


def compute(evidence: Evidence) -> Measured:
    """n counts tokens; growth is the mean absolute value behind the last block over that before the first."""
    first, *_, last = evidence.layers
    values = {
        "hidden_mean_abs": last["mean_abs"],
        "hidden_variance": last["entry_variance"],
        "hidden_growth": last["mean_abs"] / first["mean_abs"],
    }
    return Measured(values, evidence.losses.count, {"layers": evidence.layers})
