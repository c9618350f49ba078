"""The verdict engine: claim + plan + records -> one word, one sentence, and the counts behind it.

Nothing is decided before its planned number of runs is finished, in the seeds fixed by the plan; a second
look is paid for with half of alpha; a family shares its alpha by Holm's rule over all claims that are planned.
Bounds and exact statements need no test: one run that breaks them is enough, and all planned ones must obey.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from repro.plan import Plan
from repro.spec.claim_ledger import Ledger, load_ledger
from repro.spec.claim_model import EVERY_RUN
from repro.spec.claims import VIEWS, Claim, Decide, family_sha256
from repro.stats.cells import IndexLike
from repro.stats.every_run import Held, broken_words, held
from repro.stats.evidence import Evidence, describe, evidence
from repro.stats.registered import moments, registration
from repro.stats.select import ArmData, Gaps, find_arms, setting_gaps
from repro.stats.spread import Spread, aa_spread
from repro.stats.tests import fisher, holm

DECIDED = ("reproduced", "not_reproduced", "supported", "contradicted")
COUNTS = ("planned", "complete", "diverged", "failed", "missing")


@dataclass(frozen=True)
class Verdict:
    """One row of the claims' table. Counts are runs, summed over the arms; `scale` is the plan's.

    `since` is when the rule in force was registered (None: never), `late` what of it came after runs, empty if
    nothing did; `aa_spread` is the spread over seeds of one configuration among the claim's own, in the metric's unit.
    """

    id: str
    paper: str
    says: str
    reported: str
    ours: str
    verdict: str
    reason: str
    n_planned: int
    n_complete: int
    n_diverged: int
    n_failed: int
    n_missing: int
    scale: str
    provenance: str
    looks: int
    claim_sha256: str
    family_sha256: str
    since: str | None
    late: str
    aa_spread: float | None

    @property
    def decided(self) -> bool:
        """Whether the word is a decision, one way or the other."""
        return self.verdict in DECIDED


@dataclass(frozen=True)
class _Weighed:
    """Evidence with the rule that it answers to, before the family's correction."""

    decide: Decide
    found: Evidence
    looks: int


@dataclass
class _Draft:
    """A claim on its way to a verdict: either the word is already clear, or there is evidence to weigh."""

    claim: Claim
    arms: dict[str, ArmData]
    verdict: str = ""
    reasons: tuple[str, ...] = ()
    weighed: _Weighed | None = None
    held: Held | None = None
    gaps: Gaps = field(default_factory=lambda: Gaps((), ()))


def reported_words(claim: Claim) -> str:
    """The paper's number as text."""
    reported, names = claim.reported, claim.cells.arms if claim.cells else {}
    if not reported.known:
        return "not reported"
    if reported.a and reported.b:
        counts = {"a": reported.a, "b": reported.b}
        return "; ".join(f"{names[role].label}: {k} of {n}" for role, (k, n) in counts.items())
    if reported.low is not None or reported.high is not None:
        return _range_words(reported.low, reported.high)
    if reported.rank or reported.chain:
        return "best of the compared" if reported.rank else "each better than the next"
    if reported.value is None:
        return "comparable, no number given"
    digits = reported.digits
    number = f"{reported.value:g}" if digits is None else f"{reported.value:.{digits}f}"
    spread = f" (sd {reported.sd:g}, n = {reported.n})" if reported.sd is not None else ""
    return number + spread + (f" as {reported.given_as}" if reported.given_as else "")


def _range_words(low: float | None, high: float | None) -> str:
    if low is None:
        return f"{high:g} or less"
    return f"{low:g} or more" if high is None else f"{low:g} to {high:g}"


def own_counts_words(claim: Claim) -> tuple[str, ...]:
    """What the paper's own counts can show under the claim's test, computed."""
    a, b = claim.reported.a, claim.reported.b
    if not (a and b and claim.decide and claim.decide.alternative):
        return ()
    p = fisher((a[0], a[1]), (b[0], b[1]), claim.decide.alternative)
    return (f"the paper's own counts give p = {p:.2g} in this test",)


def _gap_words(gaps: Gaps) -> tuple[str, ...]:
    differ = (f"differs from the paper in {' and '.join(gaps.differ)}",) if gaps.differ else ()
    unknown = (f"not told by the paper: {', '.join(gaps.unknown)}",) if gaps.unknown else ()
    return differ + unknown


