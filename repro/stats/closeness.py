"""How near our number is to a paper's: first at the digits that are printed, then against the run-to-run spread."""

from __future__ import annotations

import math
from collections.abc import Sequence

from repro.spec.claims import Claim, Reported
from repro.stats.intervals import mean, sample_sd, t_quantile
from repro.stats.tests import Equivalence, tost

EQUAL, WITHIN, DIFFERS = "equal at the paper's digits", "within run-to-run spread, not equal", "differs"


def loss_of_perplexity(perplexity: float) -> float:
    """Mean loss in nats of exp(mean loss); raises ValueError for a perplexity that is not above 0."""
    return math.log(perplexity)


def perplexity_of_loss(loss: float) -> float:
    """exp of a *mean loss*; a mean of perplexities is another number, and larger."""
    return math.exp(loss)


def target(claim: Claim) -> float:
    """The reported value in the unit of our metric: 0 (or 1 for a ratio) if it is only called comparable."""
    value = claim.reported.value
    if value is None:
        return 1.0 if claim.kind == "ratio" else 0.0
    if claim.reported.given_as == "perplexity":
        return loss_of_perplexity(value)
    return perplexity_of_loss(value) if claim.reported.given_as == "loss" else value


def as_reported(reported: Reported, number: float) -> float:
    """Our mean in the unit that the paper prints."""
    if reported.given_as == "perplexity":
        return perplexity_of_loss(number)
    return loss_of_perplexity(number) if reported.given_as == "loss" else number


def is_equal(ours: float, theirs: float, digits: int) -> bool:
    """Whether `ours` would be printed as `theirs` with that many decimals."""
    return abs(ours - theirs) <= 0.5 * 10.0**-digits * (1 + 1e-9)


def closeness(values: Sequence[float], theirs: float, digits: int | None, n: int | None = None) -> str:
    """One of three verdicts on a number: EQUAL, WITHIN or DIFFERS.

    `values` are our seeds' numbers in the unit that is printed, `n` the paper's number of runs (1 if unknown).
    Within means that the paper's number lies in the 95 % range in which a mean of `n` further runs would lie.
    """
    centre = mean(values)
    if digits is not None and is_equal(centre, theirs, digits):
        return EQUAL
    spread = sample_sd(values)
    if spread is None:
        return DIFFERS
    reach = t_quantile(len(values) - 1, 0.975) * spread * math.sqrt(1 / len(values) + 1 / (n or 1))
    return WITHIN if abs(centre - theirs) <= reach else DIFFERS


def closeness_words(claim: Claim, values: Sequence[float]) -> str:
    """The three verdicts in a sentence's part, with the conversion named where there was one."""
    reported = claim.reported
    if reported.value is None:
        return ""
    ours = [as_reported(reported, value) for value in values]
    if reported.given_as:  # of the mean loss, never a mean of converted numbers
        ours = [as_reported(reported, mean(values))]
    verdict = closeness(ours, reported.value, reported.digits, reported.n)
    if verdict == DIFFERS and reported.given_as:
        verdict = closeness(values, target(claim), None, reported.n)
    how = ""
    if reported.given_as:
        name = "log" if reported.given_as == "perplexity" else "exp"
        how = f" ({reported.value:g} {reported.given_as} is {target(claim):.6g}, its {name})"
    printed = f"{reported.value:.{reported.digits}f}" if reported.digits is not None else f"{reported.value:g}"
    return f"our mean {mean(ours):.6g} against {printed}{how}: {verdict}"


def welch_tost(values: Sequence[float], claim: Claim) -> Equivalence:
    """Two one-sided tests of our mean against the paper's, its own spread included where it gives one.

    Standard error and degrees of freedom after Welch (1947): sqrt(s^2/n + s'^2/n'). Else the plain test: the
    margin alone carries what a single number leaves open.
    """
    centre, margin, reported = target(claim), claim.margin.value or 0.0, claim.reported
    if reported.sd is None or reported.n is None or len(values) < 2:
        return tost(values, centre - margin, centre + margin)
    ours, theirs = (sample_sd(values) or 0.0) ** 2 / len(values), reported.sd**2 / reported.n
    error = math.sqrt(ours + theirs)
    degrees = (ours + theirs) ** 2 / (ours**2 / (len(values) - 1) + theirs**2 / (reported.n - 1))
    gap = mean(values) - centre
    inside = max(_tail((-margin - gap) / error, degrees), _tail((gap - margin) / error, degrees))
    outside = min(_tail((gap + margin) / error, degrees), _tail((margin - gap) / error, degrees))
    return Equivalence(inside, outside)


def _tail(statistic: float, degrees: float) -> float:
    from scipy.special import stdtr

    return float(stdtr(degrees, statistic))
