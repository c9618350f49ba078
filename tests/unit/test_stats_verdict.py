"""The verdict engine over the real plan and the real claims, with made-up outcomes."""

import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_world import claims, plan_of, world

from repro.spec.claims import Claim
from repro.spec.errors import ConfigError
from repro.stats.verdict import DECIDED, judge

WORDS = {*DECIDED, "inconclusive", "not_run", "not_comparable", "not_reported"}


def claim(identity: str, **changes) -> Claim:
    """A shipped claim, changed where asked for."""
    (found,) = [each for each in claims() if each.id == identity]
    return found.model_copy(update=changes)


def decide(identity: str, **changes):
    """The rule of a shipped claim, changed where asked for."""
    return claim(identity).decide.model_copy(update=changes)


def verdict(plan, outcome, one: Claim, scale: str | None = None):
    """The verdict on a single claim, in a family of its own."""
    (found,) = judge([one], plan, world(plan, outcome), scale or plan.tier)
    return found


def settled(run, pre: str | float | None = 2.3, peri: str | float | None = 2.25):
    """One outcome a method, with seed noise that both share."""
    value = {"pre_ln": pre, "peri_ln": peri}.get(run.method, 2.4)
    return value + 0.01 * run.seed + 0.0001 * (run.seed**2 % 7) * len(run.method) if isinstance(value, float) else value


def test_two_seeds_never_make_a_verdict():
    plan = plan_of("smoke")
    found = verdict(plan, lambda run: settled(run, pre="diverged"), claim("A-C1"))
    assert (found.verdict, found.decided) == ("inconclusive", False)
    assert found.reason.startswith("2 of 10 runs per arm are finished, this plan has 2")
    assert "pre_ln: 2 of 2 finished runs diverged [0.1581, 1]" in found.ours
    assert (found.n_planned, found.n_complete, found.n_diverged) == (4, 2, 2)


@pytest.mark.parametrize("identity", ["A-T1a", "B-T4", "D-T2b"])
def test_a_statement_on_every_run_needs_its_planned_n_to_be_confirmed(identity):
    one = claim(identity)
    good = 0.5 * ((one.reported.low or 0.0) + one.reported.high) if one.reported.high is not None else one.reported.low
    planned = one.decide.planned_n
    alone = verdict(plan_of("smoke"), lambda run: good, one)
    assert (alone.verdict, alone.decided) == ("inconclusive", False)
    assert alone.reason.startswith(f"1 of {planned} runs per arm are finished, this plan has 1; none breaks")
    desk = plan_of("desk")
    assert verdict(desk, lambda run: good, one).verdict in {"reproduced", "supported"}
    hole = verdict(desk, lambda run: good if run.seed > 1 else "failed", one)
    assert (hole.verdict, hole.n_failed) == ("inconclusive", 1)
    assert hole.reason.startswith(f"{planned - 1} of {planned} runs per arm are finished")


def test_one_run_refutes_a_statement_on_every_run_where_it_is_decided_and_is_named():
    one = claim("B-T4")
    found = verdict(plan_of("desk"), lambda run: {1: 0.5, 2: None}.get(run.seed, 2.0), one)
    assert found.verdict == "not_reproduced"
    assert "seed 1) gave 0.5" in found.reason
    small = verdict(plan_of("smoke"), lambda run: 0.5, one)
    assert small.verdict == "inconclusive"
    assert small.reason.startswith("1 of 5 runs")
    assert "seed 1) gave 0.5" in small.reason


def test_the_papers_own_counts_are_worked_out_in_the_reason():
    for outcome in (lambda run: None, settled):
        found = verdict(plan_of("smoke"), outcome, claim("A-C1"))
        assert "the paper's own counts give p = 0.17 in this test" in found.reason
    other = claim("A-C1", reported=claim("A-C1").reported.model_copy(update={"a": [5, 5]}))
    assert "own counts give p = 0.0079" in verdict(plan_of("smoke"), settled, other).reason


def test_a_rate_at_the_papers_scale_is_reproduced_and_below_it_supported():
    plan = plan_of("paper")
    found = verdict(plan, lambda run: settled(run, pre="diverged"), claim("A-C1"))
    assert (found.verdict, found.decided, found.looks) == ("reproduced", True, 1)
    assert "look 1 of 2, p times 2" in found.reason
    assert "not told by the paper: model (ours gpt2_124m)" in found.reason
    small = plan_of("desk", 10)
    found = verdict(small, lambda run: settled(run, pre="diverged"), claim("A-C1"))
    assert (found.verdict, found.decided) == ("supported", True)
    assert "data (embedded_lm, not openwebtext)" in found.reason


