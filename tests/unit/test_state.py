"""What a training knows of itself: divergence as defined beforehand, and a curve that fits a record."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.records.schema import MAX_POINTS, Curve
from repro.spec.catalogue import TierTask
from repro.spec.experiment import LmExperiment
from repro.train.state import DIVERGED_RATIO, TrainState, curve_steps, validation_steps

LOSSES = st.floats(0.01, 100)
LOOKS = st.integers(4, 100)  # what the specification allows


def diverged(*losses: float) -> bool:
    return TrainState(val_history=list(losses)).has_diverged()


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ((), False),
        ((9.0, 9.0), False),
        ((2.0, 3.1, 3.1, 3.1), True),
        ((2.0, 3.0, 3.1, 3.1), False),  # 3.0 is not more than 1.5 x 2.0
        ((2.0, 3.1, 3.1, 3.0), False),
        ((2.0, 9.0, 9.0, 2.9), False),
        ((2.0, 9.0, 9.0, 2.9, 9.0, 9.0), False),
        ((2.0, 9.0, 9.0, 2.9, 9.0, 9.0, 9.0), True),
        ((5.5, 5.5, 5.5, 5.5), False),  # stuck is not diverged
        ((3.1, 3.1, 3.1, 2.0), False),
        ((3.2, 3.1, 2.0), False),
        ((1.0, 1.6, 1.6), False),  # the best itself is among the last three
    ],
)
def test_divergence(losses: tuple[float, ...], verdict: bool) -> None:
    assert diverged(*losses) is verdict


@given(st.lists(LOSSES, max_size=12))
def test_divergence_is_exactly_the_written_rule(losses: list[float]) -> None:
    rule = len(losses) >= 3 and all(loss > 1.5 * min(losses) for loss in losses[-3:])
    assert diverged(*losses) is rule
    assert DIVERGED_RATIO == 1.5


@given(st.lists(LOSSES, min_size=3, max_size=12))
def test_a_run_that_ends_near_its_best_has_never_diverged(losses: list[float]) -> None:
    assert not diverged(*losses, 1.5 * min(losses))


@given(st.integers(1, 10**9), LOOKS)
def test_validations_are_distinct_even_and_end_with_the_last_step(steps: int, times: int) -> None:
    found = validation_steps(steps, times)
    assert found[-1] == steps
    assert found[0] >= 1
    assert all(one < other for one, other in pairwise(found))
    assert len(found) <= times
    assert len(found) == min(steps, times) or steps < 2 * times


@given(st.integers(1, 10**7), LOOKS)
def test_the_curve_of_any_run_fits_a_record(steps: int, times: int) -> None:
    found = curve_steps(steps, times)
    assert len(found) <= MAX_POINTS
    assert set(validation_steps(steps, times)) <= set(found)
    assert all(1 <= one < other for one, other in pairwise(found))
    assert found[-1] == steps
    assert len(found) >= min(steps, MAX_POINTS // 4)


def test_the_specification_bounds_looks_so_that_the_curve_can_hold_them() -> None:
    for model in (LmExperiment, TierTask):
        field = model.model_json_schema()["properties"]["validations"]
        bounds = [field, *field.get("anyOf", [])]
        assert any(bound.get("le", bound.get("maximum")) == 100 for bound in bounds)


@given(st.integers(1, 3000), LOOKS, st.integers(1, 3000))
def test_a_curve_cut_anywhere_by_divergence_is_a_valid_one(steps: int, times: int, end: int) -> None:
    state = TrainState()
    points = set(curve_steps(steps, times))
    for step in range(1, min(end, steps) + 1):
        state.window.append(math.nan if step == end else 3.0)
        if step == end or step in points:
            state.add_point(step * 1024, None)
    curve = Curve.model_validate(state.curve())
    assert len(curve.tokens) <= MAX_POINTS


def test_a_point_holds_mean_and_envelope_of_its_window_and_starts_a_new_one() -> None:
    state = TrainState(window=[3.0, 1.0, 2.0], rate=0.5)
    state.add_point(100, 2.5)
    state.window, state.rate = [4.0], 0.25
    state.add_point(200, None)
    assert state.curve() == {
        "tokens": [100, 200],
        "train_loss": [2.0, 4.0],
        "train_min": [1.0, 4.0],
        "train_max": [3.0, 4.0],
        "val_loss": [2.5, None],
        "lr": [0.5, 0.25],
    }


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null_and_is_never_averaged_away(bad: float) -> None:
    """Case T14: a window with one such loss has no mean."""
    state = TrainState(window=[3.2, 3.1, bad])
    state.add_point(100, bad)
    state.window = [bad]
    state.add_point(200, None)
    assert (state.train_loss, state.val_loss) == ([None, None], [None, None])
    assert (state.train_min, state.train_max) == ([3.1, None], [3.2, None])
    Curve.model_validate(state.curve())


@given(st.lists(st.floats(), max_size=5), st.floats(), st.integers(0, 10**12))
def test_a_state_comes_back_from_a_checkpoint_bit_by_bit(losses: list[float], seconds: float, step: int) -> None:
    state = TrainState(step=step, window=losses, val_history=losses, train_loss=[*losses, None], wall_seconds=seconds)
    again = TrainState.from_text(state.as_text())
    assert repr(again) == repr(state)
