"""Tests that a claim can name. Each returns p values; which side counts as support is the engine's matter.

A diverged run enters as `math.inf` where ranks or signs decide, and is refused where a mean would be needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from repro.stats.intervals import mean, sample_sd

Alternative = Literal["two-sided", "less", "greater"]
Pair = tuple[float, float]

EXACT_UP_TO = 25  # pairs; beyond, the normal approximation of the signed-rank sum is good to three digits


def _by_side(less: float, greater: float, alternative: Alternative) -> float:
    """One of the two one-sided p values, or twice the smaller one."""
    if alternative == "two-sided":
        return min(1.0, 2 * min(less, greater))
    return less if alternative == "less" else greater


def fisher(first: tuple[int, int], second: tuple[int, int], alternative: Alternative = "two-sided") -> float:
    """Fisher's exact test of two rates, each as (events, runs); `less`: the first rate is the lower one.

    Counted in whole numbers, so exact; two-sided means all tables that are at most as likely as the one seen.
    (scipy.stats does the same in floats, and its import costs more than all tables; a test compares the two.)
    """
    (k, n), (other_k, other_n) = first, second
    events = k + other_k
    weights = {
        split: math.comb(n, split) * math.comb(other_n, events - split)
        for split in range(max(0, events - other_n), min(n, events) + 1)
    }
    kept = {
        "less": [weight for split, weight in weights.items() if split <= k],
        "greater": [weight for split, weight in weights.items() if split >= k],
        "two-sided": [weight for weight in weights.values() if weight <= weights[k]],
    }
    return sum(kept[alternative]) / sum(weights.values())


def differences(pairs: Sequence[Pair]) -> list[float]:
    """First minus second of each pair that is not a tie; two diverged runs of one seed are a tie.

    Raises ValueError for NaN, which is never an outcome.
    """
    if any(math.isnan(value) for pair in pairs for value in pair):
        raise ValueError("NaN is not an outcome: a diverged run is +infinity")
    return [first - second for first, second in pairs if first != second]


def _midranks_doubled(sizes: Sequence[float]) -> list[int]:
    """Twice the rank of each size, ties sharing their mean rank, so that all ranks are whole numbers."""
    order = sorted(sizes)
    # First and last position of a tied block are below+1 and below+count: their sum is twice the mean.
    return [2 * sum(other < size for other in order) + order.count(size) + 1 for size in sizes]


def _exact_tails(ranks: Sequence[int], statistic: int) -> tuple[float, float]:
    """P(sum <= statistic) and P(sum >= statistic) when each rank is positive with probability 1/2."""
    counts = [1] + [0] * sum(ranks)
    for rank in ranks:
        counts = [ways + (counts[total - rank] if total >= rank else 0) for total, ways in enumerate(counts)]
    everything = 2 ** len(ranks)
    return sum(counts[: statistic + 1]) / everything, sum(counts[statistic:]) / everything


def _normal_tails(ranks: Sequence[int], statistic: int) -> tuple[float, float]:
    """The same tails from the normal law with the variance of the (tied) ranks."""
    from scipy.special import ndtr

    z = (statistic - sum(ranks) / 2) / math.sqrt(sum(rank**2 for rank in ranks) / 4)
    return float(ndtr(z)), float(ndtr(-z))


def signed_rank(pairs: Sequence[Pair], alternative: Alternative = "two-sided") -> float:
    """Wilcoxon's signed-rank test of paired outcomes, +infinity allowed; `less`: the first is the lower one.

    Tied pairs are dropped and tied differences share ranks, as in Wilcoxon (1945); the null distribution is
    exact, given the ties, up to 25 pairs. Without an untied pair p is 1.
    """
    untied = differences(pairs)
    if not untied:
        return 1.0
    ranks = _midranks_doubled([abs(value) for value in untied])
    statistic = sum(rank for rank, value in zip(ranks, untied, strict=True) if value > 0)
    tails = _exact_tails if len(untied) <= EXACT_UP_TO else _normal_tails
    less, greater = tails(ranks, statistic)
    return _by_side(less, greater, alternative)


def sign(above: int, below: int, alternative: Alternative = "two-sided") -> float:
    """Sign test of `above` against `below` informative units; `less`: the lower side is the likelier one."""
    from scipy.special import bdtr

    if above + below == 0:
        return 1.0
    less = float(bdtr(above, above + below, 0.5))
    greater = float(bdtr(below, above + below, 0.5))
    return _by_side(less, greater, alternative)


def t_tail(values: Sequence[float], centre: float, alternative: Literal["less", "greater"]) -> float:
    """One-sided p value of a t test of the mean against `centre`; 1 for fewer than two values.

    Equal values carry no spread; then the sign-flip tail 2^-n stands in for a p of 0 that nothing supports.
    """
    from scipy.special import stdtr

    spread = sample_sd(values)
    if spread is None:
        return 1.0
    distance = mean(values) - centre if alternative == "less" else centre - mean(values)
    if spread == 0:
        return 0.5 ** len(values) if distance < 0 else 1.0
    return float(stdtr(len(values) - 1, distance / (spread / math.sqrt(len(values)))))


def paired_t(values: Sequence[float], alternative: Alternative = "two-sided") -> float:
    """The t test of paired differences against 0; 1 for fewer than two."""
    return _by_side(t_tail(values, 0.0, "less"), t_tail(values, 0.0, "greater"), alternative)


@dataclass(frozen=True, slots=True)
class Sample:
    """Mean, sample standard deviation (divisor n - 1) and number of independent runs, ours or a paper's."""

    mean: float
    sd: float
    n: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and math.isfinite(self.sd) and self.sd >= 0 and self.n >= 2):
            raise ValueError("a sample has a finite mean, a finite spread, and at least two runs")

    @property
    def variance_of_mean(self) -> float:
        """Square of the standard error."""
        return self.sd**2 / self.n

    @staticmethod
    def of(values: Sequence[float]) -> Sample:
        """Of single values; raises ValueError for fewer than two or for one that is not finite."""
        return Sample(mean(values), sample_sd(values) or 0.0, len(values))


