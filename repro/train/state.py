"""What a training knows of itself: curve, validation history, timers. Plain numbers, so it survives in a checkpoint."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

MAX_POINTS = 200  # a record's curve
DIVERGED_RATIO = 1.5  # divergence, fixed beforehand: the last three validation losses all above 1.5 x the best
DIVERGED_LAST = 3
PROBE_EVERY, PROBED = 50, 12  # a record holds rows of that many steps, one a layer


def validation_steps(steps: int, times: int) -> list[int]:
    """Steps after which the validation loss is taken, the last step among them."""
    return sorted({max(1, round(steps * part / times)) for part in range(1, times + 1)})


def curve_steps(steps: int, times: int) -> list[int]:
    """Steps at which the curve has a point: all validations, and even spacing between; at most MAX_POINTS."""
    fixed = validation_steps(steps, times)
    stride = max(1, math.ceil(steps / (MAX_POINTS - len(fixed))))
    return sorted({*fixed, *range(stride, steps + 1, stride)})


def probe_steps(steps: int) -> set[int]:
    """Steps that are probed, counted from 1: the first, the last, and one in 50 between, thinned to PROBED in all."""
    stride = PROBE_EVERY * math.ceil(steps / (PROBE_EVERY * (PROBED - 2)))
    return {1, steps, *range(stride, steps + 1, stride)}


@dataclass
class TrainState:
    """Progress of one run. Losses in nats a token, times in seconds."""

    step: int = 0
    tokens: list[int] = field(default_factory=list)
    train_loss: list[float | None] = field(default_factory=list)
    train_min: list[float | None] = field(default_factory=list)
    train_max: list[float | None] = field(default_factory=list)
    val_loss: list[float | None] = field(default_factory=list)
    lr: list[float] = field(default_factory=list)
    rate: float = 0.0  # of the last step
    samples: str = ""  # running sha256 of the numbers of the rows that were read, in order
    val_history: list[float] = field(default_factory=list)
    start_val_loss: float | None = None
    window: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    layers: list[dict[str, Any]] = field(default_factory=list)  # rows of the probes, with the step they are of
    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    wall_seconds: float = 0.0
    # Only of this process:
    status: str | None = None
    reason: str | None = None

    def add_point(self, tokens: int, val_loss: float | None) -> None:
        """Closes the window of training losses since the last point; non-finite losses become null."""
        finite = [loss for loss in self.window if math.isfinite(loss)]
        whole = len(finite) == len(self.window) and finite
        self.tokens.append(tokens)
        self.train_loss.append(math.fsum(finite) / len(finite) if whole else None)
        self.train_min.append(min(finite) if finite else None)
        self.train_max.append(max(finite) if finite else None)
        self.val_loss.append(val_loss if val_loss is not None and math.isfinite(val_loss) else None)
        self.lr.append(self.rate)
        self.window = []

    def has_diverged(self) -> bool:
        """The rule for finite runs: the last validation losses all far above the best one."""
        last = self.val_history[-DIVERGED_LAST:]
        return len(last) == DIVERGED_LAST and min(last) > DIVERGED_RATIO * min(self.val_history)

    def curve(self) -> dict[str, Any]:
        """The record's curve."""
        return {
            "tokens": self.tokens,
            "train_loss": self.train_loss,
            "train_min": self.train_min,
            "train_max": self.train_max,
            "val_loss": self.val_loss,
            "lr": self.lr,
        }

    def saw(self, rows: bytes) -> None:
        """Adds the rows of one step: equal hashes are equal data in equal order, over any number of starts."""
        self.samples = hashlib.sha256(self.samples.encode() + rows).hexdigest()

    def as_text(self) -> str:
        """JSON for a checkpoint; Python's own reading of floats brings every bit back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> TrainState:
        """The state that `as_text` wrote."""
        return cls(**json.loads(text))
