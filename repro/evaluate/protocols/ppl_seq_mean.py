"""Perplexity as the mean over sequences of exp of each one's mean loss: the protocol of paper A's sibling paper."""

from __future__ import annotations

from repro.evaluate.evidence import Evidence
from repro.evaluate.losses import ppl_seq_mean
from repro.records.measured import Measured

INFO = {
    "title": "perplexity, mean over sequences",
    "says": "mean over validation blocks of exp(mean token loss of the block); never below ppl_exp_mean",
    "rules": 1,
    "values": {"ppl_seq_mean": {"unit": "1/token", "better": "lower", "low": 1}},
}


def compute(evidence: Evidence) -> Measured:
    """A mean of perplexities; one block that overflows makes it infinite."""
    losses = evidence.losses
    return Measured({"ppl_seq_mean": ppl_seq_mean(losses)}, losses.count, {"blocks": len(losses.sums)})
