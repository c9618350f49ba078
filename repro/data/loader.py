"""Batches of a training: which rows a step has, and which of them one of several processes takes.

The rows of step s, over all processes and all micro-batches, depend on (seed, s, rows a step) and the file alone.
They are dealt out in one order: micro-batch by micro-batch, and within one process by process. So any number of
processes and of micro-batches sees the same rows in the same order, and nothing has to be stored to go on at a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from repro.data.order import Indices, random_starts, step_blocks
from repro.data.packed import Ids, TokenFile

Order = Literal["epochs", "random_windows"]


@dataclass(frozen=True, slots=True)
class Loader:
    """Rows of `context` tokens from `tokens`, `per_step` of them a step over all processes.

    `order` "epochs" takes blocks without replacement, each once an epoch; "random_windows" takes windows anywhere
    in the file with replacement, as nanoGPT does. `rank` of `ranks` processes takes its share of each of the
    `accumulation` micro-batches of a step. Raises ValueError where the rows cannot be shared out evenly.
    """

    tokens: TokenFile
    context: int
    per_step: int
    seed: int
    order: Order = "epochs"
    rank: int = 0
    ranks: int = 1
    accumulation: int = 1

    def __post_init__(self) -> None:
        if self.order not in ("epochs", "random_windows"):
            raise ValueError(f"order must be epochs or random_windows, not {self.order!r}")
        if not 0 <= self.rank < self.ranks or self.accumulation < 1 or self.context < 1:
            raise ValueError(f"no process {self.rank} of {self.ranks} with {self.accumulation} micro-batches")
        if self.per_step < 1 or self.per_step % (self.ranks * self.accumulation):
            message = f"{self.per_step} rows a step are no multiple of {self.ranks} x {self.accumulation}"
            raise ValueError(message)

    def rows(self, step: int) -> Indices:
        """What step `step` reads over all processes, int64 [per_step]: block numbers, or first tokens of windows."""
        if self.order == "epochs":
            return step_blocks(self.seed, step, self.per_step, self.tokens.blocks(self.context))
        return random_starts(self.seed, step, self.per_step, self.tokens.header.count, self.context)

    def micro_batches(self, step: int) -> Iterator[tuple[Ids, Ids]]:
        """Inputs and targets, int64 [per_step / ranks / accumulation, context] each, of this process."""
        shares: Indices = self.rows(step).reshape(self.accumulation, self.ranks, -1)[:, self.rank]
        read = self.tokens.gather if self.order == "epochs" else self.tokens.windows
        for share in shares:
            yield read(share, self.context)
