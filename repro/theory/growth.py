"""Growth of the hidden state over depth and the bound of A-T1, evaluated on real blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from repro.nn.method_api import Method
from repro.nn.stack import Block, Stack
from repro.theory.nets import NORMS, Sublayer, block_sublayers, linears, rms

# How the norm that acts last joins the stream: x + a z, or z itself in place of x.
LawKind = Literal["adds", "replaces"]
SAME = 1e-6  # relative; what float64 leaves of two numbers that the formula makes equal
CONFIDENCE = 0.95
PIECE = 1 << 16  # numbers drawn at a time; a multiple of 16, with which torch draws the same as in one call


@dataclass(frozen=True, slots=True)
class Law:
    """What bounds a sub-layer: its last norm z enters as x + factor z, or replaces x."""

    kind: LawKind
    factor: float


@dataclass(frozen=True, slots=True)
class Exponent:
    """Slope of log(value) against log(layer), with the 95 % Student interval over draws."""

    value: float
    low: float
    high: float


def norm_reach(norm: nn.Module) -> float:
    """Largest RMS over all inputs of gamma * unit + beta as the triangle bounds it: max |gamma| + RMS(beta)."""
    gain, shift = getattr(norm, "weight", None), getattr(norm, "bias", None)
    top = 1.0 if gain is None else float(gain.detach().abs().max())
    return top + (0.0 if shift is None else float(rms(shift.detach())))


def measured_law(part: Sublayer, x: Tensor, carry: Any = None) -> Law | None:
    """How the last norm of `part` joins the stream, told by numbers at x; None if no such norm, or another formula.

    The structure says only where a norm stands. That x' = x + a z (or x' = z) is seen from its output z.
    """
    norm = part.closing_norm()
    if norm is None:
        return None
    seen: list[Tensor] = []
    handle = norm.register_forward_hook(lambda _module, _inputs, output: seen.append(output.detach()))
    try:
        with torch.no_grad():
            new = part(x, carry)[0]
    finally:
        handle.remove()
    if len(seen) != 1 or seen[0].shape != new.shape:
        return None
    z, added = seen[0], new - x
    factor = float((added * z).sum() / z.square().sum().clamp_min(1e-300))
    if float((added - factor * z).norm()) <= SAME * float(added.norm()):
        return Law("adds", factor)
    return Law("replaces", 1.0) if float((new - z).norm()) <= SAME * float(z.norm()) else None


def reach(bound: Tensor, part: Sublayer, law: Law) -> Tensor:
    """The bound on the RMS of each token after `part`, from that before it (A-T1, one sub-layer)."""
    norm = part.closing_norm()
    assert norm is not None, "a law stands for a norm"
    step = abs(law.factor) * norm_reach(norm)
    return bound + step if law.kind == "adds" else torch.full_like(bound, step)


def moments(x: Tensor) -> dict[str, float]:
    """Mean absolute value, variance over entries (mean over tokens) and over tokens (mean over entries), largest."""
    flat = x.reshape(-1, x.shape[-1])
    return {
        "mean_abs": float(flat.abs().mean()),
        "entry_variance": float(flat.var(-1, correction=0).mean()),
        "data_variance": float(flat.var(0, correction=0).mean()),
        "max_abs": float(flat.abs().max()),
    }


@dataclass
class Slack:
    """Largest left side over right side seen, of the RMS, the mean absolute value and the variance of a token."""

    rms: float = 0.0
    mean: float = 0.0
    variance: float = 0.0
    violations: list[dict[str, Any]] = field(default_factory=list)

    @property
    def worst(self) -> float:
        """The largest of the three."""
        return max(self.rms, self.mean, self.variance)

    def add(self, other: Slack) -> None:
        """Takes in what another one has seen."""
        self.rms, self.mean = max(self.rms, other.rms), max(self.mean, other.mean)
        self.variance = max(self.variance, other.variance)
        self.violations += other.violations


class Walk:
    """A stream on its way through blocks, with the bound of A-T1 beside it, token by token.

    `law` says how each sub-layer's last norm joins the stream; without one there is no bound to compare with.
    `rows` holds the moments of the embedding (layer 0) and after each block.
    """

    def __init__(self, method: Method, x: Tensor, law: Law | None) -> None:
        self.method, self.x, self.law = method, x, law
        self.carry = method.begin(x) if method.uses_carry else None
        self.bound: Tensor | None = rms(x) if law else None
        self.laws: list[Law | None] = []
        self.slack = Slack()
        self.rows: list[dict[str, Any]] = [self._row(0)]

    @torch.no_grad()
    def through(self, block: Block) -> None:
        """Both sub-layers of one block; compares after each."""
        for part in block_sublayers(block, self.method):
            self.past(part, part(self.x, self.carry))
        self.close_block()

    def past(self, part: Sublayer, moved: tuple[Tensor, Any]) -> None:
        """One sub-layer, of which the next stream and carry are known."""
        law = self._law_of(part)
        self.laws.append(law)
        self.x, self.carry = moved
        self.bound = None if law is None or self.bound is None else reach(self.bound, part, law)
        if self.bound is not None:
            self._compare(self.bound, len(self.rows))

    def close_block(self) -> None:
        """Moments after a block."""
        self.rows.append(self._row(len(self.rows)))

    def _law_of(self, part: Sublayer) -> Law | None:
        return self.law

    def _compare(self, bound: Tensor, layer: int) -> None:
        found = {
            "rms": float((rms(self.x) / bound).max()),
            "mean": float((self.x.abs().mean(-1) / bound).max()),
            "variance": float((self.x.var(-1, correction=0) / bound.square()).max()),
        }
        self.slack.add(Slack(found["rms"], found["mean"], found["variance"]))
        # Round-off of a sum of 2 D terms is far below this; anything above is a violation and is kept.
        self.slack.violations += [
            {"layer": layer, "inequality": name, "ratio": ratio} for name, ratio in found.items() if ratio > 1 + 1e-9
        ]

    def _row(self, layer: int) -> dict[str, Any]:
        limits: dict[str, float | None] = {"mean_abs_bound": None, "variance_bound": None}
        if self.bound is not None:
            limits |= {
                "mean_abs_bound": float(self.bound.mean()),
                "variance_bound": float(self.bound.square().mean()),
            }
        return {"layer": layer, **moments(self.x), **limits}

    def curve(self, key: str) -> list[float]:
        """One moment after block 1, 2 .. D."""
        return [row[key] for row in self.rows[1:]]


class MeasuredWalk(Walk):
    """A walk of a method of which nothing is known: each sub-layer's law is told by numbers as the walk comes by."""

    def __init__(self, method: Method, x: Tensor) -> None:
        super().__init__(method, x, None)
        self.bound = rms(x)

    def _law_of(self, part: Sublayer) -> Law | None:
        return measured_law(part, self.x, self.carry)


