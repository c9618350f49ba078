"""The one part of the suite that connects to another machine: brings the files of a source here, whole or not at all.

A download that breaks goes on where it broke, now or at the next call. What is known of a file (size, sha256) is
compared; what nobody has published is pinned at the first download, in the manifest beside the files.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import logging
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO

from repro.data.pins import read_pins, write_pins
from repro.data.progress import Bar
from repro.data.space import check_space
from repro.spec.errors import BadDataError, CannotWriteError, MissingError, Problem, problem_error, shown
from repro.spec.fetching import Fetch, is_plain
from repro.spec.hashing import sha256_file
from repro.spec.paths import Root

_PIECE = 1 << 20
_TRIES = 6  # without a byte of progress
_WAIT = 1.0  # seconds before the first new try, doubled each time
_TIMEOUT = 60.0
_HUB = "https://huggingface.co"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Remote:
    """One file to bring: its address or, with `local`, its place on this machine, and what is known of it."""

    name: str
    url: str
    bytes: int | None
    sha256: str | None
    local: Path | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one call did: files that are here now, how many of them it brought, and names it pinned itself."""

    folder: Path
    files: int
    brought: int
    pinned_here: tuple[str, ...]


def fetch(root: Root, name: str, spec: Fetch, origin: str | None = None, documents: int | None = None) -> Fetched:
    """Brings the files of source `name` into scratch/fetched/NAME, with a manifest, from `origin` or where they live.

    `origin` is a folder, or the https address of a mirror. Files that are here and right are not brought again.
    Raises MissingError (cannot be reached, not in the folder), BadDataError (not what is pinned), CannotWriteError.
    """
    folder = root.scratch / "fetched" / name
    here = [(folder, 0.0)]
    check_space(root, here)
    known = read_pins(folder, root.shown(folder))
    before = dict(known.sha256) if known else {}
    remotes = _pinned(_remotes(name, spec, origin), before, name)
    todo = [remote for remote in remotes if not _is_here(folder, remote)]
    sizes = [remote.bytes for remote in todo]
    rest = spec.bytes if None in sizes and not before else sum(size or 0 for size in sizes)
    check_space(root, [(folder, max(0.0, (rest or 0) - _partly(folder, todo)))])
    found: dict[str, str] = {}
    try:
        with Bar(f"{name}: fetching", rest) as bar:
            for remote in todo:
                found[remote.name] = _bring(folder, remote, bar)
        found |= {r.name: r.sha256 or sha256_file(folder / r.name) for r in remotes if r not in todo}
    except OSError as error:
        raise problem_error(CannotWriteError, root.shown(folder), "", f"{error.strerror or error}") from None
    pinned_here = tuple(r.name for r in _remotes_without_hash(spec, remotes))
    fields: dict[str, Any] = {"source": name, "shards": len(found), "documents": documents, "sha256": found}
    fields |= {"bytes": sum((folder / file).stat().st_size for file in found), "pinned_here": list(pinned_here)}
    fields |= {"hub": spec.hub, "revision": spec.revision}
    write_pins(folder, fields)
    return Fetched(folder, len(found), len(todo), pinned_here)


def _remotes_without_hash(spec: Fetch, remotes: list[Remote]) -> list[Remote]:
    """Files of which nobody has published a hash: what was downloaded first is what counts from now on."""
    published = {file.name for file in spec.files if file.sha256}
    return [remote for remote in remotes if remote.name not in published]


def _pinned(remotes: list[Remote], before: dict[str, str], name: str) -> list[Remote]:
    """With the hashes of an earlier download; BadDataError where the source now says otherwise."""
    problems = [
        Problem(f"scratch/fetched/{name}", None, remote.name, f"was {before[remote.name]}, is {remote.sha256} now")
        for remote in remotes
        if remote.sha256 and before.get(remote.name, remote.sha256) != remote.sha256
    ]
    if problems:
        raise BadDataError(problems)
    return [replace(remote, sha256=remote.sha256 or before.get(remote.name)) for remote in remotes]


def _is_here(folder: Path, remote: Remote) -> bool:
    """Whether the file is here with the right size and hash; one of which no hash is known is brought again."""
    path = folder / remote.name
    if not path.is_file() or path.is_symlink() or remote.bytes not in (None, path.stat().st_size):
        return False
    return remote.sha256 is not None and sha256_file(path) == remote.sha256


def _partly(folder: Path, remotes: list[Remote]) -> int:
    paths = (_part(folder, remote) for remote in remotes)
    return sum(path.stat().st_size for path in paths if path.is_file())


def _part(folder: Path, remote: Remote) -> Path:
    path = folder / remote.name
    return path.with_name(f".{path.name}.part")


# -- where the files are ---------------------------------------------------------------------------


