"""`repro data list|prepare|verify`."""

from __future__ import annotations

import json
from pathlib import Path

from repro.records.store import replace_text
from repro.spec.data import DataSource, digest
from repro.spec.errors import BadDataError, ConfigError, MissingError, ReproError, problem_error, shown, suggest
from repro.spec.hashing import short
from repro.spec.load import load_configuration
from repro.spec.paths import Root, find_root
from repro.verbs.output import columns, emit, say


def _source(name: str) -> tuple[Root, DataSource]:
    root = find_root()
    sources = load_configuration(root).sources
    if name not in sources:
        raise problem_error(ConfigError, "command line", "name", f"{shown(name)} is not known{suggest(name, sources)}")
    return root, sources[name]


def list_sources(as_json: bool) -> None:
    """Prints each source, its digest and whether its token files are here."""
    root = find_root()
    rows = []
    for name, source in load_configuration(root).sources.items():
        try:
            sha256 = digest(source, root)
            state = (
                "prepared" if (root.scratch / "data" / short(sha256) / "manifest.json").is_file() else "not prepared"
            )
        except ReproError as error:
            sha256, state = "", error.problems[0].message
        rows.append({"name": name, "state": state, "digest": sha256, "title": source.title, "licence": source.licence})
    if as_json:
        for row in rows:
            emit(row)
    else:
        columns([list(row.values()) for row in rows], ("name", "state", "digest", "title", "licence"))


def prepare_source(name: str) -> None:
    """Makes the token files, or finds them made."""
    from repro.data.prepare import prepare

    root, source = _source(name)
    folder = prepare(root, name, source, digest(source, root))
    say(f"{name}: {root.shown(folder)}")


def verify_source(name: str) -> None:
    """Compares the token files with their hashes; BadDataError lists what differs."""
    from repro.data.prepare import verify

    root, source = _source(name)
    folder = root.scratch / "data" / short(digest(source, root))
    if not folder.is_dir():
        message = f"the data are not prepared; run `repro data prepare {name}`"
        raise problem_error(MissingError, root.shown(folder), name, message)
    problems = verify(root, digest(source, root))
    if problems:
        raise BadDataError(problems)
    say(f"{name}: verified")


def leakage(name: str, out: Path) -> None:
    """Compares the documents of both splits as they stand in the token files; refuses an overlap (exit 65)."""
    from repro.data.leakage import find_overlap
    from repro.data.packed import TokenFile
    from repro.data.tokenise import tokenizer

    root, source = _source(name)
    coder = tokenizer(source.tokenizer)
    folder = root.scratch / "data" / short(digest(source, root))
    train, val = (
        (coder.decode(ids) for ids in TokenFile.open(folder / f"{split}.bin").documents(coder.end_of_text))
        for split in ("train", "val")
    )
    overlap = find_overlap(train, val)
    if overlap.hits:
        raise BadDataError(overlap.problems(root.shown(folder)))
    replace_text(out, json.dumps({"exact": overlap.exact, "folded": overlap.folded}) + "\n")
