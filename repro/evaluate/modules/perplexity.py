"""Perplexity for `evaluate.load`, from losses that are there already: no model is named, so none is fetched."""

from __future__ import annotations

import datasets  # type: ignore[import-untyped]
import evaluate  # type: ignore[import-untyped]
import numpy as np

from repro.evaluate.losses import BlockLosses, ppl_exp_mean, ppl_seq_mean, val_loss


class Perplexity(evaluate.Metric):
    """compute(predictions, references) -> val_loss, ppl_exp_mean, ppl_seq_mean.

    Predictions are sums of token losses of a block in nats, references the numbers of tokens of the
    blocks. There are two perplexities, so none has the bare name.
    """

    def _info(self) -> evaluate.MetricInfo:
        features = {"predictions": datasets.Value("float64"), "references": datasets.Value("int64")}
        return evaluate.MetricInfo(
            description="exp of the mean token loss, and the mean over blocks of exp of the block's mean loss.",
            citation="",
            inputs_description="predictions: loss sums of blocks in nats; references: tokens of each block",
            features=datasets.Features(features),
        )

    def _compute(self, predictions: list[float], references: list[int]) -> dict[str, float]:
        if not references or min(references) < 1:
            raise ValueError("every block must have tokens, and there must be one")
        counts = np.asarray(references, dtype=np.int64)
        losses = BlockLosses(np.asarray(predictions, dtype=np.float64), counts, counts, counts)
        return {protocol.__name__: protocol(losses) for protocol in (val_loss, ppl_exp_mean, ppl_seq_mean)}
