"""`repro method card`: what theory says of a method before any training."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

from repro.spec.errors import ConfigError, problem_error
from repro.spec.methods import MethodEntry, registry, resolve
from repro.verbs.output import columns, emit, say

Row = dict[str, Any]
HEAD = ("state of weights", "what", "value", "bound", "in a word")


def card(name: str | None, every: bool, as_json: bool) -> None:
    """Prints one method's card, or the table of all; exit 1 if a part could not be made. Leaves no record."""
    entries = registry()
    if every == (name is not None):
        raise problem_error(ConfigError, "command line", "name", "give the name of one method, or --all")
    chosen = list(entries.values()) if name is None else [_entry(name, entries)]
    from repro.theory.card import card as make

    found: list[Row] = []
    for entry in chosen:
        if every and not as_json:
            say(f"{entry.name} ...")
        with redirect_stdout(sys.stderr):  # a method may print: standard output is ours
            rows = make(entry)
        found += rows
        if as_json:
            for row in rows:
                emit(row)
    if not as_json:
        columns(*(_table(found) if every else (_lines(found), HEAD)))
    failed = [row for row in found if row["failed"]]
    for row in failed:
        say(f"{row['method']}: {row['part']} could not be made: {row['word']}")
    if failed:
        sys.exit(1)


def _entry(name: str, entries: dict[str, MethodEntry]) -> MethodEntry:
    try:
        return resolve(name, {}, entries)[0]
    except ValueError as error:
        raise problem_error(ConfigError, "command line", "name", str(error)) from None


def _lines(rows: Sequence[Row]) -> list[Sequence[object]]:
    """One method: a line each, in the order of the parts."""
    return [(row["state"], row["says"], _value(row), _number(row["bound"]), row["word"]) for row in rows]


def _value(row: Row) -> str:
    if row["low"] is None or row["high"] is None:
        return _number(row["value"])
    return f"{_number(row['value'])} [{_number(row['low'])}, {_number(row['high'])}]"


def _number(value: float | None) -> str:
    """Three digits; round-off around 0 is 0."""
    if value is None:
        return "-"
    return "0" if abs(value) < 1e-9 else f"{value:.3g}"


def _table(rows: Sequence[Row]) -> tuple[list[list[str]], list[str]]:
    """All methods: their headline values as columns, each with its word."""
    names = list(dict.fromkeys(row["name"] for row in rows if row["headline"]))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cells = {(row["method"], row["name"]): f"{_number(row['value'])} {row['word']}" for row in rows if row["headline"]}
    return [[method, *(cells.get((method, name), "-") for name in names)] for method in methods], ["method", *names]
