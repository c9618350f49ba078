"""Paper B's gradient flow, its control, the fits of slopes, the checks at small size, and the figures."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.report import theory_b
from repro.report.figures import render
from repro.report.theory_b import control
from repro.theory.adjoint import discrete_gradient, residual_scale, tangent_kernel
from repro.theory.checks import (
    b_continuity,
    b_control,
    b_convergence,
    b_gradient,
    b_gram,
    b_independence,
    b_limits,
)
from repro.theory.gradient_flow import Problem, Stop, conflict, converge, perturbed, phi
from repro.theory.mean_field import Heads, Sizes, TokenMeasures, flow, gaussian_heads
from repro.theory.rates import fit_decay, fit_line, power_law

SMALL: dict[str, tuple[Any, dict[str, Any]]] = {
    "b_continuity": (b_continuity, {"draws": 1, "steps": 64, "layers": [16, 32, 64], "heads": 4}),
    "b_control": (b_control, {"draws": 1, "layers": 4, "heads": 16}),
    "b_convergence": (b_convergence, {"draws": 1, "cells": [[4, 16], [4, 32]]}),
    "b_gradient": (b_gradient, {"problems": 4, "continuous_draws": 1, "layers": [16, 32, 64], "heads": 8}),
    "b_gram": (b_gram, {"dims": [3], "measures": [4], "heads": 60}),
    "b_independence": (b_independence, {"dims": [3], "measures": [4], "draws": 1, "points": 500}),
    "b_limits": (b_limits, {"draws": 1, "layers": [8, 16, 32], "heads": [8, 32, 128], "reference_heads": 2048}),
}
# Value name: (lowest, highest) that a claim would allow; None is open.
BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "b_continuity_residual": (None, 1e-4),
    "b_continuity_slope_error": (None, 0.15),
    "b_mass_error": (None, 1e-12),
    "b_volume_error": (None, 1e-6),
    "b_floor_share": (0.05, None),
    "b_floor_ratio": (1 - 1e-9, 1.001),
    "b_twin_share": (None, 1e-7),
    "b_control_lambda": (None, 1e-12),
    "b_fit_r2": (0.99, None),
    "b_decades": (4, None),
    "b_rate_over_lambda": (0.995, None),
    "b_rate_spread": (None, 2),
    "b_v_part_start": (1e-6, None),
    "b_gradient_error": (None, 1e-10),
    "b_gradient_fd_error": (None, 1e-7),
    "b_gradient_slope_error": (None, 0.15),
    "b_depth_marginal_error": (None, 1e-14),
    "b_dissipation_error": (None, 0.01),
    "b_gram_orders": (6, None),
    "b_full_orders": (6, None),
    "b_gram_disagreements": (None, 0),
    "b_gram_open": (None, 1e-26),
    "b_separation_orders": (6, None),
    "b_control_ratio": (None, 1e-12),
    "b_monte_carlo_z": (None, 6),
    "b_depth_slope_error": (None, 0.15),
    "b_width_slope_error": (None, 0.2),
}


@pytest.fixture(scope="module")
def small() -> dict[str, dict[str, Any]]:
    """What each check leaves in its record at a small size, through JSON as a record would hold it."""
    found = {}
    for name, (module, params) in SMALL.items():
        measured = module.run({**module.INFO["params"], **params}, 5)
        kept = {"values": measured.values, "n": measured.n, "details": measured.details}
        found[name] = json.loads(json.dumps(kept, allow_nan=False))
    return found


def problem(seed: int, layers: int = 4, heads: int = 6) -> tuple[Problem, Heads]:
    rng = np.random.default_rng(seed)
    measures = TokenMeasures.uniform(rng.standard_normal((2, 3, 2)))
    start = gaussian_heads(rng, layers, heads, Sizes(2, 2, attention=2.0))
    return Problem(measures, flow(measures, perturbed(rng, start, 0.1))[-1]), start


def euler(problem: Problem, heads: Heads, time: float, steps: int) -> Heads:
    """Explicit Euler with a small step: the flow as it is written down."""
    for _ in range(steps):
        _, gradient = discrete_gradient(problem.measures, heads, problem.targets)
        heads = heads.moved(gradient, -time / steps)
    return heads


def test_the_integrator_follows_explicit_euler_with_a_small_step() -> None:
    given_problem, start = problem(1)
    found = converge(given_problem, start, Stop(share=1e-3, fold=0.1))
    time = float(found.times[-1])
    expected = euler(given_problem, start, time, 1500)
    away, moved = found.heads.moved(expected, -1.0), start.moved(expected, -1.0)
    assert math.sqrt(away.product(away) / moved.product(moved)) < 0.01
    risk, _ = discrete_gradient(given_problem.measures, expected, given_problem.targets)
    assert found.risks[-1] == pytest.approx(risk, rel=0.05)


def test_the_risk_falls_at_every_step_and_never_slower_than_the_smallest_eigenvalue_says() -> None:
    given_problem, start = problem(2)
    found = converge(given_problem, start, Stop(share=1e-10, fold=0.5))
    rates = -np.diff(np.log(found.risks)) / np.diff(found.times)
    assert (rates >= 2 * found.smallest.min() * 0.995).all()
    assert (found.smallest >= found.smallest_v - 1e-12).all()
    assert found.risks[-1] <= 1e-10 * found.risks[0]


def test_a_linear_model_is_solved_exactly_whatever_the_step() -> None:
    """One layer whose queries and keys are zero: outputs are linear in V, and Q, K feel no force while K = Q = 0."""
    rng = np.random.default_rng(3)
    measures = TokenMeasures.uniform(rng.standard_normal((2, 2, 2)))
    zero = np.zeros((1, 3, 2, 2))
    start = Heads(zero, zero, np.zeros((1, 3, 2, 2)))
    given_problem = Problem(measures, measures.points + measures.points.mean(axis=1, keepdims=True) @ np.eye(2)[::-1])
    kernel = tangent_kernel(measures, start, flow(measures, start)).full
    residual = ((measures.points - given_problem.targets) * residual_scale(measures)).ravel()
    time = 3.0
    rates, modes = np.linalg.eigh(kernel)
    expected = ((np.exp(-time * rates) * (modes.T @ residual)) ** 2).sum() / 2
    found = converge(given_problem, start, Stop(share=0.0, time=time, fold=100.0))
    assert found.times[-1] == pytest.approx(time)
    assert found.risks[-1] == pytest.approx(expected, rel=1e-9)


def test_a_flow_ends_by_share_time_steps_or_rest() -> None:
    given_problem, start = problem(4)
    assert len(converge(given_problem, start, Stop(share=0.0, steps=3)).times) == 4
    assert converge(given_problem, start, Stop(share=0.0, time=0.5)).times[-1] == pytest.approx(0.5)
    at_rest = Problem(given_problem.measures, flow(given_problem.measures, start)[-1])
    assert converge(at_rest, start, Stop(share=0.0)).risks.tolist() == [0.0]


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 700))
def test_phi_is_the_mean_of_the_exponential(z: float) -> None:
    expected = 1.0 if z == 0 else -math.expm1(-z) / z
    assert phi(np.array([z]))[0] == pytest.approx(expected, rel=1e-9)


def test_the_teacher_is_one_shift_of_all_particles() -> None:
    _, start = problem(5)
    moved = perturbed(np.random.default_rng(0), start, 0.3).moved(start, -1.0)
    for part in (moved.query, moved.key, moved.value):
        np.testing.assert_allclose(part, np.broadcast_to(part[:1, :1], part.shape), atol=1e-14)
    assert np.abs(moved.value).max() > 0.05


@pytest.mark.parametrize("share", [0.05, 0.25, 0.6])
def test_the_floor_of_the_control_is_its_share_and_no_head_can_pass_it(share: float) -> None:
    given_problem, start = problem(6, heads=12)
    outputs = flow(given_problem.measures, start)[-1]
    control, twin, floor = conflict(given_problem, outputs, share, np.random.default_rng(1))
    found = converge(control, start, Stop(share=0.0, time=200.0))
    assert floor == pytest.approx(share * found.risks[0])
    assert found.risks.min() >= floor * (1 - 1e-12)
    assert found.risks[-1] < found.risks[0]
    free = converge(twin, start, Stop(share=1e-3, time=1e4))
    assert free.risks[-1] < share * free.risks[0] / 2
    assert abs(found.smallest[0]) < 1e-13


def test_a_control_needs_a_risk_to_take_its_share_of() -> None:
    given_problem, start = problem(7)
    outputs = flow(given_problem.measures, start)[-1]
    fitted = Problem(given_problem.measures, outputs)
    with pytest.raises(ValueError, match="fits its targets from the start"):
        conflict(fitted, outputs, 0.25, np.random.default_rng(0))


@settings(max_examples=25, deadline=None)
@given(st.floats(-3, 3), st.floats(0.01, 100))
def test_the_exponent_of_a_power_law_is_found(exponent: float, size: float) -> None:
    sizes = [4, 8, 16, 32]
    assert power_law(sizes, [size * s**exponent for s in sizes]).slope == pytest.approx(exponent, abs=1e-9)


def test_the_rate_of_a_sum_of_exponentials_is_that_of_its_tail() -> None:
    times = np.linspace(0, 30, 200)
    risks = np.exp(-10 * times) + 1e-5 * np.exp(-times)
    tail = fit_decay(times, risks, 1e-6)
    assert tail.rate == pytest.approx(1, rel=1e-6)
    assert tail.r2 == pytest.approx(1, abs=1e-9)
    assert tail.decades > 6
    assert fit_decay(times, risks, 1.0).r2 < 0.99
    with pytest.raises(ValueError, match="2 points"):
        fit_line(np.arange(2.0), np.arange(2.0))


@pytest.mark.parametrize("name", SMALL)
def test_a_check_gives_the_values_that_it_names_within_what_a_claim_allows(
    name: str, small: dict[str, dict[str, Any]]
) -> None:
    info, values = SMALL[name][0].INFO, small[name]["values"]
    assert values.keys() == info["values"].keys()
    assert small[name]["n"] > 0
    assert small[name]["details"]["rows"]
    for value, number in values.items():
        low, high = BOUNDS.get(value, (None, None))
        assert low is None or number >= low, (value, number)
        assert high is None or number <= high, (value, number)


def test_a_check_gives_the_same_numbers_for_the_same_seed_and_others_for_another() -> None:
    params = {**b_control.INFO["params"], **SMALL["b_control"][1]}
    assert b_control.run(params, 1).details == b_control.run(params, 1).details
    assert b_control.run(params, 1).details != b_control.run(params, 2).details


def test_the_figures_draw_what_the_checks_leave(small: dict[str, dict[str, Any]]) -> None:
    rows = {name: found["details"]["rows"] for name, found in small.items()}
    figures = [
        theory_b.spectrum(rows["b_gram"]),
        theory_b.convergence(rows["b_convergence"]),
        theory_b.control(rows["b_control"]),
        theory_b.limits(rows["b_limits"]),
        theory_b.trajectories(small["b_continuity"]["details"]["paths"]),
    ]
    lines = [sum(len(axes.lines) for axes in figure.axes) for figure in figures]
    assert lines[0] == 2 * 2 * 10  # two panels, a curve and a legend entry for each of ten lists
    assert lines[1] == 2 * 2 + 1
    assert lines[2] == 2 + 1
    assert lines[3] == 2 * 2
    assert lines[4] == 3 * 8
    assert render(figures[3])["svg"] == render(theory_b.limits(rows["b_limits"]))["svg"]


@pytest.mark.parametrize(
    "draw",
    [theory_b.spectrum, theory_b.convergence, theory_b.control, theory_b.limits, theory_b.trajectories],
    ids=lambda draw: draw.__name__,
)
def test_a_figure_without_records_is_empty_and_no_error(draw: Any) -> None:
    assert render(draw([]))["png"].startswith(b"\x89PNG")


def test_a_line_of_a_figure_holds_one_seed_alone() -> None:
    """Draws are counted anew in each record: rows of two records are two lines, never one that goes back."""
    rows = [
        {"arm": "twin", "seed": seed, "draw": 0, "floor": 0.1, "risk": 1.0 / (1 + step), "time": float(step * seed)}
        for seed in (1, 2)
        for step in range(4)
    ]
    lines = [line for line in control(rows).axes[0].lines if len(line.get_xdata()) == 4]
    assert len(lines) == 2
    assert all(list(line.get_xdata()) == sorted(line.get_xdata()) for line in lines)
