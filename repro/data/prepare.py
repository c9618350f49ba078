"""From a source to `scratch/data/<digest>/`: train.bin, val.bin, manifest.json, all of it or nothing.

Everything is written into a folder of another name, checked there, and renamed; one process at a time works
on one digest. The same source gives the same bytes on every machine, so a folder that is found damaged is
made again in its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repro.data.build import fill
from repro.data.manifest import COLLISION, data_folder, load_manifest, verify
from repro.data.packed import fsync_folder
from repro.data.sources import read_documents, text_bytes
from repro.spec.data import DataSource
from repro.spec.data import digest as source_digest
from repro.spec.errors import BadDataError, CannotWriteError, ConfigError, Problem, problem_error
from repro.spec.hashing import short
from repro.spec.paths import Root

__all__ = ["load_manifest", "prepare", "verify"]

_SPARE_BYTES = 16 << 20  # left on the disk beyond what the data need
_log = logging.getLogger(__name__)


def prepare(root: Root, name: str, source: DataSource, digest: str) -> Path:
    """The folder with the prepared data of `source`, made now if it is not there whole.

    A second call costs a look at sizes and times of change. Two processes may call at once: one works, the
    other waits and finds the result. Raises MissingError (source not there), BadDataError (source is not what
    it says or changed since the digest was taken; overlap of training and validation text), ConfigError (more
    validation tokens asked for than there are), CannotWriteError (disk full or read only).
    """
    folder = data_folder(root, digest)
    if verify(root, digest, full=False):
        _check_source(root, name, source, digest)
        with _lock(root, digest):
            if problems := verify(root, digest, full=False):
                _refuse_foreign(root, folder, problems)
                _build(root, name, source, digest)
    _check_size(name, source, load_manifest(root, digest))
    return folder


def _check_source(root: Root, name: str, source: DataSource, digest: str) -> None:
    found = source_digest(source, root)
    if found != digest:
        message = f"digest is {short(found)} and was {short(digest)} when the plan was made: the source changed"
        raise problem_error(BadDataError, "config/data.yaml", name, message)


def _check_size(name: str, source: DataSource, manifest: dict[str, Any]) -> None:
    """Refused here rather than hours later, at the first validation."""
    held = manifest["splits"]["val"]["tokens"]
    wanted = {"curve_tokens": source.curve_tokens, "final_tokens": source.final_tokens}
    problems = [
        Problem("config/data.yaml", None, f"{name}.{key}", f"is {tokens}, the validation split has {held} tokens")
        for key, tokens in wanted.items()
        if tokens > held
    ]
    if problems:
        raise ConfigError(problems)


def _refuse_foreign(root: Root, folder: Path, problems: list[Problem]) -> None:
    """A damaged folder is made again; one that was never ours is left alone."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise problem_error(BadDataError, f"scratch/data/{folder.name}", "", "is no folder but a link or a file")
    if any(problem.key == COLLISION for problem in problems):
        raise BadDataError(problems)
    if folder.exists() and any(folder.iterdir()):  # a workflow engine makes the empty folder of a job beforehand
        _log.warning("%s is damaged and is made again: %s", root.shown(folder), "; ".join(map(str, problems)))


@contextlib.contextmanager
def _lock(root: Root, digest: str) -> Iterator[None]:
    """One process at a time for one digest; the kernel lets go when a process dies, however it dies."""
    parent = root.scratch / "data"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(parent / f".lock-{short(digest)}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise problem_error(CannotWriteError, root.shown(parent), "", f"{error.strerror}") from None
    try:
        _wait_for(handle, root.shown(parent))
        yield
    finally:
        os.close(handle)


def _wait_for(handle: int, file: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:  # some network disks know no locks
        raise problem_error(CannotWriteError, file, "lock", f"{error.strerror}") from None


def _build(root: Root, name: str, source: DataSource, digest: str) -> None:
    """Under the lock: write, check and publish; leaves nothing behind if anything goes wrong."""
    folder = data_folder(root, digest)
    documents = read_documents(root, name, source)
    _check_disk(root, text_bytes(root, name, source) * (1 + source.validation))
    partial = folder.with_name(f".tmp-{folder.name}-{os.getpid()}")
    try:
        _clear_leftovers(folder)
        partial.mkdir()
        fill(partial, name, source, digest, documents)
        _check_source(root, name, source, digest)  # files may have changed while they were read
        _publish(partial, folder)
    except OSError as error:
        raise problem_error(CannotWriteError, root.shown(folder), "", f"{error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_disk(root: Root, needed: float) -> None:
    """A rough bound: one byte of tokens for a byte of text, and the validation part twice."""
    parent = root.scratch / "data"
    free = shutil.disk_usage(parent).free
    if free < needed + _SPARE_BYTES:
        message = f"about {(needed + _SPARE_BYTES) / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free"
        raise problem_error(CannotWriteError, root.shown(parent), "disk", message)


def _clear_leftovers(folder: Path) -> None:
    """What killed processes left: nobody else works on this digest while the lock is held."""
    for kind in ("tmp", "old"):
        for leftover in folder.parent.glob(f".{kind}-{folder.name}-*"):
            shutil.rmtree(leftover)


def _publish(partial: Path, folder: Path) -> None:
    """Rename into place; a damaged folder steps aside first. A kill in between leaves no such folder."""
    fsync_folder(partial)
    aside = folder.with_name(f".old-{folder.name}-{os.getpid()}")
    if folder.exists():
        folder.rename(aside)
    partial.rename(folder)
    fsync_folder(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)
