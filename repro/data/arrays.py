"""A folder of plain arrays under `scratch/data/<digest>/`: one .npy each, and a manifest that vouches for all.

Published as a whole or not at all, by one process at a time. No file holds a pickle, and none is believed
before its hash is compared; what is used is what was compared.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from repro.data.manifest import MANIFEST, data_folder, manifest_text, sealed
from repro.data.packed import fsync_folder
from repro.spec.errors import BadDataError, CannotWriteError, MissingError, Problem, ReproError, problem_error, shown
from repro.spec.hashing import sha256_json, short
from repro.spec.model import Digest, Int, Name, Strict
from repro.spec.paths import Root
from repro.spec.reading import read_json

MAX_ARRAY_BYTES = 8 << 30
_SPARE_BYTES = 16 << 20  # left on the disk beyond what the data need
_HEADER_BYTES = 4096  # of an .npy file, at most
Dtype = Literal["<f8", "<i8", "|i1", "|u1"]
Size = Annotated[Int, Field(ge=0)]
Arrays = dict[str, NDArray[Any]]


class ArrayInfo(Strict):
    """One file: `sha256` of all its bytes."""

    dtype: Dtype
    shape: Annotated[list[Size], Field(max_length=4)]
    sha256: Digest


class SetManifest(Strict):
    """manifest.json of a set. `splits` and `report` are what the preparation counted, `sha256` of all other fields."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    form: Literal["series", "labelled"]
    source: Name
    digest: Digest
    arrays: dict[Name, ArrayInfo]
    origin: dict[Name, Digest]
    splits: dict[Name, dict[str, Any]]
    report: dict[str, Any]
    sha256: Digest


def write_arrays(place: Path, arrays: Mapping[str, NDArray[Any]], fields: Mapping[str, Any]) -> None:
    """Arrays and manifest into the folder `place`, forced to disk; CannotWriteError if there is no room for them."""
    needed = sum(array.nbytes for array in arrays.values()) + _SPARE_BYTES
    free = shutil.disk_usage(place).free
    if free < needed:
        message = f"about {needed / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free"
        raise problem_error(CannotWriteError, place.parent.name, "disk", message)
    infos = {name: _write_array(place / f"{name}.npy", array) for name, array in arrays.items()}
    manifest = sealed({"schema": 1, **fields, "arrays": infos})
    SetManifest.model_validate(manifest)  # what could not be read again is not written
    _write_bytes(place / MANIFEST, manifest_text(manifest).encode("utf-8"))


