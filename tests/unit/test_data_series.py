"""Cleaning a series by its rules, and windows out of it (cases D10, D11, D12)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.data.jena import read_jena
from repro.data.rawlines import RawLines
from repro.data.series import (
    Scaler,
    Series,
    blocks,
    ordered,
    permuted_targets,
    persistence_residual,
    prepare_series,
    split_rows,
    window_starts,
    windows,
)
from repro.evaluate.forecast import forecast_errors
from repro.spec.errors import BadDataError
from tests.shared import shared

NAN = float("nan")


def series_of(times: Any, values: Any = None) -> Series:
    """One column; without values, the row's stamp is its value."""
    stamps = np.asarray(times, np.int64)
    column = np.asarray(stamps if values is None else values, np.float64)
    return Series(stamps, column.reshape(len(stamps), -1), ("x",) if column.ndim == 1 else ("x", "y"))


def test_d10_sentinels_are_counted_and_do_not_move_the_scaler() -> None:
    case = json.loads(shared("cases/D10/expected.json").read_text("utf-8"))
    raw = read_jena(RawLines(shared("cases/D10/jena_tiny.csv"), "jena_tiny.csv"))
    made = prepare_series(raw, 600, {"train": case["train_rows"] / 8})
    wind = made.scaler.columns.index("wv (m/s)")
    assert {name: count for name, count in made.report["sentinels"].items() if count} == case["sentinels"]
    assert made.scaler.mean[wind] == pytest.approx(case["wv_train_mean_right"], abs=1e-12)
    assert made.report["incomplete_rows"] == 2
    assert made.report["rows"] == {"train": 4, "test": 2}
    assert made.splits["train"].blocks.tolist() == [[0, 2], [2, 4]]  # cut where a row is gone
    for name in made.splits:
        assert all(np.isfinite(part).all() for part in made.windows(name, 1).arrays())


def test_d11_order_doubles_gaps_and_the_day_that_comes_first() -> None:
    case = json.loads(shared("cases/D11/expected.json").read_text("utf-8"))
    raw = read_jena(RawLines(shared("cases/D11/jena_times.csv"), "jena_times.csv"))
    clean, counts = ordered(raw)
    parts = blocks(clean.times, 600)
    assert len(raw.times) == case["rows_in"]
    assert counts == {"duplicates": case["duplicates"], "out_of_order": case["out_of_order"]}
    assert len(clean.times) == case["rows_after_cleaning"]
    assert (parts[:, 1] - parts[:, 0]).tolist() == case["blocks_without_gap"]
    assert len(window_starts(parts, 3)) == case["windows_of_3_rows"]
    assert len(windows(clean, 2, 1, 600)[0]) == case["windows_of_3_rows"]
    assert str(clean.times[-1].astype("datetime64[s]")) == "2009-02-01T00:00:00"
    assert clean.values[:, 0].tolist() == [1.0, 1.5, 3.0, 2.5, 3.5, 4.0, 4.5, 5.0]  # the first double stays


def test_d12_scaler_of_train_alone_and_every_window_scored_once() -> None:
    case = json.loads(shared("cases/D12/case.json").read_text("utf-8"))
    values = case["train"] + case["val"]
    rows = series_of(np.arange(7) * 60, [*values, 1e6])
    made = prepare_series(rows, 60, {"train": 4 / 7, "val": 2 / 7})
    assert made.scaler.mean.tolist() == [case["scaler_right"]["mean"]]
    assert made.scaler.sd[0] == pytest.approx(case["scaler_right"]["std_population"], abs=1e-6)
    assert made.report["rows"] == {"train": 4, "val": 2, "test": 1}

    roots = np.sqrt(case["test_window_errors"])
    path = np.concatenate([[0.0], np.cumsum(roots)])  # so that persistence makes just these errors
    test = prepare_series(series_of(np.arange(12) * 60, np.r_[np.arange(6), path]), 60, {"train": 0.5}).windows(
        "test", 1
    )
    sd = np.std(np.arange(6))
    for size in (1, case["batch"], 5):
        errors = forecast_errors(((x * sd, y * sd) for x, y in test.batches(size)), windows=5)
        assert errors.mse == pytest.approx(case["mse_right"])


