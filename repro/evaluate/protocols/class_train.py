"""Error of a classifier on the sentences that it was trained on: what paper D's claim about residuals speaks of."""

from __future__ import annotations

from repro.evaluate.class_evidence import ClassEvidence
from repro.records.measured import Measured

INFO = {
    "title": "classification error, training sentences",
    "says": "share of the training sentences with another class than their own after training, and mean cross-entropy",
    "rules": 1,
    "task": "classify",
    "values": {
        "train_error": {"unit": "1", "better": "lower", "low": 0, "high": 1},
        "train_loss": {"unit": "nats per sentence", "better": "lower", "low": 0},
    },
}


def compute(evidence: ClassEvidence) -> Measured:
    """n counts sentences; the details hold the error's exact 95 % interval and what the net started from."""
    scores = evidence.fitted
    values = {"train_error": scores.error, "train_loss": scores.loss}
    return Measured(values, scores.accuracy.n, evidence.details(evidence.train, scores))