def test_data_other_than_the_papers_never_reproduces():
    found = verdict(plan_of("desk", 10), lambda run: settled(run, pre="diverged"), claim("A-C1"), scale="paper")
    assert found.verdict == "supported"


def test_the_other_way_round_is_contradicted():
    found = verdict(plan_of("desk", 10), lambda run: settled(run, peri="diverged"), claim("A-C1"))
    assert found.verdict == "contradicted"
    found = verdict(plan_of("paper"), lambda run: settled(run, peri="diverged"), claim("A-C1"))
    assert found.verdict == "not_reproduced"


def test_equal_rates_are_inconclusive():
    for status in ("diverged", 2.3):
        found = verdict(plan_of("desk", 10), lambda run, s=status: settled(run, s, s), claim("A-C1"))
        assert found.verdict == "inconclusive"


def test_a_failed_run_is_not_replaced_by_a_later_seed():
    plan = plan_of("desk", 12)
    found = verdict(plan, lambda run: "oom" if run.seed == 3 else settled(run, pre="diverged"), claim("A-C1"))
    assert found.verdict == "inconclusive"
    assert found.reason.startswith("9 of 10 runs per arm are finished;")
    assert (found.n_planned, found.n_failed) == (24, 2)


def test_the_second_look_uses_all_runs_and_a_doubled_p():
    def outcome(run):
        late = run.seed > 10 or run.seed in (1, 2, 3)
        return settled(run, pre="diverged" if late else 2.3)

    first = verdict(plan_of("desk", 10), outcome, claim("A-C1"))
    assert (first.verdict, first.looks) == ("inconclusive", 1)
    between = verdict(plan_of("desk", 15), outcome, claim("A-C1"))
    assert (between.verdict, between.looks) == ("inconclusive", 1)  # no look at 15
    second = verdict(plan_of("desk", 20), outcome, claim("A-C1"))
    assert (second.verdict, second.looks) == ("supported", 2)
    assert "look 2 of 2" in second.reason


def test_one_level_for_two_looks_keeps_false_positives_down():
    rule = decide("A-C1")
    assert rule.level == rule.alpha / 2
    assert decide("A-C1", extension=None).level == rule.alpha


def test_an_ordering_needs_every_other_method_beaten():
    plan, one = plan_of("desk"), claim("A-C3a")

    def outcome(run, step=2.2):
        if run.method == "peri_ln" and run.params["dt"] == 0.1:
            return step + 0.01 * run.seed
        return settled(run)

    assert verdict(plan, outcome, one).verdict == "supported"
    assert verdict(plan, lambda run: outcome(run, 2.27), one).verdict == "contradicted"
    wavering = verdict(plan, lambda run: outcome(run, 2.25 + (-1) ** run.seed * 0.1), one)
    assert wavering.verdict == "inconclusive"
    assert "10 pairs, which can reach p = 0.00098" in wavering.reason


def test_diverged_runs_lose_pairs_and_common_ones_tie():
    plan, one = plan_of("desk"), claim("A-C3a")

    def outcome(run):
        if run.method == "peri_ln" and run.params["dt"] == 0.1:
            return "diverged" if run.seed < 4 else 2.2 + 0.01 * run.seed
        return "diverged"

    found = verdict(plan, outcome, one)  # seven untied pairs reach p = 0.016 two-sided
    assert found.verdict == "supported"
    assert found.n_diverged == 23
    assert "peri_ln dt=0.1: diverged 3 of 10" in found.ours  # no mean over the survivors

    def against(run):
        return "diverged" if run.method == "peri_ln" and run.params["dt"] == 0.1 else settled(run)

    assert verdict(plan, against, one).verdict == "contradicted"


def test_comparable_means_inside_the_margin():
    plan, one = plan_of("desk"), claim("A-C5a")
    assert verdict(plan, lambda run: settled(run, 2.30, 2.301), one).verdict == "supported"
    assert verdict(plan, lambda run: settled(run, 2.30, 2.40), one).verdict == "contradicted"
    wide = verdict(plan, lambda run: settled(run, 2.30, 2.31 + 0.05 * (-1) ** run.seed), one)
    assert wide.verdict == "inconclusive"
    broken = verdict(plan, lambda run: "diverged" if run.seed == 2 else settled(run, 2.30, 2.30), one)
    assert broken.verdict == "inconclusive"
    assert "no mean to compare" in broken.reason


