"""The one LightningModule: one call of `training_step` is one optimiser step, whatever its micro-batches.

Manual optimisation keeps three things exact that the automatic loop leaves to its settings: the loss is summed
over all micro-batches and divided once by the step's tokens, the schedule counts optimiser steps, and an
accumulation window is never cut by the end of an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from repro.nn.gpt import GPT, parameter_groups
from repro.nn.probes import Probes
from repro.train.ranks import mean_over_ranks, rank_and_world, summed
from repro.train.schedule import learning_rate
from repro.train.state import TrainState, probe_steps
from repro.train.tasks import Batch, Task


class StepStream:
    """Batches of the steps from `start` on; lazy, so a resume at step 10^6 reads nothing of the steps before."""

    def __init__(self, task: Task, start: int, stop: int) -> None:
        self.task, self.start, self.stop = task, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[list[Batch]]:
        for step in range(self.start, self.stop):
            yield self.task.step_batches(step)


class Training(pl.LightningModule):
    """Trains `task` by AdamW, or by plain gradient descent, under a run's configuration."""

    def __init__(self, task: Task, config: dict[str, Any], state: TrainState) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.task, self.config, self.state = task, config, state
        self.net: nn.Module = task.build()
        self.last_loss: Tensor | None = None
        self.last_norm: Tensor | None = None
        # Only a language model's layers are looked into; probes read, and change no bit.
        self.probe_at = probe_steps(config["steps"]) if isinstance(self.net, GPT) else set()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW, in which matrices decay and vectors never do; or gradient descent without anything to it."""
        spec = self.config["optimizer"]
        if spec["name"] == "gd":
            return torch.optim.SGD(self.net.parameters(), lr=self.task.rate)
        groups = parameter_groups(self.net, spec["weight_decay"])
        return torch.optim.AdamW(groups, lr=self.task.rate, betas=tuple(spec["betas"]), eps=spec["eps"])

    def training_step(self, batches: list[Batch], _index: int) -> None:
        """Forward, backward over all micro-batches, clip, step; losses stay on the device."""
        optimizer: Any = self.optimizers()
        spec = self.config["optimizer"]
        rate = learning_rate(self.state.step, self.config["steps"], self.task.rate, self.config["schedule"])
        for group in optimizer.param_groups:
            group["lr"] = rate
        self._note(rate)
        optimizer.zero_grad()
        probes = Probes(self.net) if self.state.step + 1 in self.probe_at else None
        with probes or nullcontext():
            self.last_loss = self._backward(batches)
        if probes:
            probes.before_step()
        # Without a bound the norm is only looked at: min(1, inf / norm) scales nothing.
        self.last_norm = nn.utils.clip_grad_norm_(self.net.parameters(), spec.get("clip") or math.inf)
        optimizer.step()
        if probes:
            probes.after_step()
            self.state.layers += [{"step": self.state.step + 1, **row} for row in probes.rows()]
        self.task.after_step(self.net)
        self.state.step += 1

    def _note(self, rate: float) -> None:
        """What a reader asks of a run that looks odd: at which rate, on which rows."""
        self.state.rate = rate
        rows = self.task.rows(self.state.step)
        if rows is not None:
            self.state.saw(rows.tobytes())

    def _backward(self, batches: list[Batch]) -> Tensor:
        """Gradients of the mean loss over all items of the step; the loss itself.

        Several processes have equal shares of a step, so the mean over them is that of all items. They exchange
        gradients once, with the last micro-batch.
        """
        count = sum(targets.numel() for _, targets in batches)
        total: Tensor | None = None
        for place, batch in enumerate(batches, 1):
            loss, _ = self.task.loss_sums(self.net, batch)
            loss = loss / count
            with nullcontext() if place == len(batches) else self._alone():
                self.manual_backward(loss)
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        return mean_over_ranks(total)

    def _alone(self) -> AbstractContextManager[None]:
        """Keeps gradients to this process, where there are others."""
        if rank_and_world()[1] == 1:
            return nullcontext()
        strategy: Any = self.trainer.strategy
        held: AbstractContextManager[None] = strategy.block_backward_sync()
        return held


def validation_loss(task: Task, net: nn.Module, tokens: int, device: torch.device) -> float:
    """Sum of token losses over their count; mode and random state are as before afterwards."""
    total, count = validation_sums(task, net, tokens, device)
    return total / count


@torch.no_grad()
def validation_sums(task: Task, net: nn.Module, tokens: int, device: torch.device) -> tuple[float, int]:
    """Sum of token losses in float64 and their count, over all processes; each batch is one process's."""
    was_training = net.training
    net.eval()
    rank, world = rank_and_world()
    total, count = 0.0, 0
    for number, (inputs, targets) in enumerate(task.validation_batches(tokens)):
        if number % world == rank:
            loss, items = task.loss_sums(net, (inputs.to(device), targets.to(device)))
            total += float(loss.double())
            count += items
    net.train(was_training)
    total, whole = summed([total, float(count)], device)
    return total, round(whole)
