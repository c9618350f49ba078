"""Slopes: power laws in a size, and exponential rates of a falling risk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Line:
    """Least-squares line: `slope`, share of the variance explained `r2`, and the number of `points`."""

    slope: float
    r2: float
    points: int


def fit_line(x: Array, y: Array) -> Line:
    """The line through points (x, y); raises ValueError for fewer than three."""
    if len(x) < 3:
        raise ValueError(f"{len(x)} points say nothing about a line: three are needed")
    slope, at_zero = np.polyfit(x, y, 1)
    left = y - (slope * x + at_zero)
    spread = float(((y - y.mean()) ** 2).sum())
    return Line(float(slope), 1.0 - float((left**2).sum()) / spread if spread else 0.0, len(x))


def power_law(sizes: Sequence[float], errors: Sequence[float]) -> Line:
    """Exponent of error ~ size^slope, from positive numbers."""
    return fit_line(np.log(np.asarray(sizes, dtype=np.float64)), np.log(np.asarray(errors, dtype=np.float64)))


@dataclass(frozen=True, slots=True)
class Decay:
    """Exponential fall of a risk: `rate` (-d log R / dt), `r2` of the straight log, `decades` that the fit covers."""

    rate: float
    r2: float
    decades: float


def fit_decay(times: Array, risks: Array, below: float) -> Decay:
    """The straight tail of log R over time, from where R is at most `below` times its start.

    A risk is a sum of exponentials, one for each eigenvalue, so only its tail is straight unless one mode holds it all.
    """
    inside = risks <= below * risks[0]
    line = fit_line(times[inside], np.log(risks[inside]))
    return Decay(-line.slope, line.r2, float(np.log10(risks[inside][0] / risks[inside][-1])))
