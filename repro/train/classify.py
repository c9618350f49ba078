"""Paper D's classification of sentences by a pretrained GPT cut after its first blocks, with and without skips."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repro.data.labelled import Encoded, Labelled, encode
from repro.data.order import Indices, step_blocks
from repro.data.sets import load_labelled
from repro.evaluate.class_evidence import ClassEvidence, batches
from repro.nn.classifier import Classifier, start_head
from repro.spec.paths import Root
from repro.train.pretrain import start_of
from repro.train.tasks import Batch

CLASSES = 2
EVALUATED_AT_ONCE = 64  # sentences; without gradients more fit


class Classify:
    """One class a sentence; the run's seed draws the head and the order of a subset that all seeds share.

    Validation during training takes training sentences, evenly spaced: the claim is about training error, and a
    rising dev loss is overfitting, no divergence. Dev is measured at the end. Raises BadDataError for splits without
    classes and for more sentences than there are, before anything is trained.
    """

    def __init__(self, config: dict[str, Any], folder: Path, micro_batch: int | None = None) -> None:
        self.config = config
        self.rate = float(config["optimizer"]["lr"])
        self.per_step = int(config["tokens_per_step"])
        self.at_once = micro_batch or self.per_step
        root = Root(folder.parents[2])
        splits, _ = load_labelled(root, config["data"])
        chosen, dev = splits["train"].scored().subset(config["sentences"]), splits["dev"].scored()
        self.start = start_of(root, config["pretrained"])
        self.train, self.dev = self._encoded(chosen), self._encoded(dev)

    def _encoded(self, split: Labelled) -> Encoded:
        coder = self.start.coder
        return encode(split, coder.encode, self.config["model"]["context"], coder.end_of_text)

    def build(self) -> nn.Module:
        """The cut model with its pretrained weights, and a head drawn for the seed."""
        model = self.config["model"]
        net = Classifier(self.start.body(model["layers"], residual=model["residual"]), CLASSES)
        start_head(net, self.config["seed"])
        return net

    def step_batches(self, step: int) -> list[Batch]:
        """Sentences of one step, every sentence once an epoch; in pieces alike in length."""
        return [batch for _, batch in batches(self.train, self.rows(step), self.at_once)]

    def rows(self, step: int) -> Indices:
        """Numbers of the step's sentences."""
        return step_blocks(self.config["seed"], step, self.per_step, len(self.train.labels))

    def validation_batches(self, tokens: int) -> Iterator[Batch]:
        """`tokens` training sentences, evenly spaced over the subset."""
        there = len(self.train.labels)
        count = min(max(1, tokens), there)
        rows = np.arange(count) * there // count
        for _, batch in batches(self.train, rows, EVALUATED_AT_ONCE):
            yield batch

    def loss_sums(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """Sum of the sentences' losses (nats) and their number."""
        sums: tuple[Tensor, int] = model.loss_sums(*batch)  # type: ignore[operator]
        return sums

    def before_training(self, model: nn.Module) -> None:
        """Nothing."""

    def after_step(self, model: nn.Module) -> None:
        """Nothing."""

    def evidence(self, net: nn.Module, device: torch.device) -> ClassEvidence:
        """The trained net, its training sentences and all of dev."""
        return ClassEvidence(net, device, self.train, self.dev, self.start.words, EVALUATED_AT_ONCE)
