"""The claims' schema, its messages, and the two shipped files."""

import json
import re
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from report_world import claims, configuration, plan_of, world

from repro.spec.claims import SCALES, Claim, Decide, Known, check_claims, family_sha256, load_claims
from repro.spec.errors import ConfigError
from repro.spec.paths import Root
from repro.stats.select import find_arms

KNOWN = Known(
    {"a_stability": ["val_loss"], "a_quality": ["val_loss", "ppl_seq_mean"], "c_lr_tolerance": ["val_loss"]},
    {"pre_ln": ["dt"], "peri_ln": ["dt"], "simplenorm": [], "pre_qk": []},
    ["gpt2_124m"],
)
RATE = """\
- id: A-C1
  says: one method diverges more often than the other
  source: {paper: a paper, where: somewhere, provenance: seed}
  kind: rate
  metric: diverged
  cells: {experiment: a_stability, weight_decay: 0.0, a: pre_ln, b: peri_ln}
  reported: {a: [3, 5], b: [0, 5]}
  margin: none
  setting: {model: unknown, data: openwebtext}
  decide: {test: fisher, alternative: two-sided, alpha: .05, planned_n: 10, extension: 20, decided_at: paper, family: f}
  falsified_if: the other way round
"""
DIFFERENCE = RATE.replace("kind: rate", "kind: difference").replace("metric: diverged", "metric: val_loss")
DIFFERENCE = DIFFERENCE.replace("{a: [3, 5], b: [0, 5]}", "{comparable: true}").replace("test: fisher", "test: tost")
DIFFERENCE = DIFFERENCE.replace("margin: none", "margin: {value: 0.02, unit: nats}\n  margin_source: assumption")


def problems_of(tmp_path: Path, text: str, name: str = "paper_a.yaml") -> list[str]:
    """What is wrong with a claims file, one line each, without the folder."""
    path = tmp_path / name
    path.write_text(text, "utf-8")
    try:
        check_claims(path, name, KNOWN)
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []


def test_good_claims_pass(tmp_path):
    assert problems_of(tmp_path, RATE) == []
    assert problems_of(tmp_path, DIFFERENCE) == []


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("id: A-C1", "id: E-C1", 1, "id: E-C1"),
        ("says:", "sais:", 2, 'did you mean "says"'),
        ("provenance: seed", "provenance: rumour", 3, "known: code, derived, paper, secondary, seed"),
        ("kind: rate", "kind: rates", 4, 'did you mean "rate"'),
        ("metric: diverged", "metric: divergd", 5, 'divergd is not known; did you mean "diverged"'),
        ("a_stability", "a_stabilty", 6, 'did you mean "a_stability"'),
        ("a: pre_ln", "a: pre_nl", 6, 'did you mean "pre_ln"'),
        ("a: pre_ln", "a: {method: pre_ln, params: {dd: 1}}", 6, "pre_ln has no parameter dd"),
        ("weight_decay: 0.0", "weight_decy: 0.0", 6, 'did you mean "weight_decay"'),
        ("weight_decay: 0.0", "model: gpt2_125m", 6, 'did you mean "gpt2_124m"'),
        ("[3, 5]", "[6, 5]", 7, "at most as many events"),
        ("[3, 5]", "[0, 7]", 7, "two equal rates"),
        ("{a: [3, 5], b: [0, 5]}", "{value: 3}", 7, "kind rate reports a, b"),
        ("margin: none", "margin: 0.1", 8, "margin"),
        ("margin: none", "margin: {value: 0.1}", 8, "margin_source"),
        ("test: fisher", "test: tost", 10, "does not decide kind rate: fisher"),
        ("planned_n: 10", "planned_n: 1", 10, "greater than or equal to 2"),
        ("extension: 20", "extension: 10", 10, "larger than planned_n"),
        ("alpha: .05", "alpha: .5", 10, "less than or equal to 0.1"),
        ("decided_at: paper", "decided_at: cloud", 10, "known: desk, paper, proxy, smoke"),
        (", b: peri_ln}", "}", 6, "with 1 arms"),
    ],
)
def test_a_fault_is_told_with_its_line(tmp_path, old, new, line, message):
    assert old in RATE
    found = problems_of(tmp_path, RATE.replace(old, new))
    assert any(text.startswith(f"paper_a.yaml:{line}: ") and message in text for text in found), found


RATIO = DIFFERENCE.replace("kind: difference", "kind: ratio").replace("{comparable: true}", "{low: 2}")
RATIO = RATIO.replace("test: tost, alternative: two-sided", "test: sign, alternative: greater")
ORDERING = RATIO.replace("kind: ratio", "kind: ordering").replace("{low: 2}", "{rank: 1}")
ORDERING = ORDERING.replace("test: sign, alternative: greater", "test: signed_rank, alternative: less")
BOUND = RATIO.replace("kind: ratio", "kind: bound").replace(
    "test: sign, alternative: greater, alpha: .05, planned_n: 10, extension: 20", "test: every_run, planned_n: 10"
)


