"""What a prepared data folder says about itself, and whether that is true."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from repro.data.packed import TokenHeader, drop_marker, file_problems, write_marker
from repro.spec.errors import BadDataError, MissingError, Problem, ReproError, problem_error, shown
from repro.spec.hashing import sha256_json, short
from repro.spec.model import Digest, Float, Int, Name, Strict
from repro.spec.paths import Root
from repro.spec.reading import read_json

MANIFEST = "manifest.json"
SPLITS = ("train", "val")
COLLISION = "digest collision"  # key of the problem that two digests share their first digits
Count = Annotated[Int, Field(ge=0)]


class SplitInfo(Strict):
    """One token file: `tokens` with the end-of-text marks, `bytes` of UTF-8 text without them.

    `sha256` is of the ids, `documents_sha256` of the sorted hashes of the documents: equal for equal sets.
    """

    documents: Annotated[Int, Field(ge=1)]
    tokens: Annotated[Int, Field(ge=1)]
    bytes: Count
    sha256: Digest
    documents_sha256: Digest


class Splits(Strict):
    """Both token files."""

    train: SplitInfo
    val: SplitInfo


class Leakage(Strict):
    """Validation documents found in the training file: data with equal ones are not published, near ones are told."""

    exact: Literal[0]
    folded: Literal[0]
    near: Count = 0


class Manifest(Strict):
    """manifest.json. `unigram_entropy` of the training file in nats a token, `sha256` of all other fields.

    `documents_seen` = documents of both splits + `duplicates_removed` + `empty_removed` + `folded_removed`
    (validation documents that equal a training document but for case and blanks).
    """

    schema_: Annotated[Literal[1], Field(alias="schema")]
    source: Name
    digest: Digest
    tokenizer: Name
    tokenizer_sha256: Digest
    vocab: Annotated[Int, Field(ge=1)]
    end_of_text: Count
    splits: Splits
    unigram_entropy: Annotated[Float, Field(ge=0)]
    leakage: Leakage
    documents_seen: Count
    duplicates_removed: Count
    empty_removed: Count
    folded_removed: Count
    sha256: Digest


def data_folder(root: Root, digest: str) -> Path:
    """Where the data of that digest lie; ValueError if it is not 64 hex digits."""
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ValueError(f"a digest has 64 hex digits, not {shown(digest)}")
    return root.scratch / "data" / short(digest)


def token_path(root: Root, digest: str, split: str) -> Path:
    """The token file of one split, `train` or `val`."""
    return data_folder(root, digest) / f"{split}.bin"


def sealed(fields: dict[str, Any]) -> dict[str, Any]:
    """The manifest with its own hash."""
    return {**fields, "sha256": sha256_json(fields)}


def manifest_text(manifest: dict[str, Any]) -> str:
    """Strict JSON, the same bytes for the same content."""
    return json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False) + "\n"


def load_manifest(root: Root, digest: str) -> dict[str, Any]:
    """manifest.json of prepared data, checked for form, hash and digest; the token files are not touched.

    Raises MissingError where nothing is prepared, BadDataError with all problems for what is no manifest.
    """
    path = data_folder(root, digest) / MANIFEST
    file = root.shown(path)
    if not path.is_file():
        message = "these data are not prepared; run: repro data prepare NAME (repro data list shows the names)"
        raise problem_error(MissingError, file, "", message)
    value = read_json(path, file=file)
    try:
        Manifest.model_validate(value)
    except ValidationError as error:
        raise BadDataError([_problem(file, fault) for fault in error.errors()]) from None
    manifest: dict[str, Any] = value
    fields = {key: item for key, item in manifest.items() if key != "sha256"}
    if sha256_json(fields) != manifest["sha256"]:
        raise problem_error(BadDataError, file, "sha256", "does not belong to this content: altered")
    if manifest["digest"] != digest:
        message = f"is of {manifest['digest']}, not of {digest}"
        raise problem_error(BadDataError, file, COLLISION, message)
    return manifest


def _problem(file: str, fault: Any) -> Problem:
    return Problem(file, None, shown(".".join(map(str, fault["loc"]))), shown(fault["msg"]))


def verify(root: Root, digest: str, full: bool = True) -> list[Problem]:
    """All that is wrong with prepared data; [] means whole.

    `full` reads every byte. Without it a file with the stamp of its last full reading is believed, and any other is
    read. Damage that a full reading finds takes that belief away, so that whoever prepares next mends it.
    """
    try:
        manifest = load_manifest(root, digest)
    except ReproError as error:
        return list(error.problems)
    problems: list[Problem] = []
    found: list[tuple[str, str]] = []
    for split in SPLITS:
        path = token_path(root, digest, split)
        header, faults = file_problems(path, full)
        problems += [Problem(root.shown(path), None, fault.key, fault.message) for fault in faults]
        if header:
            problems += _against_manifest(root.shown(path), header, manifest, split)
            found.append((path.name, header.sha256))
    with contextlib.suppress(OSError):  # a read-only disk: the next reader hashes again
        if problems:
            drop_marker(data_folder(root, digest))
        else:
            write_marker(data_folder(root, digest), found)
    return problems


def _against_manifest(file: str, header: TokenHeader, manifest: dict[str, Any], split: str) -> list[Problem]:
    """A whole file can still be another one than the manifest speaks of."""
    info = manifest["splits"][split]
    says = {"sha256": info["sha256"], "count": info["tokens"], "vocab": manifest["vocab"]}
    return [
        Problem(file, None, key, f"is {getattr(header, key)}, the manifest says {value}")
        for key, value in says.items()
        if getattr(header, key) != value
    ]
