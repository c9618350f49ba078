"""From a source to `scratch/data/<digest>/`: train.bin, val.bin, manifest.json, all of it or nothing.

Everything is written into folders of other names, checked there, and renamed; one call at a time works on one
digest. Tokens are first written in shards: those that are finished are used by the next call, whatever ended this
one. The same source gives the same bytes on every machine, so a folder that is found damaged is made again in its
place.
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

from repro.data.build import Work, fill, tokenise
from repro.data.manifest import COLLISION, data_folder, load_manifest, verify
from repro.data.packed import fsync_folder, token_dtype
from repro.data.sources import check_prepared, text_bytes
from repro.data.space import check_space
from repro.data.tokenise import source_tokenizer
from repro.data.workers import available_cores
from repro.spec.data import DataSource
from repro.spec.data import digest as source_digest
from repro.spec.errors import BadDataError, CannotWriteError, ConfigError, Problem, problem_error
from repro.spec.hashing import short
from repro.spec.paths import Root

__all__ = ["load_manifest", "prepare", "verify"]

_SHARDS_FORMAT = "1"  # of the shards that a call leaves to the next one
_TOKEN_SHARE = {1: 1.0, 2: 1 / 3, 4: 1 / 3}  # tokens for a byte of text, by their width; English takes a quarter
_COPIES = 2  # shards, and the files made of them
_log = logging.getLogger(__name__)


def prepare(root: Root, name: str, source: DataSource, digest: str, workers: int | None = None) -> Path:
    """The folder with the prepared data of `source`, made now if it is not there whole, by `workers` processes.

    Without `workers` as many as there are cores for this process. A second call reads no token. Two
    processes may call at once: one works, the other waits and finds the result. Raises MissingError (source not
    there), BadDataError (source is not what it says or changed since the digest was taken; overlap of training and
    validation text), ConfigError (more validation tokens asked for than there are), CannotWriteError (disk full or
    read only), StoppedError (a worker was killed).
    """
    folder = data_folder(root, digest)
    if verify(root, digest, full=False):
        _check_source(root, name, source, digest)
        with _lock(root, digest):
            if problems := verify(root, digest, full=False):
                _refuse_foreign(root, folder, problems)
                _build(root, name, source, digest, workers or available_cores())
    manifest = load_manifest(root, digest)
    check_prepared(root, name, source, manifest)
    _check_size(name, source, manifest)
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


def _build(root: Root, name: str, source: DataSource, digest: str, workers: int) -> None:
    """Under the lock: write, check and publish; leaves finished shards behind if anything goes wrong, no more."""
    folder = data_folder(root, digest)
    shards = folder.with_name(f".shards-{folder.name}")
    work = Work(root, name, source, digest, source_tokenizer(root, source), shards, workers)
    _check_disk(work)
    partial = folder.with_name(f".tmp-{folder.name}-{os.getpid()}")
    try:
        _clear_leftovers(folder)
        _open_shards(shards, digest)
        units = tokenise(work)
        partial.mkdir()
        fill(partial, work, units)
        _check_source(root, name, source, digest)  # files may have changed while they were read
        _publish(partial, folder)
        shutil.rmtree(shards, ignore_errors=True)
    except BadDataError:
        shutil.rmtree(shards, ignore_errors=True)  # what is wrong with the source must not outlive its mending
        raise
    except OSError as error:
        raise problem_error(CannotWriteError, root.shown(folder), "", f"{error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_disk(work: Work) -> None:
    """A rough bound, before anything is written: tokens in shards and once more in files, validation a third time."""
    width = token_dtype(work.source.vocabulary).itemsize
    each = text_bytes(work.root, work.name, work.source) * width * _TOKEN_SHARE[width]
    there = sum(path.stat().st_size for path in work.shards.glob("*")) if work.shards.is_dir() else 0
    parent = work.root.scratch / "data"
    check_space(work.root, [(parent, max(0.0, each * (_COPIES + work.source.validation) - there))])


def _open_shards(shards: Path, digest: str) -> None:
    """The folder of an earlier call on the same digest, without what it left half-written; else an empty one."""
    mark = shards / "digest"
    if shards.is_symlink() or not mark.is_file() or mark.read_text("ascii") != f"{_SHARDS_FORMAT} {digest}":
        if os.path.lexists(shards):
            shutil.rmtree(shards) if shards.is_dir() and not shards.is_symlink() else shards.unlink()
        shards.mkdir()
        mark.write_text(f"{_SHARDS_FORMAT} {digest}", "ascii")
    for leftover in shards.glob(".*.partial"):
        leftover.unlink(missing_ok=True)


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
