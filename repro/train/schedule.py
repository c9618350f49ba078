"""Learning rate as a pure function of the optimiser step."""

from __future__ import annotations

import math
from typing import Any


def learning_rate(step: int, steps: int, peak: float, schedule: dict[str, Any]) -> float:
    """Rate for optimiser step `step` of `steps`, counted from 0.

    Linear warm-up over `warmup * steps` steps, then `shape` from `peak` down to `final * peak`, clamped there.
    """
    warm = round(schedule["warmup"] * steps)
    if step < warm:
        return float(peak * (step + 1) / warm)
    floor = peak * schedule["final"]
    done = min(1.0, (step - warm) / max(1, steps - 1 - warm))
    if schedule["shape"] == "constant":
        return float(peak)
    if schedule["shape"] == "linear":
        return float(peak + (floor - peak) * done)
    return float(floor + 0.5 * (peak - floor) * (1.0 + math.cos(math.pi * done)))
