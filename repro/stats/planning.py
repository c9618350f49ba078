"""How many runs a claim's own test needs, before they are paid for: what `repro power` says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from repro.spec.claims import Claim, Decide
from repro.stats import power
from repro.stats.intervals import clopper_pearson
from repro.stats.select import ArmData
from repro.stats.spread import Spread, aa_spread, paired_values, pooled_spread
from repro.stats.tests import fisher

Arms = Mapping[str, ArmData]

FALSE_SHARE = 0.05  # of runs in which a statement about every run may fail before one wants to have seen it
SIGN_SHARE = 0.9  # of seeds on the claimed side, where the paper tells no spread
DIFFERENCES = "differences of two configurations within a seed (paired"
UNPAIRED = "differences, as the A/A line times the root of 2 (no credit for pairing"
RATIOS = "ratios of two configurations within a seed (paired"
ENOUGH = 4  # degrees of freedom from which the spread of the differences themselves is believed


@dataclass(frozen=True, slots=True)
class Need:
    """Runs an arm for 80 % power at one level (None: above 1000, or not known), and the power of what is planned.

    The power after the extension is that of the second look alone, so a little below that of both looks.
    """

    level: float
    why: str
    runs: int | None
    power_at_planned: float | None
    power_at_extension: float | None

    @property
    def powers(self) -> tuple[float | None, float | None]:
        """As planned, and extended."""
        return self.power_at_planned, self.power_at_extension


@dataclass(frozen=True, slots=True)
class Scenario:
    """The same at alpha for another size of the effect."""

    effect: str
    runs: int | None


@dataclass(frozen=True)
class Design:
    """A test with an assumed truth: power by (runs, level) and runs by level, or neither where a spread is lacking."""

    assumed: str
    power: Callable[[int, float], float] | None = None
    runs: Callable[[float], int | None] | None = None
    scenarios: tuple[Scenario, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Forecast:
    """The answer for one claim. `own_p` is what the paper's own counts give in the claim's test."""

    claim: Claim
    assumed: str
    needs: tuple[Need, ...]
    scenarios: tuple[Scenario, ...]
    spread: Spread | None
    own_p: float | None
    notes: tuple[str, ...]

    @property
    def own_counts_decide(self) -> bool | None:
        """Whether the paper's own counts reach alpha; None where it reports none."""
        decide = self.claim.decide
        return None if self.own_p is None or decide is None else self.own_p <= decide.error


def forecast(claim: Claim, family_size: int, arms: Arms) -> Forecast:
    """Runs an arm that `claim` needs; `arms` are its planned cells joined with the records, empty where there are none.

    `family_size` counts the claims that share the family's alpha, this one included.
    """
    decide, own = claim.decide, _own_p(claim)
    if decide is None or not claim.reported.known:
        why = claim.not_planned or "the paper's number is not known to us"
        return Forecast(claim, f"nothing to work out, as no test decides this claim: {why}", (), (), None, own, ())
    spread = _spread(claim, arms)
    design = _DESIGNS[decide.test](claim, decide, spread)
    needs = tuple(_need(design, decide, level, why) for level, why in _levels(decide, family_size))
    notes = (*design.notes, *_notes(claim, decide, spread, own))
    return Forecast(claim, design.assumed, needs, design.scenarios, spread, own, notes)


def _levels(decide: Decide, family_size: int) -> Iterator[tuple[float, str]]:
    if decide.alpha is None:
        yield 0.0, "nothing is left to chance"
        return
    looks = 2 if decide.extension else 1
    sides = decide.price // looks
    yield decide.error / sides, "alpha" if sides == 1 else "alpha / 2, for each side"
    if decide.extension:
        yield decide.level, f"alpha / {decide.price}, for each of two looks{'' if sides == 1 else ' at each side'}"
    if family_size > 1:
        yield decide.level / family_size, f"the worst case of Holm's rule over {family_size} claims"


