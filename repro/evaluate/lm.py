"""Language-model protocols: numbers made of a run's final weights and a fixed set of validation blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from repro.train.tasks import LanguageModel

Losses = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BlockLosses:
    """Token losses in nats, summed over each validation block: sums [blocks] and tokens of each block."""

    sums: Losses
    tokens_per_block: int

    @property
    def tokens(self) -> int:
        """Number of target tokens."""
        return len(self.sums) * self.tokens_per_block


@torch.no_grad()
def block_losses(task: LanguageModel, net: nn.Module, tokens: int, device: torch.device) -> BlockLosses:
    """Losses of the fixed validation blocks, each once; logits in float32, sums in float64."""
    net.eval()
    sums = [_sums(net, inputs.to(device), targets.to(device)) for inputs, targets in task.validation_batches(tokens)]
    return BlockLosses(np.concatenate(sums), task.context)


def _sums(net: nn.Module, inputs: Tensor, targets: Tensor) -> Losses:
    logits = net(inputs).float()
    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    sums: Losses = losses.double().sum(dim=1).cpu().numpy()
    return sums


def val_loss(losses: BlockLosses) -> float:
    """Sum of token losses over their count, in nats a token."""
    return float(math.fsum(losses.sums) / losses.tokens)


def ppl_exp_mean(losses: BlockLosses) -> float:
    """exp of the mean token loss; infinity where it overflows."""
    return _exp(val_loss(losses))


def ppl_seq_mean(losses: BlockLosses) -> float:
    """Mean over blocks of exp(mean token loss of the block): paper A's sibling protocol, never below ppl_exp_mean."""
    values = [_exp(float(total) / losses.tokens_per_block) for total in losses.sums]
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.inf


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


PROTOCOLS: dict[str, Callable[[BlockLosses], float]] = {
    "val_loss": val_loss,
    "ppl_exp_mean": ppl_exp_mean,
    "ppl_seq_mean": ppl_seq_mean,
}


def evaluate(
    names: list[str], task: LanguageModel, net: nn.Module, tokens: int, device: torch.device
) -> dict[str, Any]:
    """{name: (value, n)} for each protocol, from one pass over the validation blocks; n = target tokens."""
    losses = block_losses(task, net, tokens, device)
    return {name: (PROTOCOLS[name](losses), losses.tokens) for name in names}
