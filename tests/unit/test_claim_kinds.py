"""Every kind of claim with records that speak for it, against it, and for neither side; cases S05, S06, S07, M07."""

from __future__ import annotations

import json
import math

import pytest
from claim_world import World, around, claim, margin, rule, seeds, verdict
from hypothesis import given, settings
from hypothesis import strategies as st
from report_world import eval_record, index_of, plan_of, train_record

from repro.spec.claims import Claim
from repro.spec.metrics import METRICS
from repro.spec.reading import read_yaml
from repro.stats.closeness import (
    DIFFERS,
    EQUAL,
    WITHIN,
    closeness,
    closeness_words,
    loss_of_perplexity,
    perplexity_of_loss,
    welch_tost,
)
from repro.stats.verdict import judge
from tests.shared import shared

TWO, THREE = ("one", "two"), ("one", "two", "three")
NOISE = {seed: 0.001 * (seed * 7 % 5) for seed in range(1, 9)}


def shifted(offset: float, noise: float = 1.0) -> dict[int, float | str | None]:
    """Eight seeds around 2, with noise that differs from seed to seed."""
    return {seed: 2.0 + offset + noise * extra for seed, extra in NOISE.items()}


def wavering(size: float) -> dict[int, float | str | None]:
    return {seed: 2.0 + size * (-1) ** seed + extra for seed, extra in NOISE.items()}


VALUE = claim("value", {"value": 2.0}, rule("tost"), **margin(0.05))
COMPARABLE = claim("difference", {"comparable": True}, rule("tost"), TWO, **margin(0.05))
SMALLER = claim("difference", {"value": -0.1}, rule("tost"), TWO, **margin(0.02))
NOT_BELOW = claim("difference", {"low": 0.0}, rule("t", alternative="greater"), TWO, **margin(0.01))
ABOVE = claim("difference", {"low": 0.0}, rule("sign", alternative="greater"), TWO)
AT_MOST = claim("value", {"high": 2.1}, rule("t", alternative="less"))
BEST = claim("ordering", {"rank": 1}, rule("signed_rank", alternative="less"), THREE)
CHAIN = claim("ordering", {"chain": True}, rule("signed_rank", alternative="less"), THREE)
RATIO = claim("ratio", {"low": 2.0}, rule("sign", alternative="greater"), TWO)
RATIO_UP_TO = claim("ratio", {"high": 2.0}, rule("sign", alternative="less"), TWO)
SAME_RATIO = claim("ratio", {"value": 1.05, "digits": 2}, rule("tost"), TWO, **margin(0.02, "1"))
BOUND = claim("bound", {"high": 2.5}, rule("every_run"))
RANGE = claim("bound", {"low": 1.5, "high": 2.5}, rule("every_run"))
EXACT = claim("exact", {"value": 2.0}, rule("every_run"), **margin(1e-3))
CASES = {
    "value": (VALUE, {"one": shifted(0.0)}, {"one": shifted(0.2)}, {"one": wavering(0.1)}),
    "value at most": (AT_MOST, {"one": shifted(0.0)}, {"one": shifted(0.2)}, {"one": shifted(0.098)}),
    "comparable": (
        COMPARABLE,
        {"one": shifted(0.01, 2), "two": shifted(0.0)},
        {"one": shifted(0.2, 2), "two": shifted(0.0)},
        {"one": wavering(0.2), "two": shifted(0.0)},
    ),
    "difference": (
        SMALLER,
        {"one": shifted(-0.1, 2), "two": shifted(0.0)},
        {"one": shifted(0.0, 2), "two": shifted(0.0)},
        {"one": wavering(0.2), "two": shifted(0.0)},
    ),
    "not below": (
        NOT_BELOW,
        {"one": shifted(0.0, 2), "two": shifted(0.0)},
        {"one": shifted(-0.1, 2), "two": shifted(0.0)},
        {"one": wavering(0.2), "two": shifted(0.0)},
    ),
    "above by sign": (
        ABOVE,
        {"one": {**shifted(0.1), 1: "diverged"}, "two": shifted(0.0)},
        {"one": shifted(-0.1), "two": shifted(0.0)},
        {"one": wavering(0.2), "two": shifted(0.0)},
    ),
    "best": (
        BEST,
        {"one": shifted(-0.1), "two": shifted(0.0), "three": shifted(0.1)},
        {"one": shifted(0.05), "two": shifted(0.0), "three": shifted(0.1)},
        {"one": wavering(0.2), "two": shifted(0.0), "three": shifted(0.1)},
    ),
    "chain": (
        CHAIN,
        {"one": shifted(-0.1), "two": shifted(0.0), "three": {**shifted(0.1), 3: "diverged"}},
        {"one": shifted(-0.2), "two": shifted(0.1), "three": shifted(0.0)},
        {"one": shifted(-0.1), "two": shifted(0.0), "three": wavering(0.2)},
    ),
    "ratio": (
        RATIO,
        {"one": around(5.0), "two": shifted(0.0)},
        {"one": around(3.0), "two": shifted(0.0)},
        {"one": {seed: 4.0 + 0.5 * (-1) ** seed for seed in NOISE}, "two": shifted(0.0, 0)},
    ),
    "ratio up to": (
        RATIO_UP_TO,
        {"one": around(3.0), "two": shifted(0.0)},
        {"one": around(5.0), "two": shifted(0.0)},
        {"one": {seed: 4.0 + 0.5 * (-1) ** seed for seed in NOISE}, "two": shifted(0.0, 0)},
    ),
    "ratio of a value": (
        SAME_RATIO,
        {"one": around(2.1), "two": around(2.0)},
        {"one": around(2.4), "two": around(2.0)},
        {"one": wavering(0.3), "two": around(2.0)},
    ),
    "bound": (BOUND, {"one": shifted(0.0)}, {"one": {**shifted(0.0), 5: 2.6}}, {"one": {**shifted(0.0), 5: None}}),
    "range": (RANGE, {"one": shifted(0.0)}, {"one": {**shifted(0.0), 2: 1.4}}, {"one": {**shifted(0.0), 5: "oom"}}),
    "exact": (EXACT, {"one": around(2.0, 9e-4)}, {"one": around(2.0, 2e-3)}, {"one": around(2.0, 9e-4, 7)}),
}


