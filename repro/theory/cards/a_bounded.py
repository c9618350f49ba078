"""Whether what a sub-layer adds to the stream stays bounded whatever its weights (paper A: the Hamiltonian)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from repro.theory.card import Line, Subject
from repro.theory.growth import measured_law, norm_reach
from repro.theory.nets import Sublayer, ascend, linears, rms, scale_linear, states, sublayers
from repro.theory.sensitivity import slope

PAPER = "paper_a"
FACTORS = (1e2, 1e3, 1e4)
STEPS, RATE = 12, 0.1


def lines(subject: Subject) -> Iterator[Line]:
    """How what is added depends on the size of the last map; the largest that an adversary finds, with its bound."""
    stack = subject.loud(layers=1)
    given = states(stack, subject.stream())
    slopes, largest, bounds = [], [], []
    for part, (x, carry) in zip(sublayers(stack), given, strict=False):
        slopes.append(slope(FACTORS, [_scaled(part, x, carry, factor) for factor in FACTORS]))
        largest.append(_adversarial(part, x, carry))
        law, norm = measured_law(part, x, carry), part.closing_norm()
        known = law is not None and norm is not None
        # A norm in place of the sum can add at most its own reach and take away the stream.
        base = float(rms(x).max()) if law is not None and law.kind == "replaces" else 0.0
        bounds.append(base + abs(law.factor) * norm_reach(norm) if known and law and norm else None)
    steepest = max(slopes, key=abs)
    word = "bounded" if abs(steepest) < 0.05 else "unbounded" if steepest > 0.5 else "in between"
    yield Line(
        "branch", "scaled", "exponent of what a sub-layer adds in the size c of its last map", steepest, word,
        headline=True,
    )  # fmt: skip
    at = max(range(len(largest)), key=lambda place: largest[place])
    bound = bounds[at]
    kept = bound is not None and largest[at] <= bound * (1 + 1e-9)
    word = "no bound known" if bound is None else "below its bound" if kept else "ABOVE ITS BOUND"
    yield Line("branch_reach", "adversarial", "largest RMS that a sub-layer adds", largest[at], word, bound)


def _added(part: Sublayer, x: Tensor, carry: object) -> Tensor:
    return rms(part(x, carry)[0] - x)


@torch.no_grad()
def _scaled(part: Sublayer, x: Tensor, carry: object, factor: float) -> float:
    """RMS of what is added, its largest token, with the last map times `factor`."""
    last = part.last_linear()
    scale_linear(last, factor)
    found = float(_added(part, x, carry).max())
    scale_linear(last, 1 / factor)
    return found


def _adversarial(part: Sublayer, x: Tensor, carry: object) -> float:
    """Largest RMS of what is added that ascent over the branch's matrices meets; their sizes may grow too."""
    x, carry = x.detach(), carry.detach() if isinstance(carry, Tensor) else carry
    weights: list[Tensor] = [linear.weight for linear in linears(part.branch)]
    for _ in ascend(lambda: _added(part, x, carry).clamp_min(1e-300).log().mean(), weights, STEPS, RATE):
        continue
    with torch.no_grad():
        return float(_added(part, x, carry).max())
