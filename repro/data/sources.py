"""Where documents come from: readers that check what they can beforehand and list all that is wrong."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import importlib
import importlib.metadata
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from repro.spec.data import DataSource, folder_files
from repro.spec.errors import BadDataError, MissingError, Problem, problem_error, shown
from repro.spec.paths import Root

MAX_DOCUMENT_BYTES = 64 << 20  # of one document or line, unpacked: bounds memory whatever a file holds
MAX_PROBLEMS = 100  # listed in one go; a file in the wrong format would name every line
_PACKED_RATIO = 5  # text in .gz and .bz2 is rarely packed more tightly; used for the free-disk estimate only


class Document(NamedTuple):
    """One document: its text, and the file and line (None for a whole file) that it came from."""

    text: str
    file: str
    line: int | None


def read_documents(root: Root, name: str, source: DataSource) -> Iterator[Document]:
    """The documents of a source, in an order fixed by its content.

    Before it returns: the wheel's file is hashed, the folder is there and no link leads out of it. While the
    documents are read, bad lines are gathered; BadDataError with all of them (the first 100) comes at the end
    in place of the end of the iteration, so nobody can take a part for the whole. Raises MissingError for a
    package, folder or fetched set that is not there.
    """
    if source.kind == "wheel_wikipedia":
        return _wikipedia(_wheel_bytes(source), str(source.file))
    if source.kind == "folder":
        return _folder_documents(root, folder_files(root, source))
    return _counted(_folder_documents(root, _fetched_files(root, name, source)), name, source)


def text_bytes(root: Root, name: str, source: DataSource) -> int:
    """About how many bytes of text the source unpacks to: for the free-disk check, not for results."""
    if source.kind == "wheel_wikipedia":
        return _wheel_file(source).stat().st_size * _PACKED_RATIO
    files = folder_files(root, source) if source.kind == "folder" else _fetched_files(root, name, source)
    return sum(path.stat().st_size * (_PACKED_RATIO if path.suffix == ".gz" else 1) for path in files)


def fetched_path(name: str) -> str:
    """Folder below the root where the fetch verb puts the files of source `name`."""
    return f"scratch/fetched/{name}"


def _wheel_file(source: DataSource) -> Path:
    """Path of a file of an installed package; the package is not imported."""
    try:
        path = Path(str(importlib.metadata.distribution(str(source.dist)).locate_file(str(source.file))))
    except importlib.metadata.PackageNotFoundError:
        message = f"package {source.dist} is not installed; it carries {Path(str(source.file)).name}"
        raise problem_error(MissingError, f"package {source.dist}", "", message) from None
    if not path.is_file():
        message = f"the installed version does not carry {source.file}"
        raise problem_error(MissingError, f"package {source.dist}", "", message)
    return path


def _wheel_bytes(source: DataSource) -> bytes:
    """The pinned file's bytes, or BadDataError with both hashes."""
    try:
        data = _wheel_file(source).read_bytes()
    except OSError as error:
        message = f"{source.file} cannot be read ({error.strerror})"
        raise problem_error(BadDataError, f"package {source.dist}", "", message) from None
    found = hashlib.sha256(data).hexdigest()
    if found != source.sha256:
        message = f"{source.file} has sha256 {found}, {source.sha256} is pinned"
        raise problem_error(BadDataError, f"package {source.dist}", "sha256", message)
    return data


def _wikipedia(dump: bytes, file: str) -> Iterator[Document]:
    """Articles of a bz2-packed MediaWiki dump without mark-up; no redirects, no other name spaces."""
    try:  # here and not on top: costs 2 s, and one source needs it
        wiki: Any = importlib.import_module("gensim.corpora.wikicorpus")
    except ImportError:
        message = "package gensim cannot be imported; it takes the mark-up off the articles"
        raise problem_error(MissingError, "package gensim", "", message) from None
    with bz2.open(io.BytesIO(dump)) as stream:
        for _, text, _ in wiki.extract_pages(stream, filter_namespaces=("0",)):
            if not text.lstrip().lower().startswith("#redirect"):
                yield Document(wiki.filter_wiki(text).strip(), file, None)


