"""Learning rates chosen on tuning seeds, fresh seeds for what is reported, mean curves that end (S03, S05, P04)."""

import csv
import json
import math
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.stats.cells import CellResult, cell_result
from repro.stats.choice import choose_rate, fresh_result, tuning_values
from repro.stats.curves import mean_curve, value_at
from tests.shared import shared

INF = math.inf


def rows(case: str, name: str) -> list[dict[str, str]]:
    """A case's CSV file."""
    with shared(f"cases/{case}/{name}").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_best_mean_over_the_tuning_seeds_is_chosen():
    grid = {1e-3: {1: 2.5, 2: 2.5}, 3e-3: {1: 2.2, 2: 2.4}, 1e-2: {1: 2.1, 2: 2.6}}
    found = choose_rate(grid, [1, 2])
    assert (found.rate, found.edge, found.words) == (3e-3, "", "0.003")
    assert found.means == pytest.approx({1e-3: 2.5, 3e-3: 2.3, 1e-2: 2.35})
    assert choose_rate(grid, [1, 2], lower_is_better=False).rate == 1e-3


def test_one_diverged_tuning_seed_rules_a_rate_out():
    assert choose_rate({1e-3: {1: 2.5, 2: 2.5}, 3e-3: {1: 1.0, 2: INF}}, [1, 2]).rate == 1e-3
    nothing = choose_rate({1e-3: {1: INF, 2: 2.5}, 3e-3: {1: 1.0, 2: INF}}, [1, 2])
    assert (nothing.rate, nothing.words) == (None, "no rate of the grid came through all 2 tuning seeds")
    accuracy = choose_rate({1e-3: {1: 0.5}, 3e-3: {1: -INF}}, [1], lower_is_better=False)
    assert accuracy.rate == 1e-3


def test_a_missing_tuning_run_leaves_the_choice_open():
    found = choose_rate({1e-3: {1: 2.5, 2: 2.5}, 3e-3: {1: 2.2}, 1e-2: {1: INF, 2: INF}}, [1, 2])
    assert (found.rate, found.words) == (None, "not chosen yet: 1 of 6 tuning runs are missing")


@pytest.mark.parametrize(
    ("losses", "edge"), [((2.1, 2.2, 2.3), "lowest"), ((2.2, 2.1, 2.3), ""), ((2.2, 2.15, 2.1), "highest")]
)
def test_an_optimum_at_the_grids_edge_is_marked(losses, edge):
    found = choose_rate({rate: {7: loss} for rate, loss in zip((1e-3, 1e-2, 1e-1), losses, strict=True)}, [7])
    assert found.edge == edge
    assert ("a better one may lie beyond" in found.words) == bool(edge)


def test_a_grid_of_one_rate_says_so():
    assert choose_rate({3e-3: {7: 2.0}}, [7]).words == "0.003 (the only one tried)"


def test_equal_rates_go_to_the_smaller_and_nonsense_is_refused():
    assert choose_rate({3e-3: {1: 2.0}, 1e-3: {1: 2.0}, 1e-2: {1: 2.1}}, [1]).rate == 1e-3
    with pytest.raises(ValueError, match="NaN is not an outcome"):
        choose_rate({3e-3: {1: math.nan}}, [1])
    for grid, seeds in (({}, [1]), ({3e-3: {1: 2.0}}, [])):
        with pytest.raises(ValueError, match="needs a grid of rates and tuning seeds"):
            choose_rate(grid, seeds)


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([1e-4, 1e-3, 1e-2, 1e-1]),
        st.lists(st.one_of(st.floats(1, 9), st.just(INF)), min_size=2, max_size=2),
        min_size=1,
    )
)
def test_the_choice_is_never_worse_than_another_rate_and_order_does_not_matter(grid):
    runs = {rate: dict(enumerate(values)) for rate, values in grid.items()}
    found = choose_rate(runs, [0, 1])
    assert found == choose_rate(dict(sorted(runs.items(), reverse=True)), [1, 0])
    if found.rate is None:
        assert all(INF in values for values in grid.values())
    else:
        assert all(found.means[found.rate] <= mean for mean in found.means.values())
        assert (found.edge != "") == (found.rate in (min(grid), max(grid)))


def joined(**seeds: float | str) -> CellResult:
    """A cell by `s<seed>=outcome`."""
    named = {int(name[1:]): outcome for name, outcome in seeds.items()}
    states = {seed: "complete" if isinstance(o, float) else o for seed, o in named.items()}
    return CellResult(states, {seed: o for seed, o in named.items() if isinstance(o, float)})


def test_joined_cells_become_tuning_values():
    results = {1e-3: joined(s1=2.0, s2="failed"), 3e-3: joined(s1="diverged", s2="missing")}
    assert tuning_values(results, [1, 2]) == {1e-3: {1: 2.0, 2: INF}, 3e-3: {1: INF}}
    assert tuning_values(results, [1, 2], lower_is_better=False)[1e-3] == {1: 2.0, 2: -INF}


def test_only_fresh_seeds_are_reported():
    results = {1e-3: joined(s1=2.0, s2=2.0, s3=2.3, s4="diverged"), 3e-3: joined(s1=2.1, s2=2.1, s3=1.0, s4=1.0)}
    choice = choose_rate(tuning_values(results, [1, 2]), [1, 2])
    found = fresh_result(results, choice, [1, 2], [3, 4])
    assert (dict(found.states), dict(found.values)) == ({3: "complete", 4: "diverged"}, {3: 2.3})
    still_open = choose_rate(tuning_values({1e-3: joined(s1="missing")}, [1]), [1])
    assert fresh_result(results, still_open, [1], [3]) is None


