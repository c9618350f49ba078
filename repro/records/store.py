"""Writes records once, atomically, and finds them again."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from repro.records.schema import RETRYABLE, record_problems, sealed
from repro.spec.errors import BadDataError, CannotWriteError, problem_error
from repro.spec.paths import Root


def place(root: Root, tier: str) -> Path:
    """Folder of records: try-outs of tier smoke are not committed, all others are."""
    return root.scratch_records if tier == "smoke" else root.records


def record_path(folder: Path, identity: str, attempt: int = 0) -> Path:
    """`<id:2>/<id>.json`, later attempts `<id>.1.json`, `<id>.2.json` ..."""
    return folder / identity[:2] / (f"{identity}.{attempt}.json" if attempt else f"{identity}.json")


def attempt_of(path: Path) -> int:
    """The attempt that a record file's name states; 0 for a name of another form."""
    parts = path.name.split(".")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else 0


def attempts_of(folder: Path, identity: str) -> list[Path]:
    """Record files of one id, oldest first."""
    paths: list[Path] = []
    while (path := record_path(folder, identity, len(paths))).exists():
        paths.append(path)
    return paths


def newest_record(root: Root, base: dict[str, Any], superseded: int = 0) -> dict[str, Any] | None:
    """The latest record of the id that `base` is the skeleton of, as it stands on the disk now.

    The first `superseded` attempts do not count: another one was asked for.
    """
    earlier = attempts_of(place(root, base["tier"]), base["id"])
    return dict(json.loads(earlier[-1].read_text("utf-8"))) if len(earlier) > superseded else None


def write_record(root: Root, record: dict[str, Any]) -> Path:
    """Seals, checks and writes `record`; an existing file is never touched.

    A second record of an id is a later attempt: allowed only after failed, oom or timeout, and then it names
    what it supersedes. Raises BadDataError for a record that breaks the schema's rules or would rewrite a
    result, CannotWriteError where the disk says no.
    """
    folder = place(root, record["tier"])
    earlier = attempts_of(folder, record["id"])
    if earlier:
        last = json.loads(earlier[-1].read_text("utf-8"))
        if last["status"] not in RETRYABLE:
            message = f"a {last['status']} record exists and is never rewritten"
            raise problem_error(BadDataError, root.shown(earlier[-1]), "status", message)
        record = record | {"supersedes": earlier[-1].name}
    path = record_path(folder, record["id"], len(earlier))
    record = sealed(record)
    if problems := record_problems(record, root.shown(path)):
        raise BadDataError(problems)
    try:
        write_once(path, json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n")
    except OSError as error:
        raise problem_error(CannotWriteError, root.shown(path), "", str(error.strerror)) from None
    return path


def _partial(path: Path) -> Path:
    """A name for a half-written file that no other writer has, also none of the same number on another host."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")


def write_once(path: Path, text: str) -> None:
    """A whole new file or none: temporary name, fsync, then a link that fails if the name is taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    try:
        with open(partial, "x", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> bool:
    """Rewrites a derived file atomically, only if its content changes; returns whether it did.

    Raises CannotWriteError where the disk says no.
    """
    try:
        if path.read_text("utf-8") == text:
            return False
    except (OSError, UnicodeDecodeError):
        pass
    partial = _partial(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, "utf-8")
        partial.replace(path)
    except OSError as error:
        raise problem_error(CannotWriteError, path.name, "", str(error.strerror)) from None
    return True
