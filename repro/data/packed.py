"""Token files: a checked header, then little-endian token ids as narrow as the vocabulary allows.

Layout: 256 bytes of header (magic, version, width in bytes, count, vocabulary, sha256 of the ids, zeros, and
in the last four bytes the crc32 of what stands before them), then `count` ids. A file is written under
another name and renamed when it is complete; `TokenFile.open` proves that what it finds is still whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from repro.data.stored import CutShortError, HeldIds, MappedIds
from repro.spec.errors import BadDataError, MissingError, Problem, ReproError, problem_error, shown
from repro.spec.hashing import stamp

MAGIC = b"REPROTOK"
VERSION = 1
HEADER_BYTES = 256
MARKER = "verified.json"  # beside the files: stamp and hash of those that were found whole
_FIELDS = struct.Struct("<8sIIQQ32s")
_CRC = struct.Struct("<I")
_BUFFERED_TOKENS = 1 << 20
_SCANNED_TOKENS = 1 << 22
IN_MEMORY_BYTES = 128 << 20

_verified: dict[str, list[int]] = {}  # path -> stamp at the last full check

Ids = NDArray[np.int64]


def token_dtype(vocab: int) -> np.dtype[Any]:
    """Narrowest unsigned little-endian type that holds ids 0..vocab-1; ValueError outside 1..2**32."""
    if not 1 <= vocab <= 1 << 32:
        raise ValueError(f"vocab must be within 1..2**32, not {vocab}")
    width = 1 if vocab <= 1 << 8 else 2 if vocab <= 1 << 16 else 4
    return np.dtype(f"<u{width}")


@dataclass(frozen=True, slots=True)
class TokenHeader:
    """What a token file says about itself; `width` in bytes, `count` in tokens, `sha256` of the ids alone."""

    width: int
    count: int
    vocab: int
    sha256: str

    @property
    def file_bytes(self) -> int:
        """Size that the file must have."""
        return HEADER_BYTES + self.count * self.width

    def pack(self) -> bytes:
        """The 256 bytes."""
        fields = _FIELDS.pack(MAGIC, VERSION, self.width, self.count, self.vocab, bytes.fromhex(self.sha256))
        body = fields.ljust(HEADER_BYTES - _CRC.size, b"\0")
        return body + _CRC.pack(zlib.crc32(body))


def _header_fault(head: bytes, size: int) -> str | None:
    """What is wrong with a header in a file of `size` bytes, in words."""
    if len(head) < HEADER_BYTES or head[: len(MAGIC)] != MAGIC:
        return f"is no token file of this suite ({size} bytes, no header)"
    _, version, width, count, vocab, _ = _FIELDS.unpack_from(head)
    if version != VERSION:
        return f"has format version {version}, this code reads {VERSION}"
    if not 1 <= vocab <= 1 << 32 or token_dtype(vocab).itemsize != width:
        return f"says {width} bytes a token for a vocabulary of {vocab}"
    if head != TokenHeader(width, count, vocab, head[32:64].hex()).pack():
        return "has an altered header"
    wanted = HEADER_BYTES + count * width
    if size != wanted:
        return f"has {size} bytes, but {count} tokens of {width} bytes need {wanted}: cut short or altered"
    return None


def read_header(path: Path) -> TokenHeader:
    """The header, checked against itself and the file's length.

    Raises MissingError (no such file) or BadDataError (not a token file, altered, cut short).
    """
    try:
        with open(path, "rb") as stream:
            head = stream.read(HEADER_BYTES)
            size = os.fstat(stream.fileno()).st_size
    except FileNotFoundError:
        raise problem_error(MissingError, str(path), "", "no such token file") from None
    except OSError as error:
        raise problem_error(BadDataError, str(path), "", f"cannot be read ({error.strerror})") from None
    fault = _header_fault(head, size)
    if fault:
        raise problem_error(BadDataError, str(path), "", fault)
    _, _, width, count, vocab, sha256 = _FIELDS.unpack_from(head)
    return TokenHeader(width, count, vocab, sha256.hex())


def payload_sha256(path: Path) -> str:
    """sha256 of the ids as they stand in the file, read in pieces."""
    with open(path, "rb") as stream:
        stream.seek(HEADER_BYTES)
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_payload(path: Path, header: TokenHeader) -> None:
    """Compare the ids with the header's hash; a full pass over the file. Raises BadDataError."""
    _compare(path, payload_sha256(path), header)


def _compare(path: Path, found: str, header: TokenHeader) -> None:
    if found != header.sha256:
        message = f"ids have sha256 {found}, the header says {header.sha256}: altered"
        raise problem_error(BadDataError, str(path), "", message)


def marker_entry(path: Path, sha256: str) -> dict[str, object]:
    """What the marker says of one file that was found whole."""
    return {"stamp": stamp(path.stat()), "sha256": sha256}


