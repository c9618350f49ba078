"""How mean and variance of the hidden state grow over depth (paper A, A-T1 and A-T2)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from repro.nn.stack import Stack
from repro.theory.card import Line, Subject
from repro.theory.growth import Walk, exponent, rate_per_block, walk
from repro.theory.nets import ascend, final_state, linears, rms, scale_linear, sublayers

PAPER = "paper_a"
DRAWS = 3
RHO = 1.2
STEPS, RATE = 10, 0.1
MOMENTS = {"mean": ("mean_abs", 1.0, "linear"), "variance": ("entry_variance", 2.0, "quadratic")}


def lines(subject: Subject) -> Iterator[Line]:
    """Exponents at start and with adversarial weights, the answer to weights that grow with depth, and the bound."""
    start = [walk(subject.start(draw), subject.stream(draw, small=True), None, measured=True) for draw in range(DRAWS)]
    yield from _exponents("start", start)
    grown = subject.loud()
    base = walk(grown, subject.stream(), None, measured=True)
    for part in sublayers(grown):
        scale_linear(part.last_linear(), RHO**part.site.layer)
    risen = walk(grown, subject.stream(), None, measured=True)
    extra = rate_per_block(risen.curve("mean_abs")) - rate_per_block(base.curve("mean_abs"))
    answer = extra / math.log(RHO)
    says = f"rate that weights growing as {RHO:g}^i add to the growth of the state, over log {RHO:g}"
    word = "unmoved" if abs(answer) < 0.15 else "grows exponentially with them" if answer > 0.5 else "moved"
    yield Line("growth_with_weights", "scaled", says, answer, word, headline=True)
    worst = walk(_worst(subject), subject.stream(), None, measured=True)
    yield from _exponents("adversarial", [worst])
    yield _slack([*start, base, risen, worst])


def _worst(subject: Subject) -> Stack:
    """Directions that ascent finds to make the last state large; each map keeps its size."""
    stack, x = subject.loud(), subject.stream()

    def size() -> Tensor:
        return rms(final_state(stack, x)).clamp_min(1e-300).log().mean()

    weights: list[Tensor] = [linear.weight for linear in linears(stack.blocks)]
    for _ in ascend(size, weights, STEPS, RATE, keep_norm=True):
        continue
    return stack


def _exponents(state: str, walks: list[Walk]) -> Iterator[Line]:
    # Each sub-layer adds at most a constant: then the mean grows at most linearly, the variance quadratically.
    bounded = all(made.bound is not None for made in walks)
    for word, (key, top, name) in MOMENTS.items():
        fit = exponent([made.curve(key) for made in walks], first=2)
        yield Line(
            f"growth_{word}_{state}", state, f"exponent of {_LONG[word]} over depth", fit.value,
            _shape(fit.value / top, name), top if bounded else None, fit.low, fit.high, headline=state == "start",
        )  # fmt: skip


_LONG = {"mean": "mean |x|", "variance": "Var x"}


def _shape(share: float, name: str) -> str:
    """In words, from the exponent over that of growth by constant steps in one direction."""
    if abs(share) < 0.15:
        return "flat"
    if share < 0:
        return "shrinks"
    return f"slower than {name}" if share < 0.9 else name if share <= 1.1 else f"faster than {name}"


def _slack(walks: list[Walk]) -> Line:
    seen = max(made.slack.worst for made in walks)
    says = "RMS, mean |x| and Var x over their bounds, largest over all of the above"
    if any(made.bound is None for made in walks):
        return Line("growth_slack", "all", says, None, "no bound known")
    return Line("growth_slack", "all", says, seen, "bound kept" if seen <= 1 + 1e-9 else "BOUND BROKEN", 1.0)