@pytest.mark.parametrize("name", CASES)
def test_each_kind_is_supported_contradicted_or_left_open(name: str) -> None:
    one, good, bad, open_ = CASES[name]
    assert verdict(one, good).verdict == "reproduced", verdict(one, good).reason
    assert verdict(one, bad).verdict == "not_reproduced", verdict(one, bad).reason
    left = verdict(one, open_)
    assert (left.verdict, left.decided) == ("inconclusive", False), left.reason
    assert verdict(one, good, "smoke").verdict in ("supported", "inconclusive")
    assert verdict(one, bad, "smoke").verdict == "contradicted"


def test_all_kinds_are_tried() -> None:
    from repro.spec.claim_model import TESTS

    tried = {(one.kind, one.decide.test) for one, *_ in CASES.values() if one.decide}
    assert tried | {("rate", "fisher")} == {(kind, test) for kind, tests in TESTS.items() for test in tests}


def test_a_bound_names_the_run_that_breaks_it_and_one_is_enough() -> None:
    found = verdict(BOUND, {"one": {**shifted(0.0), 5: 2.6, 7: None, 8: None}})
    assert found.verdict == "not_reproduced"  # long before all runs are there
    assert "run one-5 (one, seed 5) gave 2.6; allowed is at most 2.5" in found.reason
    many = verdict(BOUND, {"one": around(3.0)})
    assert "and 5 more" in many.reason
    assert verdict(BOUND, {"one": {**shifted(0.0), 5: 2.6}}, "smoke").verdict == "contradicted"