def test_lr_tolerance_is_a_ratio_per_seed():
    plan, one = plan_of("desk"), claim("C-C1")

    def outcome(run, limits):
        return 2.3 + 0.001 * run.seed if run.axes.get("lr", 0) <= limits.get(run.method, 1) else "diverged"

    ten = verdict(plan, lambda run: outcome(run, {"simplenorm": 0.03, "pre_qk": 0.003}), one)
    assert ten.verdict == "supported"
    assert "8 above, 0 below" in ten.reason
    assert "median 10, 10 to 10, 8 of 8 seeds" in ten.ours
    tied = verdict(plan, lambda run: outcome(run, {"simplenorm": 0.03, "pre_qk": 0.01}), one)
    assert tied.verdict == "inconclusive"  # a ratio of exactly 3 speaks for neither side
    same = verdict(plan, lambda run: outcome(run, {"simplenorm": 0.03, "pre_qk": 0.03}), one)
    assert same.verdict == "contradicted"
    edge = verdict(plan, lambda run: 2.3, one)
    assert edge.verdict == "inconclusive"
    assert "8 beyond the grid" in edge.ours
    hole = verdict(plan, lambda run: None if run.seed == 5 else outcome(run, {}), one)
    assert hole.reason.startswith("7 of 8 runs per arm")
    assert hole.n_planned == 64


def test_a_number_on_another_protocol_is_not_compared():
    reported = claim("C-C2").reported
    numbered = claim("A-C5a", reported=reported)
    found = verdict(plan_of("desk"), settled, numbered)
    assert (found.verdict, found.decided) == ("not_comparable", False)
    assert "model (gpt_d64_l4, not gpt2_124m)" in found.reason
    assert "not told by the paper: tokens" in found.reason


def test_nothing_to_judge_is_said_with_its_reason():
    nothing = {v.id: v for v in judge(claims(), plan_of("smoke"), world(plan_of("smoke"), lambda run: None), "smoke")}
    assert nothing["A-C1"].verdict == "not_run"
    assert "none of the 4 planned runs has a result" in nothing["A-C1"].reason
    assert nothing["A-C6a"].verdict == "not_run"
    assert "none of the 6 planned runs has a result" in nothing["A-C6a"].reason
    assert nothing["C-C2"].verdict == "not_run"
    assert "Llama 1B on C4" in nothing["C-C2"].reason
    assert nothing["C-C4"].verdict == "not_reported"
    assert nothing["C-C4"].reported == "not reported"


def test_an_experiment_that_was_left_out_is_named():
    elsewhere = claim("A-C1").cells.model_copy(update={"experiment": "elsewhere"})
    found = verdict(plan_of("smoke"), settled, claim("A-C1", cells=elsewhere))
    assert (found.verdict, found.reason.split(";")[0]) == ("not_run", "experiment elsewhere is not in this plan")


def test_a_claim_that_leaves_the_cell_open_is_refused():
    loose = claim("A-C3a").cells.model_copy(update={"model": None})
    with pytest.raises(ConfigError, match=r"A-C3a: .*fits several cells of a_quality: .*; they differ in model, which"):
        verdict(plan_of("smoke"), settled, claim("A-C3a", cells=loose))


@pytest.mark.parametrize("axis", ["weight_decay", "model"])
def test_a_tolerance_with_two_cells_at_one_learning_rate_is_refused(axis):
    """Neither may silently stand for the other, whichever comes last."""
    base, one = plan_of("smoke"), claim("C-C1")
    cells = base.cells["c_lr_tolerance"]
    cell = next(cell for cell in cells if cell.method == "simplenorm")
    twin = replace(cell, label="twin", axes={**cell.axes, axis: "other"})
    plan = replace(base, cells={**base.cells, "c_lr_tolerance": [*cells, twin]})
    said = rf"C-C1: simplenorm fits several cells of c_lr_tolerance at learning rate {cell.axes['lr']}: .*twin"
    with pytest.raises(ConfigError, match=rf"{said}; they differ in {axis}, which the claim must name"):
        verdict(plan, settled, one)
    named = one.cells.model_copy(update={axis: cell.axes[axis]})
    assert verdict(plan, settled, claim("C-C1", cells=named)).n_planned == 8


