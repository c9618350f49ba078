"""Mean curves over seeds on a common grid of tokens: the mean ends, visibly, where a seed is no longer there."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from repro.stats.intervals import mean

Curve = Sequence[tuple[float, float]]  # (training tokens, value), tokens ascending


@dataclass(frozen=True, slots=True)
class Point:
    """Mean over the `n` curves that reach `tokens`."""

    tokens: float
    mean: float
    n: int


@dataclass(frozen=True)
class MeanCurve:
    """`whole` is the mean over all planned seeds. `partial` is what lies beyond, to be drawn apart and with its n.

    A line through both would jump where a seed ends: other seeds are averaged there, nothing has happened to any run.
    """

    whole: tuple[Point, ...]
    partial: tuple[Point, ...]
    planned: int

    @property
    def ends(self) -> str:
        """`mean of all 3 seeds up to 6 tokens, beyond it 2 seeds`, for a caption."""
        if not self.whole:
            most = max((point.n for point in self.partial), default=0)
            return f"no mean: at most {most} of {self.planned} seeds at any point"
        upto = f"mean of all {self.planned} seeds up to {self.whole[-1].tokens:g} tokens"
        beyond = sorted({point.n for point in self.partial if point.tokens > self.whole[-1].tokens}, reverse=True)
        return f"{upto}, beyond it {' then '.join(map(str, beyond))} seeds" if beyond else upto


def _cut(curve: Curve) -> list[tuple[float, float]]:
    """The curve up to its first value that is not finite; raises ValueError for tokens that do not ascend."""
    kept: list[tuple[float, float]] = []
    for tokens, value in curve:
        if kept and tokens <= kept[-1][0]:
            raise ValueError("the tokens of a curve ascend")
        if not math.isfinite(value):
            break
        kept.append((tokens, value))
    return kept


def value_at(curve: Sequence[tuple[float, float]], tokens: float) -> float | None:
    """The curve's value at `tokens`, linear between its points; None outside of them: nothing is carried on."""
    place = bisect_left(curve, tokens, key=lambda point: point[0])
    if place == len(curve):
        return None
    after, value = curve[place]
    if after == tokens:
        return value
    if place == 0:
        return None
    before, start = curve[place - 1]
    return start + (value - start) * (tokens - before) / (after - before)


def mean_curve(curves: Sequence[Curve], planned: int | None = None) -> MeanCurve:
    """Mean over seeds at every number of tokens at which one of them was measured (case P04).

    `planned` seeds make a mean whole; by default those given, but a run without any curve is planned too. A curve
    ends before its first value that is not finite.
    """
    kept = [cut for curve in curves if (cut := _cut(curve))]
    wanted = len(curves) if planned is None else planned
    points = []
    for tokens in sorted({point[0] for curve in kept for point in curve}):
        values = [value for curve in kept if (value := value_at(curve, tokens)) is not None]
        points.append(Point(tokens, mean(values), len(values)))
    whole = tuple(point for point in points if point.n == wanted)
    return MeanCurve(whole, tuple(point for point in points if point.n != wanted), wanted)
