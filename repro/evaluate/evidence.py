"""What metrics are made of: losses, texts under teacher forcing, generated texts; each made once, when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from repro.evaluate.losses import BlockLosses
from repro.nn.probes import MOMENTS, Probes
from repro.records.measured import Measured
from repro.train.tasks import LanguageModel

Losses = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TextPairs:
    """Candidate and reference text of each item."""

    candidates: list[str]
    references: list[str]

    def every(self, count: int) -> TextPairs:
        """At most `count` evenly spaced items."""
        size = len(self.references)
        chosen = [item * size // min(count, size) for item in range(min(count, size))]
        return TextPairs([self.candidates[item] for item in chosen], [self.references[item] for item in chosen])


class Evidence:
    """Looks at one run's final weights through the fixed validation blocks of its task.

    `raw` turns token ids into bytes; `fetched` is where encoders lie that a protocol `needs`.
    """

    def __init__(
        self,
        task: LanguageModel,
        net: nn.Module,
        tokens: int,
        device: torch.device,
        raw: Callable[[Any], bytes],
        fetched: Path = Path(),
    ) -> None:
        self.task, self.net, self.tokens, self.device, self.raw = task, net, tokens, device, raw
        self.fetched = fetched
        net.eval()

    def decode(self, ids: NDArray[np.int64]) -> str:
        """Text of token ids [T]; a character that a border cuts, or that the model never finishes, shows as U+FFFD."""
        return self.raw(ids).decode("utf-8", errors="replace")

    @cached_property
    def _passes(self) -> list[tuple[Losses, NDArray[np.int64], NDArray[np.int64]]]:
        """(loss sums [B], argmax predictions [B, T], targets [B, T]) of each batch, from one pass over the blocks."""
        return [self._look(*batch) for batch in self.task.validation_batches(self.tokens)]

    @torch.no_grad()
    def _look(self, inputs: Tensor, targets: Tensor) -> tuple[Losses, NDArray[np.int64], NDArray[np.int64]]:
        logits = self.net(inputs.to(self.device)).float()
        losses = F.cross_entropy(logits.transpose(1, 2), targets.to(self.device), reduction="none")
        return losses.double().sum(dim=1).cpu().numpy(), logits.argmax(dim=-1).cpu().numpy(), targets.numpy()

    @cached_property
    def losses(self) -> BlockLosses:
        """Losses of the validation blocks; logits in float32 whatever the training's precision, sums in float64."""
        sums = np.concatenate([part[0] for part in self._passes])
        targets = [row for part in self._passes for row in part[2]]
        tokens = np.array([len(row) for row in targets], dtype=np.int64)
        text_bytes = np.array([len(self.raw(row)) for row in targets], dtype=np.int64)
        words = np.array([len(self.decode(row).split()) for row in targets], dtype=np.int64)
        return BlockLosses(sums, tokens, text_bytes, words)

    @cached_property
    def layers(self) -> list[dict[str, Any]]:
        """Moments of the hidden state by layer over the validation blocks, as `Probes.rows`, without gradients."""
        with torch.no_grad(), Probes(self.net) as probes:
            for inputs, _ in self.task.validation_batches(self.tokens):
                self.net(inputs.to(self.device))
        return [{"layer": row["layer"], **{name: row[name] for name in MOMENTS}} for row in probes.rows()]

    @cached_property
    def teacher_forced(self) -> TextPairs:
        """Each block's targets, and at each position the likeliest token given the true ones before it."""
        candidates = [self.decode(row) for part in self._passes for row in part[1]]
        return TextPairs(candidates, [self.decode(row) for part in self._passes for row in part[2]])

    @torch.no_grad()
    def continued(self, prompts: int) -> TextPairs:
        """Greedy continuations of the first halves of evenly spaced blocks, against the true second halves."""
        inputs = torch.cat([batch[0] for batch in self.task.validation_batches(prompts * self.task.context)])
        half = self.task.context // 2
        tokens = inputs[:, :half].to(self.device)
        for _ in range(self.task.context - half):
            following = self.net(tokens).float()[:, -1].argmax(dim=-1, keepdim=True)
            tokens = torch.cat([tokens, following], dim=1)
        made, true = tokens[:, half:].cpu().numpy(), inputs[:, half:].numpy()
        return TextPairs([self.decode(row) for row in made], [self.decode(row) for row in true])


def compute(protocol: str, evidence: Any) -> Measured:
    """The numbers of one registered protocol from the evidence of its task; only its file is imported."""
    module = importlib.import_module(f"repro.evaluate.protocols.{protocol}")
    measured: Measured = module.compute(evidence)
    return measured
