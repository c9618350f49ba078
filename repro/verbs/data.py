"""`repro data list|fetch|prepare|verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from repro.records.store import replace_text
from repro.spec.data import DataSource, Source, digest
from repro.spec.errors import BadDataError, ConfigError, MissingError, ReproError, problem_error, shown, suggest
from repro.spec.fetching import Fetch
from repro.spec.hashing import short
from repro.spec.load import load_configuration
from repro.spec.paths import Root, find_root
from repro.spec.sets import LabelledSource
from repro.verbs.output import columns, emit, say


def _source(name: str) -> tuple[Root, Source]:
    root = find_root()
    sources: dict[str, Source] = dict(load_configuration(root).sources)
    if name not in sources:
        raise problem_error(ConfigError, "command line", "name", f"{shown(name)} is not known{suggest(name, sources)}")
    return root, sources[name]


def list_sources(as_json: bool) -> None:
    """Prints each source, its digest and whether its files and its prepared data are here."""
    root = find_root()
    rows = []
    for name, source in load_configuration(root).sources.items():
        try:
            sha256 = digest(source, root)
            made = (root.scratch / "data" / short(sha256) / "manifest.json").is_file()
            state = "prepared" if made else "not prepared"
            if source.fetch and not (made or (root.scratch / "fetched" / name).is_dir()):
                state = "not fetched"
        except ReproError as error:
            sha256, state = "", error.problems[0].message
        rows.append({"name": name, "state": state, "digest": sha256, "title": source.title, "licence": source.licence})
    if as_json:
        for row in rows:
            emit(row)
    else:
        columns([list(row.values()) for row in rows], ("name", "state", "digest", "title", "licence"))


def fetch_source(name: str, origin: str | None) -> None:
    """Brings the files of a source here, from where they are published, a mirror or a folder, and says what it pinned.

    Raises ConfigError for a source that has nothing to fetch.
    """
    from repro.data.fetch import fetch

    spec, documents = _what_to_fetch(name)
    root = find_root()
    done = fetch(root, name, spec, origin, documents)
    for file in done.pinned_here[:20]:
        say(f"{name}: nobody has published a hash of {file}: the one of this download is pinned in its manifest.json")
    if len(done.pinned_here) > 20:
        say(f"{name}: and {len(done.pinned_here) - 20} more")
    say(f"{name}: {done.files} files in {root.shown(done.folder)}, {done.brought} of them brought now, all verified")


def _what_to_fetch(name: str) -> tuple[Fetch, int | None]:
    """Files of a source or of an encoder, and how many documents they hold where that is pinned."""
    encoders = load_configuration(find_root()).encoders
    if name in encoders:
        return encoders[name].fetch, None
    _, source = _source(name)
    if source.fetch is None:
        message = f"{name} is of kind {source.kind}: it says no place to fetch it from (key fetch)"
        raise problem_error(ConfigError, "config/data.yaml", name, message)
    documents = source.pinned.get("documents")
    return source.fetch, documents if isinstance(documents, int) else None


def prepare_source(name: str, workers: int | None = None) -> None:
    """Makes the prepared data (token files, arrays), or finds them made."""
    root, source = _source(name)
    if isinstance(source, DataSource):
        from repro.data.prepare import load_manifest, prepare

        folder = prepare(root, name, source, digest(source, root), workers)
        near = load_manifest(root, digest(source, root))["leakage"].get("near", 0)
        if near:
            which = f"`repro data leakage {name} --out FILE` writes which"
            say(f"{name}: {near} validation documents are nearly in the training text; {which}")
    else:
        from repro.data.sets import prepare_set

        folder = prepare_set(root, name, source, digest(source, root))
    say(f"{name}: {root.shown(folder)}")


def verify_source(name: str) -> None:
    """Compares the prepared files with their hashes, and a local folder with its manifest.

    Raises BadDataError with what differs.
    """
    root, source = _source(name)
    sha256 = digest(source, root)
    folder = root.scratch / "data" / short(sha256)
    if not folder.is_dir():
        message = f"the data are not prepared; run `repro data prepare {name}`"
        raise problem_error(MissingError, root.shown(folder), name, message)
    if isinstance(source, DataSource):
        from repro.data.prepare import load_manifest, verify
        from repro.data.sources import check_prepared

        if problems := verify(root, sha256):
            raise BadDataError(problems)
        check_prepared(root, name, source, load_manifest(root, sha256))
    else:
        from repro.data import sets
        from repro.data.arrays import set_problems

        if problems := set_problems(root, sha256):
            raise BadDataError(problems)
        sets.check_prepared(root, name, source, sha256)
    say(f"{name}: verified")


def leakage(name: str, out: Path, workers: int | None = None) -> None:
    """Compares the documents of both splits as they stand in the token files; refuses an overlap (exit 65).

    Near duplicates are counted and the nearest named, in `out` and on standard error. A set of sentences is compared
    too; what its manifest counts is written.
    """
    root, source = _source(name)
    sha256 = digest(source, root)
    if isinstance(source, DataSource):
        found = _text_leakage(root, source, sha256, workers)
    else:
        from repro.data.arrays import load_set_manifest
        from repro.data.sets import load_labelled

        if isinstance(source, LabelledSource):
            load_labelled(root, sha256)
        found = {"kind": source.kind, "overlap": load_set_manifest(root, sha256)["report"].get("overlap")}
    replace_text(out, json.dumps(found, indent=1, sort_keys=True) + "\n")


def _text_leakage(root: Root, source: DataSource, sha256: str, workers: int | None) -> dict[str, Any]:
    from repro.data.manifest import load_manifest
    from repro.data.overlap import written_overlap
    from repro.data.tokenise import prepared_spec
    from repro.data.workers import available_cores

    manifest = load_manifest(root, sha256)
    folder = root.scratch / "data" / short(sha256)
    spec = prepared_spec(folder, manifest)
    overlap = written_overlap(folder, spec, manifest["end_of_text"], workers or available_cores())
    if overlap.hits:
        raise BadDataError(overlap.problems(root.shown(folder)))
    for near in overlap.as_json()["nearest"][:5]:
        say(f"{near['share']:.0%} of validation document {near['val']} stands in training document {near['train']}")
    return overlap.as_json()
