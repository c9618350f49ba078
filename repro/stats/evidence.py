"""What the recorded runs say for and against a claim, kind by kind; the engine turns it into words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from repro.spec.claims import Claim, Decide
from repro.spec.metrics import METRICS
from repro.stats.cells import DIVERGED, CellResult, summarise
from repro.stats.intervals import clopper_pearson, mean, t_interval
from repro.stats.select import ArmData
from repro.stats.tests import Alternative, fisher, sign, signed_rank, tost
from repro.stats.tolerance import Tolerance, ratio_signs, seed_tolerance

Arms = Mapping[str, ArmData]


@dataclass(frozen=True)
class Evidence:
    """p values for the claim and for its contrary, before any correction, and the fact to tell with them."""

    p_for: float
    p_against: float
    fact: str


def _directed(
    test: Callable[[Alternative], float], alternative: Alternative, expected: Alternative
) -> tuple[float, float]:
    """(p for, p against) of a test whose support lies on the `expected` side."""
    contrary: Alternative = "greater" if expected == "less" else "less"
    if alternative != "two-sided":
        return test(expected), test(contrary)
    p = test("two-sided")
    return (p, 1.0) if test(expected) <= test(contrary) else (1.0, p)


def _rate(claim: Claim, decide: Decide, arms: Arms, seeds: Sequence[int]) -> Evidence:
    counts = {role: (len(set(arm.only.seeds_in(DIVERGED)) & set(seeds)), len(seeds)) for role, arm in arms.items()}
    a, b = claim.reported.counts
    expected: Alternative = "greater" if a[0] * b[1] > b[0] * a[1] else "less"
    p_for, p_against = _directed(partial(fisher, counts["a"], counts["b"]), decide.alternative, expected)
    return Evidence(p_for, p_against, f"Fisher's exact test, {decide.alternative}")


def _worst(claim: Claim) -> float:
    metric = METRICS.get(claim.metric)
    return -math.inf if metric and metric.better == "higher" else math.inf


def _ordering(claim: Claim, decide: Decide, arms: Arms, seeds: Sequence[int]) -> Evidence:
    """Best of all means better than each (intersection-union, no correction); one better than it is against."""
    outcomes = {role: arm.only.outcomes(_worst(claim)) for role, arm in arms.items()}
    tests = []
    for role in outcomes.keys() - {"a"}:
        pairs = [(outcomes["a"][seed], outcomes[role][seed]) for seed in seeds]
        tests.append(_directed(partial(signed_rank, pairs), decide.alternative, decide.alternative))
    against = min(1.0, len(tests) * min(contrary for _, contrary in tests))
    best = signed_rank([(-1.0, 0.0)] * len(seeds), "less")
    fact = f"signed-rank test over {len(seeds)} pairs, which can reach p = {best:.2g}"
    return Evidence(max(support for support, _ in tests), against, fact)


def _equivalence(claim: Claim, decide: Decide, arms: Arms, seeds: Sequence[int]) -> Evidence:
    """Paired difference (or the value itself) within the margin around what is reported (0 if only `comparable`)."""
    values = paired_differences(arms, seeds) if "b" in arms else [arms["a"].only.outcomes()[seed] for seed in seeds]
    centre, margin = claim.reported.value or 0.0, claim.margin.value or 0.0
    place = f"{centre:g} +- {margin:g} {claim.margin.unit}".strip()
    if not all(math.isfinite(value) for value in values):
        return Evidence(1.0, 1.0, "a diverged run leaves no mean to compare")
    result = tost(values, centre - margin, centre + margin)
    return Evidence(result.inside, result.outside, f"two one-sided t tests against {place} ({claim.margin_source})")


def tolerances(claim: Claim, arm: ArmData, seeds: Sequence[int]) -> list[Tolerance]:
    """Tolerated learning rate of each finished seed."""
    found = [seed_tolerance(arm.grid, seed, claim.tolerance or 1.0) for seed in seeds]
    return [tolerance for tolerance in found if tolerance is not None]


def _ratio(claim: Claim, decide: Decide, arms: Arms, seeds: Sequence[int]) -> Evidence:
    """Sign test of log(ratio / reported low end); a censored seed counts on whichever side hurts."""
    pairs = list(zip(tolerances(claim, arms["a"], seeds), tolerances(claim, arms["b"], seeds), strict=True))
    signs = ratio_signs(pairs, claim.reported.low or 1.0)
    above_open, below_open = signs.above + signs.unknown, signs.below + signs.unknown
    up, down = sign(signs.above, below_open, "greater"), sign(above_open, signs.below, "less")
    p_for, p_against = (up, down) if decide.alternative == "greater" else (down, up)
    fact = (
        f"sign test against {claim.reported.low:g}: {signs.above} above, {signs.below} below, {signs.tied} equal"
        f", {signs.unknown} beyond the grid"
    )
    return Evidence(p_for, p_against, fact)


_BY_KIND = {"rate": _rate, "ordering": _ordering, "difference": _equivalence, "value": _equivalence, "ratio": _ratio}


def evidence(claim: Claim, decide: Decide, arms: Arms, seeds: Sequence[int]) -> Evidence:
    """Evidence of the finished runs of `seeds` (all arms finished on all of them)."""
    return _BY_KIND[claim.kind](claim, decide, arms, seeds)


def paired_differences(arms: Arms, seeds: Sequence[int], role: str = "b") -> list[float]:
    """Arm a minus arm `role`, seed by seed; infinite where one diverged, NaN where both did."""
    first, second = arms["a"].only.outcomes(), arms[role].only.outcomes()
    return [first[seed] - second[seed] for seed in seeds]


def _range(interval: tuple[float, float] | None) -> str:
    return f" [{interval[0]:.4g}, {interval[1]:.4g}]" if interval else ""


def _mean_words(label: str, result: CellResult) -> str:
    """A mean with its t interval if every planned run is complete, else the state in words."""
    summary = summarise(result)
    if summary.mean is None:
        return f"{label}: {summary.state}"
    return f"{label}: {summary.mean:.4g}{_range(summary.interval)}, n = {summary.n}"


def _rate_words(arm: ArmData) -> str:
    done = len(arm.finished)
    if not done:
        return f"{arm.label}: none of {arm.only.planned} runs finished"
    interval = clopper_pearson(arm.only.diverged, done)
    return f"{arm.label}: {arm.only.diverged} of {done} finished runs diverged{_range(interval)}"


def _ratio_words(claim: Claim, arms: Arms) -> str:
    seeds = sorted(arms["a"].finished & arms["b"].finished)
    pairs = list(zip(tolerances(claim, arms["a"], seeds), tolerances(claim, arms["b"], seeds), strict=True))
    ratios = [over.low / under.low for over, under in pairs if over.low and under.low]
    if not ratios:
        return f"no seed with a tolerance of both (of {len(arms['a'].planned_seeds)} planned)"
    edge = sum(over.censored or under.censored for over, under in pairs)
    planned = len(arms["a"].planned_seeds)
    text = f"ratio of tolerated rates: median {median(ratios):.3g}, {min(ratios):.3g} to {max(ratios):.3g}"
    return f"{text}, {len(ratios)} of {planned} seeds" + (f", {edge} beyond the grid" if edge else "")


def describe(claim: Claim, arms: Arms) -> str:
    """Our numbers with their 95 % intervals, of all that is recorded; words where a mean would mislead."""
    if claim.kind == "rate":
        return "; ".join(_rate_words(arm) for arm in arms.values())
    if claim.kind == "ratio":
        return _ratio_words(claim, arms)
    parts = [_mean_words(arm.label, arm.only) for arm in arms.values()]
    for role, arm in arms.items():
        seeds = arm.planned_seeds
        if role != "a" and all(len(each.only.values) == len(seeds) for each in (arm, arms["a"])):
            gaps = paired_differences(arms, seeds, role)
            parts.append(f"minus {arm.label}: {mean(gaps):+.3g}{_range(t_interval(gaps))}")
    return "; ".join(parts)
