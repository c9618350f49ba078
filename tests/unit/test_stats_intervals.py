"""Intervals of means, rates and spreads, the bootstrap, and the A/A line: against scipy, by hand, and at the edges."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from repro.stats.bootstrap import bootstrap_interval
from repro.stats.cells import CellResult, summarise
from repro.stats.intervals import sample_sd, sd_interval, standard_error, t_interval, wilson
from repro.stats.spread import aa_spread, paired_values, pooled_spread
from tests.shared import shared


def cell(*outcomes: float | str) -> CellResult:
    """Outcomes of seeds 1, 2, ...: a number, or a state."""
    states = {seed: "complete" if isinstance(o, float) else o for seed, o in enumerate(outcomes, 1)}
    return CellResult(states, {seed: o for seed, o in enumerate(outcomes, 1) if isinstance(o, float)})


def test_s04_the_case_of_three_losses():
    case = json.loads(shared("cases/S04/case.json").read_text("utf-8"))
    assert sample_sd(case["values"]) == pytest.approx(case["sd_sample"])
    assert standard_error(case["values"]) == pytest.approx(case["se"], abs=1e-6)
    assert t_interval(case["values"]) == pytest.approx(tuple(case["ci95_t"]), abs=1e-6)
    assert sample_sd(case["values"]) != pytest.approx(case["sd_population_wrong_for_this_use"], abs=1e-4)
    summary = summarise(cell(*case["values"]))
    assert (summary.n, summary.mean) == (3, pytest.approx(case["mean"]))
    one = summarise(cell(case["values"][0]))
    assert (one.n, one.sd, one.interval) == (1, None, None)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30))
def test_s04_other_numbers_of_the_kind(values):
    assert sample_sd(values) == pytest.approx(np.std(values, ddof=1), abs=1e-9)
    assert standard_error(values) == pytest.approx(stats.sem(values), abs=1e-9)
    if sample_sd(values) > 1e-6:
        expected = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
        assert t_interval(values) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("k", "n"), [(0, 5), (1, 5), (3, 5), (5, 5), (17, 40), (0, 1), (1, 1)])
def test_wilson_agrees_with_scipy(k, n):
    expected = stats.binomtest(k, n).proportion_ci(method="wilson")
    assert wilson(k, n) == pytest.approx(tuple(expected), abs=1e-12)


@pytest.mark.parametrize(("k", "n"), [(-1, 5), (6, 5), (0, 0)])
def test_a_count_that_is_none_has_no_interval(k, n):
    with pytest.raises(ValueError, match="not a count"):
        wilson(k, n)


@pytest.mark.parametrize("degrees", [1, 4, 7, 40])
def test_the_interval_of_a_spread_is_that_of_chi_square(degrees):
    low, high = sd_interval(2.0, degrees)
    assert degrees * 4.0 / low**2 == pytest.approx(stats.chi2.ppf(0.975, degrees))
    assert degrees * 4.0 / high**2 == pytest.approx(stats.chi2.ppf(0.025, degrees))
    assert low < 2.0 < high
    with pytest.raises(ValueError, match="degrees of freedom"):
        sd_interval(1.0, 0)


def test_the_bootstrap_is_refused_below_twenty_runs_and_for_what_has_no_mean():
    with pytest.raises(ValueError, match="needs 20 independent runs, not 19"):
        bootstrap_interval([float(i) for i in range(19)], seed=1)
    with pytest.raises(ValueError, match="finite"):
        bootstrap_interval([1.0] * 19 + [math.inf], seed=1)
    with pytest.raises(ValueError, match="too few of the values differ"):
        bootstrap_interval([0.0] * 19 + [1.0], seed=1)
    assert bootstrap_interval([2.0] * 20, seed=1) == (2.0, 2.0)


def test_the_bootstrap_is_the_same_for_the_same_seed_and_near_the_t_interval_for_normal_values():
    values = list(np.random.default_rng(4).normal(3.3, 0.02, 40))
    found = bootstrap_interval(values, seed=5)
    assert found == bootstrap_interval(values, seed=5)
    assert found != bootstrap_interval(values, seed=6)
    width = np.subtract(*t_interval(values)[::-1])
    assert found == pytest.approx(t_interval(values), abs=0.1 * width)
    percentile = stats.bootstrap((values,), np.mean, method="percentile", rng=1).confidence_interval
    assert found == pytest.approx(tuple(percentile), abs=0.15 * width)


def test_the_bootstrap_leans_towards_a_long_tail():
    values = list(np.random.default_rng(4).lognormal(0, 1, 40))
    low, high = bootstrap_interval(values, seed=5)
    assert high - np.mean(values) > 1.2 * (np.mean(values) - low)


def test_the_aa_line_pools_configurations_around_their_own_means():
    spread = aa_spread([cell(2.0, 2.1, 2.2), cell(5.0, 5.1), cell(1.0)])
    assert spread.sd == pytest.approx(math.sqrt((2 * 0.01 + 1 * 0.005) / 3))
    assert (spread.degrees, spread.groups) == (3, 2)
    assert (spread.smallest, spread.largest) == pytest.approx((math.sqrt(0.005), 0.1))
    assert spread.interval == sd_interval(spread.sd, 3)
    assert spread.words("nats/token") == (
        "0.091 [0.052, 0.34] nats/token over seeds of one configuration (A/A line; 3 degrees of freedom, 2 groups)"
    )


def test_survivors_tell_no_spread_and_missing_runs_do_no_harm():
    assert aa_spread([cell(2.0, 2.1, "diverged"), cell(2.0, 2.1, "failed")]) is None
    assert aa_spread([cell(2.0), cell()]) is None
    waiting = aa_spread([cell(2.0, 2.1, "missing")])
    assert (waiting.degrees, waiting.sd) == (1, pytest.approx(0.1 / math.sqrt(2)))
    assert paired_values(cell(2.0, 2.1), cell(1.0, "diverged")) == []
    assert paired_values(cell(2.0, 2.1, 2.3), cell(1.0, "missing", 1.2)) == pytest.approx([1.0, 1.1])


def test_a_number_that_spreads_twice_as_much():
    spread = pooled_spread([[1.0, 1.02], [2.0, 2.02]])
    doubled = spread.scaled(2.0, "x (y")
    assert (doubled.sd, doubled.interval[1]) == pytest.approx((2 * spread.sd, 2 * spread.interval[1]))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.floats(-9, 9), min_size=2, max_size=6), min_size=1, max_size=5), st.floats(-99, 99))
def test_moving_a_whole_configuration_does_not_change_the_aa_line(groups, shift):
    moved = [[value + shift for value in groups[0]], *groups[1:]]
    assert pooled_spread(moved).sd == pytest.approx(pooled_spread(groups).sd, abs=1e-7)
