"""Arithmetic of token losses: sums and counts first, means last."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class BlockLosses:
    """Token losses in nats, summed over each block: sums [blocks]; target tokens, text bytes and words of each."""

    sums: NDArray[np.float64]
    tokens: NDArray[np.int64]
    text_bytes: NDArray[np.int64]
    words: NDArray[np.int64]

    @property
    def total(self) -> float:
        """Sum of all token losses, the same to the last bit in any order of the blocks."""
        return math.fsum(self.sums) if np.isfinite(self.sums).all() else float(np.sum(self.sums))

    @property
    def count(self) -> int:
        """Number of target tokens."""
        return int(self.tokens.sum())


def val_loss(losses: BlockLosses) -> float:
    """Sum of token losses over their count, in nats a token."""
    return losses.total / losses.count


def ppl_exp_mean(losses: BlockLosses) -> float:
    """exp of the mean token loss; infinity where it overflows."""
    return exp(val_loss(losses))


def ppl_seq_mean(losses: BlockLosses) -> float:
    """Mean over blocks of exp of the block's mean loss; one block that overflows makes it infinite."""
    values = [exp(float(mean)) for mean in losses.sums / losses.tokens]
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.inf


def bits_per_byte(losses: BlockLosses) -> float:
    """Sum of token losses in bits over the bytes of the target text: comparable between tokenizers."""
    return losses.total / math.log(2) / int(losses.text_bytes.sum())


def ppl_word(losses: BlockLosses) -> float:
    """exp of the sum of token losses over the words of the target text."""
    return exp(losses.total / int(losses.words.sum()))


def exp(value: float) -> float:
    """exp, with infinity where it overflows: a value of its own, which a record shows as null with a reason."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
