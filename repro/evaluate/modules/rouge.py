"""ROUGE for `evaluate.load`: F-measures by the package's own scorer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets  # type: ignore[import-untyped]
import evaluate  # type: ignore[import-untyped]

from repro.evaluate.rouge import DEFAULT_KINDS, RougeScorer


class Rouge(evaluate.Metric):
    """compute(predictions, references, rouge_types, use_stemmer, tokenizer, use_aggregator) -> {kind: F-measure}.

    Plain means over the pairs, or all values where `use_aggregator` is false.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Overlap of n-grams and longest common subsequences (Lin 2004), F-measure.",
            citation="",
            inputs_description="predictions, references: texts, one reference for each prediction",
            features=datasets.Features(dict.fromkeys(("predictions", "references"), datasets.Value("string"))),
        )

    def _compute(
        self,
        predictions: list[str],
        references: list[str],
        rouge_types: Sequence[str] = DEFAULT_KINDS,
        use_stemmer: bool = False,
        tokenizer: str = "rouge_score",
        use_aggregator: bool = True,
    ) -> dict[str, Any]:
        scores = RougeScorer(rouge_types, stemmer=use_stemmer, tokenizer=tokenizer).score_all(predictions, references)
        if use_aggregator:
            return {kind: scores.mean(kind) for kind in scores.items}
        return {kind: parts["fmeasure"].tolist() for kind, parts in scores.items.items()}
