"""Data sources as data, and the digest by which a run names what it was trained on.

The digest is known before the data exist: it covers the pinned bytes, the tokenizer's content, the split and
the preparation's rules version, so a plan can be made on a machine that has none of the data.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, RootModel, StringConstraints, model_validator

from repro.spec.errors import BadDataError, MissingError, Problem, problem_error
from repro.spec.hashing import sha256_file, sha256_json
from repro.spec.model import Digest, Float, Int, Name, Strict, Text
from repro.spec.paths import Root, is_inside
from repro.spec.rules import RULES

# A tokenizer is what its content is; names are for people.
TOKENIZERS: dict[str, str] = {
    "bytes": sha256_json({"tokenizer": "bytes", "vocab": 256, "end_of_text": 0}),
    "gpt2": sha256_json(
        {
            "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
            "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
        }
    ),
}
VOCABULARY = {"bytes": 256, "gpt2": 50257}
TEXT_SUFFIXES = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz")
RelativePath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$", max_length=300)]


class DataSource(Strict):
    """Where documents come from and how they become tokens.

    `validation` is the fraction of documents (by hash of their text) held out; `curve_tokens` of them are
    looked at during training, `final_tokens` make the published loss.
    """

    kind: Literal["wheel_wikipedia", "folder", "fetched"]
    title: Text
    licence: Text
    dist: Name | None = None
    file: RelativePath | None = None
    sha256: Digest | None = None
    path: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,1000}$")] | None = None
    pinned: dict[Name, Text | Int] = {}
    tokenizer: Literal["bytes", "gpt2"]
    validation: Annotated[Float, Field(gt=0, lt=0.5)]
    curve_tokens: Annotated[Int, Field(ge=2)]
    final_tokens: Annotated[Int, Field(ge=2)]

    @model_validator(mode="after")
    def _kind_has_its_keys(self) -> Self:
        needed = {"wheel_wikipedia": ("dist", "file", "sha256"), "folder": ("path",), "fetched": ("pinned",)}[self.kind]
        absent = [key for key in needed if not getattr(self, key)]
        if absent:
            raise ValueError(f"kind {self.kind} needs {', '.join(absent)}")
        if ".." in str(self.file).split("/"):
            raise ValueError(f"file {self.file} leads out of its package")
        return self


class Sources(RootModel[dict[Name, DataSource]]):
    """config/data.yaml."""


def folder_files(root: Root, source: DataSource) -> list[Path]:
    """What has a text file's name in a local folder; a link that leads out of the folder is refused (BadDataError)."""
    folder = (root.path / str(source.path)).resolve()
    if not os.path.isdir(folder):  # unlike Path.is_dir, False for a name that is too long
        raise problem_error(MissingError, str(source.path), "path", "no such folder; put the text files there")
    found = sorted(p for p in folder.rglob("*") if p.name.endswith(TEXT_SUFFIXES))
    leading_out = [p for p in found if not is_inside(p, folder)]
    if leading_out:
        message = "is a link that leads out of the folder"
        raise BadDataError([Problem(str(source.path), None, p.name, message) for p in leading_out])
    if not found:
        raise problem_error(MissingError, str(source.path), "path", f"holds no file of {', '.join(TEXT_SUFFIXES)}")
    return found


def _folder_hashes(root: Root, source: DataSource) -> dict[str, str]:
    """sha256 of each file; a file is read again only if its size or time of change moved."""
    cache_file = root.scratch / "cache" / "folder_hashes.json"
    try:
        cache: dict[str, list[object]] = dict(json.loads(cache_file.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        cache = {}
    folder = (root.path / str(source.path)).resolve()
    hashes: dict[str, str] = {}
    changed = False
    for path in folder_files(root, source):
        if not path.is_file():  # a pipe would wait for ever
            raise problem_error(BadDataError, root.shown(path), "", "is no regular file")
        state = path.stat()
        key, stamp = str(path), [state.st_size, state.st_mtime_ns]
        known = cache.get(key)
        if not isinstance(known, list) or known[:2] != stamp:
            cache[key], changed = [*stamp, _hashed(path, source)], True
        hashes[path.relative_to(folder).as_posix()] = str(cache[key][2])
    if changed:
        _keep_cache(cache_file, cache)
    return hashes


def _hashed(path: Path, source: DataSource) -> str:
    try:
        return sha256_file(path)
    except OSError as error:
        raise problem_error(BadDataError, str(source.path), path.name, f"cannot be read ({error.strerror})") from None


def _keep_cache(path: Path, cache: dict[str, list[object]]) -> None:
    """A cache that cannot be written costs time, not the plan."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(cache), "utf-8")
        partial.replace(path)
    except OSError:
        return


def digest(source: DataSource, root: Root) -> str:
    """sha256 that names the prepared data; raises MissingError where a local folder is not there."""
    origin: dict[str, object]
    if source.kind == "folder":
        origin = {"files": _folder_hashes(root, source)}
    elif source.kind == "fetched":
        origin = {"pinned": source.pinned}
    else:
        origin = {"sha256": source.sha256}
    return sha256_json(
        {
            "kind": source.kind,
            **origin,
            "tokenizer": TOKENIZERS[source.tokenizer],
            "validation": source.validation,
            "rules": RULES["data"],
        }
    )
