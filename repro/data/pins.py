"""manifest.json of a source folder: which files there must be, their hashes, and how many documents they hold.

`repro data fetch` writes one; a folder of one's own may have one. Keys that are not known here are left alone,
since such files come from other programs too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from repro.spec.errors import BadDataError, problem_error, shown
from repro.spec.fetching import FileName
from repro.spec.hashing import sha256_json
from repro.spec.model import Digest, Int
from repro.spec.reading import read_json

PINS = "manifest.json"
_MAX_BYTES = 16 << 20
_SHARDS: TypeAdapter[dict[str, str]] = TypeAdapter(dict[FileName, Digest])
_COUNT: TypeAdapter[int | None] = TypeAdapter(Int | None)


@dataclass(frozen=True, slots=True)
class Pins:
    """`sha256` by file name; `documents` and what else was said of the folder, where it was."""

    sha256: Mapping[str, str]
    documents: int | None
    fields: Mapping[str, Any]


def read_pins(folder: Path, file: str) -> Pins | None:
    """What the folder's manifest says, None where there is none; BadDataError for one that contradicts itself."""
    path = folder / PINS
    if not os.path.lexists(path):
        return None
    name = f"{file}/{PINS}"
    if not path.is_file() or path.is_symlink():
        raise problem_error(BadDataError, name, "", "is no regular file")
    value = read_json(path, _MAX_BYTES, name)
    if not isinstance(value, dict) or "sha256" not in value:
        raise problem_error(BadDataError, name, "sha256", "is missing: it names the files and their hashes")
    try:
        shards = _SHARDS.validate_python(value["sha256"])
        documents, stated = (_COUNT.validate_python(value.get(key)) for key in ("documents", "shards"))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, fault["loc"])) or "sha256"
        raise problem_error(BadDataError, name, shown(place), f"{shown(fault['input'])}: {fault['msg']}") from None
    if not shards:  # a manifest that vouches for nothing would let any files through
        raise problem_error(BadDataError, name, "sha256", "names no file")
    if stated is not None and stated != len(shards):
        raise problem_error(BadDataError, name, "shards", f"is {stated}, but {len(shards)} files are named")
    own = {key: item for key, item in value.items() if key != "seal"}
    if "seal" in value and value["seal"] != sha256_json(own):
        raise problem_error(BadDataError, name, "seal", "does not belong to this content: altered")
    return Pins(shards, documents, own)


def write_pins(folder: Path, fields: dict[str, Any]) -> None:
    """The manifest of a fetched folder, sealed with its own hash; whole or not at all."""
    partial = folder / f".{PINS}.{os.getpid()}.partial"
    with open(partial, "w", encoding="utf-8") as stream:
        json.dump({**fields, "seal": sha256_json(fields)}, stream, indent=1, sort_keys=True, allow_nan=False)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(folder / PINS)