def _need(design: Design, decide: Decide, level: float, why: str) -> Need:
    if design.power is None or design.runs is None:
        return Need(level, why, None, None, None)
    extended = design.power(decide.extension, level) if decide.extension else None
    return Need(level, why, design.runs(level), design.power(decide.planned_n, level), extended)


def _own_p(claim: Claim) -> float | None:
    reported, decide = claim.reported, claim.decide
    if not (reported.a and reported.b and decide and decide.alternative):
        return None
    return fisher((reported.a[0], reported.a[1]), (reported.b[0], reported.b[1]), decide.alternative)


def _notes(claim: Claim, decide: Decide, spread: Spread | None, own: float | None) -> Iterator[str]:
    if own is not None:
        can = "can" if own <= decide.error else "cannot"
        counts = " against ".join(f"{events} of {runs}" for events, runs in claim.reported.counts)
        yield f"the paper's own counts, {counts}, {can} decide this: p = {own:.3g} in this test"
    if decide.test in ("tost", "t", "signed_rank"):
        unit = claim.margin.unit if claim.margin.unit != "ulp" else ""
        yield f"spread: {spread.words(unit)}" if spread else "spread over seeds: not known, no records tell it yet"
    if claim.not_planned:
        yield f"not planned: {claim.not_planned}"


def _percent(k: int, n: int) -> str:
    low, high = clopper_pearson(k, n)
    return f"{100 * k / n:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


def _fisher(claim: Claim, decide: Decide, spread: Spread | None) -> Design:
    a, b = claim.reported.counts
    rates, side = (a[0] / a[1], b[0] / b[1]), decide.alternative or "two-sided"
    return Design(
        f"the true rates are the reported ones, {_percent(*a)} against {_percent(*b)}",
        lambda n, level: power.fisher_power(*rates, n, level, side),
        lambda level: power.fisher_runs(*rates, level, side),
    )


def _signed_rank(claim: Claim, decide: Decide, spread: Spread | None) -> Design:
    """Every said pair must be separated, so each needs more power than the whole claim."""
    pairs = 1 if claim.cells is None else len(claim.cells.arms) - 1
    target = 1 - (1 - power.TARGET) / pairs
    margin = claim.margin.value
    effect = margin / spread.sd if margin and spread and spread.sd else 1.0
    said = f"a true difference of {effect:.2g} sd of the differences within a seed"
    each = f", in each of {pairs} comparisons, all of which must hold" if pairs > 1 else ""
    # The side only says which way is better: a shift up, looked for upwards, is the same as one down.
    runs = partial(power.signed_rank_runs, alternative="greater", target=target)

    def joint(n: int, level: float) -> float:
        """At least 1 - the sum of the misses, whatever the comparisons share."""
        single = power.signed_rank_power(effect, n, level, "greater")
        return max(0.0, 1 - pairs * (1 - single))

    sizes = [Scenario(_in_units(size, claim, spread), runs(size, decide.level)) for size in (0.5, 1.0, 2.0)]
    fewest = next(n for n in range(2, 60) if 0.5**n <= decide.level)
    reach = (f"{fewest} pairs are the fewest that can reach {decide.level:g} at all",)
    told = "" if margin else " (the paper tells no size)"
    return Design(said + each + told, joint, partial(runs, effect), tuple(sizes), reach)


def _in_units(size: float, claim: Claim, spread: Spread | None) -> str:
    words = f"a difference of {size:g} sd of differences"
    return f"{words} ({size * spread.sd:.2g})" if spread else words


def _tost(claim: Claim, decide: Decide, spread: Spread | None) -> Design:
    margin = claim.margin.value or 0.0
    bound = power.tost_largest_sd(margin, decide.planned_n, decide.level)
    room = f"the planned {decide.planned_n} runs have 80 % power at {decide.level:g} up to a spread of {bound:.2g}"
    if spread is None or spread.sd == 0:
        sizes = tuple(
            Scenario(f"the spread is {share:g} times the margin", power.tost_runs(margin, share * margin, decide.error))
            for share in (0.5, 1.0, 2.0)
        )
        said = f"the truth is just what is reported, the margin is {margin:g}; no spread is known"
        return Design(said, scenarios=sizes, notes=(room,))
    sd = spread.sd
    return Design(
        f"the truth is just what is reported, the margin is {margin:g}, the spread {sd:.2g}",
        lambda n, level: power.tost_power(margin, sd, n, level),
        lambda level: power.tost_runs(margin, sd, level),
        tuple(
            Scenario(f"a spread of {each:.2g}, an end of its interval", power.tost_runs(margin, each, decide.error))
            for each in spread.interval
        ),
        (room,),
    )


