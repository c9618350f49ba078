"""Choice of the learning rate: on tuning seeds only, with the edge of the grid marked, reported on fresh seeds only.

Choosing on the seeds that are reported lets a method that stands many rates win by the luck of the best of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from repro.stats.cells import COMPLETE, DIVERGED, FAILED, CellResult
from repro.stats.intervals import mean

Grid = Mapping[float, Mapping[int, float]]  # learning rate -> tuning seed -> value, infinite where it came to nothing


@dataclass(frozen=True)
class Choice:
    """The chosen learning rate of one method, or why there is none yet.

    `edge` is `lowest` or `highest` where the best rate is the grid's last one on that side, so that a better one may
    lie beyond, `only` for a grid of one rate, else empty. `means` are over the tuning seeds, infinite where one of
    them came to nothing, and hold only rates all of whose tuning runs are finished.
    """

    rate: float | None
    edge: str
    reason: str
    means: Mapping[float, float]

    @property
    def words(self) -> str:
        """`0.003`, `0.1 (highest of the grid: a better one may lie beyond)`, or the reason why there is none."""
        if self.rate is None:
            return self.reason
        beyond = {"only": "the only one tried", "": ""}
        note = beyond.get(self.edge, f"{self.edge} of the grid: a better one may lie beyond")
        return f"{self.rate:g} ({note})" if note else f"{self.rate:g}"


def _mean_or_worst(values: Sequence[float], worst: float) -> float:
    return mean(values) if all(math.isfinite(value) for value in values) else worst


def _edge(rate: float, rates: Iterable[float]) -> str:
    ordered = sorted(rates)
    if len(ordered) == 1:
        return "only"
    return {ordered[0]: "lowest", ordered[-1]: "highest"}.get(rate, "")


def choose_rate(grid: Grid, seeds: Sequence[int], lower_is_better: bool = True) -> Choice:
    """The rate with the best mean over the tuning `seeds`; a run that diverged or failed counts as the worst value.

    A rate that lacks one of the seeds leaves the choice open, whatever the others say. The smaller of two equal
    rates wins. Raises ValueError for an empty grid, no seeds, and NaN, which is never an outcome.
    """
    if not grid or not seeds:
        raise ValueError("a choice needs a grid of rates and tuning seeds")
    if any(math.isnan(value) for runs in grid.values() for value in runs.values()):
        raise ValueError("NaN is not an outcome: a run that came to nothing is infinite")
    worst = math.inf if lower_is_better else -math.inf
    done = {rate: runs for rate, runs in sorted(grid.items()) if all(seed in runs for seed in seeds)}
    means = {rate: _mean_or_worst([runs[seed] for seed in seeds], worst) for rate, runs in done.items()}
    missing = sum(seed not in runs for runs in grid.values() for seed in seeds)
    if missing:
        return Choice(None, "", f"not chosen yet: {missing} of {len(grid) * len(seeds)} tuning runs are missing", means)
    best = (min if lower_is_better else max)(means, key=means.__getitem__)
    if not math.isfinite(means[best]):
        return Choice(None, "", f"no rate of the grid came through all {len(seeds)} tuning seeds", means)
    return Choice(best, _edge(best, grid), "", means)


def tuning_values(results: Mapping[float, CellResult], seeds: Sequence[int], lower_is_better: bool = True) -> Grid:
    """What `choose_rate` takes, of joined cells: diverged and failed runs are the worst value, missing ones absent."""
    worst = math.inf if lower_is_better else -math.inf
    return {
        rate: {
            seed: result.values.get(seed, worst)
            for seed in seeds
            if result.states.get(seed) in (COMPLETE, DIVERGED, FAILED)
        }
        for rate, result in results.items()
    }


def fresh_result(
    results: Mapping[float, CellResult], choice: Choice, tuning: Sequence[int], fresh: Sequence[int]
) -> CellResult | None:
    """The chosen rate's result on the `fresh` seeds alone; None while nothing is chosen.

    Raises ValueError where a seed is in both groups: a number that was chosen by may not be reported (case S05).
    """
    if both := sorted(set(tuning) & set(fresh)):
        raise ValueError(f"seeds {both} would choose the learning rate and be reported: take fresh ones")
    if choice.rate is None:
        return None
    chosen = results[choice.rate]
    states = {seed: chosen.states[seed] for seed in fresh}
    return CellResult(states, {seed: chosen.values[seed] for seed in fresh if seed in chosen.values})
