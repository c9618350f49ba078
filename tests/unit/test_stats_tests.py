"""Intervals and tests against scipy on random data, and their properties at the edges."""

import math
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from repro.stats.intervals import clopper_pearson, mean, sample_sd, t_interval
from repro.stats.tests import (
    Sample,
    fisher,
    holm,
    paired_t,
    sign,
    signed_rank,
    t_tail,
    tost,
    welch,
    welch_tail,
    welch_tost,
)

ALTERNATIVES = ("two-sided", "less", "greater")
losses = st.floats(-50, 50, allow_nan=False)


def test_spread_and_interval_of_a_known_sample():
    values = [3.30, 3.32, 3.34]  # sd 0.02 with divisor n - 1; half-width 4.3027 * 0.02 / sqrt(3)
    assert sample_sd(values) == pytest.approx(0.02)
    assert t_interval(values) == pytest.approx((3.2703, 3.3697), abs=1e-4)
    assert sample_sd([3.3]) is None
    assert t_interval([3.3]) is None
    with pytest.raises(ValueError, match="finite"):
        mean([1.0, math.nan])


@settings(max_examples=60, deadline=None)
@given(st.lists(losses, min_size=2, max_size=30))
def test_an_interval_holds_its_own_mean(values):
    low, high = t_interval(values)
    assert low <= mean(values) <= high


@pytest.mark.parametrize(("k", "n"), [(0, 5), (1, 5), (3, 5), (5, 5), (17, 40)])
def test_clopper_pearson_agrees_with_scipy(k, n):
    assert clopper_pearson(k, n) == pytest.approx(tuple(stats.binomtest(k, n).proportion_ci(method="exact")))


def test_the_papers_own_counts_do_not_separate_the_methods():
    assert fisher((3, 5), (0, 5)) == pytest.approx(1 / 6)
    assert fisher((1, 5), (0, 5)) == 1.0


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_fisher_agrees_with_scipy(alternative):
    draw = random.Random(1)
    for _ in range(200):
        n, m = draw.randint(1, 25), draw.randint(1, 25)
        k, j = draw.randint(0, n), draw.randint(0, m)
        expected = stats.fisher_exact([[k, n - k], [j, m - j]], alternative=alternative).pvalue
        assert fisher((k, n), (j, m), alternative) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("n", [1, 2, 5, 8, 13, 25])
def test_signed_rank_agrees_with_scipy_where_nothing_ties(n, alternative):
    pairs = np.random.default_rng(n).normal(size=(n, 2)) + np.array([0.3, 0])
    expected = stats.wilcoxon(pairs[:, 0], pairs[:, 1], method="exact", alternative=alternative).pvalue
    assert signed_rank([tuple(pair) for pair in pairs], alternative) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_signed_rank_with_ties_is_the_exact_sign_flip_law(alternative):
    differences = [1.0, 1.0, -1.0, 2.0, 2.0, 3.0, 0.0]
    permuted = stats.PermutationMethod(n_resamples=2**7)
    kept = np.array([d for d in differences if d != 0])
    expected = stats.wilcoxon(kept, alternative=alternative, method=permuted).pvalue
    assert signed_rank([(d, 0.0) for d in differences], alternative) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_signed_rank_of_many_pairs_agrees_with_scipy(alternative):
    pairs = np.round(np.random.default_rng(3).normal(size=(60, 2)), 1) + np.array([0.2, 0])
    expected = stats.wilcoxon(
        pairs[:, 0], pairs[:, 1], method="asymptotic", correction=False, alternative=alternative
    ).pvalue
    assert signed_rank([tuple(pair) for pair in pairs], alternative) == pytest.approx(expected, rel=1e-6)


def test_a_diverged_run_is_worse_than_any_loss_and_two_are_a_tie():
    finite = [(2.0, 2.1 + place / 100) for place in range(7)]
    with_one = signed_rank([*finite, (2.0, math.inf)], "less")
    assert with_one == pytest.approx(1 / 256)
    assert signed_rank([*finite, (math.inf, math.inf)], "less") == signed_rank(finite, "less")
    assert signed_rank([(math.inf, math.inf)] * 8) == 1.0
    assert signed_rank([(math.inf, 2.0)] * 2 + [(2.0, 2.1)] * 6, "less") > 0.2  # divergences carry the top ranks
    with pytest.raises(ValueError, match="NaN"):
        signed_rank([(math.nan, 1.0)])


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_sign_test_agrees_with_scipy(alternative):
    for above, below in [(0, 5), (5, 0), (3, 4), (8, 0), (7, 1)]:
        expected = stats.binomtest(above, above + below, 0.5, alternative=alternative).pvalue
        assert sign(above, below, alternative) == pytest.approx(expected)
    assert sign(0, 0, alternative) == 1.0


