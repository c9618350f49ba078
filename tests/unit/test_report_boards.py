"""Leaderboards with a rate chosen on tuning seeds, bold face by rank group, and tables of theory checks."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from report_world import configuration, index_of, plan_only, world

from repro.plan import Plan, Run, build_plan
from repro.report.boards import leaderboard_rows, leaderboard_table
from repro.report.table import Table, to_latex, to_markdown
from repro.report.tables import experiment_table, paper_table
from repro.spec.experiment import CheckExperiment
from repro.stats.tuned import tuned

RATES = (1e-3, 3e-3, 1e-2)
METHODS = ["pre_ln", "peri_ln", "post_ln"]


def tuned_plan(report: int = 5, tuning: int = 2) -> Plan:
    """A leaderboard of three methods and three rates."""
    plain = plan_only("board", METHODS, report, leaderboard=True).configuration
    base = plain.experiments["board"]
    optimizer = base.optimizer.model_copy(update={"lr": list(RATES)})
    changed = base.model_copy(update={"optimizer": optimizer, "tuning_seeds": tuning})
    task = plain.tiers["smoke"].lm.model_copy(
        update={"lr_grid": None, "lr_points": None, "lr_scale": 1.0, "tuning_seeds": None}
    )
    smoke = plain.tiers["smoke"].model_copy(update={"lm": task})
    made = replace(plain, experiments={"board": changed}, tiers={**plain.tiers, "smoke": smoke})
    return build_plan(plain.root, "smoke", configuration=made)


def loss(run: Run) -> float | str:
    """Each method has a best rate of its own; Post-LN diverges at the largest one. Noise is the seed's alone."""
    best = {"pre_ln": 1, "peri_ln": 2, "post_ln": 0}[run.method]
    place = RATES.index(run.axes["lr"])
    if run.method == "post_ln" and place == 2:
        return "diverged"
    base = {"pre_ln": 2.3, "peri_ln": 2.2, "post_ln": 2.6}[run.method]
    return base + 0.1 * abs(place - best) + 0.01 * (run.seed % 7) + 0.001 * ((run.seed * len(run.method)) % 3)


def board(plan: Plan, outcome=loss) -> Table:
    return leaderboard_table(plan, world(plan, outcome), "lm")


def test_tuning_seeds_are_planned_beside_the_reported_ones_and_enter_no_number():
    plan = tuned_plan()
    assert len(plan.runs) == 3 * 3 * (5 + 2)
    cell = plan.cells["board"][0]
    assert cell.seeds == (1, 2, 3, 4, 5)
    assert cell.tuning_seeds == (1001, 1002)
    assert all(run_id in plan.runs for run_id in cell.tuning_ids)
    rows = {row["cell"].split("/")[0]: row for row in leaderboard_rows(board(plan))}
    for name, place in (("pre_ln", 1), ("peri_ln", 2), ("post_ln", 0)):
        assert rows[name]["lr"] == RATES[place]
        assert rows[name]["planned"] == rows[name]["val_loss_n"] == 5


def test_an_optimum_at_the_edge_is_marked_and_one_inside_is_not():
    rates = {row["method"]: row["learning_rate"] for row in leaderboard_rows(board(tuned_plan()))}
    assert rates["pre_ln"] == "0.003"
    assert "highest of the grid" in rates["peri_ln"]
    assert "lowest of the grid" in rates["post_ln"]


def test_report_seeds_never_choose():
    """A rate that shines on the reported seeds alone is not taken."""

    def lucky(run: Run) -> float:
        shine = run.seed < 1000 and run.axes["lr"] == RATES[2]
        return 1.0 if shine else 2.0 + 0.1 * RATES.index(run.axes["lr"]) + 0.001 * run.seed % 0.01

    rows = leaderboard_rows(board(tuned_plan(), lucky))
    assert {row["lr"] for row in rows} == {RATES[0]}


