"""Paper D's theory: descent and its tail, spectra, the three checks, and their figures."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.nn.kernel import common_step, kernel_eigenvalues
from repro.nn.single_layer import SingleLayerConfig, forward_pass, gradient_step
from repro.report import theory_d
from repro.report.figures import render
from repro.theory.attention_rank import rank_rows
from repro.theory.checks import d_monotone, d_rank_collapse, d_rate
from repro.theory.residual_rate import (
    FLOOR,
    Problem,
    descend,
    fit_tail,
    gaussian_problem,
    order_agreement,
    spectral_row,
)

CHECKS = (d_monotone, d_rank_collapse, d_rate)
BETAS = (0.0, 0.5, 1.0)
QUICK = {"d": 4, "d_qk": 8, "hidden": 64, "sequences": 2, "tokens": 2, "steps": 400, "step_seeds": [0, 1], "watch": [9]}


def problems(seed: int = 0, d_qk: int = 8) -> list[Problem]:
    return [gaussian_problem(SingleLayerConfig(4, d_qk, 64, beta=beta), seed, 2, 2) for beta in BETAS]


def step_for(parts: list[Problem]) -> float:
    return common_step((part.weights, part.x, part.form) for part in parts)


def test_descent_is_step_after_step() -> None:
    parts = problems()
    rate = step_for(parts)
    for part, found in zip(parts, descend(parts, rate, 30, [7]), strict=True):
        weights, values = part.weights, []
        for step in range(31):
            if step == 7:
                torch.testing.assert_close(found.kept[7].up, weights.up, rtol=1e-9, atol=1e-12)
            weights, loss = gradient_step(weights, part.x, part.y, part.form, rate)
            values.append(float(loss))
        np.testing.assert_allclose(found.losses, values, rtol=1e-9)
        assert set(found.kept) == {0, 7, 30}


def test_a_problem_ends_at_the_floor_and_the_others_go_on() -> None:
    parts = problems()
    slow, _, quick = descend(parts, step_for(parts), 1500)
    assert len(quick.losses) < len(slow.losses)
    assert quick.losses[-1] <= FLOOR * quick.losses[0] < quick.losses[-2]
    assert quick.fall >= 10
    last = len(quick.losses) - 1
    end = spectral_row(parts[2], quick.kept[last])
    assert end["loss"] == pytest.approx(quick.losses[-1], rel=1e-9)


def test_a_descent_that_diverges_ends_and_says_so() -> None:
    parts = problems()
    for found in descend(parts, 1e3 * step_for(parts), 400):
        assert len(found.losses) < 400
        assert not math.isfinite(found.losses[-1])
        assert not math.isfinite(found.fall)
        with pytest.raises(ValueError, match="finite"):
            fit_tail(found.losses)


def test_a_common_step_lets_the_loss_fall_for_every_problem() -> None:
    parts = problems(seed=5)
    for found in descend(parts, step_for(parts), 100):
        assert bool((np.diff(found.losses) < 0).all())


@settings(max_examples=30)
@given(rate=st.floats(1e-3, 0.5), bend=st.integers(0, 50), size=st.integers(80, 400))
def test_the_tail_of_an_exponential_is_its_rate(rate: float, bend: int, size: int) -> None:
    steps = np.arange(size)
    values = np.exp(-rate * np.maximum(steps, bend)) * np.where(steps < bend, 1e3, 1.0)
    tail = fit_tail(values)
    inside = steps[tail.first :]
    assert tail.last == size - 1
    assert math.log10(values[tail.first] / values[-1]) <= 4 + 1e-9
    if inside[0] >= bend:
        assert tail.rate == pytest.approx(rate, rel=1e-6)
        assert tail.r2 == pytest.approx(1.0, abs=1e-9)


def test_the_tail_begins_four_decades_above_the_end() -> None:
    values = np.concatenate([np.full(10, 1e9), 10.0 ** -np.arange(0, 9, 0.5)])
    tail = fit_tail(values)
    assert values[tail.first] == pytest.approx(1e4 * values[-1])
    assert tail.rate == pytest.approx(0.5 * math.log(10))


@pytest.mark.parametrize("values", [[1.0, 0.5], [1.0, 0.0, 0.0], [1.0, math.inf, math.inf], [1.0, math.nan, 0.1]])
def test_no_tail_without_losses_above_zero(values: list[float]) -> None:
    with pytest.raises(ValueError, match="three or more"):
        fit_tail(np.array(values))


def test_order_agreement_is_kendalls() -> None:
    assert order_agreement([1, 2, 3], [10, 20, 30]) == 1
    assert order_agreement([1, 2, 3], [3, 2, 1]) == -1
    assert order_agreement([1, 2, 3, 4, 5], [2, 1, 3, 4, 5]) == pytest.approx(0.8)
    assert order_agreement([1, 2, 3], [1, 1, 1]) == 0


def test_spectra_of_a_problem_are_numpys() -> None:
    part = problems()[1]
    row = spectral_row(part, part.weights)
    passed = forward_pass(part.weights, part.x, part.form)
    stacked = np.linalg.svd(passed.z.numpy(), compute_uv=False)
    each = [np.linalg.svd(z.numpy(), compute_uv=False) for z in passed.z.view(2, 2, 4)]
    assert row["sigma_min"] == pytest.approx(stacked[-1])
    assert row["sigma_max"] == pytest.approx(stacked[0])
    assert row["sequence_sigma_min"] == pytest.approx(min(values[-1] for values in each))
    assert row["sequence_sigma_max"] == pytest.approx(max(values[0] for values in each))
    assert (row["rank"], row["sequence_rank"]) == (4, 2)
    assert row["kernel_min"] == pytest.approx(kernel_eigenvalues(part.weights, part.x, part.form)[0])


def test_draws_are_the_seeds_and_shared_by_all_betas() -> None:
    zero, _, one = problems(3)
    assert torch.equal(zero.x, one.x)
    assert torch.equal(zero.y, one.y)
    assert torch.equal(zero.weights.v, one.weights.v)
    assert not torch.equal(zero.x, zero.y)
    assert not torch.equal(zero.x, problems(4)[0].x)


# papers.md 5.4, N = 24, d = 14: sigma_min / sigma_max at beta 0 by d_QK, and at beta 1.
CALIBRATION = {8: (1e-3, 0.11), 64: (7e-4, 0.19), 512: (3e-5, 0.18), 4096: (1e-5, 0.17)}


@pytest.mark.parametrize("d_qk", CALIBRATION)
def test_the_collapse_agrees_with_the_calibration(d_qk: int) -> None:
    rows = [rank_rows(24, 14, d_qk, "inverse_d_qk", (0.0, 1.0), seed) for seed in range(5)]
    bare, skip = (float(np.mean([found[place]["ratio"] for found in rows])) for place in (0, 1))
    low, high = CALIBRATION[d_qk]
    assert low / 4 < bare < 4 * low
    assert high / 1.5 < skip < 1.5 * high


def test_rank_rows_are_the_formula() -> None:
    row = rank_rows(6, 4, 3, "unit", (0.0, 0.5), 1)[1]
    x = np.random.default_rng([1, 0]).standard_normal((6, 4))
    from repro.nn.single_layer import draw_weights

    weights = [part.numpy() for part in draw_weights(SingleLayerConfig(4, 3, 1, start="unit"), 1)]
    logits = x @ weights[0] @ weights[1].T @ x.T / math.sqrt(3)
    attention = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    values = np.linalg.svd(attention @ x @ weights[2] + 0.5 * x, compute_uv=False)
    assert row["ratio"] == pytest.approx(values[-1] / values[0])
    assert row["second"] == pytest.approx(values[1] / values[0])


def test_check_d_rank_collapse_needs_the_shrinking_start() -> None:
    found = [d_rank_collapse.run(d_rank_collapse.INFO["params"], seed).values for seed in range(3)]  # type: ignore[arg-type]
    for values in found:
        assert -1.4 < values["d_collapse_slope"] < -0.7
        assert values["d_collapse_slope_unit"] > -0.5
        assert abs(values["d_collapse_slope_skip"]) < 0.2
        assert values["d_collapse_ratio"] < 1e-3 * values["d_collapse_ratio_skip"]
        assert values["d_collapse_second"] < 0.02
    alone = d_rank_collapse.run({**d_rank_collapse.INFO["params"], "starts": ["unit"]}, 0).values  # type: ignore[dict-item]
    assert math.isnan(alone["d_collapse_slope"])
    assert math.isfinite(alone["d_collapse_slope_unit"])


def test_check_d_monotone_agrees_with_the_calibration_in_the_mean() -> None:
    draws = [d_monotone.run(d_monotone.INFO["params"], seed).values for seed in range(20)]  # type: ignore[arg-type]
    names = ("d_monotone_0", "d_monotone_025", "d_monotone_05", "d_monotone_075", "d_monotone_1")
    means = [float(np.mean([values[name] for values in draws])) for name in names]
    assert means == sorted(means)
    np.testing.assert_allclose(means[1:], [0.116, 0.166, 0.179, 0.184], rtol=0.2)
    assert min(values["d_monotone_sigma_min"] for values in draws) > 0


def test_a_draw_that_falls_somewhere_is_kept() -> None:
    for seed in range(8):
        found = d_monotone.run(d_monotone.INFO["params"], seed)  # type: ignore[arg-type]
        assert (found.values["d_monotone_step"] <= 0) == bool(found.details["violations"])


def test_check_d_rate_finds_the_order_and_keeps_what_figures_need() -> None:
    params = {**d_rate.INFO["params"], **QUICK, "steps": 1500}  # type: ignore[dict-item]
    found = d_rate.run(params, 0)
    assert found.values["d_rate_order"] > 1
    assert found.values["d_rate_gain"] > 1
    assert found.values["d_rate_fall"] > 6
    assert found.values["d_rate_r2"] > 0.97
    rates = {row["beta"]: row["rate"] for row in found.details["rows"]}
    assert found.values["d_rate_gain"] == pytest.approx(rates[1.0] / rates[0.0])
    assert {row["step"] for row in found.details["spectra"] if row["beta"] == 0} == {0, 9, 1500}
    assert all(row["kernel_max"] * found.details["step"] <= 0.5 + 1e-9 for row in found.details["rows"])
    assert len(found.details["curves"]) == 5


def test_check_d_rate_shares_one_step_over_its_seeds_and_adds_its_own() -> None:
    params = {**d_rate.INFO["params"], **QUICK, "steps": 30}  # type: ignore[dict-item]
    one, two, outside = (d_rate.run(params, seed).details for seed in (0, 1, 7))
    assert one["step"] == two["step"]
    assert outside["step_seeds"] == [0, 1, 7]


def test_check_d_rate_records_a_divergence_as_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(d_rate, "common_step", lambda problems: 1e3 / max(1, len(list(problems))))
    found = d_rate.run({**d_rate.INFO["params"], **QUICK}, 0)  # type: ignore[dict-item]
    assert all(
        math.isnan(found.values[name]) for name in ("d_rate_1", "d_rate_gain", "d_rate_fall", "d_rate_tau_kernel")
    )
    json.dumps(found.details, allow_nan=False)


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_keeps_its_contract(check: Any) -> None:
    tree = ast.parse(Path(check.__file__).read_text("utf-8"))
    literal = next(node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "INFO")  # type: ignore[attr-defined]
    assert ast.literal_eval(literal) == check.INFO
    params = {**check.INFO["params"], **(QUICK if check is d_rate else {})}
    first, again, other = (check.run(params, seed) for seed in (1, 1, 2))
    assert first.values.keys() == check.INFO["values"].keys()
    assert first == again
    assert first.values != other.values
    assert len(json.dumps(first.details, allow_nan=False)) < 300_000
    assert all(isinstance(row, dict) for row in first.details["rows"])


def test_figures_are_drawn_from_the_checks_rows_and_from_none() -> None:
    rate = d_rate.run({**d_rate.INFO["params"], **QUICK}, 0).details  # type: ignore[dict-item]
    collapse = d_rank_collapse.run(d_rank_collapse.INFO["params"], 0).details["rows"]  # type: ignore[arg-type]
    depth = [
        {"layers": n, "residual": skip, "seed": 0, "train_error": 0.4 - 0.01 * n * skip, "dev_error": None}
        for n in (2, 6, 10)
        for skip in (True, False)
    ]
    jena = [{**curve, "panel": "as it is"} for curve in rate["curves"]]
    for rows, draw in (
        (rate["rows"], theory_d.rates),
        (rate["curves"], theory_d.descents),
        (rate["spectra"], theory_d.along_training),
        (collapse, theory_d.singular_values),
        (depth, theory_d.depth_errors),
        (jena, lambda part: theory_d.loss_curves(part, ["as it is", "targets permuted"], "Jena")),
    ):
        full, empty = (render(draw(part))["svg"] for part in (rows, []))
        assert full.count(b"<path") > empty.count(b"<path")
        assert full == render(draw(rows))["svg"] or draw is not theory_d.rates


def test_loss_curves_say_how_many_runs_each_panel_has() -> None:
    curves = [{"panel": "a", "beta": b, "seed": 0, "steps": [0, 1], "losses": [1.0, None]} for b in (0, 1)]
    figure = theory_d.loss_curves(curves, ["a", "b"], "Jena")
    assert [axes.get_title() for axes in figure.axes] == ["a: 2 runs", "b: 0 runs"]
    assert [text.get_text() for text in figure.axes[1].texts] == ["not run"]
