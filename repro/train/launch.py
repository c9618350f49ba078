"""The one place where Lightning's Trainer is made and a run is taken from its job to its end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from torch import nn

from repro.spec.errors import BadDataError, problem_error
from repro.train import checkpoint as ckpt
from repro.train.callbacks import Checkpoint, Curve, Deadline, Report, Throughput
from repro.train.module import StepStream, Training
from repro.train.state import TrainState
from repro.train.tasks import Task, make_task

PRECISION = {"fp32": "32-true", "bf16": "bf16-mixed", "fp64": "64-true"}


@dataclass(frozen=True, slots=True)
class Limits:
    """What may end a run early: absolute deadline (epoch seconds), wall limit (s), a flag set by signals."""

    deadline: float | None
    wall: float | None
    stop: list[int]
    checkpoint_share: float
    checkpoint_longest: float


@dataclass
class Finished:
    """A run at its end: its state, its model, its task."""

    state: TrainState
    net: nn.Module
    task: Task
    device: torch.device


def recall(job: dict[str, Any], report: Report) -> tuple[TrainState, dict[str, Any] | None]:
    """State of the newest valid checkpoint of this run and the checkpoint itself, or a fresh state and None.

    Raises BadDataError where only checkpoints of other configurations are left: nobody asked for a fresh start.
    """
    found, passed = ckpt.newest(Path(job["checkpoints"]), job["full_sha256"])
    for line in passed:
        report({"event": "warning", "text": f"{job['alias']}: checkpoint {line}; passed over"})
    if found is None and any(line.endswith(ckpt.FOREIGN) for line in passed):
        message = "holds checkpoints of another configuration only; remove the folder for a fresh start"
        raise problem_error(BadDataError, f"scratch/ckpt/{job['id']}", "", message)
    return (TrainState.from_text(found["state"]) if found else TrainState()), found


def train(
    config: dict[str, Any],
    job: dict[str, Any],
    state: TrainState,
    found: dict[str, Any] | None,
    limits: Limits,
    report: Report,
) -> Finished:
    """Trains one run from `found` (what `recall` gave), or from the start; raises whatever the method raises."""
    task = make_task(config, Path(job["data"]), job["micro_batch"])
    torch.manual_seed(config["seed"])
    module = Training(task, config, state)
    if found:
        module.net.load_state_dict(found["model"])
    else:
        task.before_training(module.net)
    report({"event": "start", "step": state.step, "steps": config["steps"]})
    if state.step < config["steps"]:
        _fit(module, found, job, limits, report)
    if state.status is None and state.has_diverged():
        best, last = min(state.val_history), state.val_history[-1]
        state.status = "diverged"
        state.reason = f"the last three validation losses exceed 1.5 x the best ({last:.4g} against {best:.4g})"
    return Finished(state, module.net, task, module.device)


def _fit(module: Training, found: dict[str, Any] | None, job: dict[str, Any], limits: Limits, report: Report) -> None:
    state, config, folder = module.state, module.config, Path(job["checkpoints"])
    curve = Curve(config, state, report)

    def save(current: Training) -> None:
        curve.read(current.trainer)
        optimizer: Any = current.optimizers(use_pl_optimizer=False)
        content = {
            "full_sha256": job["full_sha256"],
            "model": current.net.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "state": state.as_text(),
        }
        ckpt.save(folder, state.step, content)

    keeper = Checkpoint(save, limits.checkpoint_share, limits.checkpoint_longest)
    callbacks = [
        Throughput(config, state),
        curve,
        Deadline(state, keeper, limits.deadline, limits.wall, limits.stop),
        keeper,
        _Restore(found),
    ]
    trainer = make_trainer(config, job["device"], job["devices"], callbacks)
    started, before = time.monotonic(), state.wall_seconds
    trainer.fit(module, train_dataloaders=StepStream(module.task, state.step, config["steps"]))
    state.wall_seconds = before + time.monotonic() - started


class _Restore(pl.Callback):
    """Puts optimiser and random state back once Lightning has made the optimiser."""

    def __init__(self, found: dict[str, Any] | None) -> None:
        self.found = found

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Runs after all other set-up, before the first step."""
        if self.found:
            trainer.optimizers[0].load_state_dict(self.found["optimizer"])
            torch.set_rng_state(self.found["rng"])
            self.found = None


def make_trainer(config: dict[str, Any], device: str, devices: int, callbacks: list[pl.Callback]) -> pl.Trainer:
    """Every option of the Trainer that matters, fixed; nothing of Lightning's is left on by default.

    The environment plugin is named, so that a Slurm allocation around us can never set the world size.
    """
    return pl.Trainer(
        accelerator=device,
        devices=devices,
        precision=PRECISION[config["precision"]],  # type: ignore[arg-type]
        max_epochs=1,
        callbacks=callbacks,
        plugins=[LightningEnvironment()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        inference_mode=False,
    )