def test_round_off_is_no_violation_and_a_value_that_is_not_finite_is_one() -> None:
    loose = claim("bound", {"high": 2.5}, rule("every_run"), **margin(0.2))
    assert verdict(loose, {"one": {**shifted(0.0), 5: 2.6}}).verdict == "reproduced"
    found = verdict(BOUND, {"one": {**shifted(0.0), 5: "diverged"}})
    assert (found.verdict, "seed 5) gave no finite number" in found.reason) == ("not_reproduced", True)


def test_exact_counts_in_ulp_where_the_margin_says_so() -> None:
    def one(ulp: float) -> Claim:
        return claim("exact", {"value": 2.0}, rule("every_run"), **margin(ulp, "ulp"))

    values = {"one": seeds(*[2.0] * 7, 2.0 + 3 * math.ulp(2.0))}
    assert verdict(one(4), values).verdict == "reproduced"
    assert verdict(one(2), values).verdict == "not_reproduced"
    assert verdict(claim("exact", {"value": 2.0}, rule("every_run")), {"one": seeds(*[2.0] * 8)}).decided


@pytest.mark.parametrize("scale", ["smoke", "desk"])
def test_a_smaller_plan_does_not_confirm_a_bound(scale: str) -> None:
    found = verdict(BOUND, {"one": dict.fromkeys((1, 2), 2.0)}, scale)
    assert (found.verdict, found.reason.split(";")[0]) == (
        "inconclusive",
        "2 of 8 runs per arm are finished, this plan has 2",
    )


def test_a_smaller_plan_refutes_a_bound_only_where_it_is_decided() -> None:
    few = {"one": {1: 2.0, 2: 99.0}}
    small = verdict(BOUND, few, "smoke")
    assert (small.verdict, "seed 2) gave 99" in small.reason) == ("inconclusive", True)
    assert verdict(BOUND, few, "desk").verdict == "not_reproduced"


def test_every_arm_of_a_bound_must_obey() -> None:
    both = claim("bound", {"high": 2.5}, rule("every_run"), TWO)
    assert verdict(both, {"one": shifted(0.0), "two": shifted(0.1)}).verdict == "reproduced"
    assert verdict(both, {"one": shifted(0.0), "two": around(3.0)}).verdict == "not_reproduced"


def test_bounds_take_no_alpha_from_their_family() -> None:
    world = World({"one": shifted(-0.1), "two": shifted(0.0), "three": shifted(0.1)})
    others = [BOUND.model_copy(update={"id": f"A-T{number}"}) for number in range(1, 20)]
    found = judge([BEST, *others], world, world, "desk")
    assert found[0].verdict == "reproduced"
    assert "Holm" not in found[0].reason


def test_our_own_reading_is_named() -> None:
    ours = BOUND.model_copy(update={"reading": "derived"})
    assert "under our reading of the paper" in verdict(ours, {"one": shifted(0.0)}).reason
    assert "our reading" not in verdict(BOUND, {"one": shifted(0.0)}).reason


def test_without_its_runs_a_claim_says_how_many_it_has() -> None:
    for done in range(1, 8):
        values = {seed: (2.0 if seed <= done else None) for seed in range(1, 9)}
        found = verdict(VALUE, {"one": values})
        assert (found.verdict, found.reason.split(" per")[0]) == ("inconclusive", f"{done} of 8 runs")


def extended(late: float) -> dict[str, dict[int, float | str | None]]:
    """Twenty seeds: the first ten say little, the rest `late`."""
    first = {seed: 0.1 * (-1) ** seed for seed in range(1, 11)}
    values = first | {seed: late + 0.001 * seed for seed in range(11, 21)}
    return {"one": {seed: 2.0 + value for seed, value in values.items()}, "two": dict.fromkeys(values, 2.0)}


def test_between_the_planned_number_and_the_extension_nothing_is_looked_at() -> None:
    one = claim("ordering", {"rank": 1}, rule("signed_rank", 10, alternative="less", extension=20), TWO)
    whole = extended(-0.3)
    for recorded in range(10, 20):
        part = {arm: {s: (v if s <= recorded else None) for s, v in values.items()} for arm, values in whole.items()}
        found = verdict(one, part)
        assert (found.verdict, found.looks) == ("inconclusive", 1)
        assert "the second look is at 20 runs" in found.reason
    found = verdict(one, whole)
    assert (found.verdict, found.looks) == ("reproduced", 2)
    assert "look 2 of 2, p times 4" in found.reason


