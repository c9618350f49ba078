"""`repro bench`: measures the asked ratios, prints each row when it is known."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from repro.bench.measure import Progress, Row
from repro.bench.registry import Ratio, Session, ratios, rows_of
from repro.spec.errors import ConfigError, Problem, shown, suggest
from repro.spec.paths import find_root
from repro.verbs.output import columns, emit

_HEADER = ("id", "ratio", "median", "minimum", "spread", "bar", "noise", "ok", "peer")


def bench(ids: list[str], as_json: bool) -> None:
    """Measures `ids`, or all; exit 1 if a row is not ok.

    Raises ConfigError that names every unknown id and the known ones.
    """
    known = ratios()
    chosen = choose(ids, known)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="repro-bench-") as folder:
        session = Session(find_root(), Path(folder), tuple(one.id for one in chosen), Progress())
        for one in chosen:
            for row in rows_of(one, session):
                rows.append(row)
                if as_json:
                    emit(row.as_json())
                    sys.stdout.flush()
    if not as_json:
        table(rows)
    if any(row.ok is False for row in rows):
        sys.exit(1)


def choose(ids: list[str], known: dict[str, Ratio]) -> list[Ratio]:
    """The asked ratios, each once, in the order of their ids; all of them where none is named."""
    wanted = {text.upper() for text in ids} or set(known)
    unknown = sorted(wanted - set(known))
    if unknown:
        message = "is no ratio of this suite"
        raise ConfigError([Problem("command line", None, shown(t), message + suggest(t, known)) for t in unknown])
    return [one for identity, one in known.items() if identity in wanted]


def table(rows: list[Row]) -> None:
    """Columns for people; below them what each row rests on."""
    words = {True: "ok", False: "NOT OK", None: "-"}
    columns(
        [
            (
                *(row.id, row.ratio, _number(row.median, row.unit), _number(row.minimum, row.unit)),
                *(
                    _number(row.spread, row.unit),
                    "-" if row.bar is None else f"{'>=' if row.at_least else '<='} {row.bar:g}",
                ),
                *("-" if row.noise is None else f"{row.noise:.1%}", words[row.ok], row.peer),
            )
            for row in rows
        ],
        _HEADER,
    )
    for row in rows:
        if row.detail:
            print(f"{row.id}: {row.detail}")


def _bar(row: Row) -> str:
    """The bar, and on which side of it a ratio has to lie."""
    return "-" if row.bar is None else f"{'>=' if row.at_least else '<='} {row.bar:g}"


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:.2f} s" if unit == "seconds" else f"{value:.3f}"