@pytest.mark.parametrize("text", [RATIO, ORDERING, BOUND, BOUND.replace("{low: 2}", "{low: 2, high: 3}")])
def test_the_other_kinds_pass(tmp_path, text):
    assert problems_of(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (RATIO, "greater", "less", "is greater for what is reported"),
        (RATIO, "{low: 2}", "{low: -2}", "a ratio is above 0"),
        (RATIO, "{low: 2}", "{low: 3, high: 2}", "low lies below high"),
        (ORDERING, "alternative: less", "alternative: greater", "rank 1 is the best, and lower is better"),
        (ORDERING, "alternative: less", "alternative: two-sided", "says a direction"),
        (BOUND, "{low: 2}", "{value: 2}", "kind bound reports"),
        (BOUND, "kind: bound", "kind: value", "every_run does not decide kind value"),
    ],
)
def test_the_other_kinds_say_what_does_not_fit(tmp_path, text, old, new, message):
    assert message in "\n".join(problems_of(tmp_path, text.replace(old, new)))


def test_what_is_not_planned_may_name_what_is_to_come(tmp_path):
    later = DIFFERENCE.replace("a_stability", "to_come").replace("metric: val_loss", "metric: to_come")
    assert len(problems_of(tmp_path, later)) == 2
    assert problems_of(tmp_path, later.replace("metric:", "not_planned: later\n  metric:")) == []


def test_theory_needs_no_setting(tmp_path):
    theory = BOUND.replace("setting: {model: unknown, data: openwebtext}", "setting: theory")
    assert problems_of(tmp_path, theory) == []
    path = tmp_path / "paper_a.yaml"
    assert check_claims(path, "x", KNOWN)[0].setting is None


SCALARS = st.none() | st.booleans() | st.integers(-5, 50) | st.floats(-2, 30) | st.sampled_from(["a", "less", "t", ""])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "value", "low"]), inner),
    max_leaves=6,
)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([RATE, DIFFERENCE, RATIO, ORDERING, BOUND]),
    st.dictionaries(st.sampled_from([*Claim.model_fields, "other"]), VALUES, min_size=1, max_size=4),
    st.sampled_from([None, *Decide.model_fields]),
    VALUES,
)
def test_a_malformed_claim_is_told_and_never_breaks_the_reader(text, changes, key, value):
    """All problems come as problems, with a place in the file, and a sound neighbour is still read."""
    (entry,) = yaml.safe_load(text)
    entry = {**entry, **changes}
    if key is not None and isinstance(entry["decide"], dict):
        entry["decide"] = {**entry["decide"], key: value}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "paper_a.yaml"
        path.write_text(json.dumps([entry]), "utf-8")
        alone = _found(path)
        path.write_text(json.dumps([entry, yaml.safe_load(RATE)[0] | {"id": "A-C9", "metric": "divergd"}]), "utf-8")
        both = _found(path)
    assert all(problem.file == "paper_a.yaml" and problem.line == 1 and problem.message for problem in alone)
    assert len(both) >= len(alone) + 1
    assert any("divergd is not known" in problem.message for problem in both)


