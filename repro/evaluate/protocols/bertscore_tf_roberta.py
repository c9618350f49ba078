"""BERTScore of teacher-forced predictions with roberta-large, the encoder that papers usually mean; fetched first."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from repro.evaluate.bertscore import BertScorer, Encoder, shipped_baseline
from repro.evaluate.evidence import Evidence
from repro.records.measured import Measured

INFO: dict[str, Any] = {
    "title": "BERTScore with roberta-large, teacher-forced",
    "says": "argmax at each position given the true text before it, against the text; roberta-large, no idf;"
    " raw, and rescaled with bert-score's own baseline",
    "rules": 1,
    "needs": ["roberta-large"],
    "values": {
        "bert_p_tf_roberta": {"unit": "1, raw", "better": "higher", "low": -1, "high": 1},
        "bert_r_tf_roberta": {"unit": "1, raw", "better": "higher", "low": -1, "high": 1},
        "bert_f1_tf_roberta": {"unit": "1, raw", "better": "higher", "low": -1, "high": 1},
        "bert_p_tf_roberta_rescaled": {"unit": "1, rescaled", "better": "higher"},
        "bert_r_tf_roberta_rescaled": {"unit": "1, rescaled", "better": "higher"},
        "bert_f1_tf_roberta_rescaled": {"unit": "1, rescaled", "better": "higher"},
    },
    "options": {"encoder": "roberta-large", "layers": 17, "max_tokens": 512, "idf": False, "baseline": "en"},
}


@cache
def _scorer(folder: Path) -> BertScorer:
    """Loaded once for all runs of a process."""
    encoder = Encoder.load(folder, INFO["options"]["layers"], INFO["options"]["max_tokens"])
    return BertScorer(encoder, idf=False, baseline=shipped_baseline("roberta-large", INFO["options"]["baseline"]))


def compute(evidence: Evidence) -> Measured:
    """Means over all blocks; n counts pairs. The protocol line names encoder, layer and versions."""
    texts, scorer = evidence.teacher_forced, _scorer(evidence.fetched / "roberta-large")
    scores = scorer.score_all(texts.candidates, texts.references)
    if scores.rescaled is None:
        raise ValueError("bert-score ships no baseline for roberta-large")
    names, means = list(INFO["values"]), [*scores.raw.means(), *scores.rescaled.means()]
    details = {"empty": scores.empty, "cut": scores.cut, "protocol": scorer.protocol(rescaled=True)}
    return Measured(dict(zip(names, means, strict=True)), scores.n, details)
