"""Accuracy of predicted classes, with an exact interval and the name of the split that it was made on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from repro.spec.errors import BadDataError, problem_error, shown
from repro.stats.intervals import clopper_pearson


@dataclass(frozen=True, slots=True)
class Accuracy:
    """`correct` of `n` items; `low` and `high` bound the rate at the level asked for (Clopper & Pearson 1934)."""

    value: float
    low: float
    high: float
    correct: int
    n: int
    split: str


def accuracy(predictions: ArrayLike, labels: ArrayLike, split: str, level: float = 0.95) -> Accuracy:
    """Share of predictions [N] that equal their labels [N], both whole numbers from 0.

    Raises BadDataError, naming the split, for unlabelled items (a label below 0, as GLUE's test splits have),
    for no items, for lists of unequal length and for what is no class, such as scores of classes.
    """
    given = _classes(predictions, split, "predictions")
    truth = _classes(labels, split, "labels")
    unlabelled = int((truth < 0).sum())
    if unlabelled:
        _refuse(split, "labels", f"{unlabelled} of {len(truth)} items have no label; score a split with labels")
    if len(given) != len(truth):
        _refuse(split, "predictions", f"{len(given)} predictions but {len(truth)} labels")
    if not len(truth):
        _refuse(split, "labels", "no items to score")
    correct, n = int((given == truth).sum()), len(truth)
    low, high = clopper_pearson(correct, n, level)
    return Accuracy(correct / n, low, high, correct, n, split)


def _classes(values: ArrayLike, split: str, key: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1:
        _refuse(split, key, f"a list of classes has one dimension, not {array.ndim}")
    if array.size and array.dtype.kind not in "iu":
        _refuse(split, key, f"classes are whole numbers, not {array.dtype}")
    return array.astype(np.int64)


def _refuse(split: str, key: str, message: str) -> NoReturn:
    raise problem_error(BadDataError, f'split "{shown(split)}"', key, message)