def _found(path):
    try:
        check_claims(path, path.name, KNOWN)
    except ConfigError as error:
        return error.problems
    return []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("metric: val_loss", "metric: ppl_seq_mean", "not measured by a_stability"),
        ("margin: {value: 0.02, unit: nats}\n  margin_source: assumption", "margin: none", "needs a margin"),
        ("kind: difference", "kind: bound", "tost does not decide kind bound: every_run"),
        ("kind: difference", "kind: ordering", "kind ordering reports rank"),
        ("test: tost", "test: t", "decides a low or a high end"),
        ("{comparable: true}", "{low: 0.1}", "a low or high end takes t or sign"),
        ("test: tost", "test: every_run", "so there is no alternative, no alpha, no extension"),
        ("alternative: two-sided, ", "", "alternative and alpha are needed for tost"),
        ("extension: 20", "extension: 20, selection: best", "selection"),
        ("unit: nats", "unit: ulp", "for kind exact only"),
        ("{comparable: true}", "{value: 1.0, sd: 0.1}", "a spread needs n"),
        ("{comparable: true}", "{comparable: true, digits: 2}", "describe a value"),
        ("{comparable: true}", "{value: -1.0, given_as: perplexity}", "a perplexity is above 0"),
        ("metric: val_loss", "metric: lr_tolerance\n  tolerance: 1.1", "a ratio with a low end, decided by sign"),
        ("setting: {model: unknown, data: openwebtext}", "setting: practice", "setting"),
        ("alternative: two-sided", "alternative: less", "is two-sided for"),
        ("cells: {experiment: a_stability, weight_decay: 0.0, a: pre_ln, b: peri_ln}", "cells: null", "not_planned"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(tmp_path, old, new, message):
    found = problems_of(tmp_path, DIFFERENCE.replace(old, new))
    assert message in "\n".join(found)


def test_all_problems_of_all_entries_come_at_once(tmp_path):
    second = RATE.replace("A-C1", "A-C2").replace("a_stability", "a_stabilty")
    text = RATE.replace("pre_ln", "pre_nl") + second + RATE.replace("id: A-C1", "id: C-C1") + "- 3\n"
    found = problems_of(tmp_path, text)
    assert len(found) == 4
    assert [line.split(":")[1] for line in found] == ["6", "17", "23", "34"]
    assert "belongs in paper_c.yaml" in found[2]


def test_an_id_stands_once_over_all_files(tmp_path):
    assert "stands twice" in "".join(problems_of(tmp_path, RATE + RATE))
    folder = tmp_path / "config" / "claims"
    folder.mkdir(parents=True)
    (folder / "paper_a.yaml").write_text(RATE, "utf-8")
    (folder / "paper_b.yaml").write_text(RATE, "utf-8")
    with pytest.raises(ConfigError, match="stands twice"):
        load_claims(Root(tmp_path), KNOWN)


def test_a_file_that_is_no_list_is_refused(tmp_path):
    assert "a list of claims" in "".join(problems_of(tmp_path, "id: A-C1\n"))


def test_a_changed_margin_or_an_added_claim_shows(tmp_path):
    path = tmp_path / "paper_a.yaml"
    path.write_text(DIFFERENCE + RATE.replace("A-C1", "A-C2"), "utf-8")
    both = check_claims(path, "x", KNOWN)
    path.write_text(DIFFERENCE.replace("0.02", "0.03"), "utf-8")
    (changed,) = check_claims(path, "x", KNOWN)
    assert both[0].sha256 != changed.sha256
    assert family_sha256(both, "f") != family_sha256(both[:1], "f")
    assert family_sha256(both, "f") == family_sha256(both[::-1], "f")


def test_the_word_not_reported_and_a_claim_for_later(tmp_path):
    later = RATE.replace("metric: diverged", "metric: rouge_tf").replace("kind: rate", "kind: exact")
    later = later.replace("{a: [3, 5], b: [0, 5]}", "not_reported").replace(
        "margin: none", "margin: none\n  not_planned: later"
    )
    later = re.sub(r"cells: .*", "cells: null", re.sub(r"decide: .*", "decide: null", later))
    assert problems_of(tmp_path, later) == []


def test_the_shipped_claims_say_where_they_were_read():
    found = {claim.id: claim for claim in claims()}
    assert {"A-C1", "A-C2", "A-C3a", "A-C3b", "A-C5a", "A-C6a", "A-C7b", "C-C1", "C-C2", "C-C3", "C-C4"} <= set(found)
    assert found["A-C1"].reported.counts == ([3, 5], [0, 5])
    assert found["A-C2"].reported.counts == ([1, 5], [0, 5])
    assert {found[i].source.provenance for i in ("A-C1", "A-C2", "C-C2", "C-C4")} == {"seed"}
    assert {found[i].source.provenance for i in ("C-C1", "C-C3")} == {"paper"}
    for identity in ("A-C9", "C-C4", "D-C5"):
        assert not found[identity].reported.known
    assert all(claim.decide is None or claim.decide.decided_at in SCALES for claim in found.values())
    margins = [claim.margin_source for claim in found.values() if claim.margin.value is not None]
    assert set(margins) == {"assumption"}


def test_claims_name_base_models_of_the_checkout():
    names = {claim.cells.model for claim in claims() if claim.cells and claim.cells.model}
    assert names <= set(configuration().models)


def test_every_planned_claim_has_its_runs_at_the_tier_that_decides_it() -> None:
    """A claim that needs more seeds than its experiment plans could never be decided."""
    short = []
    for claim in claims():
        if claim.decide is None or claim.cells is None or claim.not_planned:
            continue
        plan = plan_of(claim.decide.decided_at)
        arms = find_arms(claim, claim.cells, plan, world(plan, lambda run: None))
        if not isinstance(arms, str):
            planned = min(len(arm.planned_seeds) for arm in arms.values())
            short += [(claim.id, planned)] if planned < claim.decide.planned_n else []
    assert short == []
