"""What metrics of classifications are made of: one trained net, its training sentences and those of dev."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from repro.data.labelled import Encoded
from repro.evaluate.accuracy import Accuracy, accuracy
from repro.nn.classifier import NO_TOKEN

Batch = tuple[Tensor, Tensor]


def batches(split: Encoded, rows: NDArray[np.int64], at_once: int) -> Iterator[tuple[NDArray[np.int64], Batch]]:
    """(rows, (tokens [n, longest], classes [n])) for at most `at_once` of `rows`, ordered by length to pad little.

    Tokens are int64 with NO_TOKEN behind each sentence's end. Sentences of equal length keep the order of `rows`.
    """
    ordered = rows[np.argsort(split.lengths[rows], kind="stable")]
    for start in range(0, len(ordered), at_once):
        part = ordered[start : start + at_once]
        lengths = split.lengths[part]
        ids = split.ids[part, : lengths.max()].astype(np.int64)
        ids[np.arange(ids.shape[1]) >= lengths[:, None]] = NO_TOKEN
        yield part, (torch.from_numpy(ids), torch.from_numpy(split.labels[part].astype(np.int64)))


@dataclass(frozen=True, slots=True)
class Scores:
    """`loss` is the mean cross-entropy in nats a sentence, summed in float64."""

    accuracy: Accuracy
    loss: float

    @property
    def error(self) -> float:
        """Share of sentences with another class than their own."""
        return (self.accuracy.n - self.accuracy.correct) / self.accuracy.n

    @property
    def details(self) -> dict[str, Any]:
        """Counts and the exact 95 % interval of the error (Clopper & Pearson 1934)."""
        found = self.accuracy
        return {
            "split": found.split,
            "errors": found.n - found.correct,
            "error_low": 1 - found.high,
            "error_high": 1 - found.low,
        }


class ClassEvidence:
    """`train` and `dev` are encoded splits; `pretrained` says what the net started from."""

    def __init__(
        self, net: nn.Module, device: torch.device, train: Encoded, dev: Encoded, pretrained: str, at_once: int
    ) -> None:
        self.net, self.device, self.train, self.dev = net, device, train, dev
        self.pretrained, self.at_once = pretrained, at_once
        net.eval()

    @torch.no_grad()
    def _scores(self, split: Encoded, name: str) -> Scores:
        """Raises BadDataError for sentences without a class."""
        predicted = np.empty(len(split.labels), np.int64)
        losses = []
        known = np.arange(len(split.labels))[split.labels >= 0]  # `accuracy` refuses the others by name
        for rows, (tokens, classes) in batches(split, known, self.at_once):
            logits = self.net(tokens.to(self.device)).double().cpu()
            predicted[rows] = logits.argmax(-1).numpy()
            losses.append(float(F.cross_entropy(logits, classes, reduction="sum")))
        found = accuracy(predicted, split.labels.astype(np.int64), name)
        return Scores(found, sum(losses) / found.n)

    @cached_property
    def fitted(self) -> Scores:
        """On the sentences that the net was trained on."""
        return self._scores(self.train, "train")

    @cached_property
    def held_out(self) -> Scores:
        """On every sentence of dev."""
        return self._scores(self.dev, "dev")

    def details(self, split: Encoded, scores: Scores) -> dict[str, Any]:
        """What a record says beside the numbers."""
        return {**scores.details, "pretrained": self.pretrained, "truncated": split.truncated}
