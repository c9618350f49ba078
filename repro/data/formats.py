"""File formats: .jsonl, .txt (both plain or packed) and .parquet, in pieces that a worker can turn into documents.

The process that reads the source only unpacks and cuts at line ends; what a line says is found out where the
text is tokenised, so that several workers share it. Every length is bounded, whatever a file holds.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol, cast

from repro.spec.data import LINE_SUFFIXES
from repro.spec.errors import MissingError, Problem, problem_error, shown

MAX_DOCUMENT_BYTES = 64 << 20  # of one document or line, unpacked: bounds memory whatever a file holds
MAX_PROBLEMS = 100  # listed in one go; a file in the wrong format would name every line
BLOCK_BYTES = 16 << 20  # of text, about: what a worker gets at a time, and what is lost with one that is killed
_READ = 1 << 20  # bytes unpacked together
_ROWS = 256  # of a parquet file, decoded together
PACKED_RATIO = {".gz": 5, ".bz2": 5, ".zst": 5}  # text is rarely packed more tightly; for the free-disk estimate only

Problems = list[Problem]


class Document(NamedTuple):
    """One document: its text, the file and line (None for a whole file) it came from, and its split if not by hash."""

    text: str
    file: str
    line: int | None
    split: Literal["train", "val"] | None = None


class Piece(Protocol):
    """A part of one file: `size` of it in memory, and `documents`, which adds to `problems` what is none."""

    @property
    def file(self) -> str:
        """What messages call the file."""

    @property
    def size(self) -> int:
        """Bytes of text, about."""

    def documents(self, problems: Problems) -> Iterator[Document]:
        """Its documents in order; stops after 100 problems."""


class Lines(NamedTuple):
    """Whole lines of JSON, the first of which is line `first` of the file."""

    file: str
    first: int
    data: bytes
    field: str

    @property
    def size(self) -> int:
        """Bytes of the lines."""
        return len(self.data)

    def documents(self, problems: Problems) -> Iterator[Document]:
        """One document a line; blank lines are none."""
        for number, line in enumerate(self.data.split(b"\n"), self.first):
            if len(problems) >= MAX_PROBLEMS:
                return
            if len(line) > MAX_DOCUMENT_BYTES:
                problems.append(Problem(self.file, number, "", f"longer than {MAX_DOCUMENT_BYTES} bytes"))
            elif line and not line.isspace():
                try:
                    text = _text_of(line.rstrip(b"\r"), self.field)
                except (ValueError, RecursionError) as error:
                    problems.append(Problem(self.file, number, *_fault(error, self.field)))
                else:
                    yield Document(text, self.file, number)


class Whole(NamedTuple):
    """A text file, which is one document."""

    file: str
    data: bytes

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.data)

    def documents(self, problems: Problems) -> Iterator[Document]:
        """The text, if it is UTF-8."""
        try:
            yield Document(self.data.decode("utf-8"), self.file, None)
        except UnicodeDecodeError as error:
            line = self.data.count(b"\n", 0, error.start) + 1
            problems.append(Problem(self.file, line, "", f"not UTF-8 at byte {error.start}"))


class Rows(NamedTuple):
    """One row group of a parquet file, read where it is tokenised; row `first` of the file stands first in it."""

    file: str
    path: Path
    group: int
    first: int
    field: str
    size: int

    def documents(self, problems: Problems) -> Iterator[Document]:
        """One document a row; rows are counted from 1, as lines are."""
        number = self.first
        try:
            with _parquet(self.path) as table:
                for batch in table.iter_batches(_ROWS, row_groups=[self.group], columns=[self.field]):
                    for value in batch.column(0):
                        number += 1
                        text = self._text(value, number - 1, problems)
                        if text is not None:
                            yield Document(text, self.file, number - 1)
                        elif len(problems) >= MAX_PROBLEMS:
                            return
        except (OSError, ValueError) as error:  # pyarrow's own errors are kinds of these two
            problems.append(Problem(self.file, None, "", _unreadable(error)))

    def _text(self, value: Any, number: int, problems: Problems) -> str | None:
        data = value.as_buffer()  # a view: what is too long is not copied before it is refused
        if data is None:
            problems.append(Problem(self.file, number, self.field, "is null"))
        elif data.size > MAX_DOCUMENT_BYTES:
            problems.append(Problem(self.file, number, self.field, f"longer than {MAX_DOCUMENT_BYTES} bytes"))
        else:
            try:
                return str(memoryview(data), "utf-8")
            except UnicodeDecodeError as error:
                problems.append(Problem(self.file, number, self.field, f"not UTF-8 at byte {error.start}"))
        return None


class Texts(NamedTuple):
    """Documents that are there already."""

    given: tuple[Document, ...]

    @property
    def file(self) -> str:
        """Where the first of them is from."""
        return self.given[0].file if self.given else ""

    @property
    def size(self) -> int:
        """Characters of the texts."""
        return sum(len(document.text) for document in self.given)

    def documents(self, problems: Problems) -> Iterator[Document]:
        """They have no problems."""
        yield from self.given


def file_pieces(path: Path, file: str, field: str, problems: Problems) -> Iterator[Piece]:
    """The pieces of one file, which messages call `file`; what cannot be read is added to `problems`."""
    if not path.is_file():  # a pipe would wait for ever
        problems.append(Problem(file, None, "", "is no regular file"))
        return
    if not path.stat().st_size and path.suffix != ".txt":  # gzip and zstd would take it for a packed nothing
        problems.append(Problem(file, None, "", "is empty: 0 bytes"))
        return
    try:
        if path.suffix == ".parquet":
            yield from _row_groups(path, file, field, problems)
            return
        with opened(path) as stream:
            if path.name.endswith(LINE_SUFFIXES):
                yield from _line_blocks(stream, file, field, problems)
            else:
                yield from _whole_text(stream, file, problems)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        problems.append(Problem(file, None, "", _unreadable(error)))


def _unreadable(error: Exception) -> str:
    return f"cannot be read to its end ({shown(str(error).strip() or type(error).__name__)})"


def opened(path: Path) -> BinaryIO:
    """The bytes of a file, unpacked as its name says; MissingError where the package that unpacks it is absent."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.suffix == ".bz2":
        return cast(BinaryIO, bz2.open(path, "rb"))
    if path.suffix == ".zst":
        return io.BufferedReader(_arrow("pyarrow", path.name).input_stream(str(path), compression="zstd"), _READ)
    return open(path, "rb")