def _enough(arms: dict[str, ArmData], wanted: int) -> list[int] | None:
    """The first `wanted` planned seeds, if every arm has finished all of them."""
    seeds = next(iter(arms.values())).planned_seeds[:wanted]
    if len(seeds) < wanted or any(set(seeds) - arm.finished for arm in arms.values()):
        return None
    return seeds


def _progress_words(arms: dict[str, ArmData], wanted: int) -> str:
    """`2 of 10 runs per arm`, by the arm that has fewest."""
    done = {arm.label: len(arm.finished & set(arm.planned_seeds[:wanted])) for arm in arms.values()}
    fewest = min(done, key=done.__getitem__)
    where = f" ({fewest} has fewest)" if len(set(done.values())) > 1 else ""
    planned = min(len(arm.planned_seeds) for arm in arms.values())
    short = f", this plan has {planned}" if planned < wanted else ""
    return f"{done[fewest]} of {wanted} runs per arm are finished{where}{short}"


def _weigh(draft: _Draft, decide: Decide) -> None:
    """Adds the evidence of one or two looks; looks and sides are paid for by `Decide.price`."""
    claim, arms = draft.claim, draft.arms
    first = _enough(arms, decide.planned_n)
    if first is None:
        draft.verdict, draft.reasons = "inconclusive", (_progress_words(arms, decide.planned_n),)
        return
    second = _enough(arms, decide.extension) if decide.extension else None
    looks = [evidence(claim, decide, arms, seeds) for seeds in (first, second) if seeds]
    paid = [f"look {len(looks)} of 2"] if decide.extension else []
    paid += [f"p times {decide.price}"] if decide.price > 1 else []
    found = Evidence(
        min(1.0, decide.price * min(look.p_for for look in looks)),
        min(1.0, decide.price * min(look.p_against for look in looks)),
        ", ".join([looks[-1].fact, *paid]),
    )
    draft.weighed = _Weighed(decide, found, len(looks))


def _examine(claim: Claim, plan: Plan, index: IndexLike) -> _Draft:
    """The gates before any statistics, in the order in which they make the rest pointless."""
    draft = _Draft(claim, {})
    if not claim.reported.known:
        later = (claim.not_planned,) if claim.not_planned else ()
        draft.verdict, draft.reasons = "not_reported", ("the paper's number is not known to us", *later)
        return draft
    if claim.not_planned or claim.cells is None or claim.decide is None:
        draft.verdict, draft.reasons = "not_run", (claim.not_planned or "no cells",)
        return draft
    arms = find_arms(claim, claim.cells, plan, index)
    if isinstance(arms, str):
        draft.verdict, draft.reasons = "not_run", (arms,)
        return draft
    draft.arms, draft.gaps = arms, setting_gaps(claim, arms["a"].run, plan)
    planned = sum(arm.count("planned") for arm in arms.values())
    if sum(arm.count("missing") for arm in arms.values()) == planned:
        draft.verdict, draft.reasons = "not_run", (f"none of the {planned} planned runs has a result",)
    elif claim.is_numeric and (draft.gaps.differ or draft.gaps.unknown):
        draft.verdict = "not_comparable"
        draft.reasons = ("a number is compared on the paper's own protocol only",)
    elif claim.decide.test == EVERY_RUN:
        draft.held = held(claim, arms)
    else:
        _weigh(draft, claim.decide)
    return draft


def _conclude(draft: _Draft, found: Held, decide: Decide, scale: str) -> None:
    """The word on a statement that each run must obey: all of the planned n confirm it, and one run refutes it.

    At scales below the deciding one, and on other data, the setting is another: there a refutation needs the planned
    n too.
    """
    yes, no = _words(draft, decide, scale)
    planned = [len(arm.planned_seeds) for arm in draft.arms.values()]
    least = max(decide.planned_n, *planned)
    short = found.finished < found.planned or min(planned) < decide.planned_n
    if found.broken and (no == "not_reproduced" or not short):
        draft.verdict, draft.reasons = no, (broken_words(found),)
    elif short:
        said = broken_words(found) if found.broken else f"none breaks {found.fact}"
        draft.verdict, draft.reasons = "inconclusive", (_progress_words(draft.arms, least), said)
    else:
        draft.verdict, draft.reasons = yes, (f"all {found.finished} runs obey: {found.fact}",)


