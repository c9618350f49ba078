"""Perplexity as exp of the mean token loss: the usual one."""

from __future__ import annotations

from repro.evaluate.evidence import Evidence, Measured
from repro.evaluate.numbers import exp

INFO = {
    "title": "perplexity, exp of mean",
    "says": "exp of val_loss, a token",
    "rules": 1,
    "values": {"ppl_exp_mean": {"unit": "1/token", "better": "lower"}},
}


def compute(evidence: Evidence) -> Measured:
    """exp(sum of losses / count); infinity where it overflows."""
    losses = evidence.losses
    return Measured({"ppl_exp_mean": exp(losses.total / losses.count)}, losses.count)
