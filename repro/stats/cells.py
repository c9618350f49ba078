"""Planned runs of one cell joined with their records: the plan is the denominator, always."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from repro.spec.metrics import METRICS
from repro.stats.intervals import Interval, mean, sample_sd, t_interval

COMPLETE, DIVERGED, FAILED, MISSING = "complete", "diverged", "failed", "missing"
UNMEASURED = "not measured"  # trained to the end, but the metric asked for has no record
STATES = (COMPLETE, DIVERGED, FAILED, MISSING, UNMEASURED)
_OF_STATUS = {"complete": COMPLETE, "diverged": DIVERGED, "failed": FAILED, "timeout": FAILED, "oom": FAILED}


class RecordLike(Protocol):
    """What is read of a record here."""

    @property
    def status(self) -> str:
        """complete, diverged, failed, timeout or oom."""
        ...

    def value(self, name: str) -> float | None:
        """The metric's number; None where it is absent or not finite."""
        ...


class IndexLike(Protocol):
    """What is read of the index of records here."""

    def train(self, run_id: str, /) -> RecordLike | None:
        """The latest attempt of a run, None where nothing is recorded."""
        ...

    def evals(self, run_id: str, /) -> Mapping[str, RecordLike]:
        """Evaluations of a run's final weights by metric name, current protocols only."""
        ...


class CellLike(Protocol):
    """A row of the plan: its runs and their seeds, in the same order."""

    @property
    def run_ids(self) -> tuple[str, ...]:
        """Ids of the planned runs."""
        ...

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the planned runs."""
        ...


@dataclass(frozen=True)
class Aggregate:
    """One number out of named parts, or the names of the parts that keep it away."""

    state: str
    value: float | None
    named: tuple[str, ...] = ()


def aggregate(parts: Mapping[str, float | None]) -> Aggregate:
    """Mean over all parts (splits, seeds); one part that is None or not finite makes it `diverged`, unnumbered."""
    bad = tuple(name for name, value in parts.items() if value is None or not math.isfinite(value))
    if bad or not parts:
        return Aggregate(DIVERGED if bad else MISSING, None, bad)
    return Aggregate(COMPLETE, mean([value for value in parts.values() if value is not None]))


@dataclass(frozen=True)
class CellResult:
    """State of every planned seed of a cell, and the metric's value where there is one.

    `values` holds finite numbers of complete runs only; `outcomes` adds an infinity for diverged ones.
    """

    states: Mapping[int, str]
    values: Mapping[int, float]

    def count(self, *states: str) -> int:
        """Planned seeds in one of `states`."""
        return sum(state in states for state in self.states.values())

    @property
    def planned(self) -> int:
        """Runs that the plan asks for."""
        return len(self.states)

    @property
    def complete(self) -> int:
        """Runs that ended well and, where a metric is asked for, have a finite value."""
        return self.count(COMPLETE)

    @property
    def diverged(self) -> int:
        """Runs that diverged, or whose metric is not finite."""
        return self.count(DIVERGED)

    @property
    def failed(self) -> int:
        """Runs that failed, ran out of memory or out of time."""
        return self.count(FAILED)

    @property
    def missing(self) -> int:
        """Runs without a record, and runs without a record of the metric."""
        return self.count(MISSING, UNMEASURED)

    def outcomes(self, worst: float = math.inf) -> dict[int, float]:
        """Finished seeds: the value, or `worst` (an infinity) where the run diverged."""
        return {
            seed: self.values.get(seed, worst) for seed, state in self.states.items() if state in (COMPLETE, DIVERGED)
        }

    def seeds_in(self, *states: str) -> list[int]:
        """Planned seeds in one of `states`, in the plan's order."""
        return [seed for seed, state in self.states.items() if state in states]


def _state(index: IndexLike, run_id: str, metric: str | None) -> tuple[str, float | None]:
    record = index.train(run_id)
    if record is None:
        return MISSING, None
    state = _OF_STATUS[record.status]
    if state != COMPLETE or metric is None:
        return state, None
    measured = record if METRICS[metric].checked else index.evals(run_id).get(METRICS[metric].family)
    if measured is None:
        return UNMEASURED, None
    value = measured.value(metric)
    if value is None or not math.isfinite(value):
        return (DIVERGED if measured.status in (COMPLETE, DIVERGED) else UNMEASURED), None
    return COMPLETE, float(value)


def cell_result(cell: CellLike, index: IndexLike, metric: str | None = None) -> CellResult:
    """The cell's planned runs joined with the records; without a metric, the states of the trainings alone."""
    return runs_result(cell.run_ids, cell.seeds, index, metric)


def runs_result(
    run_ids: Sequence[str], seeds: Sequence[int], index: IndexLike, metric: str | None = None
) -> CellResult:
    """The same for runs by id and seed, such as the tuning runs of a cell.

    Raises ValueError for a seed that stands twice: a repeat of one seed is no further run (case S03).
    """
    if len(set(seeds)) != len(seeds):
        raise ValueError(f"a seed stands twice among {list(seeds)}")
    states: dict[int, str] = {}
    values: dict[int, float] = {}
    for run_id, seed in zip(run_ids, seeds, strict=True):
        states[seed], value = _state(index, run_id, metric)
        if value is not None:
            values[seed] = value
    return CellResult(states, values)


@dataclass(frozen=True)
class Summary:
    """What a table may say of one metric in one cell: numbers, or the reason why there are none."""

    state: str
    n: int
    mean: float | None = None
    sd: float | None = None
    interval: Interval | None = None


def state_words(result: CellResult) -> str:
    """`complete`, `not_run`, or what keeps the cell from being complete: `diverged 1 of 2, missing 1 of 2`."""
    if result.complete == result.planned and result.planned:
        return COMPLETE
    if result.count(MISSING) == result.planned:
        return "not_run"
    counted = [(state, result.count(state)) for state in STATES[1:]]
    return ", ".join(f"{state} {count} of {result.planned}" for state, count in counted if count)


def summarise(result: CellResult) -> Summary:
    """Mean, sample sd and 95 % t interval over all planned seeds, or words; never a mean over survivors."""
    whole = aggregate({f"seed {seed}": result.values.get(seed) for seed in result.states})
    if whole.value is None:
        return Summary(state_words(result), result.complete)
    values = list(result.values.values())
    return Summary(whole.state, len(values), whole.value, sample_sd(values), t_interval(values))
