"""Figures of the loss against what is swept: rows from planned runs, no mean over survivors."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from report_world import plan_of, plausible, world

from repro.report.sweeps import sweep, sweep_rows, swept_name
from repro.report.theory import drawings


def test_rows_of_a_sweep_of_rates_are_all_planned_runs_and_tell_their_state() -> None:
    plan = plan_of("desk")
    rows = list(sweep_rows(plan, world(plan, plausible), "a_lr"))
    assert len(rows) == sum(len(cell.run_ids) for cell in plan.cells["a_lr"])
    assert {row["line"] for row in rows} == {"pre_ln", "post_ln", "peri_ln", "peri_ln-dt0.1"}
    assert {row["swept"] for row in rows} == {"lr"}
    assert len({row["x"] for row in rows}) == 5
    assert all((row["loss"] is None) == (row["state"] != "complete") for row in rows)
    assert any(row["state"] == "diverged" for row in rows)


def test_a_parameter_of_one_method_is_found_and_several_methods_without_rates_are_no_sweep() -> None:
    plan = plan_of("desk")
    assert swept_name(plan.cells["a_dt"]) == "dt"
    assert sorted({row["x"] for row in sweep_rows(plan, world(plan, plausible), "a_dt")}) == [0.05, 0.1, 0.2, 0.5, 1.0]
    assert swept_name(plan.cells["a_quality"]) is None
    assert list(sweep_rows(plan, world(plan, plausible), "a_quality")) == []


def drawn(rows: list[dict[str, Any]]) -> tuple[dict[float, float], list[str]]:
    """Points of the line through means, and the words beside crosses."""
    (axes,) = sweep(rows).axes
    line = [each for each in axes.lines if each.get_linewidth() == 1.4][-1]
    means = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
    return means, [text.get_text() for text in axes.texts]


def row(x: float, seed: int, loss: float | None, state: str = "complete") -> dict[str, Any]:
    return {"line": "one", "swept": "lr", "x": x, "seed": seed, "state": state, "loss": loss}


@pytest.mark.parametrize("state", ["diverged", "failed", "missing"])
def test_a_value_with_a_lost_seed_has_no_mean(state: str) -> None:
    means, words = drawn([row(0.1, 1, 2.0), row(0.1, 2, 4.0), row(0.2, 1, 2.0), row(0.2, 2, None, state)])
    assert means[0.1] == 3.0
    assert means[0.2] != means[0.2], "no number"
    assert words == (["1/2"] if state == "diverged" else [])


def test_experiments_have_the_figures_that_they_ask_for() -> None:
    plan = plan_of("smoke")
    index = world(plan, plausible)
    assert [drawing.name for drawing, _ in drawings(plan, index, "a_dt")] == ["sweep"]  # made-up records have no layers
    assert [drawing.name for drawing, _ in drawings(plan, index, "a_quality")] == []


def test_nothing_is_drawn_of_what_is_not_recorded() -> None:
    plan = plan_of("paper")
    assert list(drawings(plan, world(plan, lambda run: None), "a_lr")) == []


def test_without_all_seeds_a_cell_has_no_mean_over_those_that_are_left() -> None:
    plan = plan_of("desk")
    index = world(plan, lambda run: "diverged" if run.method == "post_ln" and run.seed > 2 else 2.5)
    for run in plan.runs.values():
        record = index.train(run.id)
        if record is not None and run.kind == "train":
            record.raw["probes"] = {"layers": [{"step": 5, "layer": n, "grad_norm": 1.0 + n} for n in range(3)]}
    ((drawing, rows),) = drawings(plan, index, "a_gradients")
    names = {row["method"] for row in rows}
    assert names == {"post_ln (2 of 10 seeds)", "pre_ln", "peri_ln", "peri_ln-dt0.1"}
    (axes,) = drawing.draw(rows).axes
    colours = Counter(line.get_color() for line in axes.lines)
    assert sorted(colours.values()) == [1, 1, 1, 2], "one line a mean, one a seed where there is none"
    assert "post_ln (2 of 10 seeds): no mean, as a planned seed is missing" in drawing.text(rows)
    assert "pre_ln from 2 at layer 1 to 3 at 2" in drawing.text(rows)