def welch_tail(first: Sample, second: Sample, shift: float, alternative: Literal["less", "greater"]) -> float:
    """One-sided p value of Welch's test (1947) of mean(first) - mean(second) against `shift`, spreads unequal.

    Where neither sample has any spread, the tail of relabelling all runs stands in, as in `t_tail`.
    """
    from scipy.special import stdtr

    distance = first.mean - second.mean - shift
    distance = distance if alternative == "less" else -distance
    parts = [(sample.variance_of_mean, sample.n - 1) for sample in (first, second)]
    variance = math.fsum(part for part, _ in parts)
    if variance == 0:
        return 1 / math.comb(first.n + second.n, first.n) if distance < 0 else 1.0
    # Satterthwaite's degrees of freedom, by shares of the variance so that tiny spreads do not underflow.
    degrees = 1 / math.fsum((part / variance) ** 2 / freedom for part, freedom in parts)
    return float(stdtr(degrees, distance / math.sqrt(variance)))


def welch(first: Sequence[float], second: Sequence[float], alternative: Alternative = "two-sided") -> float:
    """Welch's test of two unpaired groups of runs; `less`: the first mean is the lower one. 1 below two runs each."""
    if min(len(first), len(second)) < 2:
        return 1.0
    ours, theirs = Sample.of(first), Sample.of(second)
    sides = (welch_tail(ours, theirs, 0.0, "less"), welch_tail(ours, theirs, 0.0, "greater"))
    return _by_side(*sides, alternative)


@dataclass(frozen=True, slots=True)
class Equivalence:
    """p values for 'the mean lies inside the margins' and for 'it lies outside of them'."""

    inside: float
    outside: float


def tost(values: Sequence[float], low: float, high: float) -> Equivalence:
    """Two one-sided t tests (Schuirmann 1987) of a mean, e.g. of paired differences, against two margins."""
    if low > high:
        raise ValueError("the margins are the wrong way round")
    inside = max(t_tail(values, low, "greater"), t_tail(values, high, "less"))
    outside = min(t_tail(values, low, "less"), t_tail(values, high, "greater"))
    return Equivalence(inside, outside)


def welch_tost(ours: Sample, theirs: Sample, low: float, high: float) -> Equivalence:
    """The same for two unpaired samples, one of them a paper's mean, spread and n: both uncertainties count."""
    if low > high:
        raise ValueError("the margins are the wrong way round")
    inside = max(welch_tail(ours, theirs, low, "greater"), welch_tail(ours, theirs, high, "less"))
    outside = min(welch_tail(ours, theirs, low, "less"), welch_tail(ours, theirs, high, "greater"))
    return Equivalence(inside, outside)


def holm(p_values: Sequence[float]) -> list[float]:
    """Step-down adjusted p values (Holm 1979), in the order given."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted
