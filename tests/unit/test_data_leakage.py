"""Split by content, and overlap of training and validation text (cases D07, D08)."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from repro.data.leakage import Hit, document_hash, find_overlap, fold, is_validation
from repro.spec.errors import Problem
from tests.shared import shared

TEXTS = st.lists(st.sampled_from(["a b", "A b", "a  b", "c", "C", "d", " d", "e", "ß", "SS"]), max_size=12)


def texts(case: str, file: str) -> list[str]:
    return [json.loads(line)["text"] for line in shared(f"cases/{case}/{file}").read_text("utf-8").splitlines()]


def test_d08_one_exact_and_one_folded_hit_with_their_lines() -> None:
    overlap = find_overlap(texts("D08", "train.jsonl"), texts("D08", "val.jsonl"))
    assert overlap.hits == (Hit(0, 1, "exact"), Hit(1, 0, "folded"))
    assert (overlap.exact, overlap.folded) == (1, 2)
    assert overlap.problems("corpus") == [
        Problem("corpus", None, "leakage", "validation document 1 is training document 2"),
        Problem(
            "corpus",
            None,
            "leakage",
            "validation document 2 is, but for case and blanks, training document 1",
        ),
    ]


def test_an_exact_match_goes_before_a_folded_one() -> None:
    assert find_overlap(["A", "a"], ["a"]).hits == (Hit(0, 1, "exact"),)


def test_many_hits_are_counted_not_all_named() -> None:
    many = [f"text {number}" for number in range(80)]
    problems = find_overlap(many, many).problems("corpus")
    assert len(problems) == 51
    assert problems[-1].message == "and 30 more"


@given(TEXTS, TEXTS)
def test_overlap_equals_comparing_all_pairs(train: list[str], val: list[str]) -> None:
    overlap = find_overlap(iter(train), iter(val))
    exact = {number for number, text in enumerate(val) if text in train}
    folded = {number for number, text in enumerate(val) if fold(text) in map(fold, train)}
    assert {hit.val for hit in overlap.hits if hit.kind == "exact"} == exact
    assert {hit.val for hit in overlap.hits} == folded
    for hit in overlap.hits:
        same = train.index(val[hit.val]) if hit.kind == "exact" else list(map(fold, train)).index(fold(val[hit.val]))
        assert hit.train == same


def test_folding_removes_case_and_blanks_only() -> None:
    assert fold(" The\tRED\u00a0kite \n flew.") == "the red kite flew."
    assert fold("Straße") == fold("STRASSE")
    assert fold("red-kite") != fold("red kite")


def test_d07_the_split_does_not_know_the_order() -> None:
    held: list[set[str]] = []
    for file in ("docs_order_a.jsonl", "docs_order_b.jsonl"):
        held.append({text for text in texts("D07", file) if is_validation(document_hash(text), 0.3)})
    assert held[0] == held[1] == {f"document number {number}" for number in (2, 3, 6, 7, 13, 17, 19)}


@given(st.binary(min_size=32, max_size=32), st.floats(0, 0.5), st.floats(0, 0.5))
def test_a_larger_fraction_only_adds_documents(digest: bytes, a: float, b: float) -> None:
    small, large = sorted((a, b))
    assert not (is_validation(digest, small) and not is_validation(digest, large))


def test_the_fraction_is_met_on_average() -> None:
    count = sum(is_validation(document_hash(f"text {number}"), 0.05) for number in range(20_000))
    assert abs(count - 1000) < 5 * (20_000 * 0.05 * 0.95) ** 0.5