def walk(stack: Stack, x: Tensor, law: Law | None, *, measured: bool = False) -> Walk:
    """A walk through a whole stack; with `measured` the laws are told by numbers, not given."""
    made = MeasuredWalk(stack.method, x) if measured else Walk(stack.method, x, law)
    for block in stack.blocks:
        assert isinstance(block, Block)
        made.through(block)
    return made


@torch.no_grad()
def together(walks: Sequence[Walk], block: Block) -> None:
    """Takes walks of several methods, none with a carry, through one block; each map is read once for all of them.

    With a few tokens a product costs what reading the matrix costs. Each method is asked what it hands to the branch,
    the branch gets all of it as one batch, and each method's rule then finds its own share in the branch's place.
    """
    for place in range(len(block_sublayers(block))):
        parts = [block_sublayers(block, one.method)[place] for one in walks]
        given = [_handed_to_branch(part, one.x) for part, one in zip(parts, walks, strict=True)]
        shares = parts[0].branch(torch.cat(given)).split([len(h) for h in given])
        for one, part, share in zip(walks, parts, shares, strict=True):
            one.past(part, (one.method.step(one.x, lambda _handed, share=share: share, part.site), None))
    for one in walks:
        one.close_block()


def _handed_to_branch(part: Sublayer, x: Tensor) -> Tensor:
    seen: list[Tensor] = []

    def listen(handed: Tensor) -> Tensor:
        seen.append(handed)
        return handed

    part.method.step(x, listen, part.site)
    (handed,) = seen
    return handed


