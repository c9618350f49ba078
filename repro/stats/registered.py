"""Says whether a claim's rule stood before the runs that it is judged by: what came later shows in the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from repro.spec.claim_ledger import Ledger, Version, version_of
from repro.spec.claims import Claim
from repro.stats.cells import IndexLike

NOW = "9999-12-31T23:59:59Z"  # a rule that is not in the ledger is later than every run


@runtime_checkable
class Dated(Protocol):
    """A record whose JSON object says when it was made."""

    @property
    def raw(self) -> Mapping[str, Any]:
        """The JSON object, with `created` in UTC."""
        ...


@dataclass(frozen=True)
class Registration:
    """Since when the rule in force stands (None: not registered), and what came after runs, in words."""

    since: str | None
    late: tuple[str, ...]


def moments(index: IndexLike, run_ids: Iterable[str]) -> list[str]:
    """When the recorded ones of some runs were recorded, oldest first; ISO 8601 in UTC, so text order is time order."""
    records: Iterable[object] = (index.train(run_id) for run_id in run_ids)
    return sorted(str(record.raw["created"]) for record in records if isinstance(record, Dated))


def _day(moment: str) -> str:
    return moment[:10]


def _before(created: Sequence[str], moment: str) -> str:
    """`after 16 of 24 recorded runs`."""
    return f"after {sum(made < moment for made in created)} of {len(created)} recorded runs"


def _versions(claim: Claim, ledger: Ledger) -> list[Version]:
    """Registered versions, and the present one dated last if it is not the last of them."""
    known, present = list(ledger.claims.get(claim.id, [])), version_of(claim, NOW)
    return known if known and known[-1].rule == present.rule else [*known, present]


def _own(versions: Sequence[Version], created: Sequence[str]) -> list[str]:
    """The claim itself was added, or parts of its rule were changed, after runs were recorded."""
    present, early = versions[-1], [version for version in versions if version.since <= created[0]]
    told, base = [], early[-1] if early else versions[0]
    if not early:
        when = "is not registered, so counts as added" if base.since == NOW else f"was added on {_day(base.since)},"
        told.append(f"the claim {when} {_before(created, base.since)}")
    changed = [name for name, part in present.rule.items() if base.rule.get(name) != part]
    if changed:
        when = "without being registered" if present.since == NOW else f"on {_day(present.since)}"
        told.append(f"{' and '.join(changed)} changed {when}, {_before(created, present.since)}")
    return told


def _family_at(versions: Sequence[Version], moment: str) -> str:
    """The family whose alpha a claim shared at some time; empty before it was registered."""
    early = [version.family for version in versions if version.since <= moment]
    return early[-1] if early else ""


def _members(claims: Sequence[Claim], ledger: Ledger, family: str, moment: str) -> list[str]:
    """Other claims that joined or left the family, whose size is the correction, after `moment`."""
    now = {claim.id for claim in claims if claim.shares_alpha and claim.family == family}
    then = {identity for identity, known in ledger.claims.items() if _family_at(known, moment) == family}
    joined, left = sorted(now - then), sorted(then - now)
    parts = ((joined, "joined"), (left, "left"))
    return [f"{', '.join(names)} {verb} {family} after the first recorded run" for names, verb in parts if names]


def registration(claim: Claim, claims: Sequence[Claim], ledger: Ledger, created: Sequence[str]) -> Registration:
    """What of `claim` and of its family came after the runs that were recorded at `created` (sorted)."""
    versions = _versions(claim, ledger)
    since = None if versions[-1].since == NOW else versions[-1].since
    if not created:
        return Registration(since, ())
    own = _own(versions, created)
    others = [each for each in claims if each.id != claim.id]
    rest = Ledger(claims={identity: known for identity, known in ledger.claims.items() if identity != claim.id})
    # A claim that was itself added late is told of once: its family counts from then on.
    moment = max(created[0], versions[0].since)
    family = _members(others, rest, claim.family, moment) if claim.shares_alpha and moment != NOW else []
    return Registration(since, (*own, *family))
