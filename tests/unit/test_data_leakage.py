"""Split by content, and overlap of training and validation text (cases D07, D08)."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.data.leakage import (
    Hit,
    Watch,
    combined,
    document_hash,
    find_overlap,
    fold,
    is_validation,
    squeezed,
)
from repro.data.near import WINDOW, window_hashes
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
    folded = {number for number, text in enumerate(val) if squeezed(text) in map(squeezed, train)}
    assert {hit.val for hit in overlap.hits if hit.kind == "exact"} == exact
    assert {hit.val for hit in overlap.hits} == folded
    for hit in overlap.hits:
        form = str if hit.kind == "exact" else squeezed
        assert hit.train == [form(text) for text in train].index(form(val[hit.val]))


def test_folding_removes_case_and_blanks_only() -> None:
    assert fold(" The\tRED\u00a0kite \n flew.") == "the red kite flew."
    assert fold("Straße") == fold("STRASSE")
    assert fold("red-kite") != fold("red kite")


MARKS = st.sampled_from(
    [" ", "\t", "\u00a0", "\u2003", "\x1c", "A", "é", "É", "ß", "\u212a", "ﬁ", "日", "🎉", "x", "İ"]
)


@given(st.lists(MARKS, max_size=30).map("".join))
def test_squeezing_equals_folding_without_blanks(text: str) -> None:
    assert squeezed(text) == squeezed(text.encode()) == "".join(text.casefold().split()).encode()
    assert squeezed(fold(text)) == squeezed(text)


def words(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 9))) for _ in range(count)]


@pytest.mark.parametrize(("changed", "found"), [(0.0, True), (0.02, True), (0.1, True), (0.6, False)])
def test_near_duplicates_are_those_that_share_most(changed: float, found: bool) -> None:
    """Another word in place of some, at chance; the share falls with the number of changed words."""
    draw, text = random.Random(1), words(400, 2)
    other = [draw.choice(words(50, 3)) if draw.random() < changed else word for word in text]
    train = [" ".join(words(400, number)) for number in range(10, 20)]
    train.insert(4, " ".join(["Before.", *other, "After."]))
    overlap = find_overlap(train, [" ".join(words(300, 30)), " ".join(text)])
    assert overlap.hits == ()
    assert [(near.val, near.train) for near in overlap.near] == ([(1, 4)] if found else [])
    assert all(near.share >= 0.5 for near in overlap.near)


def test_near_duplicates_of_short_texts_and_in_a_long_one() -> None:
    assert find_overlap(["Rain fell all night!"], ["Rain fell all night."]).near[0].train == 0
    short, long = " ".join(words(30, 1)), " ".join(words(5000, 2))
    assert find_overlap([f"{long} {short} {long}"], [short]).near[0].share == 1.0
    assert find_overlap([long], [short, "tiny"]).near == ()


def test_an_equal_document_is_no_near_duplicate_too() -> None:
    text = " ".join(words(100, 1))
    overlap = find_overlap([text, text + " more", "other"], [text])
    assert (overlap.hits, overlap.near) == ((Hit(0, 0, "exact"),), ())


def test_parts_looked_at_by_several_make_the_same_overlap() -> None:
    val = [" ".join(words(60, number)) for number in range(6)]
    train = [*val[:2], val[3].upper(), val[4] + " x", " ".join(words(60, 9)), val[4], val[5][:-40]]
    watch = Watch(val)
    parts = [watch.look([text.encode()], number) for number, text in enumerate(train)]
    assert combined(reversed(parts)) == find_overlap(train, val)
    assert [(near.val, near.train) for near in combined(parts).near] == [(5, 6)]


@given(st.binary(max_size=80))
def test_windows_have_equal_hashes_where_they_are_equal(data: bytes) -> None:
    hashes = window_hashes(data).tolist()
    windows = [data[start : start + WINDOW] for start in range(len(data) - WINDOW + 1)]
    assert len(hashes) == len(windows)
    assert len(set(hashes)) == len(set(windows))
    assert dict(zip(windows, hashes, strict=True)) == {window: window_hashes(window)[0] for window in windows}


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
