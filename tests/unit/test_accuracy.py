"""Accuracy: an exact count with its interval, and no number for data without labels."""

from __future__ import annotations

import csv
import json
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.evaluate.accuracy import accuracy
from repro.spec.errors import BadDataError
from repro.stats.intervals import clopper_pearson
from tests.conftest import shared_case


def labels(split: str) -> list[int]:
    with open(shared_case(f"D13/{split}.tsv"), encoding="utf-8", newline="") as stream:
        return [int(row["label"]) for row in csv.DictReader(stream, delimiter="\t")]


def test_case_d13_test_is_refused_and_dev_is_scored_on_its_three_items() -> None:
    assert "dev.tsv works on 3 items" in json.loads(shared_case("D13/expected.json").read_text())["right"]
    truth = labels("test")
    with pytest.raises(BadDataError, match=r'split "test".*labels.*2 of 2 items have no label') as refused:
        accuracy([1] * len(truth), truth, "test")
    assert refused.value.exit_code == 65
    result = accuracy([1, 0, 0], labels("dev"), "dev")
    assert (result.split, result.n, result.correct, result.value) == ("dev", 3, 2, 2 / 3)
    assert (result.low, result.high) == clopper_pearson(2, 3)


def test_one_item_without_a_label_is_enough_to_refuse() -> None:
    with pytest.raises(BadDataError, match='split "mixed": labels: 1 of 3'):
        accuracy([0, 1, 1], [0, 1, -1], "mixed")


@pytest.mark.parametrize(
    ("predictions", "truth", "message"),
    [
        ([], [], "no items"),
        ([1], [1, 0], "1 predictions but 2 labels"),
        ([0.9, 0.2], [1, 0], "whole numbers, not float64"),
        ([[0.1, 0.9]], [1], "one dimension, not 2"),
        ([1, 0], [1.0, 0.0], "whole numbers"),
        ([True, False], [1, 0], "whole numbers, not bool"),
        (["1"], [1], "whole numbers"),
    ],
)
def test_what_is_no_list_of_classes_is_refused(predictions: object, truth: object, message: str) -> None:
    with pytest.raises(BadDataError, match=message):
        accuracy(predictions, truth, "dev")  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60), st.randoms())
def test_the_interval_holds_the_value_and_order_changes_nothing(items: list[tuple[int, int]], random: Random) -> None:
    given_, truth = (np.array(side) for side in zip(*items, strict=True))
    result = accuracy(given_, truth, "any")
    assert 0 <= result.low <= result.value <= result.high <= 1
    assert result.value * result.n == pytest.approx(result.correct)
    shuffled = items.copy()
    random.shuffle(shuffled)
    assert accuracy(*zip(*shuffled, strict=True), "any") == result
    assert accuracy(given_, truth, "any", level=0.99).high >= result.high
