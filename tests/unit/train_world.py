"""Tiny trainings within one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repro.data.packed import write_tokens
from repro.train.launch import Finished, Limits, recall, train
from repro.train.tasks import LanguageModel

VOCAB, CONTEXT, SEQUENCES = 29, 8, 6
HASH = "ab" * 32


def write_data(folder: Path, train_tokens: int = 1601, val_tokens: int = 401) -> Path:
    """Token files of 200 training blocks and 50 validation blocks, by a formula."""
    folder.mkdir(parents=True, exist_ok=True)
    place = np.arange(train_tokens + val_tokens, dtype=np.int64)
    ids = (place * place * 31 + place * 7 + place // 5) % VOCAB
    write_tokens(folder / "train.bin", ids[:train_tokens], VOCAB)
    write_tokens(folder / "val.bin", ids[train_tokens:], VOCAB)
    return folder


def config(method: str = "pre_ln", steps: int = 12, **changes: Any) -> dict[str, Any]:
    """A run's configuration at the smallest size."""
    base: dict[str, Any] = {
        "task": "lm",
        "model": {"n_layer": 2, "n_head": 2, "d_model": 16, "context": CONTEXT, "vocab": VOCAB},
        "method": {"name": method, "params": {}},
        "validation": {"times": 4, "tokens": 80},
        "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1, "betas": [0.9, 0.95], "eps": 1e-8, "clip": 1.0},
        "schedule": {"shape": "cosine", "warmup": 0.2, "final": 0.1},
        "steps": steps,
        "tokens_per_step": SEQUENCES * CONTEXT,
        "precision": "fp32",
        "seed": 3,
    }
    return base | changes


def job(folder: Path, micro_batch: int | None = None) -> dict[str, Any]:
    """What the worker is given beside the configuration."""
    return {
        "id": "abcdef012345",
        "alias": "a/run",
        "full_sha256": HASH,
        "data": str(folder),
        "micro_batch": micro_batch,
        "checkpoints": str(folder / "ckpt"),
        "device": "cpu",
        "devices": 1,
    }


def limits(stop: list[int] | None = None, **changes: Any) -> Limits:
    """Without limits, but for `changes`; nothing is saved unasked, or a slow machine would leave it to the next run."""
    fields: dict[str, Any] = {"deadline": None, "wall": None, "checkpoint_share": 1e-9, "checkpoint_longest": 1e9}
    return Limits(stop=[] if stop is None else stop, **(fields | changes))


def run(
    folder: Path, settings: dict[str, Any], stop_at: int | None = None, **options: Any
) -> tuple[Finished, list[Any]]:
    """Trains from the newest checkpoint of `folder`, or from the start; a signal comes after step `stop_at`."""
    events: list[Any] = []
    stop: list[int] = []

    def report(event: dict[str, Any]) -> None:
        events.append(event)
        if event["event"] == "step" and event["step"] == stop_at:
            stop.append(15)

    order = job(folder, options.pop("micro_batch", None))
    state, found = recall(order, report)
    return train(settings, order, state, found, limits(stop, **options), report), events


def weights(done: Finished) -> dict[str, torch.Tensor]:
    """Copies of all parameters."""
    return {name: parameter.detach().clone() for name, parameter in done.net.named_parameters()}


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two sets of parameters are equal to the last bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def task_of(folder: Path, settings: dict[str, Any] | None = None, micro_batch: int | None = None) -> LanguageModel:
    """The task object."""
    return LanguageModel(settings or config(), folder, micro_batch)


class FakeTrainer:
    """As much of a Trainer as callbacks look at."""

    should_stop = False


Report = Callable[[dict[str, Any]], None]
