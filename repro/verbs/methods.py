"""`repro method list|new|check`."""

from __future__ import annotations

import re
import sys
from contextlib import redirect_stdout

from repro.records.store import write_once
from repro.spec.errors import CannotWriteError, ConfigError, problem_error, shown
from repro.spec.methods import FOLDER, method_template, registry, resolve
from repro.spec.model import NAME_PATTERN
from repro.verbs.output import columns, emit, say


def list_methods(as_json: bool) -> None:
    """Prints the registry; reads the files, imports none."""
    entries = registry().values()
    if as_json:
        for entry in entries:
            emit({"name": entry.name, "sha256": entry.sha256, **entry.info.model_dump()})
        return
    rows = [(e.name, e.info.title, e.info.ref, ",".join(e.info.tracks), e.info.params or "") for e in entries]
    columns(rows, ("name", "title", "reference", "tracks", "parameters"))


def new(name: str) -> None:
    """Writes the one file of a new method; refuses unsafe names and existing files."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise problem_error(ConfigError, "command line", "name", f"{shown(name)} must match {NAME_PATTERN}")
    path = FOLDER / f"{name}.py"
    try:
        write_once(path, method_template(name))
    except FileExistsError:
        raise problem_error(ConfigError, f"repro/methods/{name}.py", "", "exists already") from None
    except OSError as error:
        raise problem_error(CannotWriteError, f"repro/methods/{name}.py", "", str(error.strerror)) from None
    say(f"repro/methods/{name}.py is written; it takes part in every leaderboard of its track from now on.")
    say(f"Change it, then: repro method check {name}")


def check(name: str, as_json: bool) -> None:
    """Prints each check of the contract; exit 1 if one fails."""
    try:
        entry, _ = resolve(name, {}, registry())
    except ValueError as error:
        raise problem_error(ConfigError, "command line", "name", str(error)) from None
    from repro.nn.contract import check_method

    with redirect_stdout(sys.stderr):  # a method may print: standard output is ours
        results = check_method(entry)
    if as_json:
        for result in results:
            emit({"check": result.name, "ok": result.ok, "detail": result.detail})
    else:
        columns([("ok" if r.ok else "FAIL", r.name, r.detail) for r in results], ("", "check", "detail"))
    if not all(result.ok for result in results):
        sys.exit(1)
