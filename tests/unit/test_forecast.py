"""Errors of forecasts: the same to the last bit for any batch size, and nothing left out or masked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.evaluate.forecast import Array, Batch, forecast_errors
from repro.spec.errors import BadDataError
from tests.conftest import shared_case


def batches(predictions: Array, targets: Array, size: int) -> Iterator[Batch]:
    for start in range(0, len(targets), size):
        yield predictions[start : start + size], targets[start : start + size]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_case_d12_every_window_counts_once_for_any_batch_size(size: int) -> None:
    case = json.loads(shared_case("D12/case.json").read_text())
    errors = np.sqrt(np.array(case["test_window_errors"], dtype=np.float64)).reshape(-1, 1)
    found = forecast_errors(batches(errors, np.zeros_like(errors), size), windows=5)
    assert found.mse == case["mse_right"] == 2.6
    assert found.mae == 1.4
    assert (found.count, found.windows) == (5, 5)


def test_case_d12_a_last_batch_left_out_is_refused() -> None:
    errors = np.array([[1.0], [1.0], [1.0], [1.0], [3.0]])
    whole = list(batches(errors, np.zeros_like(errors), 2))
    with pytest.raises(BadDataError, match="4 windows in the batches, 5 in the split") as refused:
        forecast_errors(whole[:2], windows=5)
    assert refused.value.exit_code == 65
    with pytest.raises(BadDataError, match="6 windows in the batches"):
        forecast_errors([*whole, whole[-1]], windows=5)


@given(st.integers(0, 2**32 - 1), st.integers(1, 17), st.integers(1, 9), st.integers(1, 3), st.integers(1, 17))
def test_no_batch_size_and_no_order_changes_a_bit(
    seed: int, windows: int, steps: int, channels: int, size: int
) -> None:
    generator = np.random.default_rng(seed)
    shape = (windows, steps, channels)
    predictions, targets = generator.normal(size=shape) * 1e3, generator.standard_cauchy(size=shape)
    whole = forecast_errors([(predictions, targets)], windows)
    assert forecast_errors(batches(predictions, targets, size), windows) == whole
    order = generator.permutation(windows)
    assert forecast_errors(batches(predictions[order], targets[order], size), windows) == whole
    assert whole.mse == pytest.approx(((predictions - targets) ** 2).mean(), rel=1e-12)
    assert whole.mae == pytest.approx(np.abs(predictions - targets).mean(), rel=1e-12)
    assert whole.mae**2 <= whole.mse * (1 + 1e-12)
    assert whole.count == targets.size


def test_sums_are_made_in_float64_whatever_comes_in() -> None:
    """In float32 the ones would be lost beside 4096 squared, in float16 everything would."""
    predictions = np.array([[4096.0]] + [[1.0]] * 1000, dtype=np.float32)
    found = forecast_errors([(predictions, np.zeros_like(predictions))], 1001)
    assert found.squared == 4096.0**2 + 1000


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
def test_a_prediction_out_of_bounds_is_an_infinite_error_and_no_low_one(bad: float) -> None:
    found = forecast_errors([([[1.0], [bad]], [[1.0], [2.0]])], 2)
    assert found.mse == math.inf
    assert found.mae == (abs(bad) / 2 if bad == 1e200 else math.inf)


@pytest.mark.parametrize(
    ("predictions", "targets", "message"),
    [
        ([[1.0]], [[math.nan]], "1 of 1 values are not finite"),
        ([[1.0]], [[math.inf]], "not finite"),
        ([[1.0, 2.0]], np.ma.masked_equal([[1.0, 2.0]], 2.0), "masked"),
        (np.ma.masked_equal([[1.0, 2.0]], 2.0), [[1.0, 2.0]], "masked"),
        ([[1.0]], [[1.0, 2.0]], r"shape \(1, 1\), the targets have \(1, 2\)"),
        ([1.0], [[1.0]], "shape"),
        (1.0, 1.0, "shape"),
        (np.zeros((1, 0)), np.zeros((1, 0)), "no numbers"),
    ],
)
def test_what_cannot_be_scored_is_refused(predictions: Array, targets: Array, message: str) -> None:
    with pytest.raises(BadDataError, match=message):
        forecast_errors([(predictions, targets)], 1)


def test_windows_of_two_shapes_and_no_windows_are_refused() -> None:
    with pytest.raises(BadDataError, match="in one split"):
        forecast_errors([(np.zeros((1, 2)), np.zeros((1, 2))), (np.zeros((1, 3)), np.zeros((1, 3)))], 2)
    with pytest.raises(BadDataError, match="no numbers"):
        forecast_errors([], 0)
    empty = (np.zeros((0, 2)), np.zeros((0, 2)))
    assert forecast_errors([empty, (np.ones((1, 2)), np.zeros((1, 2)))], 1).mse == 1.0
