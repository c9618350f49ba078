"""Ranks and cell summaries: nobody wins inside the noise, and nobody wins by losing runs."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.stats.cells import CellResult, aggregate, state_words, summarise
from repro.stats.ranking import rank_intervals
from repro.stats.tolerance import Tolerance, ratio_signs, seed_tolerance

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


def test_s01_a_lower_mean_inside_the_noise_is_no_win():
    ranks = rank_intervals(
        {
            "base": cell(3.312, 3.305, 3.318, 3.309, 3.311),
            "new": cell(3.309, 3.304, 3.315, 3.31, 3.306),
            "strong": cell(3.281, 3.276, 3.285, 3.279, 3.28),
        }
    )
    assert [(rank.name, rank.low, rank.high) for rank in ranks] == [("strong", 1, 1), ("new", 2, 3), ("base", 2, 3)]


def test_s02_three_good_seeds_of_five_do_not_beat_five():
    ranks = rank_intervals(
        {"A": cell(3.20, 3.21, 3.19, "diverged", "missing"), "B": cell(3.25, 3.26, 3.24, 3.25, 3.27)}
    )
    assert [(rank.name, rank.low) for rank in ranks] == [("B", 1), ("A", None)]
    assert ranks[1].summary.mean is None
    assert ranks[1].summary.state == "diverged 1 of 5, missing 1 of 5"


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


def test_s09_rows_without_a_number_come_last_and_ties_share_a_rank():
    loss = {"A": cell(3.30), "B": cell("diverged"), "C": cell(3.30), "D": cell("missing"), "E": cell("diverged")}
    shuffled = dict(sorted(loss.items(), reverse=True))
    for rows in (loss, shuffled):
        ranks = rank_intervals(rows)
        assert [rank.name for rank in ranks] == ["A", "C", "B", "E", "D"]
        assert [rank.low for rank in ranks] == [1, 1, None, None, None]
    accuracy = {"A": cell(0.91), "B": cell("missing"), "C": cell(0.91), "D": cell("diverged"), "E": cell(0.88)}
    ranks = rank_intervals(accuracy, lower_is_better=False)
    assert [rank.name for rank in ranks] == ["A", "C", "E", "D", "B"]


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
