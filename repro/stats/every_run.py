"""Bounds and exact statements: no statistics, each run either obeys or breaks them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from repro.spec.claims import Claim
from repro.stats.cells import COMPLETE, DIVERGED
from repro.stats.select import ArmData

SHOWN = 3  # broken runs that the reason names


@dataclass(frozen=True)
class Held:
    """Runs of all arms: those that break the statement (in words), those that are finished, the extreme value."""

    broken: tuple[str, ...]
    finished: int
    planned: int
    fact: str


def slack(claim: Claim) -> float:
    """How far beyond the reported number still counts as round-off; in ulp of float64 where the margin says so."""
    margin = claim.margin.value or 0.0
    return margin * math.ulp(claim.reported.value or 0.0) if claim.margin.unit == "ulp" else margin


def limits(claim: Claim) -> tuple[float, float]:
    """Lowest and highest value that obey the statement, round-off included."""
    reported, extra = claim.reported, slack(claim)
    if claim.kind == "exact" and reported.value is not None:
        return reported.value - extra, reported.value + extra
    low = -math.inf if reported.low is None else reported.low - extra
    return low, math.inf if reported.high is None else reported.high + extra


def _broken(arm: ArmData, low: float, high: float) -> Iterator[str]:
    for seed, state in arm.only.states.items():
        name = f"run {arm.run_ids[seed]} ({arm.label}, seed {seed})"
        if state == DIVERGED:
            yield f"{name} gave no finite number"
        elif state == COMPLETE and not low <= (value := arm.only.values[seed]) <= high:
            yield f"{name} gave {_number(value)}"


def _allowed(claim: Claim) -> str:
    """`at most 1`, `0.5 +- 1e-12`, with the margin named."""
    reported, extra = claim.reported, slack(claim)
    if claim.kind == "exact":
        return f"{reported.value:g}" + (f" +- {extra:.3g}" if extra else ", to the last bit")
    ends = [f"at least {reported.low:g}"] if reported.low is not None else []
    ends += [f"at most {reported.high:g}"] if reported.high is not None else []
    return " and ".join(ends) + (f", with {extra:.3g} for round-off" if extra else "")


def held(claim: Claim, arms: Mapping[str, ArmData]) -> Held:
    """What all recorded runs say, finished or not; a value that is not finite obeys no bound."""
    low, high = limits(claim)
    broken = tuple(word for arm in arms.values() for word in _broken(arm, low, high))
    finished = sum(len(arm.finished) for arm in arms.values())
    return Held(broken, finished, sum(len(arm.planned_seeds) for arm in arms.values()), _allowed(claim))


def broken_words(found: Held) -> str:
    """`run 0123 (a_growth, seed 3) gave 1.2; allowed is at most 1`, the first few by name."""
    more = len(found.broken) - SHOWN
    names = "; ".join(found.broken[:SHOWN]) + (f"; and {more} more" if more > 0 else "")
    return f"{names}; allowed is {found.fact}"


def extreme_words(arms: Mapping[str, ArmData]) -> str:
    """`a_growth: 0.31 to 0.42 in 5 of 5 runs`, for each arm."""
    parts = []
    for arm in arms.values():
        values = arm.only.values.values()
        span = f"{_number(min(values))} to {_number(max(values))}" if values else "no number"
        parts.append(f"{arm.label}: {span} in {len(values)} of {len(arm.planned_seeds)} runs")
    return "; ".join(parts)


def _number(value: float) -> str:
    """Six digits; an infinite value is something that never happens."""
    return "never" if math.isinf(value) else f"{value:.6g}"
