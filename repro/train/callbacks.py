"""Four callbacks: curve with divergence guard, throughput, deadline, checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch

from repro.train.module import Training, validation_loss
from repro.train.ranks import highest
from repro.train.state import TrainState, curve_steps, validation_steps

Report = Callable[[dict[str, Any]], None]
TIMED_STEPS = 1000  # of which the median is the speed of a run
SYNC_ON_GPU = 10  # steps between two looks at losses that live on an accelerator
GO_ON, STOP, TIME_OUT = 0, 1, 2


def is_look(module: Training) -> bool:
    """Whether losses are looked at after this step, and a checkpoint may be due: a look waits for the accelerator.

    A matter of the step alone, so that all processes of a run look at the same time.
    """
    return module.device.type == "cpu" or module.state.step % SYNC_ON_GPU == 0


class Curve(pl.Callback):
    """Reads losses, takes validation losses by step, and ends a run that has diverged."""

    def __init__(self, config: dict[str, Any], state: TrainState, report: Report) -> None:
        self.state, self.report = state, report
        self.per_step, self.tokens = config["tokens_per_step"], config["validation"]["tokens"]
        self.validate_at = set(validation_steps(config["steps"], config["validation"]["times"]))
        self.point_at = set(curve_steps(config["steps"], config["validation"]["times"]))
        self.pending: list[torch.Tensor] = []

    def on_train_start(self, trainer: pl.Trainer, module: Training) -> None:  # type: ignore[override]
        """Validation loss of the untrained model, once."""
        if self.state.step == 0:
            self.state.start_val_loss = self._validate(module)

    def on_train_batch_end(self, trainer: pl.Trainer, module: Training, *_: Any) -> None:  # type: ignore[override]
        """Keeps the step's loss; looks at it at once on a CPU, every few steps elsewhere."""
        assert module.last_loss is not None
        assert module.last_norm is not None
        self.pending.append(torch.stack([module.last_loss.double(), module.last_norm.double()]))
        step = self.state.step
        if self._due(module):
            self.read(trainer)
        if step in self.point_at and not trainer.should_stop:
            self._point(trainer, module)
        self.report({"event": "step", "step": step})

    def _due(self, module: Training) -> bool:
        return is_look(module) or self.state.step in self.point_at

    def read(self, trainer: pl.Trainer) -> None:
        """Takes the losses that wait on the device into the state; a checkpoint needs them there."""
        if not self.pending:
            return
        first = self.state.step - len(self.pending) + 1
        for offset, (loss, norm) in enumerate(torch.stack(self.pending).tolist()):
            self.state.window.append(loss)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                self._diverged(trainer, "loss" if not math.isfinite(loss) else "gradient", first + offset)
        self.pending.clear()
        if trainer.should_stop:
            self.state.add_point(self.state.step * self.per_step, None)

    def _diverged(self, trainer: pl.Trainer, what: str, step: int) -> None:
        if self.state.status is None:
            self.state.status, self.state.reason = "diverged", f"non-finite {what} at step {step}"
        trainer.should_stop = True

    def _point(self, trainer: pl.Trainer, module: Training) -> None:
        val = self._validate(module) if self.state.step in self.validate_at else None
        if val is not None and not math.isfinite(val):
            self._diverged(trainer, "validation loss", self.state.step)
        elif val is not None:
            self.state.val_history.append(val)
        self.state.add_point(self.state.step * self.per_step, val)

    def _validate(self, module: Training) -> float:
        started = time.perf_counter()
        loss = validation_loss(module.task, module.net, self.tokens, module.device)
        self.state.eval_seconds += time.perf_counter() - started
        return loss


class Throughput(pl.Callback):
    """Seconds of steps without validation and checkpoints: the sum of all, and a sample spread over the whole run."""

    def __init__(self, config: dict[str, Any], state: TrainState) -> None:
        self.state, self.started = state, 0.0
        self.stride = math.ceil(config["steps"] / TIMED_STEPS)

    def on_train_batch_start(self, *_: Any) -> None:
        """Starts the clock of one step."""
        self.started = time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        """Stops it; registered before all others, so it times the step alone."""
        seconds = time.perf_counter() - self.started
        self.state.train_seconds += seconds
        if self.state.step % self.stride == 0:
            self.state.step_seconds.append(seconds)


class Checkpoint(pl.Callback):
    """Saves as often as its own cost allows: at most a fixed share of the run's time."""

    def __init__(self, save: Callable[[Training], None], share: float, longest: float) -> None:
        self.save, self.share, self.longest = save, share, longest
        self.cost, self.last = 0.02, time.monotonic()

    def on_train_batch_end(self, trainer: pl.Trainer, module: Training, *_: Any) -> None:  # type: ignore[override]
        """Saves when the interval has passed and the run goes on."""
        if not is_look(module):
            return
        if time.monotonic() - self.last >= min(self.cost / self.share, self.longest) and not trainer.should_stop:
            self.now(module)

    def now(self, module: Training) -> None:
        """Saves and measures what saving costs."""
        started = time.monotonic()
        self.save(module)
        self.last = time.monotonic()
        self.cost = max(0.001, self.last - started)


class Deadline(pl.Callback):
    """Ends a run between two steps: deadline near, a signal seen, or its own wall limit passed."""

    def __init__(
        self, state: TrainState, checkpoint: Checkpoint, deadline: float | None, limit: float | None, stop: list[int]
    ) -> None:
        self.state, self.checkpoint, self.stop = state, checkpoint, stop
        self.deadline, self.limit = deadline, limit
        self.before, self.started = state.wall_seconds, time.monotonic()

    def on_train_batch_end(self, trainer: pl.Trainer, module: Training, *_: Any) -> None:  # type: ignore[override]
        """Looks at the clock and at the signal flag."""
        self.state.wall_seconds = self.before + time.monotonic() - self.started
        if trainer.should_stop or self.state.step >= module.config["steps"]:
            return
        wish = self._agreed(module)
        if wish == TIME_OUT:
            self.state.status = "timeout"
            self.state.reason = f"wall limit of {self.limit:g} s passed at step {self.state.step}"
            trainer.should_stop = True
        elif wish == STOP:
            self.checkpoint.now(module)
            self.state.status = self.state.status or "stopped"  # unless losses just read say that it has diverged
            trainer.should_stop = True

    def _agreed(self, module: Training) -> int:
        """What one process wants, all do after the same step."""
        return highest(self._wish(), module.device)

    def _wish(self) -> int:
        if self.limit is not None and self.state.wall_seconds > self.limit:
            return TIME_OUT
        near = self.deadline is not None and time.time() + 2 * self.checkpoint.cost >= self.deadline
        return STOP if near or self.stop else GO_ON
