"""The A/A line: how far seeds of one configuration lie apart. A difference below it is not seen in one run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import sub

from repro.stats.cells import DIVERGED, FAILED, CellResult
from repro.stats.intervals import Interval, sample_sd, sd_interval

SEEDS = "seeds of one configuration (A/A line"


@dataclass(frozen=True, slots=True)
class Spread:
    """Sample standard deviation with its degrees of freedom and 95 % interval, pooled over `groups`.

    `smallest` and `largest` are those of single groups: far apart, they say that one figure fits none.
    """

    sd: float
    degrees: int
    interval: Interval
    groups: int
    smallest: float
    largest: float
    over: str = SEEDS

    def words(self, unit: str = "") -> str:
        """`0.012 [0.008, 0.024] nats over seeds of one configuration (A/A line; 7 degrees of freedom, 2 groups)`."""
        low, high = self.interval
        figure = f"{self.sd:.2g} [{low:.2g}, {high:.2g}] {unit}".strip()
        groups = f"{self.groups} group{'s' if self.groups > 1 else ''}"
        return f"{figure} over {self.over}; {self.degrees} degrees of freedom, {groups})"

    def scaled(self, factor: float, over: str) -> Spread:
        """The spread of a number that spreads `factor` times as much."""
        low, high = self.interval
        sizes = {name: factor * getattr(self, name) for name in ("sd", "smallest", "largest")}
        return replace(self, **sizes, interval=(factor * low, factor * high), over=over)


def pooled_spread(groups: Iterable[Sequence[float]], over: str = SEEDS, level: float = 0.95) -> Spread | None:
    """Pooled sample standard deviation of groups of finite values; None where no group holds two.

    The groups' own means do not enter: only the distances of seeds from the mean of their group.
    """
    kept = [group for group in groups if len(group) >= 2]
    if not kept:
        return None
    spreads = [sample_sd(group) or 0.0 for group in kept]
    degrees = sum(len(group) - 1 for group in kept)
    squares = math.fsum(sd**2 * (len(group) - 1) for sd, group in zip(spreads, kept, strict=True))
    sd = math.sqrt(squares / degrees)
    return Spread(sd, degrees, sd_interval(sd, degrees, level), len(kept), min(spreads), max(spreads), over)


def aa_spread(results: Iterable[CellResult], level: float = 0.95) -> Spread | None:
    """The A/A line of recorded cells of one metric; None where no cell tells anything.

    A cell with a diverged or failed run is left out, since the spread of its survivors would be too small. One with
    runs still missing counts by those it has.
    """
    return pooled_spread((list(cell.values.values()) for cell in results if _is_sound(cell)), level=level)


def _is_sound(cell: CellResult) -> bool:
    return not cell.count(DIVERGED, FAILED)


def paired_values(first: CellResult, second: CellResult, combine: Callable[[float, float], float] = sub) -> list[float]:
    """Difference (or what `combine` makes) within each seed that both have; none where a run diverged or failed."""
    if not (_is_sound(first) and _is_sound(second)):
        return []
    return [combine(first.values[seed], second.values[seed]) for seed in sorted(first.values.keys() & second.values)]