def _fetched_files(root: Root, name: str, source: DataSource) -> list[Path]:
    """Files of a source that is too large to ship; MissingError names the place. Never connects."""
    path = source.path or fetched_path(name)
    if not (root.path / path).is_dir():
        message = f"{name} is not here; looked at {path}. This release fetches nothing: put .jsonl or .txt files there"
        raise problem_error(MissingError, path, "", message)
    return folder_files(root, source.model_copy(update={"path": path}))


def _counted(documents: Iterator[Document], name: str, source: DataSource) -> Iterator[Document]:
    """The same documents; BadDataError at the end if their number is not the pinned one (a lost shard)."""
    count = 0
    for document in documents:
        count += 1
        yield document
    pinned = source.pinned.get("documents", count)
    if count != pinned:
        message = f"{count} documents found, {pinned} are pinned: files are missing or too many"
        raise problem_error(BadDataError, source.path or fetched_path(name), "documents", message)


def _folder_documents(root: Root, files: list[Path]) -> Iterator[Document]:
    """A .txt file is one document, a .jsonl file has one a line under `text`; either may be gzipped."""
    problems: list[Problem] = []
    for path in files:
        reader = _json_lines if path.name.endswith((".jsonl", ".jsonl.gz")) else _whole_text
        if not path.is_file():  # a pipe would wait for ever
            problems.append(Problem(root.shown(path), None, "", "is no regular file"))
            continue
        try:
            with _opened(path) as stream:
                yield from reader(stream, root.shown(path), problems)
        except (OSError, EOFError, zlib.error) as error:
            message = f"cannot be read to its end ({shown(str(error) or type(error).__name__)})"
            problems.append(Problem(root.shown(path), None, "", message))
        if len(problems) >= MAX_PROBLEMS:
            problems.append(Problem(root.shown(path), None, "", "too many problems, the rest was not read"))
            break
    if problems:
        raise BadDataError(problems)


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else open(path, "rb")


def _whole_text(stream: BinaryIO, file: str, problems: list[Problem]) -> Iterator[Document]:
    data = stream.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        message = f"one document may have {MAX_DOCUMENT_BYTES} bytes; put one document a line into a .jsonl"
        problems.append(Problem(file, None, "", message))
        return
    try:
        yield Document(data.decode("utf-8"), file, None)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problems.append(Problem(file, line, "", f"not UTF-8 at byte {error.start}"))


def _json_lines(stream: BinaryIO, file: str, problems: list[Problem]) -> Iterator[Document]:
    number = 0
    while len(problems) < MAX_PROBLEMS and (line := stream.readline(MAX_DOCUMENT_BYTES + 1)):
        number += 1
        if len(line) > MAX_DOCUMENT_BYTES:
            problems.append(Problem(file, number, "", f"longer than {MAX_DOCUMENT_BYTES} bytes"))
            return
        if line.isspace():
            continue
        try:
            text = _text_of(line.rstrip(b"\r\n"))
        except (ValueError, RecursionError) as error:
            problems.append(Problem(file, number, *_fault(error)))
        else:
            yield Document(text, file, number)


def _text_of(line: bytes) -> str:
    """The value of `text` in one line of strict JSON; raises ValueError or RecursionError."""
    value = json.loads(line.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_once)
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise ValueError('an object with the key "text" and a string under it is expected')
    text: str = value["text"]
    text.encode("utf-8")  # half of a surrogate pair passes JSON but is no text
    return text


def _fault(error: ValueError | RecursionError) -> tuple[str, str]:
    """Key and message of a line that is no document."""
    if isinstance(error, json.JSONDecodeError):
        return "", f"not JSON: {error.msg} (column {error.colno})"
    if isinstance(error, UnicodeDecodeError):
        return "", f"not UTF-8 at byte {error.start} of the line"
    if isinstance(error, UnicodeEncodeError):
        return "text", "holds half of a surrogate pair, which is no text"
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