def _remotes(name: str, spec: Fetch, origin: str | None) -> list[Remote]:
    if origin is None or "://" in origin:
        return _of_hub(name, spec, origin) if spec.hub else _of_files(spec, origin)
    folder = Path(origin)
    if not folder.is_dir():
        raise problem_error(MissingError, shown(origin), "--from", "no such folder")
    if spec.files:
        wanted = [Remote(file.name, "", file.bytes, file.sha256) for file in spec.files]
        found = [replace(remote, local=_in_folder(folder, remote.name)) for remote in wanted]
        absent = [Problem(shown(origin), None, remote.name, "is not there") for remote in found if not remote.local]
    else:
        found, absent = _matching(folder, spec)
    if absent:
        raise MissingError(absent)
    return found


def _in_folder(folder: Path, name: str) -> Path | None:
    """The file by its path or its last part, as it is or gzipped."""
    last = name.rsplit("/", 1)[-1]
    places = (folder / part for part in (name, last, f"{name}.gz", f"{last}.gz"))
    return next((place for place in places if place.is_file()), None)


def _matching(folder: Path, spec: Fetch) -> tuple[list[Remote], list[Problem]]:
    """The files of a hub's data set in a folder: by the whole pattern, or by its last part."""
    last = str(spec.pattern).rsplit("/", 1)[-1]
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and fnmatch(path.name, last))
    remotes = [Remote(path.name, "", path.stat().st_size, None, path) for path in paths if is_plain(path.name)]
    problem = Problem(shown(str(folder)), None, last, f"{len(remotes)} files are there, {spec.shards} are needed")
    return remotes, [] if len(remotes) == spec.shards else [problem]


def _of_files(spec: Fetch, mirror: str | None) -> list[Remote]:
    base = f"{_checked(mirror).rstrip('/')}/" if mirror else None
    return [
        Remote(file.name, base + urllib.parse.quote(file.name) if base else file.url, file.bytes, file.sha256)
        for file in spec.files
    ]


def _of_hub(name: str, spec: Fetch, mirror: str | None) -> list[Remote]:
    """The files of the pinned revision that fit the pattern, with size and, for large ones, sha256."""
    from huggingface_hub import HfApi  # only here: it costs a second, and files by address need none of it

    base = _checked(mirror or _HUB).rstrip("/")
    try:
        info = HfApi(endpoint=base).dataset_info(str(spec.hub), revision=spec.revision, files_metadata=True)
    except Exception as error:  # of the library and of the three below it
        why = shown((str(error).splitlines() or [type(error).__name__])[0])
        message = f"{spec.hub} cannot be asked for its files ({why})"
        raise problem_error(MissingError, f"source {name}", "hub", message) from None
    siblings = [entry for entry in info.siblings or [] if fnmatch(entry.rfilename, str(spec.pattern))]
    if len(siblings) != spec.shards:
        message = f"{len(siblings)} files of {spec.hub} fit {spec.pattern}, {spec.shards} are pinned"
        raise problem_error(BadDataError, f"source {name}", "shards", message)
    strange = [entry.rfilename for entry in siblings if not is_plain(entry.rfilename)]
    if strange:
        raise problem_error(BadDataError, f"source {name}", shown(strange[0]), "is no name for a file")
    address = f"{base}/datasets/{spec.hub}/resolve/{spec.revision}/"
    return [
        Remote(e.rfilename.rsplit("/", 1)[-1], address + urllib.parse.quote(e.rfilename), e.size, _lfs_sha256(e))
        for e in siblings
    ]


def _lfs_sha256(entry: Any) -> str | None:
    return str(entry.lfs.sha256) if entry.lfs else None


