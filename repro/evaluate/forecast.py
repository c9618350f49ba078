"""Errors of forecasts: sums over counts in float64, with every window counted once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from repro.spec.errors import BadDataError, problem_error

Array = NDArray[np.float64]
Batch = tuple[ArrayLike, ArrayLike]  # predictions and targets, [windows, ...], of one shape


@dataclass(frozen=True, slots=True)
class ForecastErrors:
    """Sums of squared and of absolute errors over `count` numbers of `windows` windows.

    The sums are infinite where a prediction is not finite, so that such a model comes last, not first.
    """

    squared: float
    absolute: float
    count: int
    windows: int

    @property
    def mse(self) -> float:
        """Mean squared error, in the square of the targets' unit."""
        return self.squared / self.count

    @property
    def mae(self) -> float:
        """Mean absolute error, in the targets' unit."""
        return self.absolute / self.count


def forecast_errors(batches: Iterable[Batch], windows: int) -> ForecastErrors:
    """Errors of all `windows` windows of a split, whatever the sizes of the batches: equal to the last bit.

    Raises BadDataError if the batches hold more or fewer windows (a last batch left out, say), windows of unlike
    shapes, targets that are masked or not finite, or no numbers at all.
    """
    squared: list[float] = []
    absolute: list[float] = []
    shape: tuple[int, ...] | None = None
    for predictions, targets in batches:
        errors = _errors(predictions, targets)
        if not len(errors):
            continue
        if shape is not None and errors.shape[1:] != shape:
            _refuse("targets", f"windows of shapes {shape} and {errors.shape[1:]} in one split")
        shape = errors.shape[1:]
        rows = errors.reshape(len(errors), -1)  # one row a window: its sum does not depend on the other rows
        with np.errstate(over="ignore"):  # an infinite error is a value here
            squared += (_sum(row * row) for row in rows)
            absolute += (_sum(np.abs(row)) for row in rows)
    if len(squared) != windows:
        _refuse("windows", f"{len(squared)} windows in the batches, {windows} in the split; each is scored once")
    count = windows * math.prod(shape or ())
    if not count:
        _refuse("windows", "no numbers to score")
    return ForecastErrors(_total(squared), _total(absolute), count, windows)


def _errors(predictions: ArrayLike, targets: ArrayLike) -> Array:
    """Differences in float64; refuses shapes that would be broadcast, and targets that are no numbers."""
    if np.ma.is_masked(targets) or np.ma.is_masked(predictions):
        _refuse("targets", "some values are masked; every value of a window is scored")
    given, truth = np.asarray(predictions, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    if given.shape != truth.shape or not truth.ndim:
        _refuse("predictions", f"shape {given.shape}, the targets have {truth.shape}")
    wrong = int((~np.isfinite(truth)).sum())
    if wrong:
        _refuse("targets", f"{wrong} of {truth.size} values are not finite")
    errors: Array = given - truth
    return errors


def _sum(row: Array) -> float:
    total = float(row.sum())
    return total if math.isfinite(total) else math.inf


def _total(sums: list[float]) -> float:
    """The exactly rounded sum, so that neither order nor grouping of the windows shows."""
    try:
        return math.fsum(sums)
    except OverflowError:
        return math.inf


def _refuse(key: str, message: str) -> NoReturn:
    raise problem_error(BadDataError, "forecast", key, message)
