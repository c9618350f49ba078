"""Rank intervals instead of a bare order: a method is above another only if a test says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from repro.stats.cells import MISSING, CellResult, Summary, summarise
from repro.stats.tests import holm, paired_t, welch

Rule = Literal["paired_t", "welch"]

MIN_PAIRS = 3  # a t test of two differences rests on normality alone: two that agree by chance would make a win


@dataclass(frozen=True)
class Rank:
    """Place of one method: `low` to `high` among the complete methods, or None where it has no rank.

    Methods with equal `low` are one group: the same number of methods is significantly better than each.
    """

    name: str
    low: int | None
    high: int | None
    summary: Summary


def _paired_p(first: CellResult, second: CellResult) -> float:
    """Paired over the seeds that both planned; 1 where there are too few to separate anything."""
    common = sorted(first.values.keys() & second.values.keys())
    differences = [first.values[seed] - second.values[seed] for seed in common]
    return paired_t(differences) if len(differences) >= MIN_PAIRS else 1.0


def _unpaired_p(first: CellResult, second: CellResult) -> float:
    """For runs that share nothing, such as those of two suites; 1 where there are too few to separate anything."""
    if min(len(first.values), len(second.values)) < MIN_PAIRS:
        return 1.0
    return welch(list(first.values.values()), list(second.values.values()))


_RULES: dict[Rule, Callable[[CellResult, CellResult], float]] = {"paired_t": _paired_p, "welch": _unpaired_p}


def _beaten_by(ranked: Mapping[str, CellResult], lower: bool, alpha: float, rule: Rule) -> dict[str, set[str]]:
    """For each name the names significantly better than it, Holm over all pairs."""
    means = {name: summarise(result).mean or 0.0 for name, result in ranked.items()}
    pairs = list(combinations(ranked, 2))
    adjusted = holm([_RULES[rule](ranked[first], ranked[second]) for first, second in pairs])
    beaten: dict[str, set[str]] = {name: set() for name in ranked}
    for (first, second), p in zip(pairs, adjusted, strict=True):
        if p <= alpha and means[first] != means[second]:
            better, worse = (first, second) if (means[first] < means[second]) == lower else (second, first)
            beaten[worse].add(better)
    return beaten


def rank_intervals(
    results: Mapping[str, CellResult], lower_is_better: bool = True, alpha: float = 0.05, rule: Rule = "paired_t"
) -> list[Rank]:
    """Methods in the order to show them; the first of equals by name, so the order never changes by chance.

    Only a method all of whose planned runs are complete has a rank: from 1 + the number of methods
    significantly better to the number ranked - the number significantly worse. Tests are paired t tests of the
    same seeds (at least 3), or Welch's where that rule is named, two-sided, Holm-corrected over all pairs. Then
    come methods with some records, in name order, and those without any.
    """
    complete = {name: result for name, result in sorted(results.items()) if summarise(result).mean is not None}
    beaten = _beaten_by(complete, lower_is_better, alpha, rule)
    direction = 1.0 if lower_is_better else -1.0
    ranks = [
        Rank(
            name,
            1 + len(beaten[name]),
            len(complete) - sum(name in better for better in beaten.values()),
            summarise(result),
        )
        for name, result in complete.items()
    ]
    ranks.sort(key=lambda rank: (rank.low or 0, direction * (rank.summary.mean or 0.0), rank.name))
    rest = [name for name in results if name not in complete]
    rest.sort(key=lambda name: (results[name].count(MISSING) == results[name].planned, name))
    return ranks + [Rank(name, None, None, summarise(results[name])) for name in rest]
