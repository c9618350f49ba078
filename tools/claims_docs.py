"""Writes docs/claims.md, the claims of the four papers as tables, out of config/claims.

`python tools/claims_docs.py` writes, `--check` tells whether the page is stale and ends with 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from repro.report.escape import markdown
from repro.spec.claim_ledger import Ledger, load_ledger
from repro.spec.claims import PAPERS, Claim, Unused, known_names, load_claims, load_unused
from repro.spec.load import load_configuration
from repro.spec.paths import Root
from repro.stats.verdict import reported_words

ROOT = Path(__file__).resolve().parents[1]
PAGE = "docs/claims.md"
TITLES = {
    "a": "Paper A: layer normalisation and stability",
    "b": "Paper B: infinitely deep and wide Transformers",
    "c": "Paper C: SimpleNorm",
    "d": "Paper D: gradient descent with residual connections",
}
HEAD = (
    *("id", "says", "source", "provenance", "kind", "metric", "reported", "margin", "test", "n", "decided at"),
    *("falsified if", "setting", "assumptions and notes", "state", "registered"),
)
INTRO = """\
# Claims

Made by `tools/claims_docs.py` out of `config/claims/`; not edited by hand.

What the four papers state, how each statement is decided here, and what would show that it is wrong. **Provenance**
says where a statement was read: `paper` in the paper itself, `code` in the authors' code, `seed` in a summary of the
paper, `secondary` on a page of others, `derived` worked out here. A number that is not known is `not reported` and is
never filled in. *Our reading* marks statements whose sharp form was worked out here. **n** is the number of runs that
is needed for a verdict, with the total after one possible second look. **Registered** is the day since when the rule
stands as it does; what was changed or added after a run shows in the verdict. How the tests work:
[statistics](decisions/006-statistics.md) and [the ledger](decisions/007-claims-ledger.md).
"""
UNUSED_INTRO = """\
## Reported numbers that no claim uses

Together with the rows of the claims these are all numbers that are known. They are never compared with ours.
"""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose cells are plain text."""
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(markdown(cell) for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _margin(claim: Claim) -> str:
    if claim.margin.value is None:
        return "none"
    return f"{claim.margin.value:g} {claim.margin.unit} ({claim.margin_source})"


def _test(claim: Claim) -> tuple[str, str, str]:
    """Test, number of runs and tier of a claim, or dashes."""
    decide = claim.decide
    if decide is None:
        return "-", "-", "-"
    side = f", {decide.alternative}, alpha {decide.error:g}, family {decide.family}" if decide.alternative else ""
    looks = f"{decide.planned_n}, then {decide.extension}" if decide.extension else str(decide.planned_n)
    return decide.test + side, looks, decide.decided_at


def _setting(claim: Claim) -> str:
    if claim.setting is None:
        return "theory"
    tokens = "unknown" if claim.setting.tokens is None else f"{claim.setting.tokens:,}"
    return f"model {claim.setting.model}, data {claim.setting.data}, tokens {tokens}"


def _remarks(claim: Claim) -> str:
    reading = ["our reading"] if claim.reading == "derived" else []
    return "; ".join([*reading, *claim.assumptions, *filter(None, [claim.note])]) or "-"


def _since(claim: Claim, ledger: Ledger) -> str:
    versions = ledger.claims.get(claim.id)
    return versions[-1].since[:10] if versions and versions[-1].rule == claim.rule else "not yet"


def claim_row(claim: Claim, ledger: Ledger) -> tuple[str, ...]:
    """One line of a paper's table."""
    return (
        claim.id,
        claim.says,
        f"{claim.source.paper}, {claim.source.where}",
        claim.source.provenance,
        claim.kind,
        claim.metric,
        reported_words(claim),
        _margin(claim),
        *_test(claim),
        claim.falsified_if,
        _setting(claim),
        _remarks(claim),
        "planned" if claim.not_planned is None else f"not planned: {claim.not_planned}",
        _since(claim, ledger),
    )


def _unused(groups: Sequence[Unused]) -> str:
    head = ("paper", "experiment, model, variant, metric", "value", "spread", "n", "provenance", "why")
    rows = [
        (group.paper.upper(), row.row, row.value, row.spread or "-", str(row.n or "-"), row.provenance, group.why)
        for group in groups
        for row in group.rows
    ]
    return UNUSED_INTRO + "\n" + (table(head, rows) if rows else "None.")


def page(root: Root) -> str:
    """The whole page."""
    claims = load_claims(root, known_names(load_configuration(root)))
    ledger = load_ledger(root)
    parts = [INTRO]
    for letter in PAPERS:
        rows = [claim_row(claim, ledger) for claim in claims if claim.paper == letter]
        parts.append(f"## {TITLES[letter]}\n\n{table(HEAD, rows)}\n")
    return "\n".join([*parts, _unused(load_unused(root))]) + "\n"


def main(words: Sequence[str] | None = None, folder: Path = ROOT) -> int:
    """Writes, or with --check only tells; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is stale")
    check = parser.parse_args(words).check
    path, text = folder / PAGE, page(Root(folder))
    stale = not path.is_file() or path.read_text("utf-8") != text
    if stale:
        print(f"{PAGE}: {'stale, run: python tools/claims_docs.py' if check else 'written'}", file=sys.stderr)
    if stale and not check:
        path.write_text(text, "utf-8")
    return int(check and stale)


if __name__ == "__main__":
    sys.exit(main())
