"""Lines of files that nobody vouches for: plain, gzipped or in a zip; bounded, and hashed as they are read."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib.metadata
import zipfile
import zlib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import IO, NoReturn, cast

from repro.spec.errors import BadDataError, MissingError, Problem, problem_error, shown

MAX_LINE_BYTES = 1 << 16
MAX_LINES = 20_000_000  # of one file: bounds what a packed file can unpack to
MAX_PROBLEMS = 100  # listed in one go; a file in the wrong format would name every line


class Faults:
    """What is wrong with one file, gathered so that all of it is told at once."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []

    def add(self, line: int | None, key: str, message: str) -> None:
        """One more problem; with the hundredth, BadDataError."""
        self.problems.append(Problem(self.file, line, shown(key), message))
        if len(self.problems) >= MAX_PROBLEMS:
            self.stop(None, "too many problems, the rest was not read")

    def stop(self, line: int | None, message: str, key: str = "") -> NoReturn:
        """Nothing can be read after this: BadDataError with all problems."""
        raise BadDataError([*self.problems, Problem(self.file, line, shown(key), message)])

    def check(self) -> None:
        """BadDataError if there is any problem."""
        if self.problems:
            raise BadDataError(self.problems)


class RawLines:
    """Numbered lines of `path`, without their ends; of a zip archive, of the one member that `pattern` fits.

    Blank lines at the end of the file are none.
    `sha256` is of the unpacked bytes, known once all lines were read. Iterating raises BadDataError for a file
    that cannot be unpacked, a line of more than 64 KiB, byte 0 in a line, or too many lines.
    """

    def __init__(self, path: Path, file: str, pattern: str = "*") -> None:
        self.path, self.pattern = path, pattern
        self.faults = Faults(file)
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Hash of the bytes read so far, unpacked."""
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        try:
            with contextlib.ExitStack() as stack:
                yield from self._lines(self._opened(stack))
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError) as error:
            self.faults.stop(None, f"cannot be read to its end ({shown(str(error) or type(error).__name__)})")

    def _lines(self, stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
        number = blank = 0  # lines so far, and how many of the last of them are blank
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                self.faults.stop(number, f"longer than {MAX_LINE_BYTES} bytes")
            if number > MAX_LINES:
                self.faults.stop(None, f"more than {MAX_LINES} lines")
            if b"\0" in line:
                self.faults.stop(number, "holds byte 0: this is no text")
            self._hash.update(line)
            if text := line.rstrip(b"\r\n"):
                yield from ((before, b"") for before in range(number - blank, number))
                yield number, text
            blank = 0 if text else blank + 1

    def _opened(self, stack: contextlib.ExitStack) -> IO[bytes]:
        if self.path.suffix == ".gz":
            return cast(IO[bytes], stack.enter_context(gzip.open(self.path, "rb")))
        if self.path.suffix == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(self.path))
            return stack.enter_context(archive.open(self._member(archive)))
        return stack.enter_context(open(self.path, "rb"))

    def _member(self, archive: zipfile.ZipFile) -> str:
        """Read in place, never unpacked to disk, so a member's path cannot lead anywhere."""
        names = [name for name in archive.namelist() if not name.startswith("__MACOSX/")]
        found = [name for name in names if fnmatch(PurePosixPath(name).name, self.pattern)]
        if len(found) != 1:
            self.faults.stop(None, f"holds {len(found)} files for {self.pattern}, one is expected")
        return found[0]


def wheel_file(dist: str, file: str) -> Path:
    """A file of an installed package, which is not imported; MissingError where package or file is not there."""
    try:
        path = Path(str(importlib.metadata.distribution(dist).locate_file(file)))
    except importlib.metadata.PackageNotFoundError:
        message = f"is not installed; it carries {PurePosixPath(file).name}"
        raise problem_error(MissingError, f"package {dist}", "", message) from None
    if not path.is_file():
        raise problem_error(MissingError, f"package {dist}", "", f"the installed version does not carry {file}")
    return path


def check_sha256(faults: Faults, found: str, pinned: object, key: str = "sha256") -> None:
    """BadDataError, with both hashes, if something else is pinned; nothing pinned fits all."""
    if pinned is not None and found != pinned:
        faults.stop(None, f"is {found}, {shown(pinned)} is pinned: altered, cut short, or another version", key)


def check_count(faults: Faults, key: str, found: int, pinned: object) -> None:
    """Notes a count that is not the pinned one; nothing pinned fits all."""
    if pinned is not None and found != pinned:
        faults.add(None, key, f"is {found}, {shown(pinned)} is pinned: another version, or rows are missing")
