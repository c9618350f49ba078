"""A measured series, cleaned by written rules: order, doubles, grid, missing values, split, scaler, gaps, windows.

The rules, in their order:
1. Rows are sorted by time; of several rows with one stamp the first in the file stays.
2. Rows off the grid of the step (hourly out of 10-minute rows, say) are left out.
3. The rows are split by time: first train, then val, then test.
4. A missing value (a sentinel in the file) is never a number. The scaler is fitted on the values of train that
   are there, each variable for itself; then a row with any missing value is dropped, in every split.
5. Where two rows are more than one step apart a block ends. No window reaches over the end of a block.
Each rule's count is in the report.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from repro.spec.errors import BadDataError, Problem, problem_error, shown

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Series:
    """`times` [n] in seconds since 1970 by the station's own clock, `values` [n, d] with NaN for missing."""

    times: Ints
    values: Array
    columns: tuple[str, ...]

    def rows(self, chosen: Any) -> Series:
        """The rows that an index array, a mask or a slice chooses."""
        return Series(self.times[chosen], self.values[chosen], self.columns)


@dataclass(frozen=True, slots=True)
class Scaler:
    """Mean and population standard deviation of each variable, of training rows alone."""

    columns: tuple[str, ...]
    mean: Array
    sd: Array

    @classmethod
    def fit(cls, train: Series, file: str = "series") -> Scaler:
        """Over the values that are there, sums exactly rounded: the same bits on every machine.

        Raises BadDataError for a variable without two different values, or with values that no sum can hold.
        """
        moments = [_moments(column[~np.isnan(column)]) for column in train.values.T]
        dead = [name for name, (_, sd) in zip(train.columns, moments, strict=True) if not 0 < sd < math.inf]
        if dead:
            message = f"no scale can be had of the training rows: {', '.join(map(shown, dead))} (constant, or missing)"
            raise problem_error(BadDataError, file, "variables", message)
        mean, sd = np.array(moments).T
        return cls(train.columns, mean, sd)

    def apply(self, values: Array) -> Array:
        """Standardised values of any shape [..., d]."""
        scaled: Array = (values - self.mean) / self.sd
        return scaled

    def undo(self, scaled: Array) -> Array:
        """In the variables' units again."""
        values: Array = scaled * self.sd + self.mean
        return values


@dataclass(frozen=True, slots=True)
class Windows:
    """Pairs of inputs and targets, made when they are asked for.

    Window i has rows `starts[i]` ... `starts[i]` + length - 1 of `values` [n, d] as inputs and the rows `horizon`
    later as targets: for a horizon of one, the next step at every position.
    """

    values: Array
    starts: Ints
    length: int
    horizon: int

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, indices: ArrayLike) -> tuple[Array, Array]:
        """Inputs and targets [B, length, d] each, of the windows with these numbers [B]."""
        first = self.starts[np.asarray(indices, np.int64)]
        rows = self.values[first[:, None] + np.arange(self.length + self.horizon)]
        return rows[:, : self.length], rows[:, self.horizon :]

    def batches(self, size: int) -> Iterator[tuple[Array, Array]]:
        """Every window once, in order; the last batch is as small as it comes, never dropped."""
        if size < 1:
            raise ValueError(f"a batch holds at least one window, not {size}")
        for start in range(0, len(self), size):
            yield self.take(np.arange(start, min(start + size, len(self))))

    def arrays(self) -> tuple[Array, Array]:
        """All inputs and all targets, [windows, length, d] each."""
        return self.take(np.arange(len(self)))

    def draw(self, count: int, seed: int) -> Windows:
        """`count` different windows in order of time, a pure function of the seed; BadDataError if there are fewer."""
        if count > len(self):
            message = f"{count} asked for, {len(self)} of {self.length} + {self.horizon} rows are there"
            raise problem_error(BadDataError, "series", "windows", message)
        chosen = np.sort(np.random.default_rng(seed).choice(len(self), count, replace=False))
        return Windows(self.values, self.starts[chosen], self.length, self.horizon)


@dataclass(frozen=True, slots=True)
class Split:
    """Whole rows of one split, in the variables' units, and its `blocks` [b, 2]: first row, row after the last."""

    series: Series
    blocks: Ints


@dataclass(frozen=True, slots=True)
class Prepared:
    """A cleaned series: splits by name, the scaler, `step` in seconds, and what was found on the way."""

    splits: Mapping[str, Split]
    scaler: Scaler
    step: int
    report: dict[str, Any]

    def windows(self, split: str, length: int, horizon: int = 1, stride: int = 1) -> Windows:
        """Standardised windows of one split; those of one block start `stride` rows apart."""
        part = self.splits[split]
        starts = window_starts(part.blocks, length + horizon, stride)
        return Windows(self.scaler.apply(part.series.values), starts, length, horizon)


def _moments(values: Array) -> tuple[float, float]:
    """Mean and population standard deviation; the latter is 0 where there are no two different values."""
    if not len(values) or values.min() == values.max():
        return 0.0, 0.0
    try:
        mean = math.fsum(values) / len(values)
        return mean, math.sqrt(math.fsum((values - mean) ** 2) / len(values))
    except OverflowError:
        return 0.0, math.inf


