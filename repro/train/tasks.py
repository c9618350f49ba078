"""Task objects: what is trained, on which batches, with which loss. One module trains them all."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from repro.data.loader import Loader
from repro.data.order import Indices
from repro.data.packed import TokenFile
from repro.nn.gpt import GPT, GPTConfig, initialise
from repro.nn.method_api import load_method

Batch = tuple[Tensor, Tensor]


class Task(Protocol):
    """What the module needs of a task."""

    rate: float
    """Learning rate at the schedule's top."""

    def build(self) -> nn.Module:
        """The model with its initial weights."""
        ...

    def step_batches(self, step: int) -> list[Batch]:
        """Micro-batches of one optimiser step: a pure function of (seed, step)."""
        ...

    def rows(self, step: int) -> Indices | None:
        """Which rows that step reads, over all processes; None where each step reads all there is."""
        ...

    def validation_batches(self, tokens: int) -> Iterator[Batch]:
        """The fixed validation blocks, at most `tokens` tokens of them."""
        ...

    def loss_sums(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """Sum of losses and their count."""
        ...

    def before_training(self, model: nn.Module) -> None:
        """Called once, before the first step of a run."""
        ...

    def after_step(self, model: nn.Module) -> None:
        """Called after each optimiser step."""
        ...


class LanguageModel:
    """Next-token prediction on packed tokens."""

    def __init__(self, config: dict[str, Any], folder: Path, micro_batch: int | None = None) -> None:
        self.config = config
        self.rate = float(config["optimizer"]["lr"])
        self.context = int(config["model"]["context"])
        self.per_step = int(config["tokens_per_step"]) // self.context
        self.micro_batch = min(micro_batch or self.per_step, self.per_step)
        # The parent has verified both files before the first run; here a file that has not changed since is believed.
        train = TokenFile.open(folder / "train.bin", verify=False)
        self.validation = TokenFile.open(folder / "val.bin", verify=False)
        order = config.get("order", "epochs")
        self.train = Loader(train, self.context, self.per_step, config["seed"], order)
        self.take_part(0, 1)

    def take_part(self, rank: int, ranks: int) -> None:
        """Trains on this process's share of each step, in micro-batches of at most `micro_batch` sequences.

        Raises ValueError where a step cannot be shared out; the plan has refused that before.
        """
        share = max(1, self.per_step // ranks)
        self.at_once = min(self.micro_batch, share)
        pieces, rest = divmod(share, self.at_once)
        if rest:  # a smaller last piece would be another loader
            raise ValueError(f"{share} sequences a step are no multiple of the micro-batch, {self.micro_batch}")
        self.train = replace(self.train, rank=rank, ranks=ranks, accumulation=pieces)

    def build(self) -> nn.Module:
        """GPT with the run's method; draws keyed by (seed, parameter name)."""
        method = self.config["method"]
        model = GPT(GPTConfig(**self.config["model"]), load_method(method["name"], method["params"]))
        initialise(model, self.config["seed"])
        return model

    def step_batches(self, step: int) -> list[Batch]:
        """int64 tensors [micro_batch, context] of inputs and targets."""
        return [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in self.train.micro_batches(step)]

    def rows(self, step: int) -> Indices | None:
        """Numbers of the step's blocks in the training file."""
        return self.train.rows(step)

    def validation_batches(self, tokens: int) -> Iterator[Batch]:
        """Evenly spaced blocks of the validation file, each once, in file order, whatever the batch size."""
        available = self.validation.blocks(self.context)
        count = min(max(1, tokens // self.context), available)
        blocks = np.arange(count) * available // count
        for start in range(0, count, self.at_once):
            inputs, targets = self.validation.gather(blocks[start : start + self.at_once], self.context)
            yield torch.from_numpy(inputs), torch.from_numpy(targets)

    def loss_sums(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """Sum of the token losses (nats) and the number of target tokens."""
        sums: tuple[Tensor, int] = model.loss_sums(*batch)  # type: ignore[operator]
        return sums

    def before_training(self, model: nn.Module) -> None:
        """Lets the method look at the first micro-batch (Admin's profile, say): the same one in every process."""
        inputs, _ = next(
            replace(self.train, rank=0, ranks=1, accumulation=self.per_step // self.micro_batch).micro_batches(0)
        )
        model.stack.method.before_training(model, torch.from_numpy(inputs))  # type: ignore[union-attr, operator]

    def after_step(self, model: nn.Module) -> None:
        """Lets the method change the weights (nGPT's projection, say)."""
        model.stack.method.after_step(model)  # type: ignore[union-attr, operator]


# Task by its name in a configuration: where its class is. Only the one that is asked for is imported.
TASKS: dict[str, tuple[str, str]] = {
    "lm": ("repro.train.tasks", "LanguageModel"),
    "forecast": ("repro.train.forecast", "Forecast"),
    "flow": ("repro.train.flow", "Flow"),
    "classify": ("repro.train.classify", "Classify"),
}


def make_task(config: dict[str, Any], folder: Path, micro_batch: int | None = None) -> Any:
    """The task object of a run's configuration; `folder` holds its prepared data."""
    module, name = TASKS[config["task"]]
    return getattr(importlib.import_module(module), name)(config, folder, micro_batch)