def test_a_split_without_a_whole_row_is_refused() -> None:
    values = [[float(row), NAN if row >= 8 else row] for row in range(10)]
    with pytest.raises(BadDataError, match=r"^mine\.csv: test: none of its 2 rows is whole"):
        prepare_series(series_of(np.arange(10) * 60, values), 60, {"train": 0.5, "val": 0.3}, "mine.csv")
    with pytest.raises(BadDataError, match="val: none of its 0 rows is whole"):
        prepare_series(series_of([0, 60, 120]), 60, {"train": 0.7, "val": 0.1})


def test_missing_values_count_for_each_variable_by_itself() -> None:
    raw = series_of([0, 60, 120, 180], [[1.0, 5.0], [NAN, 7.0], [3.0, NAN], [9.0, 9.0]])
    made = prepare_series(raw, 60, {"train": 0.75})
    assert made.scaler.mean.tolist() == [2.0, 6.0]
    assert made.report["incomplete_rows"] == 2
    assert made.splits["train"].series.times.tolist() == [0]


def test_hourly_rows_out_of_ten_minute_ones() -> None:
    raw = series_of(np.arange(0, 4 * 3600, 600))
    made = prepare_series(raw, 3600, {"train": 0.75})
    assert made.report["off_grid"] == 20
    assert [made.splits[name].series.times.tolist() for name in ("train", "test")] == [[0, 3600, 7200], [10800]]


@pytest.mark.parametrize("values", [[5.0, 5.0, 5.0, 1.0], [NAN, NAN, NAN, 1.0], [5.0, NAN, NAN, 1.0]])
def test_a_variable_that_training_rows_say_nothing_of_is_refused(values: list[float]) -> None:
    with pytest.raises(BadDataError, match=r"no scale can be had of the training rows: x"):
        prepare_series(series_of([0, 60, 120, 180], values), 60, {"train": 0.75})


def test_values_too_large_for_a_sum_are_refused() -> None:
    with pytest.raises(BadDataError, match="no scale"), np.errstate(over="ignore"):
        Scaler.fit(series_of([0, 1, 2], [1.7e308, 1.7e308, -1e308]))


def test_no_row_on_the_grid_is_refused() -> None:
    with pytest.raises(BadDataError, match="no row lies on a grid of 3600 s"):
        prepare_series(series_of([60, 120]), 3600, {"train": 0.5})


def test_scaler_equals_numpy_and_can_be_undone() -> None:
    values = np.random.default_rng(0).normal(3, 7, (1000, 1)) * 1e-3 + 1e3
    scaler = Scaler.fit(series_of(np.arange(1000), values[:, 0]))
    assert scaler.mean == pytest.approx(values.mean(axis=0), rel=1e-14)
    assert scaler.sd == pytest.approx(values.std(axis=0), rel=1e-9)
    assert scaler.undo(scaler.apply(values)) == pytest.approx(values, rel=1e-14)


stamps = st.lists(st.integers(0, 60), min_size=1, max_size=40)


@given(stamps, st.integers(1, 5), st.integers(1, 3), st.integers(1, 4))
def test_no_window_reaches_over_a_gap_and_none_is_lost(
    minutes: list[int], length: int, horizon: int, stride: int
) -> None:
    clean, counts = ordered(series_of(np.array(minutes) * 60))
    have = set(minutes)
    assert clean.times.tolist() == sorted(minute * 60 for minute in have)
    assert counts["duplicates"] == len(minutes) - len(have)
    inputs, targets = windows(clean, length, horizon, 60)
    assert inputs.shape == targets.shape == (len(inputs), length, 1)
    for x, y in zip(inputs[..., 0], targets[..., 0], strict=True):
        assert (np.diff(x) == 60).all()
        assert (y - x == 60 * horizon).all()
    wanted = [m for m in sorted(have) if have >= set(range(m, m + length + horizon))]
    assert inputs[:, 0, 0].tolist() == [minute * 60 for minute in wanted]
    strided = window_starts(blocks(clean.times, 60), length + horizon, stride)
    assert set(strided.tolist()) <= set(window_starts(blocks(clean.times, 60), length + horizon).tolist())


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=40))
def test_of_doubles_the_first_in_the_file_stays(rows: list[tuple[int, int]]) -> None:
    first: dict[int, int] = {}
    for time, value in rows:
        first.setdefault(time, value)
    clean, _ = ordered(series_of([time for time, _ in rows], [float(value) for _, value in rows]))
    assert dict(zip(clean.times.tolist(), clean.values[:, 0].tolist(), strict=True)) == first