def _words(draft: _Draft, decide: Decide, scale: str) -> tuple[str, str]:
    """(yes, no) at this scale; on other data than the paper's, or below where it is decided, the weaker words."""
    full = decide.decided_by(scale) and not draft.gaps.differ
    return ("reproduced", "not_reproduced") if full else ("supported", "contradicted")


def _decide(draft: _Draft, weighed: _Weighed, p_for: float, p_against: float, members: int, scale: str) -> None:
    """Turns p values, corrected for the family, into the word."""
    decide, found = weighed.decide, weighed.found
    yes, no = p_for <= decide.error, p_against <= decide.error
    words = _words(draft, decide, scale)
    draft.verdict = "inconclusive" if yes == no else words[0] if yes else words[1]
    sides = [f"for the claim p = {_p_words(found.p_for, p_for)}"]
    sides += [] if yes else [f"against it p = {_p_words(found.p_against, p_against)}"]
    family = f", Holm over the {members} planned claims of {decide.family}" if members > 1 else ""
    more = (f"the second look is at {decide.extension} runs",) if decide.extension and weighed.looks == 1 else ()
    more = more if yes == no else ()
    draft.reasons = (f"{', '.join(sides)}, alpha {decide.error:g}{family}", found.fact, *more)


def _p_words(raw: float, corrected: float) -> str:
    return f"{raw:.2g}" if raw == corrected else f"{raw:.2g} ({corrected:.2g} corrected)"


def judge(
    claims: Sequence[Claim],
    plan: Plan,
    index: IndexLike,
    scale: str,
    ledger: Ledger | None = None,
) -> list[Verdict]:
    """A verdict for each claim, in order; `claims` must hold whole families, or the correction is too small.

    `ledger` is the checkout's own unless given. Raises ConfigError for a claim that does not say which cell it
    means, and for a ledger that is not what it says.
    """
    book = load_ledger(plan.configuration.root) if ledger is None else ledger
    drafts = [_examine(claim, plan, index) for claim in claims]
    for draft in drafts:
        if draft.held and draft.claim.decide:
            _conclude(draft, draft.held, draft.claim.decide, scale)
    for family in dict.fromkeys(claim.family for claim in claims):
        members = [draft for draft in drafts if draft.claim.family == family and draft.claim.shares_alpha]
        supports = holm([draft.weighed.found.p_for if draft.weighed else 1.0 for draft in members])
        contraries = holm([draft.weighed.found.p_against if draft.weighed else 1.0 for draft in members])
        for draft, p_for, p_against in zip(members, supports, contraries, strict=True):
            if draft.weighed:
                _decide(draft, draft.weighed, p_for, p_against, len(members), scale)
    return [_verdict(draft, claims, index, scale, book) for draft in drafts]


def _aa(draft: _Draft) -> Spread | None:
    """The A/A line of the claim's own cells; none for counts and tolerances."""
    if draft.claim.metric in VIEWS:
        return None
    return aa_spread(result for arm in draft.arms.values() for result in arm.grid.values())


def _ours(draft: _Draft, noise: Spread | None) -> str:
    """Our numbers, with what tells noise from a difference beside them."""
    if not draft.arms:
        return "no planned cell"
    return describe(draft.claim, draft.arms) + (f"; A/A spread {noise.sd:.3g}" if noise else "")


def _verdict(draft: _Draft, claims: Sequence[Claim], index: IndexLike, scale: str, ledger: Ledger) -> Verdict:
    claim, noise = draft.claim, _aa(draft)
    counts = {f"n_{name}": sum(arm.count(name) for arm in draft.arms.values()) for name in COUNTS}
    created = moments(index, (run_id for arm in draft.arms.values() for run_id in arm.all_ids))
    entered = registration(claim, claims, ledger, created)
    reading = ("under our reading of the paper",) if claim.reading == "derived" else ()
    closing = (*own_counts_words(claim), *_gap_words(draft.gaps), *reading, *entered.late)
    return Verdict(
        id=claim.id,
        paper=claim.paper,
        says=claim.says,
        reported=reported_words(claim),
        ours=_ours(draft, noise),
        verdict=draft.verdict,
        reason="; ".join((*draft.reasons, *closing)),
        **counts,
        scale=scale,
        provenance=claim.source.provenance,
        looks=draft.weighed.looks if draft.weighed else 0,
        claim_sha256=claim.sha256,
        family_sha256=family_sha256(claims, claim.family),
        since=entered.since,
        late="; ".join(entered.late),
        aa_spread=noise.sd if noise else None,
    )
