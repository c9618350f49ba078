"""Learning-rate tolerance: how large a step a method stands, per seed, on a declared grid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from repro.stats.cells import COMPLETE, DIVERGED, CellResult


@dataclass(frozen=True)
class Tolerance:
    """What is known of the largest learning rate that one seed stands: it lies in [`low`, `high`].

    A point, unless the grid censors it: above the grid's largest rate (`high` infinite), or below its
    smallest (`low` 0) where every run of the grid diverged.
    """

    low: float
    high: float

    @property
    def censored(self) -> bool:
        """The grid ends before the tolerance is found."""
        return self.low != self.high


def seed_tolerance(grid: Mapping[float, CellResult], seed: int, factor: float) -> Tolerance | None:
    """Largest rate of `grid` whose run is complete with a loss of at most `factor` times the seed's best.

    None while a run of this seed is not finished: the missing one could be the largest.
    """
    if any(result.states.get(seed) not in (COMPLETE, DIVERGED) for result in grid.values()):
        return None
    losses = {rate: result.values[seed] for rate, result in grid.items() if seed in result.values}
    if not losses:
        return Tolerance(0.0, min(grid))
    limit = factor * min(losses.values())
    rate = max(rate for rate, loss in losses.items() if loss <= limit)
    return Tolerance(rate, math.inf if rate == max(grid) else rate)


@dataclass(frozen=True)
class RatioSigns:
    """Seeds whose ratio lies above, below or on the reference, and those that censoring leaves open."""

    above: int
    below: int
    tied: int
    unknown: int


def ratio_signs(pairs: Sequence[tuple[Tolerance, Tolerance]], reference: float) -> RatioSigns:
    """Places each seed's ratio (first over second) against `reference`, a censored one only where that is safe."""
    counts = {"above": 0, "below": 0, "tied": 0, "unknown": 0}
    for over, under in pairs:
        low = over.low / under.high
        high = over.high / under.low if under.low else math.inf
        on_low, on_high = (math.isclose(bound, reference, rel_tol=1e-9) for bound in (low, high))
        if on_low and on_high:
            counts["tied"] += 1
        elif low > reference and not on_low:
            counts["above"] += 1
        elif high < reference and not on_high:
            counts["below"] += 1
        else:
            counts["unknown"] += 1
    return RatioSigns(**counts)