def is_marked(path: Path, header: TokenHeader) -> bool:
    """Whether the marker beside `path` vouches for exactly this stamp and hash."""
    try:
        marker = json.loads((path.parent / MARKER).read_text("utf-8"))
        return bool(marker[path.name] == marker_entry(path, header.sha256))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False  # no marker or an unreadable one vouches for nothing: the caller reads the whole file


def fsync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class TokenWriter:
    """Writes a token file piece by piece; use as a context manager.

    Ids are checked against the vocabulary *before* they are cast, as a cast wraps without a word. On a clean
    end the file appears under its name; on an exception nothing does. `counts` [V] holds how often each id
    was written, `header` what the finished file says of itself.
    """

    def __init__(self, path: Path, vocab: int) -> None:
        self.path = path
        self.vocab = vocab
        self.dtype = token_dtype(vocab)
        self.count = 0
        self.counts: Ids = np.zeros(vocab, np.int64)
        self._pending: list[NDArray[Any]] = []
        self._pending_tokens = 0
        self._hash = hashlib.sha256()
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")

    def __enter__(self) -> Self:
        self._stream = open(self._partial, "wb")
        self._stream.write(bytes(HEADER_BYTES))
        return self

    @property
    def tokens_appended(self) -> int:
        """Tokens given so far, those that still wait in memory included."""
        return self.count + self._pending_tokens

    def append(self, ids: NDArray[Any] | Sequence[int]) -> None:
        """Add ids [N]; raises BadDataError if one of them is not a whole number within the vocabulary."""
        array = np.asarray(ids)
        if array.size == 0:
            return
        if array.ndim != 1 or array.dtype.kind not in "iu":
            message = f"token ids must be one row of whole numbers, not {array.dtype} {array.shape}"
            raise problem_error(BadDataError, self.path.name, "", message)
        self._pending.append(array)
        self._pending_tokens += array.size
        if self._pending_tokens >= _BUFFERED_TOKENS:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        if all(array.dtype.kind == "u" and array.dtype.itemsize < 8 for array in self._pending):
            wide = np.concatenate(self._pending)  # what is unsigned and short can be checked in one go
            self._check_range(wide)
            self.count += wide.size
            ids = wide.astype(self.dtype, copy=False)
        else:
            for array in self._pending:
                self._check_range(array)
                self.count += array.size
            ids = np.concatenate([array.astype(self.dtype, copy=False) for array in self._pending])
        self._pending, self._pending_tokens = [], 0
        self.counts += np.bincount(ids, minlength=self.vocab)
        payload = ids.tobytes()
        self._hash.update(payload)
        self._stream.write(payload)

    def _check_range(self, array: NDArray[Any]) -> None:
        if int(array.min()) >= 0 and int(array.max()) < self.vocab:
            return
        first = int(np.flatnonzero((array < 0) | (array >= self.vocab))[0])
        message = f"token {self.count + first} has id {array[first]}, outside of 0..{self.vocab - 1}"
        raise problem_error(BadDataError, self.path.name, "", message)

    def _finish(self) -> None:
        self._flush()
        self.header = TokenHeader(self.dtype.itemsize, self.count, self.vocab, self._hash.hexdigest())
        self._stream.seek(0)
        self._stream.write(self.header.pack())
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        self._partial.replace(self.path)
        fsync_folder(self.path.parent)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._stream.close()
            self._partial.unlink(missing_ok=True)


def write_tokens(path: Path, ids: NDArray[Any] | Sequence[int], vocab: int) -> TokenHeader:
    """Write ids [N] as one token file, whole or not at all; BadDataError for ids outside 0..vocab-1."""
    with TokenWriter(path, vocab) as writer:
        writer.append(ids)
    return writer.header


def _told(path: Path, error: CutShortError | OSError) -> ReproError:
    """What the source of a file's ids raises, in words that name the file."""
    fault = "was cut while it was in use" if isinstance(error, CutShortError) else f"cannot be read ({error.strerror})"
    return problem_error(BadDataError, str(path), "", fault)


