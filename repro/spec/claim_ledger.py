"""The ledger of claims: since when each decision rule stands as it does, in config/claims/registered.yaml.

`tools/register_claims.py` adds a line where a claim is new or its rule changed; nothing is ever taken out.
docs/decisions/007-claims-ledger.md says why it is a file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from repro.spec.claim_model import Claim, ClaimId
from repro.spec.model import Name, Strict
from repro.spec.paths import Root
from repro.spec.reading import load

Moment = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", strict=True)]
Short = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$", strict=True)]
HEAD = """\
# Since when each claim's decision rule stands as it does: made by tools/register_claims.py, never edited by hand.
# One line a version, with a hash of each part that decides. `family` is empty where the claim shares no alpha.
"""


class Version(Strict):
    """A claim's rule from `since` on; `family` is the one whose alpha it shares, empty if none."""

    since: Moment
    family: Name | Annotated[str, StringConstraints(max_length=0)]
    rule: dict[Name, Short]


Versions = Annotated[list[Version], Field(min_length=1)]


class Ledger(Strict):
    """All versions of all claims that ever stood in the suite, oldest first."""

    claims: dict[ClaimId, Versions] = {}

    @field_validator("claims")
    @classmethod
    def _in_order(cls, claims: dict[str, list[Version]]) -> dict[str, list[Version]]:
        for identity, versions in claims.items():
            moments = [version.since for version in versions]
            if moments != sorted(set(moments)):
                raise ValueError(f"the versions of {identity} are not in the order of their dates")
        return claims


def ledger_path(root: Root) -> Path:
    """The one file."""
    return root.config / "claims" / "registered.yaml"


def read_ledger(path: Path, file: str) -> Ledger:
    """A ledger as it stands; raises ConfigError for one that is not what it says."""
    return load(Ledger, path, file)


def load_ledger(root: Root) -> Ledger:
    """The checkout's ledger; empty where there is none."""
    path = ledger_path(root)
    return read_ledger(path, root.shown(path)) if os.path.lexists(path) else Ledger()


def version_of(claim: Claim, since: str) -> Version:
    """The claim as it is now."""
    return Version(since=since, family=claim.family if claim.shares_alpha else "", rule=claim.rule)


def same_rule(first: Version, second: Version) -> bool:
    """Whether two versions decide alike."""
    return (first.family, first.rule) == (second.family, second.rule)


def registered(ledger: Ledger, claims: Iterable[Claim], now: str) -> Ledger:
    """The ledger with a version dated `now` for each claim that is new or decides otherwise than its last version.

    Raises pydantic's ValidationError where `now` is not later than what is registered already.
    """
    found = {identity: list(versions) for identity, versions in ledger.claims.items()}
    for claim in claims:
        version = version_of(claim, now)
        versions = found.setdefault(claim.id, [])
        if not versions or not same_rule(versions[-1], version):
            versions.append(version)
    return Ledger.model_validate({"claims": {key: [v.model_dump() for v in found[key]] for key in sorted(found)}})


def ledger_text(ledger: Ledger) -> str:
    """The file: one line a version, so that a change reads well in a diff."""
    lines = ["claims:" if ledger.claims else "claims: {}"]
    for identity, versions in ledger.claims.items():
        lines.append(f"  {identity}:")
        lines += [f"    - {json.dumps(version.model_dump(), sort_keys=True)}" for version in versions]
    return HEAD + "\n".join(lines) + "\n"
