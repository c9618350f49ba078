"""How the local sensitivity ||J - I|| depends on the size of weights and of activations (paper A, A-T3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from repro.theory.card import Line, Subject
from repro.theory.nets import Sublayer, linears, scale_linear, states, sublayers
from repro.theory.sensitivity import local_sensitivity, slope

PAPER = "paper_a"
FACTORS = (16.0, 64.0, 256.0)
ITERATIONS = 40  # slopes need no digits of the norm itself: the same start makes the same error at every size


def lines(subject: Subject) -> Iterator[Line]:
    """||J - I||, and its exponents in the last map, in all maps of the MLP, in the stream."""
    found: dict[str, list[float]] = {}
    stack = subject.loud(layers=1)
    given = [(x.detach(), carry) for x, carry in states(stack, subject.stream())]
    for part, (x, carry) in zip(sublayers(stack), given, strict=False):
        found.setdefault("norm", []).append(local_sensitivity(part, x, carry))
        for what in ("last", "state", *(["every"] if part.site.kind == "mlp" else [])):
            found.setdefault(what, []).append(slope(FACTORS, [_scaled(part, x, carry, what, c) for c in FACTORS]))
    yield Line(
        "sensitivity", "start", "||J - I|| of a sub-layer, the larger one", max(found["norm"]), "at weights N(0, 1/n)"
    )
    steepest = max(found["last"], key=abs)
    yield Line(
        "sensitivity_to_weights", "scaled", "exponent of ||J - I|| in the size of the last map (what the module gives)",
        steepest, _word(steepest), headline=True,
    )  # fmt: skip
    every = found["every"][0]
    yield Line("sensitivity_to_all_maps", "scaled", "the same in the size of both maps of the MLP", every, _word(every))
    state = max(found["state"], key=lambda value: value)
    yield Line("sensitivity_to_state", "scaled", "the same in the size of the hidden state", state, _word(state))


def _scaled(part: Sublayer, x: Tensor, carry: Any, what: str, factor: float) -> float:
    maps = {"last": [part.last_linear()], "every": linears(part.branch), "state": []}[what]
    for linear in maps:
        scale_linear(linear, factor)
    point = factor * x if what == "state" else x
    found = local_sensitivity(part, point, carry, iterations=ITERATIONS)
    for linear in maps:
        scale_linear(linear, 1 / factor)
    return found


def _word(value: float) -> str:
    """In words."""
    known = {0.0: "independent", 1.0: "proportional", -1.0: "falls as 1/size", 2.0: "as the square"}
    near = [word for exponent, word in known.items() if abs(value - exponent) < 0.1]
    return near[0] if near else f"as size^{value:.2g}"