def ordered(series: Series) -> tuple[Series, dict[str, int]]:
    """Sorted, and the first row of each stamp; how many rows stood after a later one, and how many were doubles."""
    latest = np.maximum.accumulate(series.times) if len(series.times) else series.times
    times, first = np.unique(series.times, return_index=True)  # the first row of each stamp, in order of time
    counts = {"out_of_order": int((series.times < latest).sum()), "duplicates": len(series.times) - len(times)}
    return series.rows(first), counts


def blocks(times: Ints, step: int) -> Ints:
    """Runs of rows one step apart, [b, 2]: first row and row after the last; `times` [n] rise strictly."""
    if not len(times):
        return np.empty((0, 2), np.int64)
    cuts = np.flatnonzero(np.diff(times) != step) + 1
    return np.stack([np.r_[0, cuts], np.r_[cuts, len(times)]], axis=1).astype(np.int64)


def window_starts(parts: Ints, rows: int, stride: int = 1) -> Ints:
    """First rows [w] of all windows of `rows` rows that lie within one block, `stride` rows apart in each."""
    if rows < 1 or stride < 1:
        raise ValueError(f"rows and stride are at least 1, not {rows} and {stride}")
    starts = [np.arange(first, last - rows + 1, stride, dtype=np.int64) for first, last in parts]
    return np.concatenate([np.empty(0, np.int64), *starts])


def windows(series: Series, length: int, horizon: int = 1, step: int = 3600) -> tuple[Array, Array]:
    """All windows of an ordered series as it is, unscaled: inputs and targets [n, length, d], none over a gap.

    A row with a missing value counts as a gap.
    """
    whole = _whole_rows(series)
    starts = window_starts(blocks(whole.times, step), length + horizon)
    return Windows(whole.values, starts, length, horizon).arrays()


def split_rows(count: int, fractions: Mapping[str, float], rest: str = "test") -> dict[str, slice]:
    """Consecutive rows for each fraction in turn, rounded down as a running sum, and what remains for `rest`."""
    bounds, total = [0], 0.0
    for fraction in fractions.values():
        total += fraction
        bounds.append(min(count, int(count * total + 1e-9)))
    names = [*fractions, rest]
    return {
        name: slice(*pair) for name, pair in zip(names, zip(bounds, [*bounds[1:], count], strict=True), strict=True)
    }


def prepare_series(raw: Series, step: int, fractions: Mapping[str, float], file: str = "series") -> Prepared:
    """All rules in their order; BadDataError for a split without whole rows, or a variable without a scale in train.

    `step` in seconds; `fractions` of the rows for train and val, the rest is test; messages call the source `file`.
    """
    series, counts = ordered(raw)
    sentinels = {c: int(n) for c, n in zip(raw.columns, np.isnan(series.values).sum(axis=0), strict=True)}
    on_grid = series.times % step == 0
    series = series.rows(on_grid)
    if not len(series.times):
        raise problem_error(BadDataError, file, "step", f"no row lies on a grid of {step} s")
    pieces = {name: series.rows(part) for name, part in split_rows(len(series.times), fractions).items()}
    scaler = Scaler.fit(pieces["train"], file)
    whole = {name: _whole_rows(piece) for name, piece in pieces.items()}
    empty = [
        Problem(file, None, name, f"none of its {len(piece.times)} rows is whole: more are needed, or fewer variables")
        for name, piece in pieces.items()
        if not len(whole[name].times)
    ]
    if empty:
        raise BadDataError(empty)
    splits = {name: Split(piece, blocks(piece.times, step)) for name, piece in whole.items()}
    report = {
        "rows_in": len(raw.times),
        **counts,
        "sentinels": sentinels,
        "rows_after_cleaning": len(raw.times) - counts["duplicates"],
        "off_grid": int((~on_grid).sum()),
        "incomplete_rows": sum(len(pieces[name].times) - len(whole[name].times) for name in pieces),
        "rows": {name: len(piece.times) for name, piece in whole.items()},
        "blocks": {name: len(split.blocks) for name, split in splits.items()},
    }
    return Prepared(splits, scaler, step, report)


def _whole_rows(series: Series) -> Series:
    return series.rows(~np.isnan(series.values).any(axis=1))


def permuted_targets(targets: Array, seed: int) -> Array:
    """Targets [n, ...] given to other windows, by one random cycle through all: no window keeps its own.

    Control of paper D's effect of the skip: inputs and targets keep their distributions, not their pairing.
    """
    if len(targets) < 2:
        raise problem_error(BadDataError, "series", "windows", "two windows or more are needed to permute targets")
    cycle = np.random.default_rng(seed).permutation(len(targets))
    permuted = np.empty_like(targets)
    permuted[cycle] = targets[np.roll(cycle, 1)]
    return permuted


def persistence_residual(inputs: Array, targets: Array) -> Array:
    """What remains of targets [n, length, d] when each input is the forecast of its own target.

    Control of paper D's effect of the skip, which computes just that forecast.
    """
    if inputs.shape != targets.shape:
        raise ValueError(f"inputs {inputs.shape} and targets {targets.shape} have unlike shapes")
    residual: Array = targets - inputs
    return residual
