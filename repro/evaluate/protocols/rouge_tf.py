"""ROUGE of teacher-forced predictions: what paper A's sibling paper reports, far above ROUGE of generated text."""

from __future__ import annotations

from typing import Any

from repro.evaluate.evidence import Evidence
from repro.evaluate.rouge import RougeScorer, versions
from repro.records.measured import Measured

INFO: dict[str, Any] = {
    "title": "ROUGE, teacher-forced",
    "says": "F-measure of the argmax at each position given the true text before it, against the text; stemmer on",
    "rules": 1,
    "values": {
        "rouge1_tf": {"unit": "F, 0..1", "better": "higher", "low": 0, "high": 1},
        "rouge2_tf": {"unit": "F, 0..1", "better": "higher", "low": 0, "high": 1},
        "rougel_tf": {"unit": "F, 0..1", "better": "higher", "low": 0, "high": 1},
        "rougelsum_tf": {"unit": "F, 0..1", "better": "higher", "low": 0, "high": 1},
    },
    "options": {"stemmer": True, "tokenizer": "rouge_score", "kinds": ["rouge1", "rouge2", "rougeL", "rougeLsum"]},
}
KINDS: tuple[str, ...] = tuple(INFO["options"]["kinds"])


def compute(evidence: Evidence) -> Measured:
    """Plain means over blocks; n counts blocks."""
    texts = evidence.teacher_forced
    scorer = RougeScorer(KINDS, stemmer=True, tokenizer="rouge_score")
    scores = scorer.score_all(texts.candidates, texts.references)
    values = {f"{kind.lower()}_tf": scores.mean(kind) for kind in KINDS}
    empty = {"empty_candidates": scores.empty_candidates, "empty_references": scores.empty_references}
    return Measured(values, scores.pairs, empty | versions())