def _one_sided_t(claim: Claim, decide: Decide, spread: Spread | None) -> Design:
    """The truth is the reported end itself, so the margin is the distance to what is tested."""
    margin = claim.margin.value
    if margin and (spread is None or spread.sd == 0):
        return Design(f"the truth is the reported end, {margin:g} from what is tested; no spread is known")
    effect = margin / spread.sd if margin and spread else 1.0
    said = f"the truth lies {effect:.2g} standard deviations over seeds beyond what is tested"
    run = partial(power.t_runs, alternative="greater")
    sizes = tuple(Scenario(f"{size:g} standard deviations", run(size, decide.level)) for size in (0.5, 1.0, 2.0))
    return Design(
        said if margin else f"{said} (the paper tells no size)",
        lambda n, level: power.t_power(effect, n, level, "greater"),
        partial(run, effect),
        sizes,
    )


def _sign(claim: Claim, decide: Decide, spread: Spread | None) -> Design:
    sizes = [
        Scenario(f"{share:.0%} of seeds on the claimed side", power.sign_runs(share, decide.level))
        for share in (1.0, SIGN_SHARE, 0.75)
    ]
    return Design(
        f"{SIGN_SHARE:.0%} of seeds lie on the claimed side (an assumption: the paper tells no spread)",
        lambda n, level: power.sign_power(SIGN_SHARE, n, level),
        partial(power.sign_runs, SIGN_SHARE),
        tuple(sizes),
    )


def _every_run(claim: Claim, decide: Decide, spread: Spread | None) -> Design:
    return Design(
        f"a statement that fails in {FALSE_SHARE:.0%} of all runs is to be seen to fail",
        lambda n, level: 1 - (1 - FALSE_SHARE) ** n,
        lambda level: power.draws_to_see(FALSE_SHARE),
        tuple(
            Scenario(f"it fails in {share:.0%} of all runs", power.draws_to_see(share)) for share in (0.01, 0.2, 0.5)
        ),
        ("one run that breaks the statement refutes it; no number of runs proves it",),
    )


_DESIGNS: dict[str, Callable[[Claim, Decide, Spread | None], Design]] = {
    "fisher": _fisher,
    "signed_rank": _signed_rank,
    "tost": _tost,
    "t": _one_sided_t,
    "sign": _sign,
    "every_run": _every_run,
}


def _spread(claim: Claim, arms: Arms) -> Spread | None:
    """The spread of the numbers that the claim's test takes, one a seed, from what is recorded.

    For differences: that of the recorded differences where it rests on enough of them, else the A/A line times the
    root of 2, which gives no credit for what two runs of one seed share.
    """
    if not arms or claim.metric == "lr_tolerance":
        return None
    cells = {role: arm.only for role, arm in arms.items()}
    if claim.kind == "value":
        return aa_spread([cells["a"]])
    if claim.kind == "ratio":
        ratios = paired_values(cells["a"], cells["b"], lambda a, b: a / b if b else math.inf)
        return pooled_spread([ratios] if all(map(math.isfinite, ratios)) else [], RATIOS)
    order = list(cells)
    pairs = list(pairwise(order)) if claim.reported.chain else [("a", role) for role in order[1:]]
    paired = pooled_spread([paired_values(cells[first], cells[second]) for first, second in pairs], DIFFERENCES)
    single = aa_spread(cells.values())
    if single is None or (paired is not None and paired.degrees >= ENOUGH):
        return paired
    return single.scaled(math.sqrt(2), UNPAIRED)
