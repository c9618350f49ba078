"""Writing what a training leaves: whole or not at all, and a fault of the disk has a name of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SaveError(Exception):
    """The disk did not take a checkpoint or weights; the error of the system is its cause."""


@contextmanager
def saving() -> Iterator[None]:
    """Turns whatever the disk says into a SaveError."""
    try:
        yield
    except OSError as error:
        raise SaveError(str(error)) from error


def write_whole(path: Path, content: bytes) -> None:
    """Temporary name, fsync, rename; where that fails nothing is left behind. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