def test_a_metric_that_is_not_finite_counts_as_diverged_and_one_not_measured_as_missing():
    plan = plan_of("desk")
    index = world(plan, settled)
    pre = next(cell for cell in plan.cells["a_quality"] if cell.label == "pre_ln/gpt2_124m")
    record = index.evals(pre.run_ids[0])["ppl_seq_mean"]
    record.raw["metrics"][0]["value"] = None
    del index.evals(pre.run_ids[1])["ppl_seq_mean"]
    (found,) = judge([claim("A-C4a")], plan, index, "desk")
    assert (found.n_complete, found.n_diverged, found.n_missing, found.n_planned) == (28, 1, 1, 30)
    assert "pre_ln: diverged 1 of 10, not measured 1 of 10" in found.ours


def test_a_family_shares_its_alpha():
    plan = plan_of("desk")

    def outcome(run):
        best = run.method == "peri_ln" and run.params["dt"] == 0.1
        return (2.2 if best else 2.3) + 0.01 * run.seed + (0.2 if best and run.seed == 1 else 0)

    alone = verdict(plan, outcome, claim("A-C3a"))
    assert (alone.verdict, "Holm" in alone.reason) == ("supported", False)
    together = judge([c for c in claims() if c.paper == "a"], plan, world(plan, outcome), "desk")
    (shared,) = [v for v in together if v.id == "A-C3a"]
    assert shared.verdict == "inconclusive"
    assert "Holm over the 5 planned claims of paper_a_quality_124m" in shared.reason
    assert "corrected" in shared.reason


def test_every_shipped_rule_can_be_met():
    """A claim that not even a perfect outcome could decide, after its family's correction, is a mistake."""

    def perfect(run):
        if run.axes.get("weight_decay") in (0.0, 0.1) and "a_stability" in run.experiments and run.method == "pre_ln":
            return "diverged"
        noise = 0.01 * run.seed + 0.0001 * (run.seed * len(run.method) % 5)
        if "c_lr_tolerance" in run.experiments:
            order = {"simplenorm": 2.2, "pre_qk": 2.25}.get(run.method, 2.3)
            return order + noise if run.axes.get("lr", 0) <= {"simplenorm": 6e-3}.get(run.method, 6e-4) else "diverged"
        if "residual" in run.axes:
            slope = -0.03 if run.axes["residual"] else 0.03
            return 0.5 + slope * run.axes["layers"] + noise
        if "beta" in run.params and "control" in run.axes:
            beta = run.params["beta"]
            return (5.0 - 3.0 * beta if run.axes["control"] == "none" else 2.0 + beta) + noise
        best = run.method == "peri_ln" and run.params["dt"] == 0.1
        return (2.0 if best else 2.3) + noise

    plan = plan_of("paper", 10)
    about_runs = [one for one in claims() if one.setting is not None]  # theory is tried in test_claim_kinds.py
    shared = [
        v
        for v in judge(about_runs, plan, world(plan, perfect), "paper")
        if v.verdict not in ("not_run", "not_reported")
    ]
    assert len(shared) >= 15
    for found in shared:
        if found.id not in ("A-C5a", "A-C5b"):  # pre_ln diverges in this world, so it has no mean
            assert found.verdict in ("reproduced", "supported"), (found.id, found.reason)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["smoke", "desk"]))
def test_counts_always_add_up_and_words_are_the_contracts(seed, tier):
    draw = random.Random(seed)
    kinds = [2.3, "diverged", "failed", "oom", "timeout", None]
    weights = [draw.random() for _ in kinds]

    def outcome(run):
        (kind,) = draw.choices(kinds, weights)
        return kind + draw.gauss(0, 0.02) if isinstance(kind, float) else kind

    plan = plan_of(tier)
    for found in judge(claims(), plan, world(plan, outcome), tier):
        assert found.n_complete + found.n_diverged + found.n_failed + found.n_missing == found.n_planned
        assert found.verdict in WORDS
        assert found.reason
        assert found.reported
        assert found.ours
        assert not re.search(r"\b(nan|inf|None)\b", found.reason + found.ours)
        assert len(found.claim_sha256) == len(found.family_sha256) == 64
