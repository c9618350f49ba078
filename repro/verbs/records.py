"""`repro records list|show|validate|import` and `repro diff`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repro.records.agreement import disagreements
from repro.records.index import MAX_RECORD_BYTES, Entry, Index, chain_problems, entry_of, load_index, place_problems
from repro.records.schema import record_problems
from repro.records.store import attempt_of, place, record_path, write_once
from repro.spec.errors import BadDataError, CannotWriteError, ConfigError, Problem, ReproError, problem_error, shown
from repro.spec.paths import Root, find_root
from repro.spec.reading import read_json
from repro.verbs.output import columns, emit, say

SUBMISSION = "submission.json"  # a folder that holds one is a submission, not a folder of records


def _files(paths: list[Path], root: Root) -> Iterator[Path]:
    """Record files named by `paths`, or all of this checkout."""
    for path in paths or [folder for folder in (root.records, root.scratch_records) if folder.is_dir()]:
        if path.is_dir():
            found = (p for p in path.rglob("*") if p.is_symlink() or p.suffix == ".json")
            yield from sorted(p for p in found if not p.name.startswith("."))
        else:
            yield path


def _read(path: Path, root: Root, problems: list[Problem]) -> dict[str, Any] | None:
    """One record, checked; None and its problems otherwise."""
    name = str(path) if path.is_symlink() else root.named(path)
    try:
        if path.is_symlink():
            raise problem_error(BadDataError, name, "", "is a symbolic link")
        raw = read_json(path, MAX_RECORD_BYTES, name)
    except ReproError as error:
        problems += error.problems
        return None
    found = record_problems(raw, name)
    problems += found
    return None if found else raw


def validate(paths: list[Path], as_json: bool) -> None:
    """Checks every file; raises BadDataError with all problems of all files."""
    root, problems = find_root(), list[Problem]()
    count = 0
    for folder in _submissions(paths):
        count += 1
        problems += _submission_problems(folder)
    rest = [path for path in paths if path not in _submissions(paths)]
    for path in _files(rest, root) if rest or not paths else []:
        count += 1
        _read(path, root, problems)
    if not paths:  # all of this checkout: names, places and attempts count too
        problems += load_index(root).problems
    found = BadDataError(problems)
    if as_json:
        emit({"records": count, "problems": [str(problem) for problem in found.problems]})
    if problems:
        raise found
    say(f"{count} records or submissions are what they say")


def _submissions(paths: list[Path]) -> list[Path]:
    """Folders that claim numbers of others, with the logs that these must follow from."""
    return [path for path in paths if (path / SUBMISSION).is_file()]


def _submission_problems(folder: Path) -> list[Problem]:
    from repro.stats.submission import check_submission

    try:
        check_submission(folder)
    except ReproError as error:
        return error.problems
    return []


def list_records(paths: list[Path], as_json: bool) -> None:
    """One line for each record that can be trusted; the others are told on standard error and by exit 65."""
    root, problems = find_root(), list[Problem]()
    records = [(path, _read(path, root, problems)) for path in _files(paths, root)]
    keys = ("id", "kind", "status", "tier", "alias", "origin", "created")
    rows = [{**{key: raw[key] for key in keys}, "file": root.shown(path)} for path, raw in records if raw]
    if as_json:
        for row in rows:
            emit(row)
    else:
        columns([[row[key] for key in keys[:5]] for row in rows], keys[:5])
    if problems:
        raise BadDataError(problems)


def _find(name: str) -> dict[str, Any]:
    """A record by file, id or alias."""
    root, problems = find_root(), list[Problem]()
    path = Path(name)
    if name.endswith(".json"):
        raw = _read(path, root, problems)
        if raw is None:
            raise BadDataError(problems)
        return raw
    index = load_index(root)
    for attempts in [*index.records.values(), *index.community.values()]:
        if attempts[-1].id == name or ("/" in name and attempts[-1].raw["alias"] == name):
            return attempts[-1].raw
    raise problem_error(ConfigError, "command line", "record", f"no record has the id or alias {shown(name)}")


def show(name: str, as_json: bool) -> None:
    """One record."""
    raw = _find(name)
    if as_json:
        emit(raw)
        return
    columns([(key, value) for key, value in _flat(raw, "") if not key.startswith("curve.")], ("key", "value"))


def _flat(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key in value:
            yield from _flat(value[key], f"{prefix}.{key}" if prefix else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for number, item in enumerate(value):
            yield from _flat(item, f"{prefix}.{number}")
    else:
        yield prefix, value


def diff(first: str, second: str) -> None:
    """Keys whose values differ, side by side; curves are left out."""
    sides = [dict(_flat(_find(name), "")) for name in (first, second)]
    keys = [key for key in dict.fromkeys([*sides[0], *sides[1]]) if not key.startswith("curve.")]
    rows = [(key, *(side.get(key, "-") for side in sides)) for key in keys if sides[0].get(key) != sides[1].get(key)]
    columns(rows, ("key", first, second))


def _disagreements(index: Index, given: list[Entry]) -> Iterator[Problem]:
    """Of records from elsewhere, those that saw other data than most of their like, here and there."""
    here = [record.entry for attempts in index.records.values() for record in attempts]
    known = {entry.path for entry in here}
    new = [entry for entry in given if entry.path not in known]
    for entry, message in disagreements([*here, *new]):
        if entry.path not in known:
            yield Problem(entry.path, None, "data", message)


def import_records(folder: Path) -> None:
    """Copies the records of `folder`; nothing is copied if one of them is not what it says, or rewrites one here."""
    root, problems = find_root(), list[Problem]()
    if _submissions([folder]) and (found := _submission_problems(folder)):
        raise BadDataError(found)
    if not folder.is_dir():
        raise problem_error(ConfigError, "command line", "folder", f"{shown(str(folder))} is no folder")
    index, new = load_index(root), dict[Path, Path]()
    attempts: dict[str, list[Entry]] = {}
    for path in _files([folder], root):
        raw = _read(path, root, problems)
        if raw is None:
            continue
        entry = entry_of(str(path), raw, attempt_of(path))
        home = place(root, raw["tier"]) if raw["origin"] == "self" else root.community
        target = record_path(home, entry.id, entry.attempt)
        problems += place_problems(root, target, raw, entry.attempt)
        same = target if target.exists() else new.get(target)
        if same is None:
            new[target] = path
            attempts.setdefault(entry.id, [known.entry for known in index.records.get(entry.id, [])]).append(entry)
        elif same.read_bytes() != path.read_bytes():
            problems.append(Problem(str(path), None, "id", f"another record of {entry.id} is here already"))
    problems += [problem for entries in attempts.values() for problem in chain_problems(entries)]
    problems += _disagreements(index, [entry for entries in attempts.values() for entry in entries])
    if problems:
        raise BadDataError(problems)
    try:
        for target, path in new.items():
            write_once(target, path.read_text("utf-8"))
    except OSError as error:
        raise problem_error(CannotWriteError, str(folder), "", str(error.strerror)) from None
    say(f"{len(new)} new records")
