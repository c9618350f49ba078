"""Perplexity a word: for comparison with papers that count words, whatever the tokenizer."""

from __future__ import annotations

from repro.evaluate.evidence import Evidence
from repro.evaluate.losses import ppl_word
from repro.records.measured import Measured

INFO = {
    "title": "perplexity a word",
    "says": "exp of the sum of token losses over the blank-separated words of the target text",
    "rules": 1,
    "values": {"ppl_word": {"unit": "1/word", "better": "lower", "low": 1}},
}


def compute(evidence: Evidence) -> Measured:
    """n counts words; a word that a block's border cuts counts in both blocks."""
    losses = evidence.losses
    return Measured({"ppl_word": ppl_word(losses)}, int(losses.words.sum()), {"tokens": losses.count})