def _checked(address: str) -> str:
    """https, or plain http within this machine; MissingError for anything else."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        return address
    raise problem_error(MissingError, shown(address), "--from", "is neither a folder nor an https address")


# -- bringing one file -----------------------------------------------------------------------------


def _bring(folder: Path, remote: Remote, bar: Bar) -> str:
    """One file under its name, after its size and hash were compared; returns the hash."""
    part = _part(folder, remote)
    part.parent.mkdir(parents=True, exist_ok=True)
    if remote.local:
        _copy(remote.local, part, remote, bar)
    else:
        _download(part, remote, bar)
    size, sha256 = part.stat().st_size, sha256_file(part)
    faults = []
    if remote.bytes not in (None, size):
        faults.append(f"has {size} bytes, {remote.bytes} are expected")
    if remote.sha256 not in (None, sha256):
        faults.append(f"has sha256 {sha256}, {remote.sha256} is pinned")
    if faults:
        part.unlink()  # to go on with it would never make it right
        _notes(part).unlink(missing_ok=True)
        raise problem_error(BadDataError, remote.name, "", "; ".join(faults))
    with open(part, "rb+") as stream:
        os.fsync(stream.fileno())
    part.replace(folder / remote.name)
    _notes(part).unlink(missing_ok=True)
    return sha256


def _copy(source: Path, part: Path, remote: Remote, bar: Bar) -> None:
    packed = source.suffix == ".gz" and not remote.name.endswith(".gz")
    limit = remote.bytes
    try:
        with gzip.open(source, "rb") if packed else open(source, "rb") as stream, open(part, "wb") as target:
            while piece := stream.read(_PIECE):
                target.write(piece)
                bar.advance(len(piece))
                if limit is not None and target.tell() > limit:
                    return  # too long already: the sizes will be compared
    except (EOFError, gzip.BadGzipFile) as error:
        raise problem_error(BadDataError, source.name, "", f"cannot be unpacked ({shown(str(error))})") from None


def _notes(part: Path) -> Path:
    """Beside a broken download: which version of the file it is of, as the server named it."""
    return part.with_name(part.name + ".json")


def _download(part: Path, remote: Remote, bar: Bar) -> None:
    """Until the file is whole; after a break from where it broke. MissingError when nothing comes any more."""
    tries, wait = 0, _WAIT
    while True:
        before = part.stat().st_size if part.is_file() else 0
        try:
            if _attempt(part, remote, bar):
                return
            reason = "the connection ended early"
        except urllib.error.HTTPError as error:
            reason = f"the server answers {error.code}"
            if error.code < 500 and error.code not in (408, 416, 429):
                raise problem_error(MissingError, remote.name, "", f"{reason} for {_shown_url(remote.url)}") from None
            if error.code == 416:  # what is here is longer than the file: another file
                part.unlink(missing_ok=True)
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            reason = shown(str(getattr(error, "reason", None) or error or type(error).__name__))
        if part.is_file() and part.stat().st_size > before:
            tries, wait = 0, _WAIT
        tries += 1
        if tries >= _TRIES:
            message = f"cannot be fetched from {_shown_url(remote.url)} ({reason}); what came is kept: call again"
            raise problem_error(MissingError, remote.name, "", message)
        _log.warning("%s: %s; trying again in %.0f s", remote.name, reason, wait)
        time.sleep(wait)
        wait = min(60.0, wait * 2)


def _shown_url(url: str) -> str:
    """Without what may be secret in an address."""
    parts = urllib.parse.urlsplit(url)
    return shown(f"{parts.scheme}://{parts.hostname}{parts.path}")


def _attempt(part: Path, remote: Remote, bar: Bar) -> bool:
    """One request; True when the file is whole as far as sizes say."""
    have = part.stat().st_size if part.is_file() else 0
    if have and have == remote.bytes:
        return True
    headers = {"User-Agent": "repro-data-fetch", "Accept-Encoding": "identity"}
    tag = _read_tag(part) if have else None
    if have and tag:  # without a name for the version two versions could be glued together
        headers |= {"Range": f"bytes={have}-", "If-Range": tag}
    request = urllib.request.Request(_checked(remote.url), headers=headers)  # noqa: S310 - scheme was checked
    with _OPENER(request) as answer:
        goes_on = answer.status == 206 and _range_start(answer) == have
        total = _total(answer, have if goes_on else 0)
        tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
        _notes(part).write_text(json.dumps({"tag": tag if tag and not tag.startswith("W/") else None}), "utf-8")
        expected = remote.bytes if remote.bytes is not None else total
        if total is not None and expected != total:
            message = f"the server offers {total} bytes, {expected} are expected"
            raise problem_error(BadDataError, remote.name, "", message)
        with open(part, "ab" if goes_on else "wb") as target:
            _receive(answer, target, expected, remote, bar)
        return expected is None or part.stat().st_size >= expected


def _receive(answer: Any, target: BinaryIO, expected: int | None, remote: Remote, bar: Bar) -> None:
    """Writes what comes; what came before a break is kept. BadDataError where more comes than was said."""
    while True:
        try:
            piece = answer.read1(_PIECE)
        except http.client.IncompleteRead as error:
            piece = error.partial
        if not piece:
            return
        target.write(piece)
        bar.advance(len(piece))
        if expected is not None and target.tell() > expected:
            raise problem_error(BadDataError, remote.name, "", f"more than the {expected} bytes expected came")


def _read_tag(part: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        tag = json.loads(_notes(part).read_text("utf-8")).get("tag")
        return tag if isinstance(tag, str) else None
    return None


def _range_start(answer: Any) -> int:
    """First byte of a partial answer, -1 if it does not say."""
    text = str(answer.headers.get("Content-Range") or "")
    start = text.removeprefix("bytes ").partition("-")[0]
    return int(start) if start.isdigit() else -1


def _total(answer: Any, have: int) -> int | None:
    length = answer.headers.get("Content-Length")
    return have + int(length) if length and length.isdigit() else None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects as urllib does, but never to an address that could not be fetched itself."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """The next request; MissingError for an address that is not allowed."""
        _checked(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(request: urllib.request.Request) -> Any:
    return urllib.request.build_opener(_Redirects).open(request, timeout=_TIMEOUT)


_OPENER: Callable[[urllib.request.Request], Any] = _open