@torch.no_grad()
def draw_block(block: Block, layer: int, layers: int, generator: torch.Generator) -> None:
    """Weights of a start at this place of a stack, gains 1, biases 0, into one block that stands for all of them.

    48 blocks of width 1600 in float64 are 12 GB; one at a time is a quarter of one.
    """
    for role, built in block.maps().items():
        for linear in linears(built):
            std = block.method.weight_std(linear, role, layer, layers)
            _draw(linear.weight, std, generator)
            if linear.bias is not None:
                linear.bias.zero_()
    for norm in norms(block):
        norm.reset_parameters()  # type: ignore[operator]


def _draw(weight: Tensor, std: float, generator: torch.Generator) -> None:
    """N(0, std^2) in single precision, a fifth of the time of double; in pieces that never leave the cache."""
    piece = torch.empty(PIECE)
    for part in weight.view(-1).split(PIECE):
        part.copy_(piece[: len(part)].normal_(0.0, std, generator=generator))


@torch.no_grad()
def disturb_block(block: nn.Module, generator: torch.Generator) -> None:
    """Each map times a factor of its own between 1/100 and 100; gains of norms N(1, 1/4), their biases N(0, 1/4)."""
    for linear in linears(block):
        linear.weight.mul_(10 ** (4 * float(torch.rand((), generator=generator)) - 2))
    for norm in norms(block):
        for name, value in norm.named_parameters(recurse=False):
            value.copy_(torch.empty(value.shape).normal_(float(name == "weight"), 0.5, generator=generator))


def norms(module: nn.Module) -> Iterator[nn.Module]:
    """All norms inside."""
    return (part for part in module.modules() if isinstance(part, NORMS))


def log_bound(stack: Stack, x: Tensor, law: Law, parts: Sequence[Sublayer]) -> Tensor:
    """log of the bound after the last sub-layer for each token; gains and biases stay in the graph."""
    total = rms(x)
    for part in parts:
        norm: Any = part.closing_norm()
        shift = getattr(norm, "bias", None)
        # The root has no derivative at a bias of zero, where every start stands.
        size = 0.0 if shift is None else (shift.square().mean() + 1e-30).sqrt()
        step = abs(law.factor) * (norm.weight.abs().max() + size)
        total = total + step if law.kind == "adds" else step.expand_as(total)
    return total.log()


def exponent(curves: Sequence[Sequence[float]], first: int = 1) -> Exponent:
    """Exponent of growth over depth: each curve (values after block 1, 2 ..) has its own fit from block `first` on.

    One draw's layers depend on each other, so the interval comes from the spread over draws; with a single draw
    from the residuals of its fit. NaN where a value is not above 0.
    """
    fits = []
    for curve in curves:
        values = np.asarray(curve[first - 1 :], dtype=float)
        if not (np.isfinite(values).all() and (values > 0).all()):
            return Exponent(float("nan"), float("nan"), float("nan"))
        fits.append(stats.linregress(np.log(np.arange(first, first + len(values))), np.log(values)))
    slopes = [float(fit.slope) for fit in fits]
    degrees = len(fits) - 1 if len(fits) > 1 else len(curves[0]) - first - 1
    error = float(np.std(slopes, ddof=1) / np.sqrt(len(fits))) if len(fits) > 1 else float(fits[0].stderr)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, degrees)) * error
    middle = float(np.mean(slopes))
    return Exponent(middle, middle - half, middle + half)


def rate_per_block(curve: Sequence[float]) -> float:
    """Slope of log(value) against the block over the upper half of the depth: the rate of an exponential growth."""
    values = np.asarray(curve, dtype=float)
    half = len(values) // 2
    return float(np.polyfit(np.arange(half, len(values)), np.log(values[half:]), 1)[0])
