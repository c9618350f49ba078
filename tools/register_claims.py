"""Adds to config/claims/registered.yaml every claim that is new or decides otherwise than before, dated now.

To be run before the first run that a claim is judged by is recorded: what is registered later shows in its verdict.
`--check` writes nothing and ends with 1 if a claim is not registered as it stands.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from repro.spec.claim_ledger import ledger_path, ledger_text, load_ledger, registered
from repro.spec.claims import known_names, load_claims
from repro.spec.load import load_configuration
from repro.spec.paths import Root

ROOT = Path(__file__).resolve().parents[1]


def main(words: Sequence[str] | None = None, folder: Path = ROOT) -> int:
    """Writes, or with --check only tells; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something is not registered")
    check = parser.parse_args(words).check
    root = Root(folder)
    old = load_ledger(root)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    new = registered(old, load_claims(root, known_names(load_configuration(root))), now)
    changed = [identity for identity, versions in new.claims.items() if versions != old.claims.get(identity)]
    for identity in changed:
        verb = "is not registered as it stands: run python tools/register_claims.py" if check else "registered"
        print(f"{identity}: {verb}", file=sys.stderr)
    if changed and not check:
        ledger_path(root).write_text(ledger_text(new), "utf-8")
    return int(check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
