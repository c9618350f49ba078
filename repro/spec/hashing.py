"""Canonical JSON and the hashes made of it: the identity of everything in the suite."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

# One encoder for all: json.dumps would make a new one at each call, and a plan of 10,000 runs makes 30,000.
_ENCODE = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode
ID_LENGTH = 12  # hex digits of a run's short id; the full hash is stored and compared


def canonical(obj: object) -> str:
    """JSON with sorted keys and no blanks; raises ValueError for NaN and infinities.

    A float with an integral value is written as Python writes it (`1.0`), so a field's type is part of
    its identity; the specification fixes the types before anything is hashed.
    """
    return _ENCODE(obj)


def around(obj: dict[str, object], key: str) -> tuple[str, str]:
    """Canonical JSON of `obj` before and after the value of `key`, which `obj` does not hold yet.

    Runs that differ in their seed only then need one JSON, not one each.
    """
    before, after = ({k: v for k, v in obj.items() if (k < key) is smaller} for smaller in (True, False))
    head, tail = canonical(before)[1:-1], canonical(after)[1:-1]
    return "{" + head + ("," if head else "") + f'"{key}":', ("," if tail else "") + tail + "}"


def sha256_text(text: str) -> str:
    """sha256 of a text's UTF-8 bytes, as 64 hex digits."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def sha256_json(obj: object) -> str:
    """sha256 of the canonical JSON of `obj`."""
    return sha256_text(canonical(obj))


def sha256_file(path: Path) -> str:
    """sha256 of a file's bytes, read in pieces."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def stamp(state: os.stat_result) -> list[int]:
    """What a file whose bytes may have changed shows: believed in place of its hash, once that was taken.

    Size and time of change alone can be set back; nobody sets the inode's own time back.
    """
    return [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]


def short(sha256: str) -> str:
    """The first 12 hex digits: what names files and directories."""
    return sha256[:ID_LENGTH]
