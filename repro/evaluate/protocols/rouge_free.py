"""ROUGE of freely generated text: greedy, from fixed prompts."""

from __future__ import annotations

from typing import Any

from repro.evaluate.evidence import Evidence
from repro.evaluate.rouge import RougeScorer, versions
from repro.records.measured import Measured

INFO: dict[str, Any] = {
    "title": "ROUGE, greedy generation",
    "says": "F-measure of greedy continuations of 32 first half-blocks against the true second halves; stemmer on",
    "rules": 1,
    "values": {
        "rouge1_free": {"unit": "F, 0..1", "better": "higher", "low": 0, "high": 1},
        "rouge2_free": {"unit": "F, 0..1", "better": "higher", "low": 0, "high": 1},
        "rougel_free": {"unit": "F, 0..1", "better": "higher", "low": 0, "high": 1},
    },
    "options": {"stemmer": True, "tokenizer": "rouge_score", "prompts": 32, "decoding": "greedy"},
}


def compute(evidence: Evidence) -> Measured:
    """Plain means over prompts; n counts prompts."""
    texts = evidence.continued(INFO["options"]["prompts"])
    scorer = RougeScorer(("rouge1", "rouge2", "rougeL"), stemmer=True, tokenizer="rouge_score")
    scores = scorer.score_all(texts.candidates, texts.references)
    values = {f"{kind.lower()}_free": scores.mean(kind) for kind in ("rouge1", "rouge2", "rougeL")}
    empty = {"empty_candidates": scores.empty_candidates, "empty_references": scores.empty_references}
    return Measured(values, scores.pairs, empty | versions())