def _arrow(module: str, file: str) -> Any:
    """pyarrow, imported where it is needed: most sources are read without it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        message = "package pyarrow is not installed; it reads .parquet and .zst"
        raise problem_error(MissingError, file, "", message) from None


def _parquet(path: Path) -> Any:
    return _arrow("pyarrow.parquet", path.name).ParquetFile(path)


def _row_groups(path: Path, file: str, field: str, problems: Problems) -> Iterator[Rows]:
    """Row groups by reference; a file without a column of texts under the right name is a problem."""
    with _parquet(path) as table:
        types = {column.name: str(column.type) for column in table.schema_arrow}
        if types.get(field) not in ("string", "large_string", "string_view"):
            found = f"is of type {types[field]}" if field in types else f"is no column; there are {shown(list(types))}"
            problems.append(Problem(file, None, field, f"{found}; texts are expected"))
            return
        first = 1
        for group in range(table.metadata.num_row_groups):
            meta = table.metadata.row_group(group)
            yield Rows(file, path, group, first, field, meta.total_byte_size)
            first += meta.num_rows


def _whole_text(stream: BinaryIO, file: str, problems: Problems) -> Iterator[Whole]:
    data = stream.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        message = f"one document may have {MAX_DOCUMENT_BYTES} bytes; put one document a line into a .jsonl"
        problems.append(Problem(file, None, "", message))
        return
    yield Whole(file, data)


def _line_blocks(stream: BinaryIO, file: str, field: str, problems: Problems) -> Iterator[Lines]:
    """Blocks of whole lines; a line that is too long ends the file, as what follows it may be its rest.

    A file of blank lines is a problem: no program writes one that has lost nothing.
    """
    first, blank = 1, True
    while data := stream.read(BLOCK_BYTES):
        rest = b"" if data.endswith(b"\n") else stream.readline(MAX_DOCUMENT_BYTES + 1)
        if len(rest) > MAX_DOCUMENT_BYTES:
            last = data.count(b"\n") + first
            yield Lines(file, first, data[: data.rfind(b"\n") + 1], field)
            problems.append(Problem(file, last, "", f"longer than {MAX_DOCUMENT_BYTES} bytes"))
            return
        yield Lines(file, first, data + rest, field)
        blank = blank and data.isspace() and not rest.strip()
        first += data.count(b"\n") + rest.count(b"\n")
    if blank:
        problems.append(Problem(file, None, "", "holds no document"))


def _text_of(line: bytes, field: str) -> str:
    """The value of `field` in one line of strict JSON; raises ValueError or RecursionError."""
    value = _DECODER.decode(line.decode("utf-8"))
    if not isinstance(value, dict) or not isinstance(value.get(field), str):
        raise ValueError(f'an object with the key "{field}" and a string under it is expected')
    text: str = value[field]
    if b"\\u" in line:
        text.encode("utf-8")  # half of a surrogate pair passes JSON but is no text
    return text


def _fault(error: ValueError | RecursionError, field: str) -> tuple[str, str]:
    """Key and message of a line that is no document."""
    if isinstance(error, json.JSONDecodeError) and error.doc.startswith("\ufeff"):
        return "", "begins with a byte order mark (BOM), which JSON lines do not have: save the file without it"
    if isinstance(error, json.JSONDecodeError):
        return "", f"not JSON: {error.msg} (column {error.colno})"
    if isinstance(error, UnicodeDecodeError):
        return "", f"not UTF-8 at byte {error.start} of the line"
    if isinstance(error, UnicodeEncodeError):
        return field, "holds half of a surrogate pair, which is no text"
    if isinstance(error, RecursionError):
        return "", "nested too deeply"
    return "", shown(str(error))


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return result


_DECODER = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_once)
