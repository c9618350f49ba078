"""What the recorded runs say for and against a claim, kind by kind; the engine turns it into words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median

from repro.spec.claim_model import EVERY_RUN
from repro.spec.claims import Claim, Decide
from repro.spec.metrics import METRICS
from repro.stats.cells import DIVERGED, CellResult, summarise
from repro.stats.closeness import closeness_words, target, welch_tost
from repro.stats.every_run import extreme_words
from repro.stats.intervals import clopper_pearson, mean, t_interval
from repro.stats.select import ArmData
from repro.stats.tests import Alternative, fisher, sign, signed_rank, t_tail
from repro.stats.tolerance import Tolerance, ratio_signs, seed_tolerance

Arms = Mapping[str, ArmData]
NO_MEAN = "a diverged run leaves no mean to compare"


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
    p_for, p_against = _directed(partial(fisher, counts["a"], counts["b"]), decide.alternative or "two-sided", expected)
    return Evidence(p_for, p_against, f"Fisher's exact test, {decide.alternative}")


def _worst(claim: Claim) -> float:
    metric = METRICS.get(claim.metric)
    return -math.inf if metric and metric.better == "higher" else math.inf


def _compared(claim: Claim, arms: Arms) -> list[tuple[str, str]]:
    """Pairs (better, worse) that the claim says: the first over each other, or each over the next of a chain."""
    roles = list(arms)
    return list(pairwise(roles)) if claim.reported.chain else [("a", role) for role in roles[1:]]


def _ordering(claim: Claim, decide: Decide, arms: Arms, seeds: Sequence[int]) -> Evidence:
    """All said pairs must hold (intersection-union, no correction); one that is the other way round is against."""
    outcomes = {role: arm.only.outcomes(_worst(claim)) for role, arm in arms.items()}
    side = _side(decide)
    tests = []
    for better, worse in _compared(claim, arms):
        pairs = [(outcomes[better][seed], outcomes[worse][seed]) for seed in seeds]
        tests.append(_directed(partial(signed_rank, pairs), side, side))
    against = min(1.0, len(tests) * min(contrary for _, contrary in tests))
    best = signed_rank([(-1.0, 0.0)] * len(seeds), "less")
    fact = f"signed-rank test over {len(seeds)} pairs, which can reach p = {best:.2g}"
    return Evidence(max(support for support, _ in tests), against, fact)


def _series(claim: Claim, arms: Arms, seeds: Sequence[int]) -> list[float]:
    """One number a seed: the value, arm a minus arm b, or arm a over arm b; NaN where two infinities meet."""
    worst = _worst(claim)
    outcomes = {role: arm.only.outcomes(worst) for role, arm in arms.items()}
    if claim.kind == "value":
        return [outcomes["a"][seed] for seed in seeds]
    if claim.kind == "difference":
        return [outcomes["a"][seed] - outcomes["b"][seed] for seed in seeds]
    return [_quotient(outcomes["a"][seed], outcomes["b"][seed]) for seed in seeds]


def _quotient(over: float, under: float) -> float:
    """over / under; NaN, which speaks for neither side, for a denominator of 0 and for two infinities."""
    return math.nan if under == 0 or (math.isinf(over) and math.isinf(under)) else over / under


def _equivalence(claim: Claim, decide: Decide, arms: Arms, seeds: Sequence[int]) -> Evidence:
    """Value, paired difference or paired ratio within the margin around what is reported."""
    values = _series(claim, arms, seeds)
    place = f"{target(claim):g} +- {claim.margin.value or 0.0:g} {claim.margin.unit}".strip()
    if not all(math.isfinite(value) for value in values):
        return Evidence(1.0, 1.0, NO_MEAN)
    result = welch_tost(values, claim)
    return Evidence(result.inside, result.outside, "; ".join(_equivalence_words(claim, values, place)))


def _equivalence_words(claim: Claim, values: Sequence[float], place: str) -> list[str]:
    words = [f"two one-sided t tests against {place} ({claim.margin_source})"]
    if claim.reported.sd is not None:
        words.append(f"the paper's own spread over {claim.reported.n} runs enters (Welch)")
    elif claim.reported.value is not None:
        words.append("the paper gives one number without a spread, so the margin carries what that leaves open")
    return [*words, *filter(None, [closeness_words(claim, values)])]


def _one_sided(claim: Claim, decide: Decide, arms: Arms, seeds: Sequence[int]) -> Evidence:
    """The mean lies above a low end, or below a high one, give or take the margin."""
    values, margin = _series(claim, arms, seeds), claim.margin.value or 0.0
    if not all(math.isfinite(value) for value in values):
        return Evidence(1.0, 1.0, NO_MEAN)
    low, high = claim.reported.low, claim.reported.high
    end = low - margin if low is not None else (high or 0.0) + margin
    above, below = t_tail(values, end, "greater"), t_tail(values, end, "less")
    fact = f"one-sided t test against {end:g}"
    return Evidence(above, below, fact) if low is not None else Evidence(below, above, fact)


def _signs(claim: Claim, decide: Decide, arms: Arms, seeds: Sequence[int]) -> Evidence:
    """Sign test of each seed's number against the reported end; equal ones and NaN speak for neither side."""
    values = _series(claim, arms, seeds)
    end = claim.reported.low if claim.reported.low is not None else claim.reported.high or 0.0
    near = [math.isclose(value, end, rel_tol=1e-9) for value in values]
    above = sum(value > end and not equal for value, equal in zip(values, near, strict=True))
    below = sum(value < end and not equal for value, equal in zip(values, near, strict=True))
    fact = f"sign test against {end:g}: {above} above, {below} below, {len(values) - above - below} open"
    p_for, p_against = _directed(partial(sign, above, below), decide.alternative or "two-sided", _side(decide))
    return Evidence(p_for, p_against, fact)


