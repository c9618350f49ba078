"""Power and numbers of runs: known figures, scipy where it has the law, simulation where it has not, and the verb."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from report_world import claims, plan_of, plausible, world
from scipy import stats

from repro.spec.paths import find_root
from repro.stats.planning import forecast
from repro.stats.power import (
    draws_to_see,
    fisher_power,
    fisher_runs,
    sign_power,
    sign_runs,
    signed_rank_power,
    signed_rank_runs,
    smallest_n,
    t_power,
    t_runs,
    tost_largest_sd,
    tost_power,
    tost_runs,
)
from repro.stats.select import find_arms
from repro.stats.tests import fisher, paired_t, sign, signed_rank, tost
from repro.verbs.power import row

DRAWS = 4000  # 0.8 points of Monte Carlo error at most; three of them stay within the 3 points that are promised
NEAR = 0.03


@pytest.mark.parametrize(
    ("first", "second", "runs"), [(0.6, 0.0, 10), (0.6, 0.1, 17), (0.2, 0.0, 39), (0.2, 0.05, 82), (0.0, 0.6, 10)]
)
def test_the_runs_that_the_design_names_for_rates(first, second, runs):
    assert fisher_runs(first, second) == runs
    assert fisher_power(first, second, runs) >= 0.8 > fisher_power(first, second, runs - 1)


@pytest.mark.parametrize("alternative", ["two-sided", "less", "greater"])
@pytest.mark.parametrize(
    ("first", "second", "n", "alpha"), [(0.6, 0.0, 9, 0.05), (0.3, 0.7, 12, 0.025), (0.5, 0.5, 7, 0.1)]
)
def test_fisher_power_is_the_sum_over_all_tables(first, second, n, alpha, alternative):
    laws = [stats.binom.pmf(np.arange(n + 1), n, rate) for rate in (first, second)]
    reached = sum(
        laws[0][k] * laws[1][j]
        for k in range(n + 1)
        for j in range(n + 1)
        if fisher((k, n), (j, n), alternative) <= alpha
    )
    assert fisher_power(first, second, n, alpha, alternative) == pytest.approx(reached, abs=1e-9)


def test_the_search_for_rates_starts_below_the_answer():
    for first, second, alpha in [
        (0.9, 0.1, 0.05),
        (0.5, 0.2, 0.01),
        (0.3, 0.0, 0.05),
        (1.0, 0.0, 0.05),
        (1.0, 0.5, 0.1),
    ]:
        scan = smallest_n(lambda n, a=first, b=second, p=alpha: fisher_power(a, b, n, p))
        assert fisher_runs(first, second, alpha) == scan
    assert fisher_runs(0.5, 0.5) is None
    assert fisher_runs(0.5, 0.47) is None  # thousands


@pytest.mark.parametrize(("effect", "n"), [(0.3, 3), (0.707, 8), (1.0, 10), (2.0, 4), (0.1, 400), (1.5, 2)])
def test_t_power_is_the_noncentral_t_law(effect, n):
    shift = effect * math.sqrt(n)
    one_sided = stats.nct.sf(stats.t.ppf(0.95, n - 1), n - 1, shift)
    assert t_power(effect, n, 0.05, "greater") == pytest.approx(one_sided, abs=2e-4)
    assert t_power(-effect, n, 0.05, "less") == pytest.approx(one_sided, abs=2e-4)
    critical = stats.t.ppf(0.975, n - 1)
    both = stats.nct.sf(critical, n - 1, shift) + stats.nct.cdf(-critical, n - 1, shift)
    assert t_power(effect, n) == pytest.approx(both, abs=2e-4)


def test_runs_of_the_t_test_are_the_first_that_are_enough():
    for effect in (0.3, 0.5, 1.0, 2.0):
        runs = t_runs(effect)
        assert t_power(effect, runs) >= 0.8 > t_power(effect, runs - 1)
    assert t_runs(0.01) is None


def drawn(effect: float, n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(effect, 1.0, (DRAWS, n))


def test_simulated_power_of_fishers_test():
    draw = np.random.default_rng(11)
    for first, second, n in [(0.6, 0.0, 10), (0.7, 0.2, 14), (0.2, 0.0, 39)]:
        counts = zip(draw.binomial(n, first, DRAWS), draw.binomial(n, second, DRAWS), strict=True)
        tables = {}
        for table in counts:
            tables[table] = tables.get(table, 0) + 1
        hits = sum(times for (k, j), times in tables.items() if fisher((int(k), n), (int(j), n)) <= 0.05)
        assert hits / DRAWS == pytest.approx(fisher_power(first, second, n), abs=NEAR)


@pytest.mark.parametrize(
    ("effect", "n", "alternative"), [(1.0, 8, "two-sided"), (-1.0, 9, "less"), (0.5, 30, "greater")]
)
def test_simulated_power_of_paired_tests(effect, n, alternative):
    values = drawn(effect, n, 12).tolist()
    hits = np.mean([paired_t(row, alternative) <= 0.05 for row in values])
    assert hits == pytest.approx(t_power(effect, n, 0.05, alternative), abs=NEAR)
    some = values[: DRAWS // (1 if n < 20 else 4)]
    ranked = np.mean([signed_rank([(value, 0.0) for value in row], alternative) <= 0.05 for row in some])
    assert ranked == pytest.approx(signed_rank_power(effect, n, 0.05, alternative), abs=NEAR)


@pytest.mark.parametrize(("sd", "n"), [(0.010, 5), (0.017, 8), (0.03, 20)])
def test_simulated_power_of_equivalence(sd, n):
    values = (drawn(0.0, n, 13) * sd).tolist()
    hits = np.mean([tost(row, -0.02, 0.02).inside <= 0.05 for row in values])
    assert hits == pytest.approx(tost_power(0.02, sd, n), abs=NEAR)
    shifted = (drawn(0.0, n, 14) * sd + 0.01).tolist()
    hits = np.mean([tost(row, -0.02, 0.02).inside <= 0.05 for row in shifted])
    assert hits == pytest.approx(tost_power(0.02, sd, n, true=0.01), abs=NEAR)


def test_simulated_power_of_the_sign_test():
    for share, n in [(0.9, 8), (0.75, 23), (1.0, 5)]:
        above = np.random.default_rng(15).binomial(n, share, DRAWS)
        hits = np.mean([sign(int(k), int(n - k), "greater") <= 0.05 for k in above])
        assert hits == pytest.approx(sign_power(share, n), abs=NEAR)


def test_few_pairs_cannot_reach_alpha_whatever_the_effect():
    assert signed_rank_power(9.0, 4, 0.05, "greater") == 0.0
    assert signed_rank_power(9.0, 5, 0.05, "greater") == 1.0
    assert signed_rank_runs(9.0, 0.05, "greater") == 5
    assert signed_rank_runs(9.0, 0.005, "greater") == 8
    assert signed_rank_runs(0.01) is None
    assert (sign_power(1.0, 4), sign_runs(1.0), sign_runs(0.5)) == (0.0, 5, None)
    assert signed_rank_power(0.7, 10) == signed_rank_power(0.7, 10)


def test_equivalence_needs_a_small_spread():
    bound = tost_largest_sd(0.02, 8)
    assert tost_power(0.02, bound, 8) == pytest.approx(0.8, abs=1e-3)
    assert tost_runs(0.02, bound * 0.999) <= 8 < tost_runs(0.02, bound * 1.05)
    assert tost_runs(0.02, 5.0) is None
    assert tost_runs(0.02, 0.001, true=0.02) is None
    assert (tost_power(0.02, 0.0, 8), tost_power(0.02, 0.0, 4)) == (1.0, 0.0)


def test_draws_that_show_a_bound_that_fails_now_and_then():
    for share in (0.01, 0.05, 0.5):
        n = draws_to_see(share)
        assert 1 - (1 - share) ** n >= 0.8 > 1 - (1 - share) ** (n - 1)
    with pytest.raises(ValueError, match="between 0 and 1"):
        draws_to_see(0.0)


def claim(identity: str):
    (found,) = [each for each in claims() if each.id == identity]
    return found


def test_the_papers_own_counts_cannot_decide_and_the_runs_that_could_are_named():
    found = forecast(claim("A-C1"), 2, {})
    assert found.own_p == pytest.approx(1 / 6)
    assert found.own_counts_decide is False
    assert [(need.level, need.runs) for need in found.needs] == [(0.05, 10), (0.025, 12), (0.0125, 14)]
    assert "cannot decide this: p = 0.167" in found.notes[0]
    assert forecast(claim("A-C2"), 2, {}).needs[0].runs == 39
    sure = claim("A-C1").reported.model_copy(update={"a": [5, 5]})
    assert forecast(claim("A-C1").model_copy(update={"reported": sure}), 1, {}).own_counts_decide is True


def test_every_claim_has_an_answer_or_a_reason():
    for one in claims():
        found = forecast(one, 3, {})
        text = json.dumps(row(found, "smoke"), allow_nan=False)
        if found.needs:
            assert [need.level for need in found.needs] == sorted((need.level for need in found.needs), reverse=True)
            lacking = [need for need in found.needs if need.runs is None]
            assert not lacking or "not known" in text, one.id
        else:
            assert "no test decides this claim" in found.assumed, one.id


def test_the_spread_comes_from_the_records_and_is_told():
    plan = plan_of("desk")
    one = claim("A-C5a")
    unknown = forecast(one, 1, {})
    assert unknown.needs[0].runs is None
    assert any("no records tell it yet" in note for note in unknown.notes)
    index = world(plan, lambda run: plausible(run) if run.method != "post_ln" else 2.4)
    arms = find_arms(one, one.cells, plan, index)
    found = forecast(one, 1, arms)
    differences = [arms["a"].only.values[seed] - arms["b"].only.values[seed] for seed in arms["a"].planned_seeds]
    assert found.spread.sd == pytest.approx(np.std(differences, ddof=1))
    assert "within a seed (paired; 9 degrees of freedom" in " ".join(found.notes)
    assert found.needs[0].runs == tost_runs(0.02, found.spread.sd)
    few = plan_of("smoke")  # two seeds: the A/A line carries it, without credit for the pairing
    arms = find_arms(one, one.cells, few, world(few, lambda run: 2.3 + 0.01 * run.seed))
    assert forecast(one, 1, arms).spread.sd == pytest.approx(0.01 / math.sqrt(2) * math.sqrt(2))
    assert "no credit for pairing" in " ".join(forecast(one, 1, arms).notes)


def spoken(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Another process of this Python in the checkout."""
    place = find_root().path
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=place)


def test_the_verb_answers_without_torch_and_names_what_it_does_not_know():
    code = (
        "import sys; sys.argv = ['repro', 'power', 'A-C1', '--json']; from repro.cli import app\n"
        "try: app()\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'torch', 'lightning', 'transformers', 'datasets'} & set(sys.modules)"
    )
    done = spoken("-c", code)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["id"], found["runs_per_arm"], found["own_counts_decide"]) == ("A-C1", 10, False)
    assert found["own_counts_p"] == pytest.approx(0.1667, abs=1e-4)
    wrong = spoken("-m", "repro", "power", "A-C0")
    assert (wrong.returncode, wrong.stdout) == (64, "")
    assert "CLAIM: A-C0 is not known" in wrong.stderr