def test_s05_a_choice_on_the_reported_seeds_is_refused():
    results = {1e-3: joined(s1=2.0, s2=2.0)}
    choice = choose_rate(tuning_values(results, [1, 2]), [1, 2])
    with pytest.raises(ValueError, match=r"seeds \[2\] would choose the learning rate and be reported"):
        fresh_result(results, choice, [1, 2], [2, 3])


class FinalWeights:
    """An index of one run: its curve dips below the loss of its final weights."""

    status = "complete"

    def __init__(self, losses: list[float]) -> None:
        self.losses = losses

    def train(self, run_id: str):
        return self

    def evals(self, run_id: str):
        return {"val_loss": self}

    def value(self, name: str) -> float:
        return self.losses[-1]


class OneCell:
    """A planned cell."""

    def __init__(self, *seeds: int) -> None:
        self.seeds, self.run_ids = seeds, tuple(f"run{place}" for place in range(len(seeds)))


def test_s05_the_final_step_counts_not_the_best_look():
    case = json.loads(shared("cases/S05/expected.json").read_text("utf-8"))
    losses = [float(row["val_loss"]) for row in rows("S05", "curve.csv")]
    assert min(losses) == case["wrong_minimum"]
    assert cell_result(OneCell(1), FinalWeights(losses), "val_loss").values == {1: case["right"]}


def test_s03_a_seed_that_stands_twice_is_no_second_run():
    found = rows("S03", "results.csv")
    assert len(found) == 4
    independent = {(row["method"], row["seed"], row["code"]) for row in found}
    assert len(independent) == json.loads(shared("cases/S03/expected.json").read_text("utf-8"))["independent_runs"]
    with pytest.raises(ValueError, match="a seed stands twice"):
        cell_result(OneCell(*(int(row["seed"]) for row in found)), FinalWeights([2.0]), "val_loss")
    once = cell_result(OneCell(*sorted({int(row["seed"]) for row in found})), FinalWeights([2.0]), "val_loss")
    assert once.complete == len(independent)


def test_p04_the_mean_ends_where_a_seed_ends():
    expected = json.loads(shared("cases/P04/expected.json").read_text("utf-8"))
    found = rows("P04", "curves.csv")
    curves = [
        [(float(row["tokens"]), float(row["val_loss"])) for row in group]
        for _, group in groupby(found, key=lambda row: row["seed"])
    ]
    curve = mean_curve(curves)
    assert (curve.whole[-1].tokens, curve.whole[-1].n) == (6.0, expected["n_at_6"])
    assert curve.whole[-1].mean == pytest.approx(expected["mean_at_tokens_6"])
    assert (curve.partial[0].tokens, curve.partial[0].n) == (7.0, expected["n_at_7"])
    assert curve.ends == "mean of all 3 seeds up to 6 tokens, beyond it 2 seeds"
    steps = [after.mean - before.mean for before, after in zip(curve.whole, curve.whole[1:], strict=False)]
    assert steps == pytest.approx([-0.1] * 5)


def test_p04_curves_measured_at_other_places_meet_on_a_common_grid():
    curve = mean_curve([[(0, 4.0), (10, 2.0)], [(0, 4.0), (5, 3.5), (10, 3.0), (20, 2.0)]])
    assert [(point.tokens, point.mean, point.n) for point in curve.whole] == [(0, 4.0, 2), (5, 3.25, 2), (10, 2.5, 2)]
    assert [(point.tokens, point.n) for point in curve.partial] == [(20, 1)]


def test_p04_a_curve_ends_before_its_divergence_and_a_run_without_a_curve_is_still_planned():
    up = [(1.0, 3.0), (2.0, 9.0), (3.0, INF), (4.0, 1.0)]
    fine = [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]
    curve = mean_curve([up, fine])
    assert [(point.tokens, point.n) for point in (*curve.whole, *curve.partial)] == [(1, 2), (2, 2), (3, 1)]
    lacking = mean_curve([fine, fine], planned=3)
    assert (lacking.whole, lacking.ends) == ((), "no mean: at most 2 of 3 seeds at any point")
    assert mean_curve([], planned=2).ends == "no mean: at most 0 of 2 seeds at any point"
    with pytest.raises(ValueError, match="ascend"):
        mean_curve([[(2.0, 1.0), (2.0, 1.0)]])


ends = st.lists(st.integers(1, 12), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(ends, st.floats(0.01, 0.5))
def test_p04_parallel_curves_never_make_a_jump(lengths, slope):
    """Every run falls by `slope` a step, whatever its level and end: so does the part that is called a mean."""
    curves = [[(t, level - slope * t) for t in range(1, end + 1)] for level, end in enumerate(lengths)]
    curve = mean_curve(curves)
    assert [point.tokens for point in curve.whole] == list(range(1, min(lengths) + 1))
    for before, after in zip(curve.whole, curve.whole[1:], strict=False):
        assert before.mean - after.mean == pytest.approx(slope)
    assert all(point.n < len(lengths) for point in curve.partial)
    assert value_at(curves[0], lengths[0] + 0.5) is None
