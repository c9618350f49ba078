"""Every reported number that is known stands behind a claim or is listed as unused, as it was found."""

from __future__ import annotations

import csv
import re
from collections import Counter

import pytest
from report_world import claims

from repro.spec.checks import CHECKS
from repro.spec.claims import UNKNOWN, load_unused
from repro.spec.paths import find_root
from tests.shared import shared

Key = tuple[str, str]  # paper as in the table, `experiment | model | variant | metric`
PAPER = {"a": "A", "b": "B", "c": "C", "d": "D"}
ANCHORS = "A-related (NOT paper A)"


def reported() -> dict[Key, dict[str, str]]:
    with open(shared("papers/reported.csv"), newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    found = {
        (row["paper"], " | ".join(row[key] for key in ("experiment", "model", "variant", "metric"))): row
        for row in rows
    }
    assert len(found) == len(rows)
    return found


def used() -> dict[Key, list[tuple[str, dict[str, str]]]]:
    """Row -> the claims (or `unused`) that name it, with what they say of it."""
    found: dict[Key, list[tuple[str, dict[str, str]]]] = {}
    for claim in claims():
        for row in claim.rows:
            found.setdefault((PAPER[claim.paper], row.row), []).append((claim.id, row.model_dump()))
    for group in load_unused(find_root()):
        for row in group.rows:
            found.setdefault((ANCHORS, row.row), []).append(("unused", row.model_dump()))
    return found


def test_every_row_is_used_or_listed_and_nothing_is_invented() -> None:
    table, ours = reported(), used()
    assert set(table) - set(ours) == set()
    assert set(ours) - set(table) == set()
    both = [key for key, users in ours.items() if len({name == "unused" for name, _ in users}) > 1]
    assert both == []


def test_values_runs_spreads_and_provenance_are_those_of_the_table() -> None:
    table = reported()
    for key, users in used().items():
        theirs = table[key]
        for name, ours in users:
            assert ours["value"] == theirs["value"], (name, key)
            assert ours["provenance"] == theirs["provenance"], (name, key)
            assert str(ours["n"] or "") == theirs["n"], (name, key)
            assert ours["spread"] == theirs["spread"], (name, key)


def test_anchors_of_a_sibling_paper_are_no_claims() -> None:
    listed = [group for group in load_unused(find_root()) if "anchor" in group.why]
    wanted = [key for key in reported() if key[0] == ANCHORS]
    assert Counter((ANCHORS, row.row) for group in listed for row in group.rows) == Counter(wanted)
    assert len(wanted) == 20


def test_numbers_of_the_claims_follow_from_their_rows() -> None:
    """A count, a difference of two printed losses, a range, a ratio: worked out here once more from the table."""
    found, table = {claim.id: claim for claim in claims()}, reported()

    def value(identity: str, place: int) -> float:
        claim = found[identity]
        return float(table[PAPER[claim.paper], claim.rows[place].row]["value"])

    for identity in ("A-C1", "A-C2"):
        assert found[identity].reported.counts == ([value(identity, 0), 5], [value(identity, 1), 5])
    for identity in ("C-C2", "C-C5", "C-C6"):
        assert found[identity].reported.value == pytest.approx(value(identity, 1) - value(identity, 0), abs=1e-9)
    assert found["C-C3"].reported.value == -value("C-C3", 0)
    assert found["C-C8"].reported.value == -value("C-C8", 0)
    assert (found["C-C1"].reported.low, found["C-C1"].reported.high) == (value("C-C1", 0), value("C-C1", 1))
    assert found["C-E2"].reported.value == pytest.approx(1 + value("C-E2", 0) / 100)


def test_orders_of_the_claims_are_those_of_their_rows() -> None:
    for identity in ("C-C9", "C-C10"):
        for suffix in "abc":
            (claim,) = [one for one in claims() if one.id == identity + suffix]
            steps: dict[str, list[tuple[float, str]]] = {}
            for row in claim.rows:
                experiment, _, variant, _ = row.row.split(" | ")
                steps.setdefault(experiment, []).append((float(row.value), variant.split(" ")[0]))
            for points in steps.values():
                order = [variant for _, variant in sorted(points)]
                assert order == ["SimpleGPT", "Llama2+QKNorm", "Llama2"][: len(order)]


def test_every_check_and_prediction_of_the_papers_has_a_claim() -> None:
    text = shared("papers/papers.md").read_text("utf-8")
    wanted = set(re.findall(r"\b[A-D]-[TE]\d\b", text))
    ours = {re.sub(r"[a-z]$", "", claim.id) for claim in claims()}
    assert wanted - ours == set()


def test_provenance_of_a_claim_is_never_better_than_that_of_its_rows() -> None:
    for claim in claims():
        marks = {row.provenance for row in claim.rows}
        if claim.source.provenance == "paper" and marks:
            assert "paper" in marks, claim.id
        if claim.source.provenance == "seed" and marks:
            assert "seed" in marks, claim.id


def test_unknown_stays_unknown() -> None:
    found = {claim.id: claim for claim in claims()}
    for identity in ("A-C1", "A-C2"):
        assert found[identity].setting.model == UNKNOWN
        assert found[identity].setting.tokens is None
    assert all(claim.reported.value is None for claim in found.values() if claim.paper in "ad" and claim.setting)


def test_claims_on_checks_name_a_value_of_that_check() -> None:
    """Also those that are not planned yet, so that turning them on is the removal of one line."""
    wrong = []
    for claim in claims():
        check = CHECKS.get(claim.cells.a.method) if claim.cells else None
        if check is not None and claim.metric not in check.info.values:
            wrong.append((claim.id, claim.metric))
    assert wrong == []
    assert sum(claim.setting is None for claim in claims()) > 40
