"""Ranks and cell summaries: nobody wins inside the noise, and nobody wins by losing runs."""

import csv
import json
import math
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_world import index_of, plan_of, recorded

from repro.stats.cells import CellResult, aggregate, cell_result, state_words, summarise
from repro.stats.ranking import rank_intervals
from repro.stats.tests import welch
from repro.stats.tolerance import Tolerance, ratio_signs, seed_tolerance
from tests.shared import shared

NAN = math.nan


def cell(*outcomes: float | str) -> CellResult:
    """Outcomes of seeds 1, 2, ...: a number, or a state."""
    states = {seed: "complete" if isinstance(o, float) else o for seed, o in enumerate(outcomes, 1)}
    return CellResult(states, {seed: o for seed, o in enumerate(outcomes, 1) if isinstance(o, float)})


def test_t14_one_split_that_is_not_finite_leaves_no_aggregate():
    for bad in (None, NAN, math.inf):
        result = aggregate({"a": 2.1, "b": 2.2, "c": bad, "d": 2.0})
        assert (result.state, result.value, result.named) == ("diverged", None, ("c",))
    assert aggregate({"a": 2.0, "b": 4.0}).value == 3.0
    assert aggregate({}).value is None


def case_rows(case: str, name: str) -> list[dict[str, str]]:
    """A case's CSV file."""
    with shared(f"cases/{case}/{name}").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def expected(case: str) -> dict:
    """What the case says is right."""
    return json.loads(shared(f"cases/{case}/expected.json").read_text("utf-8"))


def by_method(case: str) -> dict[str, list[float]]:
    """Losses of each method, in the order of its seeds."""
    losses = defaultdict(list)
    for row in case_rows(case, "results.csv"):
        losses[row["method"]].append(float(row["val_loss"]))
    return dict(losses)


def groups(ranks) -> list[tuple[str, int, int]]:
    return [(rank.name, rank.low, rank.high) for rank in ranks]


@pytest.mark.parametrize("rule", ["paired_t", "welch"])
def test_s01_a_lower_mean_inside_the_noise_is_no_win(rule):
    losses, right = by_method("S01"), expected("S01")
    assert welch(losses["new"], losses["base"], "less") == pytest.approx(
        right["welch_one_sided_p"]["new<base"], abs=1e-6
    )
    strong = welch(losses["strong"], losses["base"], "less")
    assert strong == pytest.approx(right["welch_one_sided_p"]["strong<base"], rel=0.001)
    ranks = rank_intervals({name: cell(*values) for name, values in losses.items()}, rule=rule)
    assert groups(ranks) == [("strong", 1, 1), ("new", 2, 3), ("base", 2, 3)]
    assert {rank.name: rank.summary.mean for rank in ranks} == pytest.approx(right["means"])


@pytest.mark.parametrize("rule", ["paired_t", "welch"])
@pytest.mark.parametrize(
    ("shift", "places"),
    [
        (0.0, [("a", 1, 2), ("b", 1, 2)]),
        (0.002, [("b", 1, 2), ("a", 1, 2)]),  # b lower by less than the noise
        (0.2, [("b", 1, 1), ("a", 2, 2)]),
        (-0.2, [("a", 1, 1), ("b", 2, 2)]),
    ],
)
def test_s01_other_numbers_of_the_kind(rule, shift, places):
    noise = [0.010, -0.004, 0.001, -0.009, 0.006, 0.002, -0.012]
    other = [-0.003, 0.008, -0.011, 0.004, 0.009, -0.001, -0.012]
    ranks = rank_intervals(
        {"a": cell(*(3 + each for each in noise)), "b": cell(*(3 - shift + each for each in other))}, rule=rule
    )
    assert groups(ranks) == places


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(2.0, 3.0), min_size=5, max_size=5), min_size=2, max_size=5), st.integers(0, 4))
def test_s02_losing_a_run_never_lifts_a_method(rows, lost):
    """Whatever the other numbers are: without one of its runs a method stands below every complete one."""
    whole = {f"m{place}": cell(*row) for place, row in enumerate(rows)}
    broken = [*rows[0]]
    broken[lost] = "diverged"
    ranks = rank_intervals(whole | {"m0": cell(*broken)})
    assert (ranks[-1].name, ranks[-1].low, ranks[-1].summary.mean) == ("m0", None, None)


def test_s02_three_good_seeds_of_five_do_not_beat_five():
    right, outcomes = expected("S02"), defaultdict(dict)
    for row in case_rows("S02", "results.csv"):
        outcomes[row["method"]][int(row["seed"])] = float(row["val_loss"]) if row["status"] == "ok" else row["status"]
    cells = {
        name: cell(*(found.get(seed, "missing") for seed in right["declared_seeds"]))
        for name, found in outcomes.items()
    }
    ranks = rank_intervals(cells)
    assert [(rank.name, rank.low) for rank in ranks] == [("B", 1), ("A", None)]
    assert ranks[1].summary.mean is None
    assert ranks[1].summary.state == "diverged 1 of 5, missing 1 of 5"
    assert (cells["A"].complete, cells["B"].complete) == (3, 5)


