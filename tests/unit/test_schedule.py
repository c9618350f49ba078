"""The learning rate: a pure function of the optimiser step."""

from __future__ import annotations

import csv
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.train.schedule import learning_rate
from tests.conftest import shared_case


def schedule(shape: str = "cosine", warmup: float = 0.0, final: float = 0.1) -> dict[str, Any]:
    return {"shape": shape, "warmup": warmup, "final": final}


def test_case_t17_the_table_is_reproduced_to_its_last_digit() -> None:
    """`total` 20 there names the last step of the decay, so the run has 21 steps, counted from 0."""
    case = json.loads(shared_case("T17/case.json").read_text("utf-8"))
    rows = list(csv.DictReader(shared_case("T17/schedule.csv").read_text("utf-8").splitlines()))
    steps = case["total"] + 1
    plan = schedule(warmup=case["warmup"] / steps, final=case["min"] / case["max"])
    ours = [learning_rate(int(row["optimizer_step"]), steps, case["max"], plan) for row in rows]
    assert [f"{rate:.6f}" for rate in ours] == [row["lr"] for row in rows]
    assert len(rows) == 23, "two of them beyond the end: clamped at the minimum"


@pytest.mark.parametrize(
    ("shape", "rates"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 6.1 / 7, 5.2 / 7, 4.3 / 7, 3.4 / 7, 2.5 / 7, 1.6 / 7, 0.1]),
    ],
)
def test_other_shapes(shape: str, rates: list[float]) -> None:
    plan = schedule(shape, warmup=0.2)
    assert [learning_rate(step, 10, 1.0, plan) for step in range(10)] == pytest.approx(rates)


SHAPES = st.sampled_from(["cosine", "linear", "constant"])


@given(st.integers(1, 10**6), st.floats(1e-6, 100), SHAPES, st.floats(0, 0.99), st.floats(0, 1), st.data())
def test_rates_stay_between_their_bounds(
    steps: int, peak: float, shape: str, warmup: float, final: float, data: st.DataObject
) -> None:
    plan = schedule(shape, warmup, final)
    warm = round(warmup * steps)
    step = data.draw(st.integers(0, 2 * steps))
    rate = learning_rate(step, steps, peak, plan)
    assert math.isfinite(rate)
    assert 0 <= rate <= peak * (1 + 1e-12)
    if step >= warm:
        assert rate >= final * peak - 1e-12 * peak
        assert learning_rate(step + 1, steps, peak, plan) <= rate * (1 + 1e-12)
    else:
        assert 0 < rate == pytest.approx(peak * (step + 1) / warm)


@given(st.integers(2, 10**5), SHAPES, st.floats(0, 0.5), st.floats(0, 1))
def test_the_last_step_ends_at_the_floor_and_the_peak_is_reached(
    steps: int, shape: str, warmup: float, final: float
) -> None:
    plan = schedule(shape, warmup, final)
    warm = round(warmup * steps)
    assert learning_rate(warm, steps, 2.0, plan) == 2.0 or warm == steps - 1
    end = 2.0 if shape == "constant" or warm >= steps - 1 else 2.0 * final
    assert learning_rate(steps - 1, steps, 2.0, plan) == pytest.approx(end)


def test_a_run_of_one_step_has_a_rate() -> None:
    assert learning_rate(0, 1, 3.0, schedule(warmup=0.03)) == 3.0
