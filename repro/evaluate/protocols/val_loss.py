"""Mean token loss: sum of token losses over their count, never a mean of batch means."""

from __future__ import annotations

import numpy as np

from repro.evaluate.evidence import Evidence
from repro.evaluate.losses import val_loss
from repro.records.measured import Measured

INFO = {
    "title": "validation loss",
    "says": "sum of token losses over their count, float64, over fixed validation blocks",
    "rules": 1,
    "values": {"val_loss": {"unit": "nats/token", "better": "lower", "low": 0}},
}


def compute(evidence: Evidence) -> Measured:
    """Loss in nats a token; details: standard error over blocks."""
    losses = evidence.losses
    means = losses.sums / losses.tokens
    error = float(np.std(means, ddof=1) / np.sqrt(len(means))) if len(means) > 1 else None
    details = {"blocks": len(losses.sums), "standard_error": error}
    return Measured({"val_loss": val_loss(losses)}, losses.count, details)
