"""What the residual step dt does, for methods that have one (paper A, A-T4)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from repro.theory.card import Line, Subject
from repro.theory.nets import final_state, sublayers
from repro.theory.sensitivity import local_sensitivity

PAPER = "paper_a"
SMALLER = 0.1


def lines(subject: Subject) -> Iterator[Line]:
    """What dt/10 in place of dt leaves of x_D - x_0, of its variance, and of ||J - I||."""
    dt = subject.entry.info.params.get("dt")
    says = f"x_D - x_0 with dt {SMALLER:g} times as large: mean absolute value over that before"
    if not isinstance(dt, float) or dt == 0:
        yield Line("dt_mean", "start", says, None, "has no dt", headline=True)
        return
    x = subject.stream()
    with torch.no_grad():
        small, whole = (final_state(subject.start(dt=dt * size), x) - x for size in (SMALLER, 1.0))
    mean = float(small.abs().mean() / whole.abs().mean())
    variance = float(small.var(correction=0) / whole.var(correction=0))
    yield Line("dt_mean", "start", says, mean, _word(mean, SMALLER), headline=True)
    yield Line("dt_variance", "start", "the same of its variance", variance, _word(variance, SMALLER**2))
    norms = [local_sensitivity(sublayers(subject.loud(layers=1, dt=dt * size))[1], x) for size in (SMALLER, 1.0)]
    ratio = norms[0] / norms[1]
    yield Line("dt_sensitivity", "scaled", "the same of ||J - I||", ratio, _word(ratio, SMALLER))


def _word(value: float, wanted: float) -> str:
    return f"scales by {wanted:g}" if abs(value / wanted - 1) < 0.25 else "does not scale so"