def test_without_all_tuning_runs_nothing_is_chosen_and_no_method_is_ranked():
    plan = tuned_plan()
    whole = board(plan, lambda run: None if run.seed == 1002 and run.method == "pre_ln" else loss(run))
    rows = {row["method"]: row for row in leaderboard_rows(whole)}
    assert rows["pre_ln"]["rank_low"] is None
    assert "3 of 6 tuning runs are missing" in rows["pre_ln"]["learning_rate"]
    assert rows["pre_ln"]["val_loss_mean"] is None
    assert rows["peri_ln"]["rank_low"] == 1
    assert whole.rows[-1][1] == "pre_ln"  # below all that have a rank


def test_a_rate_that_diverges_on_a_tuning_seed_is_not_chosen():
    plan = tuned_plan()
    index = world(plan, lambda run: "diverged" if run.seed == 1001 and run.axes["lr"] == RATES[1] else loss(run))
    chosen = {group.choice.rate for group in tuned(plan.cells["board"], index)}
    assert RATES[1] not in chosen


def test_one_rate_needs_no_tuning_runs():
    plan = tuned_plan()
    task = plan.configuration.tiers["smoke"].lm.model_copy(update={"lr_grid": [3e-3]})
    smoke = plan.configuration.tiers["smoke"].model_copy(update={"lm": task})
    made = replace(plan.configuration, tiers={**plan.configuration.tiers, "smoke": smoke})
    single = build_plan(made.root, "smoke", configuration=made)
    assert len(single.runs) == 3 * 5
    assert all(run.seed < 1000 for run in single.runs.values())


def test_bold_follows_the_rank_group_and_not_the_lowest_mean():
    plan = plan_only("e", METHODS, 6)
    noise = {"pre_ln": 0.0, "peri_ln": -0.0001, "post_ln": 0.4}

    def near(run: Run) -> float:
        return 2.3 + noise[run.method] + 0.02 * ((run.seed * (3 if run.method == "peri_ln" else 5)) % 7)

    table = experiment_table(plan, world(plan, near), "e")
    bold = {table.rows[row][1].split("/")[0] for row, _ in table.strong}
    assert bold == {"pre_ln", "peri_ln"}  # one group, though one mean is lower
    text = to_markdown(table)
    assert text.count("**") == 2 * len(table.strong)
    assert to_latex(table).count(r"\textbf{") == len(table.strong)


def test_nothing_is_bold_where_nothing_is_worse_or_nothing_is_complete():
    plan = plan_only("e", METHODS, 6)
    assert not experiment_table(plan, world(plan, lambda run: 2.0 + 0.1 * run.seed), "e").strong
    assert not experiment_table(plan, world(plan, lambda run: None), "e").strong


@pytest.mark.parametrize("value", [0.25, 3.5])
def test_values_of_a_check_stand_in_a_row_each_with_their_extremes(value: float):
    known = configuration()
    check = CheckExperiment.model_validate(
        {"name": "a_check", "task": "check", "check": "a_step", "paper": "a", "seeds": 3}
    )
    made = replace(known, experiments={"a_check": check})
    plan = build_plan(made.root, "paper", configuration=made)
    index = world(plan, lambda run: value * run.seed)
    table = experiment_table(plan, index, "a_check")
    for row in table.data:
        assert (row["smallest"], row["largest"], row["n"]) == (value, 3 * value, 3)
        assert row["mean"] == pytest.approx(2 * value)
        assert row["protocol"] == "a_step.v1"
    assert re.search(r"tier paper, check a_step", " ".join(table.notes))
    missing = experiment_table(plan, index_of(made.root, []), "a_check")
    assert {row["mean"] for row in missing.data} == {"not_run"}
    assert not paper_table(plan, index, "a").rows  # a paper's table of trainings holds no check


def test_case_p02_what_is_called_none_keeps_its_name():
    plan = plan_only("board", METHODS, 3, leaderboard=True)
    table = board(plan, lambda run: None if run.seed == 1 else 2.0)
    names = ("method", "cell", "experiment", "model", "data", "learning_rate")
    renamed = replace(table, data=tuple({**row, **dict.fromkeys(names, "none")} for row in table.data))
    for before, after in zip(leaderboard_rows(table), leaderboard_rows(renamed), strict=True):
        assert {after[name] for name in names} == {"none"}
        assert [key for key, value in after.items() if value is None] == [
            key for key, value in before.items() if value is None
        ]
        assert after["rank_low"] is after["val_loss_sample_sd"] is after["val_loss_mean"] is None
