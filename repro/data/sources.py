"""Where documents come from: what can be checked beforehand is, and all that is wrong is listed.

A folder, fetched or one's own, may hold a `manifest.json` that says which files there must be, with their hashes
and the number of documents; what it says is compared before anything is tokenised.
"""

from __future__ import annotations

import bz2
import hashlib
import importlib
import importlib.metadata
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from repro.data.formats import (
    BLOCK_BYTES,
    MAX_DOCUMENT_BYTES,
    MAX_PROBLEMS,
    PACKED_RATIO,
    Document,
    Piece,
    Problems,
    Texts,
    file_pieces,
)
from repro.data.pins import Pins, read_pins
from repro.spec.data import DataSource, folder_files, folder_hashes, text_files
from repro.spec.errors import BadDataError, MissingError, Problem, problem_error
from repro.spec.paths import Root

TOO_MANY = "too many problems, the rest was not read"
__all__ = ["MAX_DOCUMENT_BYTES", "MAX_PROBLEMS", "Document", "Unit", "fetched_path", "read_documents", "read_units"]


class Unit(NamedTuple):
    """Pieces that one worker tokenises together; cut by the source's own sizes, so the same in every run."""

    number: int
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Bytes of text, about."""
        return sum(piece.size for piece in self.pieces)

    def documents(self, problems: Problems) -> Iterator[Document]:
        """The documents of all pieces in order; stops after 100 problems."""
        for piece in self.pieces:
            yield from piece.documents(problems)
            if len(problems) >= MAX_PROBLEMS:
                problems.append(Problem(piece.file, None, "", TOO_MANY))
                return


def read_units(root: Root, name: str, source: DataSource, problems: Problems) -> Iterator[Unit]:
    """The source in units, in an order fixed by its content; what cannot be read is added to `problems`.

    Before it returns: a wheel's file is hashed, a folder is there, no link leads out of it, and it is what its
    manifest says. Raises MissingError for a package, folder or fetched set that is not there, BadDataError.
    """
    if source.kind == "wheel_wikipedia":
        pieces: Iterator[Piece] = _texts(_wikipedia(_wheel_bytes(source), str(source.file)))
    else:
        files = source_files(root, name, source)
        check_pins(root, name, source, files)
        pieces = _folder_pieces(root, files, source.field, problems)
    return _units(_cut(pieces, name, source) if source.split == "tail" else pieces)


def read_documents(root: Root, name: str, source: DataSource) -> Iterator[Document]:
    """The documents of a source one by one, in order.

    Bad lines are gathered; BadDataError with all of them (the first 100) comes at the end in place of the end of
    the iteration, so nobody can take a part for the whole. The same holds for a count that is not the pinned one.
    """
    problems: Problems = []
    return _checked(read_units(root, name, source, problems), problems, root, name, source)


def _checked(
    units: Iterator[Unit], problems: Problems, root: Root, name: str, source: DataSource
) -> Iterator[Document]:
    count = 0
    for unit in units:
        for document in unit.documents(problems):
            count += 1
            yield document
    if problems:
        raise BadDataError(problems)
    check_count(root, name, source, count)


def _units(pieces: Iterable[Piece]) -> Iterator[Unit]:
    number, size, held = 0, 0, []
    for piece in pieces:
        held.append(piece)
        size += piece.size
        if size >= BLOCK_BYTES:
            yield Unit(number, tuple(held))
            number, size, held = number + 1, 0, []
    if held:
        yield Unit(number, tuple(held))


def _folder_pieces(root: Root, files: list[Path], field: str, problems: Problems) -> Iterator[Piece]:
    for path in files:
        yield from file_pieces(path, root.shown(path), field, problems)
        if len(problems) >= MAX_PROBLEMS:
            problems.append(Problem(root.shown(path), None, "", TOO_MANY))
            return


def _texts(documents: Iterable[Document]) -> Iterator[Texts]:
    for document in documents:
        yield Texts((document,))


def _cut(pieces: Iterator[Piece], name: str, source: DataSource) -> Iterator[Texts]:
    """The one document in two, at character int(n * (1 - validation)), as nanoGPT cuts tiny Shakespeare."""
    problems: Problems = []
    found = [document for piece in pieces for document in piece.documents(problems)]
    if problems:
        raise BadDataError(problems)
    if len(found) != 1:
        message = f"tail cuts one document in two, there are {len(found)}"
        raise problem_error(BadDataError, source.path or fetched_path(name), "split", message)
    text, file, line, _ = found[0]
    at = int(len(text) * (1 - source.validation))
    yield Texts((Document(text[:at], file, line, "train"), Document(text[at:], file, line, "val")))


# -- files of a folder -----------------------------------------------------------------------------


def fetched_path(name: str) -> str:
    """Folder below the root where the fetch verb puts the files of source `name`."""
    return f"scratch/fetched/{name}"


def source_folder(root: Root, name: str, source: DataSource) -> Path:
    """Where the files of a local or fetched source lie."""
    return (root.path / (str(source.path) if source.kind == "folder" else fetched_path(name))).resolve()


def source_files(root: Root, name: str, source: DataSource) -> list[Path]:
    """The text files of a local or fetched source; MissingError names the command that fetches them."""
    if source.kind == "folder":
        return folder_files(root, source)
    folder = root.path / fetched_path(name)
    if not folder.is_dir():
        message = f"{name} is not here; run: repro data fetch {name} (or put its files into {fetched_path(name)})"
        raise problem_error(MissingError, fetched_path(name), "", message)
    return text_files(folder, fetched_path(name), f"run: repro data fetch {name}")


def text_bytes(root: Root, name: str, source: DataSource) -> int:
    """About how many bytes of text the source unpacks to: for the free-disk check, not for results."""
    if source.kind == "wheel_wikipedia":
        path = _wheel_file(source)
        return path.stat().st_size * PACKED_RATIO[path.suffix]
    return sum(path.stat().st_size * PACKED_RATIO.get(path.suffix, 1) for path in source_files(root, name, source))


def check_pins(root: Root, name: str, source: DataSource, files: list[Path]) -> None:
    """Compares a folder with its manifest and its source before anything is tokenised.

    Raises BadDataError with all that differs.
    """
    folder = source_folder(root, name, source)
    file = root.shown(folder)
    pins = read_pins(folder, file)
    known = source.fetch.files if source.fetch else []
    wanted = {file.name: file.sha256 for file in known} | (dict(pins.sha256) if pins else {})
    found = folder_hashes(root, folder, files) if wanted else {}
    stated = {source.pinned.get("shards"), source.fetch.shards if source.fetch else None}
    problems = [
        Problem(file, None, "shards", f"{len(files)} files are here, {count} are pinned")
        for count in stated
        if isinstance(count, int) and count != len(files)
    ]
    problems += [Problem(file, None, shard, "is missing") for shard in wanted if shard not in found]
    problems += [
        Problem(file, None, shard, f"has sha256 {found[shard]}, {sha256} is pinned: altered or cut short")
        for shard, sha256 in wanted.items()
        if shard in found and sha256 not in (None, found[shard])
    ]
    problems += [Problem(file, None, shard, "is not in the manifest") for shard in found if shard not in wanted]
    if problems and wanted and pins and pins.documents is not None:
        count = _count(root, source, files)
        if count != pins.documents:
            problems.append(Problem(file, None, "documents", f"{count} of {pins.documents} are here"))
    if problems:
        raise BadDataError(problems)


def _count(root: Root, source: DataSource, files: list[Path]) -> int:
    pieces = _folder_pieces(root, files, source.field, [])
    return sum(1 for piece in pieces for _ in piece.documents([]))


def check_count(root: Root, name: str, source: DataSource, count: int) -> None:
    """BadDataError if a pinned number of documents is not the one that was read (a lost shard)."""
    if source.kind == "wheel_wikipedia":
        return
    if source.split == "tail":  # one document, which was cut in two
        count = 1
    folder = source_folder(root, name, source)
    pins: Pins | None = read_pins(folder, root.shown(folder))
    for pinned in (source.pinned.get("documents"), pins.documents if pins else None):
        if pinned is not None and count != pinned:
            message = f"{count} documents found, {pinned} are pinned: files are missing or too many"
            raise problem_error(BadDataError, source.path or fetched_path(name), "documents", message)


def check_prepared(root: Root, name: str, source: DataSource, manifest: Mapping[str, Any]) -> None:
    """What a local folder says of itself now, where its data were made before it said so; raises BadDataError.

    Fetched files are not looked at: they may be deleted once they are tokens.
    """
    if source.kind == "folder":
        check_pins(root, name, source, source_files(root, name, source))
        check_count(root, name, source, manifest["documents_seen"])


# -- Wikipedia out of a wheel ----------------------------------------------------------------------


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