def test_t_tests_agree_with_scipy():
    values = list(np.random.default_rng(5).normal(0.2, 1, size=9))
    for alternative in ("less", "greater"):
        expected = stats.ttest_1samp(values, 0.1, alternative=alternative).pvalue
        assert t_tail(values, 0.1, alternative) == pytest.approx(expected)
    assert paired_t(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue)
    result = tost(values, -0.5, 0.5)
    sides = [stats.ttest_1samp(values, c, alternative=a).pvalue for c, a in ((-0.5, "greater"), (0.5, "less"))]
    assert result.inside == pytest.approx(max(sides))
    assert result.outside == pytest.approx(min(1 - side for side in sides))


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("sizes", [(5, 5), (3, 8), (2, 2), (20, 4)])
def test_welch_agrees_with_scipy(sizes, alternative):
    draw = np.random.default_rng(sizes[0])
    first, second = list(draw.normal(3.3, 0.02, sizes[0])), list(draw.normal(3.31, 0.1, sizes[1]))
    expected = stats.ttest_ind(first, second, equal_var=False, alternative=alternative).pvalue
    assert welch(first, second, alternative) == pytest.approx(expected, rel=1e-9)
    paired = stats.ttest_1samp(first, 3.31, alternative=alternative).pvalue
    assert paired_t([value - 3.31 for value in first], alternative) == pytest.approx(paired, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(-5, 5), st.floats(0.001, 5), st.integers(2, 30), st.floats(-5, 5), st.floats(0.001, 5), st.integers(2, 30)
)
def test_welch_of_reported_summaries_agrees_with_scipy(mean_a, sd_a, n_a, mean_b, sd_b, n_b):
    """A paper's mean, spread and n are enough."""
    ours, theirs = Sample(mean_a, sd_a, n_a), Sample(mean_b, sd_b, n_b)
    for alternative in ("less", "greater"):
        expected = stats.ttest_ind_from_stats(
            mean_a, sd_a, n_a, mean_b, sd_b, n_b, equal_var=False, alternative=alternative
        ).pvalue
        assert welch_tail(ours, theirs, 0.0, alternative) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_equivalence_to_a_reported_mean_counts_the_papers_own_spread():
    ours = list(np.random.default_rng(2).normal(3.30, 0.02, 8))
    sharp, wide = Sample(3.305, 0.001, 500), Sample(3.305, 0.02, 3)
    plain = tost(ours, 3.305 - 0.03, 3.305 + 0.03)
    assert welch_tost(Sample.of(ours), sharp, -0.03, 0.03).inside == pytest.approx(plain.inside, rel=0.01)
    assert welch_tost(Sample.of(ours), wide, -0.03, 0.03).inside > 3 * plain.inside
    shifted = [
        stats.ttest_ind_from_stats(
            np.mean(ours) - c, np.std(ours, ddof=1), 8, 3.305, 0.02, 3, equal_var=False, alternative=a
        ).pvalue
        for c, a in ((-0.03, "greater"), (0.03, "less"))
    ]
    assert welch_tost(Sample.of(ours), wide, -0.03, 0.03).inside == pytest.approx(max(shifted))
    assert welch_tost(Sample(3.5, 0.02, 8), wide, -0.03, 0.03).outside < 0.01
    with pytest.raises(ValueError, match="wrong way round"):
        welch_tost(wide, wide, 0.03, -0.03)


def test_a_mean_that_is_not_there_is_refused_and_no_spread_is_no_proof_for_welch():
    with pytest.raises(ValueError, match="finite"):
        welch([2.0, math.inf, 2.1], [2.0, 2.1])
    with pytest.raises(ValueError, match="at least two runs"):
        Sample(2.0, 0.1, 1)
    assert welch([2.0], [2.1, 2.2, 2.3]) == 1.0
    assert welch([2.0, 2.0], [2.1, 2.1], "less") == pytest.approx(1 / 6)
    assert welch([2.0, 2.0, 2.0], [2.0, 2.0, 2.0]) == 1.0
    one_sided = stats.ttest_1samp([2.1, 2.2, 2.3], 2.0, alternative="greater").pvalue
    assert welch([2.0, 2.0, 2.0], [2.1, 2.2, 2.3], "less") == pytest.approx(one_sided)


def test_values_without_spread_are_no_proof():
    assert t_tail([0.1, 0.1], 0.0, "greater") == 0.25
    assert t_tail([0.1], 0.0, "greater") == 1.0
    assert paired_t([0.0, 0.0, 0.0]) == 1.0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_monotone_and_never_below_the_raw_values(values):
    adjusted = holm(values)
    assert all(raw <= new <= 1 for raw, new in zip(values, adjusted, strict=True))
    order = sorted(range(len(values)), key=values.__getitem__)
    assert [adjusted[i] for i in order] == sorted(adjusted)


def test_holm_of_a_known_family():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_importing_statistics_and_reports_is_cheap():
    code = (
        "import sys, repro.stats.verdict, repro.stats.ranking, repro.report.site;"
        "heavy = {'scipy', 'matplotlib', 'jinja2', 'pandas', 'torch', 'lightning', 'numpy'} & set(sys.modules);"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
