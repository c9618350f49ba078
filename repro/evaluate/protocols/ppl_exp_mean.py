"""Perplexity as exp of the mean token loss: the usual one."""

from __future__ import annotations

from repro.evaluate.evidence import Evidence
from repro.evaluate.losses import ppl_exp_mean
from repro.records.measured import Measured

INFO = {
    "title": "perplexity, exp of mean",
    "says": "exp of val_loss, a token",
    "rules": 1,
    "values": {"ppl_exp_mean": {"unit": "1/token", "better": "lower", "low": 1}},
}


def compute(evidence: Evidence) -> Measured:
    """exp(sum of losses / count); infinity where it overflows."""
    return Measured({"ppl_exp_mean": ppl_exp_mean(evidence.losses)}, evidence.losses.count)
