"""How far a stack drives apart two laws of inputs (paper A, A-T5)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from repro.nn.stack import Stack
from repro.theory.card import Line, Subject
from repro.theory.growth import walk
from repro.theory.nets import sublayers
from repro.theory.sensitivity import slope
from repro.theory.uncertainty import amplification, reach_of_differences, wasserstein

PAPER = "paper_a"
SAMPLES, SHIFT = 24, 0.1
FACTORS = [1.0, 10.0, 100.0, 1000.0]


def lines(subject: Subject) -> Iterator[Line]:
    """W_1 of the last states over W_1 of the inputs, with its bound, and its exponent in the size of the last maps."""
    stack = subject.loud()
    x, y = (subject.stream(draw, batch=SAMPLES) for draw in (0, 1))
    y = y + SHIFT
    found = amplification(stack, x, y, FACTORS)
    bound = _bound(stack, x, wasserstein(x, y))
    word = "no bound known" if bound is None else "below its bound" if max(found) <= bound else "ABOVE ITS BOUND"
    says = f"W1 of the last states over W1 of two laws of inputs, largest over last maps times 1 .. {FACTORS[-1]:g}"
    yield Line("uncertainty", "scaled", says, max(found), word, bound)
    rise = slope(FACTORS[1:], found[1:])
    word = "controlled" if abs(rise) < 0.15 else "amplified without bound" if rise > 0.5 else "in between"
    yield Line("uncertainty_to_weights", "scaled", "its exponent in that size", rise, word, headline=True)


def _bound(stack: Stack, x: Tensor, first: float) -> float | None:
    """Largest W_1 at the end over W_1 = `first` at the input, where every sub-layer's law is known."""
    reach = first
    for part, law in zip(sublayers(stack), walk(stack, x, None, measured=True).laws, strict=True):
        if law is None:
            return None
        added = x.shape[1] ** 0.5 * reach_of_differences([part], x.shape[-1], [law.factor])
        reach = added + (reach if law.kind == "adds" else 0.0)
    return reach / first