def test_an_extension_halves_alpha_at_each_look() -> None:
    five = {"one": {seed: 1.9 - 0.01 * seed for seed in range(1, 7)}, "two": dict.fromkeys(range(1, 7), 2.0)}
    plain = claim("ordering", {"rank": 1}, rule("signed_rank", 6, alternative="less"), TWO)
    halved = claim("ordering", {"rank": 1}, rule("signed_rank", 6, alternative="less", extension=12), TWO)
    assert verdict(plain, five).verdict == "reproduced"  # p = 2/64
    assert verdict(halved, five).verdict == "inconclusive"


def test_a_family_shares_alpha_and_both_hashes_travel() -> None:
    world = World({"one": shifted(-0.1), "two": shifted(0.0), "three": shifted(0.1)})
    many = [BEST.model_copy(update={"id": f"A-C{number}"}) for number in range(1, 21)]
    alone, *_ = judge([BEST], world, world, "desk")
    first, *_ = judge(many, world, world, "desk")
    assert (alone.verdict, first.verdict) == ("reproduced", "inconclusive")
    assert "Holm over the 20 planned claims of f" in first.reason
    assert alone.claim_sha256 == first.claim_sha256
    assert alone.family_sha256 != first.family_sha256


def test_the_spread_over_seeds_stands_beside_every_number() -> None:
    found = verdict(BEST, {"one": shifted(-0.1), "two": shifted(0.0), "three": shifted(0.1)})
    assert found.aa_spread == pytest.approx(0.0016, rel=0.2)
    assert "A/A spread 0.00" in found.ours


# S05: the final step, declared beforehand, never the best of all looks.