def _side(decide: Decide) -> Alternative:
    return "less" if decide.alternative == "less" else "greater"


def tolerances(claim: Claim, arm: ArmData, seeds: Sequence[int]) -> list[Tolerance]:
    """Tolerated learning rate of each finished seed."""
    found = [seed_tolerance(arm.grid, seed, claim.tolerance or 1.0) for seed in seeds]
    return [tolerance for tolerance in found if tolerance is not None]


def _tolerance(claim: Claim, decide: Decide, arms: Arms, seeds: Sequence[int]) -> Evidence:
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


_BY_TEST = {"fisher": _rate, "signed_rank": _ordering, "tost": _equivalence, "t": _one_sided, "sign": _signs}


def evidence(claim: Claim, decide: Decide, arms: Arms, seeds: Sequence[int]) -> Evidence:
    """Evidence of the finished runs of `seeds` (all arms finished on all of them), by the test that is named."""
    weigh = _tolerance if claim.metric == "lr_tolerance" else _BY_TEST[decide.test]
    return weigh(claim, decide, arms, seeds)


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
    if claim.metric == "lr_tolerance":
        return _ratio_words(claim, arms)
    if claim.decide and claim.decide.test == EVERY_RUN:
        return extreme_words(arms)
    parts = [_mean_words(arm.label, arm.only) for arm in arms.values()]
    for role, arm in arms.items():
        seeds = arm.planned_seeds
        if role != "a" and all(len(each.only.values) == len(seeds) for each in (arm, arms["a"])):
            parts.append(_between_words(claim, arms, role, seeds))
    return "; ".join(parts)


def _between_words(claim: Claim, arms: Arms, role: str, seeds: Sequence[int]) -> str:
    """Mean of the paired differences, or of the paired ratios, with its t interval."""
    if claim.kind == "ratio":
        ratios = [ratio for ratio in _series(claim, arms, seeds) if math.isfinite(ratio)]
        told = f"{mean(ratios):.4g}{_range(t_interval(ratios))}" if ratios else "no ratio"
        return f"over {arms[role].label}: {told}"
    gaps = paired_differences(arms, seeds, role)
    return f"minus {arms[role].label}: {mean(gaps):+.3g}{_range(t_interval(gaps))}"