def _write_array(path: Path, array: NDArray[Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
    data = buffer.getvalue()
    _write_bytes(path, data)
    return {"dtype": array.dtype.str, "shape": list(array.shape), "sha256": hashlib.sha256(data).hexdigest()}


def _write_bytes(path: Path, data: bytes) -> None:
    with open(path, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def load_set_manifest(root: Root, digest: str) -> dict[str, Any]:
    """manifest.json of a prepared set, checked for form, hash and digest; the arrays are not touched.

    Raises MissingError where nothing is prepared, BadDataError with all problems for what is no manifest.
    """
    path = data_folder(root, digest) / MANIFEST
    file = root.shown(path)
    if not path.is_file():
        message = "these data are not prepared; run: repro data prepare NAME (repro data list shows the names)"
        raise problem_error(MissingError, file, "", message)
    manifest: dict[str, Any] = read_json(path, file=file)
    try:
        SetManifest.model_validate(manifest)
    except ValidationError as error:
        raise BadDataError(
            [Problem(file, None, shown(".".join(map(str, f["loc"]))), shown(f["msg"])) for f in error.errors()]
        ) from None
    if sha256_json({key: item for key, item in manifest.items() if key != "sha256"}) != manifest["sha256"]:
        raise problem_error(BadDataError, file, "sha256", "does not belong to this content: altered")
    if manifest["digest"] != digest:
        raise problem_error(BadDataError, file, "digest", f"is of {manifest['digest']}, not of {digest}")
    return manifest


def load_arrays(root: Root, digest: str) -> tuple[dict[str, Any], Arrays]:
    """The manifest and all arrays of a prepared set, read only; BadDataError lists every array that is not as told."""
    manifest = load_set_manifest(root, digest)
    folder = data_folder(root, digest)
    arrays: Arrays = {}
    problems: list[Problem] = []
    for name, info in manifest["arrays"].items():
        path = folder / f"{name}.npy"
        try:
            arrays[name] = _read_array(path, root.shown(path), info)
        except ReproError as error:
            problems += error.problems
    if problems:
        raise BadDataError(problems)
    return manifest, arrays


def _read_array(path: Path, file: str, info: Mapping[str, Any]) -> NDArray[Any]:
    """One array; BadDataError unless it is, byte for byte, what the manifest says."""
    wanted = math.prod(info["shape"]) * np.dtype(info["dtype"]).itemsize
    try:
        size = path.stat().st_size if path.is_file() else -1
        if not wanted < size <= wanted + _HEADER_BYTES or size > MAX_ARRAY_BYTES:
            message = "is not there" if size < 0 else f"has {size} bytes, {wanted} and a header are expected"
            raise problem_error(BadDataError, file, "", message)
        data = path.read_bytes()
    except OSError as error:
        raise problem_error(BadDataError, file, "", f"cannot be read ({error.strerror})") from None
    if hashlib.sha256(data).hexdigest() != info["sha256"]:
        raise problem_error(BadDataError, file, "sha256", "is not what the manifest says: altered")
    array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    if array.dtype.str != info["dtype"] or list(array.shape) != info["shape"]:
        raise problem_error(BadDataError, file, "", f"holds {array.dtype} {array.shape}, not what the manifest says")
    array.flags.writeable = False
    return array


def set_problems(root: Root, digest: str) -> list[Problem]:
    """All that is wrong with a prepared set, every byte read; [] means whole."""
    try:
        load_arrays(root, digest)
    except ReproError as error:
        return list(error.problems)
    return []


def publish(root: Root, digest: str, fill: Callable[[Path], None]) -> Path:
    """The folder of that digest, made by `fill` (which gets an empty folder to write into) if it is not there whole.

    Two processes may call at once: one works, the other waits and finds the result. What `fill` raises leaves
    nothing behind. Raises CannotWriteError (disk full or read only) and BadDataError (a link or file in its place).
    """
    folder = data_folder(root, digest)
    if not set_problems(root, digest):
        return folder
    with _lock(root, digest):
        problems = set_problems(root, digest)
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise problem_error(BadDataError, root.shown(folder), "", "is no folder but a link or a file")
        if any(problem.key == "digest" for problem in problems):  # another set with the same first digits
            raise BadDataError(problems)
        if problems:
            _build(root, folder, fill)
    return folder


@contextlib.contextmanager
def _lock(root: Root, digest: str) -> Iterator[None]:
    """One process at a time for one digest; the kernel lets go when a process dies, however it dies."""
    parent = root.scratch / "data"
    with contextlib.ExitStack() as stack:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(parent / f".lock-{short(digest)}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:  # some network disks know no locks
            raise problem_error(CannotWriteError, root.shown(parent), "lock", f"{error.strerror}") from None
        yield


def _build(root: Root, folder: Path, fill: Callable[[Path], None]) -> None:
    """Under the lock: write under another name and rename; a damaged folder steps aside first."""
    partial = folder.with_name(f".tmp-{folder.name}-{os.getpid()}")
    aside = folder.with_name(f".old-{folder.name}-{os.getpid()}")
    try:
        for kind in ("tmp", "old"):  # what killed processes left: nobody else works here while the lock is held
            for leftover in folder.parent.glob(f".{kind}-{folder.name}-*"):
                shutil.rmtree(leftover)
        partial.mkdir()
        fill(partial)
        fsync_folder(partial)
        if folder.exists():
            folder.rename(aside)
        partial.rename(folder)
        fsync_folder(folder.parent)
    except OSError as error:
        raise problem_error(CannotWriteError, root.shown(folder), "", f"{error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)