@settings(max_examples=50)
@given(st.integers(8, 60), st.integers(1, 4), st.integers(1, 70))
def test_every_window_of_every_split_comes_once_for_any_batch_size(rows: int, length: int, size: int) -> None:
    made = prepare_series(series_of(np.arange(rows) * 60), 60, {"train": 0.5, "val": 0.2})
    for name, part in made.splits.items():
        windowed = made.windows(name, length)
        batches = list(windowed.batches(size))
        assert len(windowed) == max(0, len(part.series.times) - length)
        assert all(len(x) == size for x, _ in batches[:-1])
        if batches:
            inputs, targets = (np.concatenate(parts) for parts in zip(*batches, strict=True))
            assert np.array_equal(inputs, windowed.arrays()[0])
            assert np.array_equal(targets, windowed.arrays()[1])
        seen = made.scaler.undo(np.concatenate([x for x, _ in batches])) if batches else np.empty(0)
        assert set(np.rint(seen).ravel().tolist()) <= set(part.series.times.tolist())  # no row of another split


@given(st.integers(0, 200), st.floats(0.01, 0.6), st.floats(0.01, 0.39))
def test_splits_are_consecutive_and_whole(count: int, train: float, val: float) -> None:
    parts = split_rows(count, {"train": train, "val": val})
    assert list(parts) == ["train", "val", "test"]
    assert np.concatenate([np.arange(count)[part] for part in parts.values()]).tolist() == list(range(count))
    assert abs(parts["train"].stop - count * train) < 1.001


def test_next_hour_at_all_positions() -> None:
    inputs, targets = windows(series_of(np.arange(30) * 3600), 24)
    assert inputs.shape == (6, 24, 1)
    assert np.array_equal(targets[:, :-1], inputs[:, 1:])


def test_drawn_windows_are_different_ones_and_fixed_by_the_seed() -> None:
    made = prepare_series(series_of(np.arange(200) * 60), 60, {"train": 0.8})
    pool = made.windows("train", 24)
    draws = [pool.draw(64, seed).starts.tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert draws[0] == sorted(set(draws[0]))
    assert len(draws[0]) == 64
    with pytest.raises(BadDataError, match="137 asked for, 136"):
        pool.draw(137, 0)


@given(st.integers(2, 50), st.integers(0, 2**32))
def test_permuted_targets_are_the_same_ones_and_none_stays(count: int, seed: int) -> None:
    targets = np.arange(count, dtype=np.float64)[:, None, None]
    permuted = permuted_targets(targets, seed)
    assert sorted(permuted.ravel()) == sorted(targets.ravel())
    assert (permuted != targets).all()
    assert np.array_equal(permuted, permuted_targets(targets, seed))


def test_permutations_of_seeds_differ_and_one_window_has_none() -> None:
    targets = np.arange(20.0)[:, None]
    assert not np.array_equal(permuted_targets(targets, 0), permuted_targets(targets, 1))
    with pytest.raises(BadDataError, match="two windows or more"):
        permuted_targets(targets[:1], 0)


def test_residual_of_persistence_is_what_persistence_does_not_say() -> None:
    inputs, targets = windows(series_of(np.arange(30) * 3600, np.arange(30.0) ** 2), 4)
    residual = persistence_residual(inputs, targets)
    assert np.array_equal(residual + inputs, targets)
    assert residual[0, :, 0].tolist() == [1.0, 3.0, 5.0, 7.0]
    with pytest.raises(ValueError, match="unlike shapes"):
        persistence_residual(inputs[:, 1:], targets)


def test_a_batch_of_no_window_and_a_window_of_no_row_are_errors() -> None:
    made = prepare_series(series_of(np.arange(10) * 60), 60, {"train": 0.8})
    with pytest.raises(ValueError, match="at least one window"):
        next(made.windows("train", 2).batches(0))
    with pytest.raises(ValueError, match="at least 1"):
        window_starts(np.array([[0, 5]]), 0)
