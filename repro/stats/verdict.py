"""The verdict engine: claim + plan + records -> one word, one sentence, and the counts behind it.

Nothing is decided before its planned number of runs is finished, in the seeds fixed by the plan; a second
look is paid for with half of alpha; a family shares its alpha by Holm's rule over all claims that are planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from repro.plan import Plan
from repro.spec.claims import Claim, Decide, family_sha256
from repro.stats.cells import IndexLike
from repro.stats.evidence import Evidence, describe, evidence
from repro.stats.select import ArmData, Gaps, find_arms, setting_gaps
from repro.stats.tests import fisher, holm

DECIDED = ("reproduced", "not_reproduced", "supported", "contradicted")
COUNTS = ("planned", "complete", "diverged", "failed", "missing")


@dataclass(frozen=True)
class Verdict:
    """One row of the claims' table. Counts are runs, summed over the arms; `scale` is the plan's."""

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
    gaps: Gaps = field(default_factory=lambda: Gaps((), ()))


def reported_words(claim: Claim) -> str:
    """The paper's number as text."""
    reported, names = claim.reported, claim.cells.arms if claim.cells else {}
    if not reported.known:
        return "not reported"
    if reported.a and reported.b:
        counts = {"a": reported.a, "b": reported.b}
        return "; ".join(f"{names[role].label}: {k} of {n}" for role, (k, n) in counts.items())
    if reported.low is not None:
        return f"{reported.low:g}" + (f" to {reported.high:g}" if reported.high else " or more")
    if reported.rank:
        return "best of the compared"
    return "comparable, no number given" if reported.comparable else f"{reported.value:g}"


def own_counts_words(claim: Claim) -> tuple[str, ...]:
    """What the paper's own counts can show under the claim's test, computed."""
    a, b = claim.reported.a, claim.reported.b
    if not (a and b and claim.decide):
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


def _weigh(draft: _Draft, decide: Decide) -> _Draft:
    """Adds the evidence of one or two looks; where a second is allowed, each costs half of alpha."""
    claim, arms = draft.claim, draft.arms
    first = _enough(arms, decide.planned_n)
    if first is None:
        draft.verdict, draft.reasons = "inconclusive", (_progress_words(arms, decide.planned_n),)
        return draft
    second = _enough(arms, decide.extension) if decide.extension else None
    looks = [evidence(claim, decide, arms, seeds) for seeds in (first, second) if seeds]
    price = 2 if decide.extension else 1
    found = Evidence(
        min(1.0, price * min(look.p_for for look in looks)),
        min(1.0, price * min(look.p_against for look in looks)),
        looks[-1].fact + (f", look {len(looks)} of 2, p doubled for it" if decide.extension else ""),
    )
    draft.weighed = _Weighed(decide, found, len(looks))
    return draft


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
    draft.arms, draft.gaps = arms, setting_gaps(claim, arms["a"].run)
    planned = sum(arm.count("planned") for arm in arms.values())
    if sum(arm.count("missing") for arm in arms.values()) == planned:
        draft.verdict, draft.reasons = "not_run", (f"none of the {planned} planned runs has a result",)
        return draft
    if claim.reported.value is not None and (draft.gaps.differ or draft.gaps.unknown):
        draft.verdict = "not_comparable"
        draft.reasons = ("a number is compared on the paper's own protocol only",)
        return draft
    return _weigh(draft, claim.decide)


def _decide(draft: _Draft, weighed: _Weighed, p_for: float, p_against: float, members: int, scale: str) -> None:
    """Turns p values, corrected for the family, into the word."""
    decide, found = weighed.decide, weighed.found
    yes, no = p_for <= decide.alpha, p_against <= decide.alpha
    full = decide.decided_by(scale) and not draft.gaps.differ
    if yes == no:
        draft.verdict = "inconclusive"
    else:
        words = ("reproduced", "not_reproduced") if full else ("supported", "contradicted")
        draft.verdict = words[0] if yes else words[1]
    sides = [f"for the claim p = {_p_words(found.p_for, p_for)}"]
    sides += [] if yes else [f"against it p = {_p_words(found.p_against, p_against)}"]
    family = f", Holm over the {members} planned claims of {decide.family}" if members > 1 else ""
    draft.reasons = (f"{', '.join(sides)}, alpha {decide.alpha:g}{family}", found.fact)


def _p_words(raw: float, corrected: float) -> str:
    return f"{raw:.2g}" if raw == corrected else f"{raw:.2g} ({corrected:.2g} corrected)"


def judge(claims: Sequence[Claim], plan: Plan, index: IndexLike, scale: str) -> list[Verdict]:
    """A verdict for each claim, in order; `claims` must hold whole families, or the correction is too small.

    Raises ConfigError for a claim that does not say which cell it means.
    """
    drafts = [_examine(claim, plan, index) for claim in claims]
    for family in dict.fromkeys(claim.family for claim in claims):
        members = [draft for draft in drafts if draft.claim.family == family and draft.claim.testable]
        supports = holm([draft.weighed.found.p_for if draft.weighed else 1.0 for draft in members])
        contraries = holm([draft.weighed.found.p_against if draft.weighed else 1.0 for draft in members])
        for draft, p_for, p_against in zip(members, supports, contraries, strict=True):
            if draft.weighed:
                _decide(draft, draft.weighed, p_for, p_against, len(members), scale)
    return [_verdict(draft, claims, scale) for draft in drafts]


def _verdict(draft: _Draft, claims: Sequence[Claim], scale: str) -> Verdict:
    claim = draft.claim
    counts = {f"n_{name}": sum(arm.count(name) for arm in draft.arms.values()) for name in COUNTS}
    return Verdict(
        id=claim.id,
        paper=claim.paper,
        says=claim.says,
        reported=reported_words(claim),
        ours=describe(claim, draft.arms) if draft.arms else "no planned cell",
        verdict=draft.verdict,
        reason="; ".join((*draft.reasons, *own_counts_words(claim), *_gap_words(draft.gaps))),
        **counts,
        scale=scale,
        provenance=claim.source.provenance,
        looks=draft.weighed.looks if draft.weighed else 0,
        claim_sha256=claim.sha256,
        family_sha256=family_sha256(claims, claim.family),
    )