class TokenFile:
    """A token file opened for reading; `header` says what it is.

    Up to 128 MiB the ids are held in memory, and what is used is what was checked. Of a larger file rows are taken
    from a memory map that is kept open; the process does not grow with what it has touched, and a file that is cut
    while it is open gives an error instead of a bus error.
    """

    def __init__(self, path: Path, header: TokenHeader, source: HeldIds) -> None:
        self.path = path
        self.header = header
        self._source = source

    @classmethod
    def open(cls, path: Path, verify: bool = True) -> TokenFile:
        """Open after proof that the file is whole: header, length, and the ids' hash.

        For a file above 128 MiB the hash is taken once a process for the same stamp.
        With `verify=False` a marker beside it is believed instead, if stamp and hash agree;
        where they do not, the hash is taken after all. Raises MissingError or BadDataError.
        """
        header = read_header(path)
        seen, key = stamp(path.stat()), str(path.resolve())
        if header.file_bytes <= IN_MEMORY_BYTES:
            held = np.fromfile(path, token_dtype(header.vocab), header.count, offset=HEADER_BYTES)
            _compare(path, hashlib.sha256(held.data).hexdigest(), header)
            return cls(path, header, HeldIds(held))
        if _verified.get(key) != seen and (verify or not is_marked(path, header)):
            check_payload(path, header)
            _verified[key] = seen
        try:
            return cls(path, header, MappedIds(path, token_dtype(header.vocab), header.count, HEADER_BYTES))
        except (CutShortError, OSError) as error:
            raise _told(path, error) from None

    def close(self) -> None:
        """Close the file; what was read stays valid."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def blocks(self, context: int) -> int:
        """How many blocks of `context` inputs the file holds; block b reads from token b * context on.

        Every token but the first is a target once; up to `context` - 1 tokens at the end are left over.
        """
        return max(0, (self.header.count - 1) // context)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Ids [stop - start], read only, in the file's own width; BadDataError if they are not all there."""
        try:
            return self._source.read(start, stop)
        except (CutShortError, OSError) as error:
            raise _told(self.path, error) from None

    def gather(self, block_ids: NDArray[Any] | Sequence[int], context: int) -> tuple[Ids, Ids]:
        """Inputs and targets, int64 [B, context] each, of the blocks named by `block_ids` [B].

        Raises IndexError for a block that is not there and BadDataError where the file holds no block at all.
        """
        numbers: list[int] = np.asarray(block_ids, np.int64).tolist()
        count = self.blocks(context)
        if not count:
            message = f"{self.header.count} tokens hold no block of context {context}"
            raise problem_error(BadDataError, str(self.path), "context", message)
        if numbers and (min(numbers) < 0 or max(numbers) >= count):
            raise IndexError(f"block ids must be within 0..{count - 1}, not {min(numbers)}..{max(numbers)}")
        return self._pairs([number * context for number in numbers], context)

    def windows(self, starts: NDArray[Any] | Sequence[int], context: int) -> tuple[Ids, Ids]:
        """Inputs and targets, int64 [B, context] each, from each token in `starts` [B] on: nanoGPT's random windows.

        Raises IndexError for a window that is not all there.
        """
        places: list[int] = np.asarray(starts, np.int64).tolist()
        last = self.header.count - context - 1
        if places and (min(places) < 0 or max(places) > last):
            raise IndexError(f"starts must be within 0..{last}, not {min(places)}..{max(places)}")
        return self._pairs(places, context)

    def _pairs(self, starts: list[int], context: int) -> tuple[Ids, Ids]:
        try:
            rows = self._source.rows(starts, context + 1)
        except (CutShortError, OSError) as error:
            raise _told(self.path, error) from None
        return rows[:, :-1].astype(np.int64), rows[:, 1:].astype(np.int64)

    def documents(self, end_of_text: int) -> Iterator[NDArray[Any]]:
        """Ids [n] of each document without the mark behind it; BadDataError if the last one has no mark."""
        rest: list[NDArray[Any]] = []
        for start in range(0, self.header.count, _SCANNED_TOKENS):
            piece = self.read(start, min(start + _SCANNED_TOKENS, self.header.count))
            begin = 0
            for end in np.flatnonzero(piece == end_of_text).tolist():
                yield np.concatenate([*rest, piece[begin:end]])
                rest, begin = [], end + 1
            if begin < piece.size:
                rest.append(piece[begin:])
        if rest:
            raise problem_error(BadDataError, str(self.path), "", "the last document has no end")


def file_problems(path: Path, full: bool) -> tuple[TokenHeader | None, list[Problem]]:
    """Header of a token file, and what is wrong with it: `full` reads it all, else a marker is believed."""
    try:
        header = read_header(path)
        if full or not is_marked(path, header):
            check_payload(path, header)
    except ReproError as error:
        return None, list(error.problems)
    except OSError as error:
        return None, [Problem(str(path), None, "", f"cannot be read ({shown(error.strerror)})")]
    return header, []


def write_marker(folder: Path, headers: Iterable[tuple[str, str]]) -> None:
    """Say of each (file name, sha256) that it was found whole as it lies in `folder` now."""
    marker = {name: marker_entry(folder / name, sha256) for name, sha256 in headers}
    text = json.dumps(marker, sort_keys=True) + "\n"
    target = folder / MARKER
    if target.is_file() and target.read_bytes() == text.encode():
        return
    partial = folder / f".{MARKER}.{os.getpid()}.partial"
    partial.write_text(text, "utf-8")
    partial.replace(target)


def drop_marker(folder: Path) -> None:
    """Nothing in `folder` is believed without being read any more."""
    (folder / MARKER).unlink(missing_ok=True)