def test_s03_repeats_of_one_seed_on_record_count_once():
    """The record's id covers configuration, seed, code and data, so three files of one id are one run."""
    plan = plan_of("smoke")
    planned = plan.cells["a_quality"][0]
    runs = {seed: plan.runs[run_id] for seed, run_id in zip(planned.seeds, planned.run_ids, strict=True)}
    rows = case_rows("S03", "results.csv")
    repeated = [raw for row in rows for raw in recorded(runs[int(row["seed"])], float(row["val_loss"]))]
    found = cell_result(planned, index_of(plan.configuration.root, repeated), "val_loss")
    assert sum(raw["kind"] == "train" for raw in repeated) == 4
    assert (found.complete, found.planned) == (expected("S03")["independent_runs"], 2)


@pytest.mark.parametrize("state", ["diverged", "failed", "missing", "not measured"])
def test_a_cell_that_lacks_a_run_has_words_and_no_rank(state):
    summary = summarise(cell(2.0, 2.1, state))
    assert (summary.mean, summary.sd, summary.interval, summary.n) == (None, None, None, 2)
    assert summary.state == f"{state} 1 of 3"
    ranks = rank_intervals({"best": cell(1.0, 1.0, state), "plain": cell(3.0, 3.1, 3.2)})
    assert [(rank.name, rank.low) for rank in ranks] == [("plain", 1), ("best", None)]


def test_five_seeds_with_one_of_each_trouble():
    result = cell(3.2, "diverged", "missing", "failed", 3.1)
    assert (result.complete, result.diverged, result.failed, result.missing) == (2, 1, 1, 1)
    assert state_words(result) == "diverged 1 of 5, failed 1 of 5, missing 1 of 5"
    assert summarise(result).mean is None


def s09(metric: str) -> dict[str, CellResult]:
    """Rows of the case: nan and inf are runs without a finite value, an empty field is none."""
    words = {"nan": "diverged", "inf": "diverged", "": "missing"}
    rows = {row["method"]: row[metric] for row in case_rows("S09", "rows.csv")}
    return {name: cell(words[text] if text in words else float(text)) for name, text in rows.items()}


@pytest.mark.parametrize(
    ("metric", "lower", "key", "ranked"),
    [
        ("val_loss", True, "order_by_val_loss_lower_better", [1, 1]),
        ("accuracy", False, "order_by_accuracy_higher_better", [1, 1, 1]),
    ],
)
def test_s09_rows_without_a_number_come_last_and_ties_share_a_rank(metric, lower, key, ranked):
    *order, rest = expected("S09")[key]
    loss = s09(metric)
    for rows in (loss, dict(sorted(loss.items(), reverse=True)), loss):
        ranks = rank_intervals(rows, lower)
        names = [rank.name for rank in ranks]
        assert names[: len(order)] == order
        assert sorted(names[len(order) :]) == rest.removeprefix("then without a rank: ").split(", ")
        assert [rank.low for rank in ranks] == ranked + [None] * (5 - len(ranked))
        assert names[len(order) :] == sorted(names[len(order) :], key=lambda name: (loss[name].missing, name))


def test_two_seeds_separate_nobody():
    ranks = rank_intervals({"a": cell(2.0, 2.1), "b": cell(3.0, 3.1001)})
    assert [(rank.name, rank.low, rank.high) for rank in ranks] == [("a", 1, 2), ("b", 1, 2)]


def test_higher_is_better_where_the_metric_says_so():
    ranks = rank_intervals({"low": cell(0.5, 0.51, 0.52), "high": cell(0.9, 0.92, 0.91)}, lower_is_better=False)
    assert [(rank.name, rank.low) for rank in ranks] == [("high", 1), ("low", 2)]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.lists(st.one_of(st.floats(1, 9), st.sampled_from(["diverged", "missing"])), min_size=4, max_size=4),
        min_size=1,
        max_size=6,
    )
)
def test_rank_intervals_lie_in_and_cover_all_places(rows):
    ranks = rank_intervals({f"m{place}": cell(*row) for place, row in enumerate(rows)})
    placed = [rank for rank in ranks if rank.low is not None]
    assert len(ranks) == len(rows)
    assert ranks[: len(placed)] == placed
    assert all(1 <= rank.low <= rank.high <= len(placed) for rank in placed)
    for place in range(1, len(placed) + 1):
        assert any(rank.low <= place <= rank.high for rank in placed)


GRID = {0.001: cell(2.5, 2.5), 0.003: cell(2.3, 2.3), 0.01: cell(2.4, "diverged"), 0.03: cell(2.6, "diverged")}


def test_tolerance_is_the_largest_rate_near_the_seeds_own_best():
    assert seed_tolerance(GRID, 1, 1.1) == Tolerance(0.01, 0.01)
    assert seed_tolerance(GRID, 2, 1.1) == Tolerance(0.003, 0.003)
    assert seed_tolerance(GRID, 1, 1.2) == Tolerance(0.03, math.inf)  # the grid ends first
    assert seed_tolerance({0.1: cell("diverged"), 0.3: cell("diverged")}, 1, 1.1) == Tolerance(0.0, 0.1)
    assert seed_tolerance({0.1: cell(2.0), 0.3: cell("missing")}, 1, 1.1) is None


def test_censored_ratios_count_only_where_they_are_safe():
    point, edge, none = Tolerance(0.003, 0.003), Tolerance(0.03, math.inf), Tolerance(0.0, 0.001)
    signs = ratio_signs(
        [
            (edge, point),  # at least 10
            (edge, edge),  # anything
            (point, edge),  # at most 0.1
            (Tolerance(0.009, 0.009), point),  # 3 itself
            (none, point),  # at most 1/3
            (none, none),  # anything
        ],
        3.0,
    )
    assert (signs.above, signs.below, signs.tied, signs.unknown) == (1, 2, 1, 2)
