"""The one place where Lightning's Trainer is made and a run is taken from its job to its end."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from repro.records.schema import finite
from repro.spec.errors import BadDataError, problem_error
from repro.train import checkpoint as ckpt
from repro.train.callbacks import Checkpoint, Curve, Deadline, Report, Throughput
from repro.train.module import StepStream, Training
from repro.train.ranks import highest
from repro.train.state import TrainState
from repro.train.tasks import Task, make_task
from repro.train.world import World

SAME_LOSS = 0.02  # relative: other kernels and precisions differ by less, other weights by more
MEETING = timedelta(minutes=30)  # for processes to find each other, and for each exchange between them
PRECISION = {"fp32": "32-true", "bf16": "bf16-mixed", "fp64": "64-true"}


@dataclass(frozen=True, slots=True)
class Limits:
    """What may end a run early: absolute deadline (epoch seconds), wall limit (s), a flag set by signals."""

    deadline: float | None
    wall: float | None
    stop: list[int]
    checkpoint_share: float
    checkpoint_longest: float
    world: World = field(default_factory=World)


@dataclass
class Finished:
    """A run at its end: its state, its model, its task."""

    state: TrainState
    net: nn.Module
    task: Task
    device: torch.device


def recall(job: dict[str, Any], report: Report, tidy: bool = False) -> tuple[TrainState, dict[str, Any] | None]:
    """State of the newest valid checkpoint of this run and the checkpoint itself, or a fresh state and None.

    With `tidy` broken ones are set aside, by one process of a run. Raises BadDataError where only checkpoints of other
    configurations are left: nobody asked for a fresh start.
    """
    found, passed = ckpt.newest(Path(job["checkpoints"]), job["full_sha256"])
    for line in passed:
        report({"event": "warning", "text": f"{job['alias']}: checkpoint {line}; passed over"})
    if tidy:
        ckpt.set_aside(Path(job["checkpoints"]), passed)
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
    torch.use_deterministic_algorithms(True, warn_only=True)  # loads torch's compiler: here, since no check needs it
    task = make_task(config, Path(job["data"]), job["micro_batch"])
    if limits.world.size > 1:
        task.take_part(limits.world.rank, limits.world.size)
    torch.manual_seed(config["seed"])
    module = Training(task, config, state)
    if found:
        _take_up(module, found, job, report)
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


def _take_up(module: Training, found: dict[str, Any], job: dict[str, Any], report: Report) -> None:
    """The weights of a checkpoint, proven to be what was saved: the loss stored with them is theirs again."""
    where = f"scratch/ckpt/{job['id']}"
    if note := ckpt.load_into(module.net, found, where):
        report({"event": "warning", "text": f"{job['alias']}: checkpoint of step {found['step']}: {note}"})
    stored, now = found.get("loss"), _first_loss(module, torch.device("cpu"))
    if stored is not None and not math.isclose(stored, now, rel_tol=SAME_LOSS):
        message = f"its weights have a loss of {now:.6g} on the first validation batch, {stored:.6g} was stored"
        raise problem_error(BadDataError, where, f"step {found['step']}", message)


@torch.no_grad()
def _first_loss(module: Training, device: torch.device) -> float:
    """Loss on one validation batch of this process alone; mode and random state stay."""
    was_training, net = module.net.training, module.net.eval()
    inputs, targets = next(module.task.validation_batches(1))
    loss, count = module.task.loss_sums(net, (inputs.to(device), targets.to(device)))
    net.train(was_training)
    return float(loss) / count


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
            "loss": finite(_first_loss(current, current.device)),
            "state": state.as_text(),
        }
        ckpt.save(folder, state.step, content)

    first = limits.world.rank == 0
    keeper = Checkpoint(save if first else _nothing, limits.checkpoint_share, limits.checkpoint_longest)
    restore = _Restore(found)  # first, so that no other one talks to processes that start elsewhere
    callbacks = [
        restore,
        Throughput(config, state),
        curve,
        Deadline(state, keeper, limits.deadline, limits.wall, limits.stop),
        keeper,
    ]
    trainer = make_trainer(config, job["device"], limits.world, callbacks)
    started, before = time.monotonic(), state.wall_seconds
    with restore.no_signal_before_start():
        trainer.fit(module, train_dataloaders=StepStream(module.task, state.step, config["steps"]))
    state.wall_seconds = before + time.monotonic() - started


def _nothing(_: Training) -> None:
    """What a process that is not the first one saves."""


class _Restore(pl.Callback):
    """Puts optimiser, random state and our signal handler back once Lightning has made all of its own."""

    def __init__(self, found: dict[str, Any] | None) -> None:
        self.found, self.on_term = found, signal.getsignal(signal.SIGTERM)

    @contextmanager
    def no_signal_before_start(self) -> Iterator[None]:
        """Holds SIGTERM back until our handler is there again.

        Lightning's talks to the other processes from inside the signal, and ends the program; ours sets a flag.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, self.on_term)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def on_train_start(self, trainer: pl.Trainer, module: Training) -> None:  # type: ignore[override]
        """Runs after all other set-up, before the first step. Raises BadDataError where processes start apart."""
        signal.signal(signal.SIGTERM, self.on_term)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        # One that another thread took meanwhile is in our flag too: Lightning would end the program without a save.
        trainer._signal_connector.received_sigterm = False
        step = module.state.step
        last, first = highest(step, module.device), -highest(-step, module.device)
        if last != first:
            message = (
                "the processes of this run see different checkpoints: is scratch/ on a disk that all of them share?"
            )
            raise problem_error(BadDataError, "scratch/ckpt", f"step {step}", message)
        if self.found:
            trainer.optimizers[0].load_state_dict(self.found["optimizer"])
            torch.set_rng_state(self.found["rng"])
            self.found = None


def _environment(world: World) -> LightningEnvironment | TorchElasticEnvironment:
    """How the processes find each other; named, so that a Slurm allocation around us never sets the world size."""
    if world.size == 1:
        return LightningEnvironment()
    if world.nodes > 1:
        nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ["SLURM_NODELIST"]
        os.environ["MASTER_ADDR"] = SLURMEnvironment.resolve_root_node_address(nodes)
    return TorchElasticEnvironment()


def make_trainer(config: dict[str, Any], device: str, world: World, callbacks: list[pl.Callback]) -> pl.Trainer:
    """Every option of the Trainer that matters, fixed; nothing of Lightning's is left on by default."""
    return pl.Trainer(
        accelerator=device,
        devices=world.per_node,
        num_nodes=world.nodes,
        strategy="auto" if world.size == 1 else DDPStrategy(timeout=MEETING),
        precision=PRECISION[config["precision"]],  # type: ignore[arg-type]
        max_epochs=1,
        callbacks=callbacks,
        plugins=[_environment(world)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        inference_mode=False,
    )