def test_the_final_step_counts_not_the_best_of_the_curve() -> None:
    case = shared("cases/S05")
    expected = json.loads((case / "expected.json").read_text())
    rows = [line.split(",") for line in (case / "curve.csv").read_text().split()[1:]]
    losses = [float(loss) for _, loss in rows]
    assert min(losses) == expected["wrong_minimum"]
    plan = plan_of("smoke")
    runs = [
        run for run in plan.runs.values() if "a_stability" in run.experiments and run.axes.get("weight_decay") == 0.0
    ]
    raws = []
    for run in runs:
        tokens = [run.tokens * int(step) // 100 for step, _ in rows]
        curve = {"tokens": tokens, **dict.fromkeys(("train_loss", "train_min", "train_max", "val_loss"), losses)}
        raws += [train_record(run, curve=curve), eval_record(run, "val_loss", losses[-1])]
    entry = claim("difference", {"comparable": True}, rule("tost", 2), TWO, **margin(0.05)).model_dump()
    entry["cells"] = {"experiment": "a_stability", "weight_decay": 0.0, "a": "pre_ln", "b": "peri_ln"}
    entry["setting"] = "theory"
    entry["margin"] = {"value": 0.05, "unit": "nats"}
    (found,) = judge([Claim.model_validate(entry)], plan, index_of(plan.configuration.root, raws), "smoke")
    assert f"{expected['right']}" in found.ours
    assert f"{expected['wrong_minimum']}" not in found.ours


def test_choosing_the_best_look_is_refused() -> None:
    with pytest.raises(ValueError, match="selection"):
        claim("value", {"value": 2.0}, rule("tost", selection="best"), **margin(0.05))


def test_a_paper_that_reports_its_best_look_is_not_compared() -> None:
    known = {"model": "m", "data": "text", "tokens": 100, "protocol": "val_loss", "eval_tokens": 1000}
    world = {"model": "m", "data": "text", "tokens": 100}
    same = claim("value", {"value": 2.0}, rule("tost"), **margin(0.05), setting=known | {"selection": "final"})
    assert verdict(same, {"one": shifted(0.0)}, **world).verdict == "reproduced"
    best = claim("value", {"value": 2.0}, rule("tost"), **margin(0.05), setting=known | {"selection": "best"})
    found = verdict(best, {"one": shifted(0.0)}, **world)
    assert (found.verdict, "selection (final, not best)" in found.reason) == ("not_comparable", True)


# S06: no verdict on numbers of another protocol.


def _s06(**changes: object) -> tuple[Claim, dict[str, object]]:
    case = shared("cases/S06")
    ours = json.loads((case / "ours.json").read_text())
    theirs = read_yaml(case / "reference.yaml").value["paper_table"] | changes
    setting = {
        "model": theirs["model"],
        "data": "text",
        "tokens": theirs["tokens_seen"],
        "protocol": "val_loss" if theirs["eval_average"] == "tokens" else theirs["eval_average"],
        "eval_tokens": theirs["eval_tokens"],
        "selection": "final",
    }
    one = claim("value", {"value": theirs["value"], "digits": 2}, rule("tost", 3), **margin(0.1), setting=setting)
    world = {"model": theirs["model"], "data": "text", "tokens": int(ours["tokens_seen"])}
    return one, world | {"eval_tokens": int(ours["eval_tokens"])}


def _ours() -> dict[str, dict[int, float | str | None]]:
    return {"one": seeds(*[json.loads((shared("cases/S06") / "ours.json").read_text())["token_ppl"]] * 3)}


def test_another_protocol_is_named_with_both_reasons() -> None:
    expected = json.loads((shared("cases/S06") / "expected.json").read_text())
    one, world = _s06()
    found = verdict(one, _ours(), **world)
    assert found.verdict == "not_comparable"
    assert found.verdict not in expected["must_not"]
    assert "differs from the paper in tokens (2,080,000,000, not 2,200,000,000) and protocol (" in found.reason
    assert len(expected["reasons"]) == found.reason.count(", not ")


@pytest.mark.parametrize(("key", "name"), [("tokens_seen", "tokens"), ("eval_average", "protocol")])
def test_an_unknown_field_is_no_match(key: str, name: str) -> None:
    one, world = _s06(**{"tokens_seen": 2.08e9, "eval_average": "tokens", key: "unknown"})
    found = verdict(one, _ours(), **world)
    assert (found.verdict, f"not told by the paper: {name} (ours" in found.reason) == ("not_comparable", True)
    assert "differs from the paper" not in found.reason


def test_equal_protocols_are_compared() -> None:
    one, world = _s06(tokens_seen=2.08e9, eval_average="tokens")
    assert verdict(one, _ours(), **world).decided


def test_two_references_for_one_cell_are_both_shown() -> None:
    world = World({"one": shifted(0.0)})
    first = VALUE
    source = first.source.model_copy(update={"paper": "a paper, v3"})
    reported = first.reported.model_copy(update={"value": 2.2})
    third = first.model_copy(update={"id": "A-C2", "source": source, "reported": reported})
    found = judge([first, third], world, world, "desk")
    assert [(v.reported, v.verdict) for v in found] == [("2", "reproduced"), ("2.2", "not_reproduced")]


def test_a_bertscore_of_another_protocol_is_not_compared() -> None:
    """M07: raw and rescaled scores never meet."""
    rows = json.loads((shared("cases/M07") / "rows.json").read_text())
    assert "bert_f1_tf" in METRICS
    for row in rows:
        setting = {"model": "m", "data": "text", "tokens": 100, "protocol": row["protocol"], "eval_tokens": 1000}
        one = claim("value", {"value": row["bertscore_f1"]}, rule("tost"), **margin(0.05), setting=setting)
        found = verdict(one, {"one": shifted(0.0)}, model="m", data="text", tokens=100)
        assert found.verdict == "not_comparable"
        assert f"not {row['protocol']}" in found.reason


# S07: digits first, then spread; conversions by the mean loss.


def _three(centre: float, sd: float) -> list[float]:
    return [centre - sd, centre, centre + sd]


def test_digits_come_before_spread() -> None:
    case = json.loads((shared("cases/S07") / "case.json").read_text())
    words = {
        "equal at the paper's digits": EQUAL,
        "within run-to-run spread, not equal": WITHIN,
        "differs": DIFFERS,
    }
    for ours in case["ours"]:
        values = _three(ours["ppl"], ours["seed_sd"]) if "seed_sd" in ours else [ours["ppl"]]
        assert closeness(values, case["paper_value"], case["paper_digits"]) == words[ours["verdict"]]
    assert round(loss_of_perplexity(25.76), 6) == case["convert"]["ppl_25.76_as_loss"]
    assert round(perplexity_of_loss(3.26633), 3) == case["convert"]["loss_3.26633_as_ppl"]


def test_a_perplexity_is_compared_with_a_loss_by_the_log_and_it_is_said() -> None:
    one = claim("value", {"value": 25.76, "digits": 2, "given_as": "perplexity"}, rule("tost"), **margin(0.01))
    found = verdict(one, {"one": around(3.2488, 1e-3)})
    assert found.verdict == "reproduced"
    assert "25.76 perplexity is 3.24882, its log" in found.reason
    assert f": {EQUAL}" in found.reason
    assert verdict(one, {"one": around(3.3, 1e-3)}).verdict == "not_reproduced"
    reverse = claim("value", {"value": 3.26633, "given_as": "loss"}, rule("tost"), **margin(0.01))
    assert "its exp" in verdict(reverse, {"one": around(26.215, 1e-3)}).reason


def test_a_mean_of_perplexities_is_not_taken_for_the_perplexity_of_the_mean() -> None:
    one = claim("value", {"value": math.exp(3.0), "digits": 2, "given_as": "perplexity"}, rule("tost"), **margin(0.01))
    words = closeness_words(one, [2.5, 3.5])
    assert f"our mean {math.exp(3.0):.6g}" in words


def test_one_number_without_a_spread_leaves_it_to_the_margin_and_a_spread_enters() -> None:
    assert "one number without a spread, so the margin carries" in verdict(VALUE, {"one": shifted(0.0)}).reason
    spread = claim("value", {"value": 2.0, "sd": 0.2, "n": 3}, rule("tost"), **margin(0.05))
    found = verdict(spread, {"one": shifted(0.0)})
    assert found.verdict == "inconclusive"  # their three runs leave more open than the margin
    assert "the paper's own spread over 3 runs enters (Welch)" in found.reason


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-1, 1), min_size=3, max_size=12).filter(lambda v: max(v) - min(v) > 1e-3),
    st.floats(-0.5, 0.5),
    st.floats(0.05, 1.0),
    st.integers(2, 12),
)
def test_welch_agrees_with_scipy(values: list[float], theirs: float, sd: float, n: int) -> None:
    from scipy.stats import ttest_ind_from_stats

    one = claim("value", {"value": theirs, "sd": sd, "n": n}, rule("tost"), **margin(0.3))
    mean = sum(values) / len(values)
    own = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    low, high = (
        ttest_ind_from_stats(
            mean - theirs + shift, own, len(values), 0.0, sd, n, equal_var=False, alternative=side
        ).pvalue
        for shift, side in ((0.3, "greater"), (-0.3, "less"))
    )
    assert welch_tost(values, one).inside == pytest.approx(max(low, high), rel=1e-6, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(CASES)),
    st.dictionaries(st.integers(1, 8), st.sampled_from(["diverged", "failed", "oom", None, 2.0, 1e9, -1.0, 0.0])),
    st.sampled_from(["smoke", "desk", "paper"]),
)
def test_no_outcome_breaks_the_engine_or_shows_a_number_that_is_none(
    name: str, changes: dict[int, float | str | None], scale: str
) -> None:
    one, good, _, _ = CASES[name]
    values = {**good, "one": {**good["one"], **changes}}
    found = verdict(one, values, scale)
    assert found.reason
    assert not any(word in (found.reason + found.ours).split() for word in ("nan", "inf", "None", "-inf"))
    if any(value is None for value in changes.values()) and found.decided:
        assert found.verdict in ("not_reproduced", "contradicted", "supported")
