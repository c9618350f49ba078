"""Error of a classifier on every sentence of dev, none of which it was trained on."""

from __future__ import annotations

from repro.evaluate.class_evidence import ClassEvidence
from repro.records.measured import Measured

INFO = {
    "title": "classification error, dev",
    "says": "share of all dev sentences with another class than their own, and mean cross-entropy",
    "rules": 1,
    "task": "classify",
    "values": {
        "dev_error": {"unit": "1", "better": "lower", "low": 0, "high": 1},
        "dev_loss": {"unit": "nats per sentence", "better": "lower", "low": 0},
    },
}


def compute(evidence: ClassEvidence) -> Measured:
    """n counts sentences; the details hold the error's exact 95 % interval and what the net started from."""
    scores = evidence.held_out
    values = {"dev_error": scores.error, "dev_loss": scores.loss}
    return Measured(values, scores.accuracy.n, evidence.details(evidence.dev, scores))
