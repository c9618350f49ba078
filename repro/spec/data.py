"""Data sources as data, and the digest by which a run names what it was trained on.

The digest is known before the data exist: it covers the pinned bytes, the tokenizer's content, the split and
the preparation's rules version, so a plan can be made on a machine that has none of the data.
"""

from __future__ import annotations

import json
import os
import re
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, RootModel, StringConstraints, Tag, model_validator

from repro.spec.errors import BadDataError, MissingError, Problem, problem_error
from repro.spec.fetching import Fetch
from repro.spec.hashing import sha256_file, sha256_json, stamp
from repro.spec.model import Digest, Float, Int, Name, Strict, Text
from repro.spec.paths import Root, is_inside
from repro.spec.rules import RULES
from repro.spec.sets import LABELLED_KINDS, SERIES_KINDS, LabelledSource, SeriesSource, set_digest

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
LLAMA3_VOCABULARY = 128_256  # 128,000 ranks and 256 special ids
VOCABULARY = {"bytes": 256, "gpt2": 50257, "llama3": LLAMA3_VOCABULARY}
_PACKED = ("", ".gz", ".bz2", ".zst")
LINE_SUFFIXES = tuple(
    f"{name}{packed}" for name in (".jsonl", ".json") for packed in _PACKED if name + packed != ".json"
)
TEXT_SUFFIXES = (*(f".txt{packed}" for packed in _PACKED), *LINE_SUFFIXES, ".parquet")
# What downloads in progress, packers that are not known here, and programs that cut files put behind a text's name.
_UNREAD = re.compile(
    r".*\.(txt|jsonl?|parquet)(\.(gz|bz2|zst))?"
    r"[.](incomplete|partial|part\d*|te?mp|(cr)?download|aria2|xz|lzma|lz4|lzo|br|sz|snappy|zip|7z|rar|tar|zstd|gzip|gz"
    r"|bz2|zst|z|\d+|a[a-z])",
    re.IGNORECASE,
)
_ABOUT = re.compile(r"(readme|licen[cs]e|copying|notice)", re.IGNORECASE)
RelativePath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$", max_length=300)]
LocalPath = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,1000}$")]


class LocalTokenizer(Strict):
    """A tokenizer by its files: a folder with GPT-2's two, a SentencePiece model, or Llama 3's ranks for tiktoken.

    `vocab` is stated, as a plan has to know it where the file is not; it is compared with the file at preparation.
    With `sha256` (of the file) a plan can be made without the file.
    """

    kind: Literal["gpt2", "sentencepiece", "llama3"]
    path: LocalPath
    sha256: Digest | None = None
    vocab: Annotated[Int, Field(ge=2, le=1 << 24)] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.kind == "sentencepiece" and self.vocab is None:
            raise ValueError("kind sentencepiece needs vocab, the number of its pieces")
        if self.kind == "gpt2" and (self.sha256 or self.vocab):
            raise ValueError("kind gpt2 has one content: neither sha256 nor vocab can be stated")
        return self


class DataSource(Strict):
    """Where documents come from and how they become tokens.

    `validation` is the fraction of documents (by hash of their text) held out; with `split: tail` it is the last
    part of the one document that there is, by characters. `curve_tokens` of the held out tokens are looked at
    during training, `final_tokens` make the published loss. `field` is where a row or line keeps its text.
    """

    kind: Literal["wheel_wikipedia", "folder", "fetched"]
    title: Text
    licence: Text
    dist: Name | None = None
    file: RelativePath | None = None
    sha256: Digest | None = None
    path: LocalPath | None = None
    field: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,100}$")] = "text"
    pinned: dict[Name, Text | Int] = {}
    fetch: Fetch | None = None
    tokenizer: Literal["bytes", "gpt2"] | LocalTokenizer
    split: Literal["hash", "tail"] = "hash"
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
        if self.fetch and self.kind != "fetched":
            raise ValueError(f"kind {self.kind} is not fetched: fetch does not belong here")
        if self.fetch:
            self.fetch.check_names(TEXT_SUFFIXES)
        return self

    @property
    def tokenizer_name(self) -> str:
        """bytes, gpt2, sentencepiece or llama3."""
        return self.tokenizer if isinstance(self.tokenizer, str) else self.tokenizer.kind

    @property
    def vocabulary(self) -> int:
        """Number of ids, known without the tokenizer's files."""
        stated = None if isinstance(self.tokenizer, str) else self.tokenizer.vocab
        return stated or VOCABULARY[self.tokenizer_name]


def _form(value: Any) -> str:
    """Which kind of source an entry is meant to be; what no other claims is text, whose messages list its kinds."""
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return "series" if kind in SERIES_KINDS else "labelled" if kind in LABELLED_KINDS else "text"


Source = Annotated[
    Annotated[DataSource, Tag("text")]
    | Annotated[SeriesSource, Tag("series")]
    | Annotated[LabelledSource, Tag("labelled")],
    Discriminator(_form),
]


class Sources(RootModel[dict[Name, Source]]):
    """config/data.yaml."""


def tokenizer_sha256(source: DataSource, root: Root) -> str:
    """Fingerprint of the tokenizer's content; MissingError where a local file is neither pinned nor there."""
    spec = source.tokenizer
    if isinstance(spec, str) or spec.kind == "gpt2":
        return TOKENIZERS[source.tokenizer_name]
    if not spec.sha256 and not os.path.isfile(root.path / spec.path):
        message = f"no such file; it is the {spec.kind} tokenizer (or state its sha256 to plan without it)"
        raise problem_error(MissingError, spec.path, "tokenizer", message)
    return local_fingerprint(spec.kind, spec.sha256 or _hashed(root.path / spec.path, spec.path), source.vocabulary)


def local_fingerprint(kind: str, sha256: str, vocab: int) -> str:
    """What a tokenizer of one file is known by: its bytes, and how they are read."""
    return sha256_json({"tokenizer": kind, "sha256": sha256, "vocab": vocab})


def folder_files(root: Root, source: DataSource) -> list[Path]:
    """What has a text file's name in a local folder; raises as `text_files`."""
    return text_files(root.path / str(source.path), str(source.path), "put the text files there")


def text_files(place: Path, file: str, mend: str) -> list[Path]:
    """Text files below a folder, by name.

    Raises MissingError where there is none (`mend` says what to do), and BadDataError with all that would be passed
    over though it may hold text: links out of the folder or to folders, folders that cannot be read, files whose
    name is nearly one of a text file.
    """
    folder = place.resolve()
    if not os.path.isdir(folder):  # unlike Path.is_dir, False for a name that is too long
        raise problem_error(MissingError, file, "path", f"no such folder; {mend}")
    unread: list[OSError] = []
    paths = [Path(at) / name for at, *names in os.walk(folder, onerror=unread.append) for name in chain(*names)]
    found = sorted(p for p in paths if p.name.endswith(TEXT_SUFFIXES) and not p.name.startswith("."))
    faults = [(p, fault) for p in paths if (fault := _passed_over(p, folder))]
    faults += [(Path(error.filename), f"cannot be read ({error.strerror})") for error in unread]
    if faults:
        raise BadDataError([Problem(file, None, p.relative_to(folder).as_posix(), fault) for p, fault in faults])
    if not found:
        raise problem_error(MissingError, file, "path", f"holds no file of {', '.join(TEXT_SUFFIXES)}; {mend}")
    return found


def _passed_over(path: Path, folder: Path) -> str | None:
    """Why a part of the text would be missing if `path` in `folder` were left out without a word; None if none is."""
    is_text, hidden = path.name.endswith(TEXT_SUFFIXES), path.name.startswith(".")
    if path.is_symlink():
        may_hold = path.is_dir() or not (hidden or path.is_file())  # a folder, or what would be one if it were there
        if (may_hold or (is_text and not hidden)) and not is_inside(path, folder):
            return "is a link that leads out of the folder"
        if may_hold and not is_text:
            return "is a link to a folder or to nothing, which is not followed: put here what it stands for"
    if is_text or path.is_dir() or any(part.startswith(".") for part in path.relative_to(folder).parts):
        return None
    nearly = path.name.lower().endswith(TEXT_SUFFIXES) or _UNREAD.fullmatch(path.name)
    if not nearly or _ABOUT.match(path.name):
        return None
    return f"is not read, its name ends in none of {', '.join(TEXT_SUFFIXES)}: finish, unpack, rename or remove it"


def folder_hashes(root: Root, folder: Path, files: list[Path]) -> dict[str, str]:
    """sha256 of each of `files`, by its path below `folder`; one whose stamp has not moved is not read again."""
    cache_file = root.scratch / "cache" / "folder_hashes.json"
    try:
        cache: dict[str, list[object]] = dict(json.loads(cache_file.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        cache = {}
    hashes: dict[str, str] = {}
    changed = False
    for path in files:
        if not path.is_file():  # a pipe would wait for ever
            raise problem_error(BadDataError, root.shown(path), "", "is no regular file")
        key, seen = str(path), stamp(path.stat())
        known = cache.get(key)
        if not isinstance(known, list) or known[:-1] != seen:
            cache[key], changed = [*seen, _hashed(path, root.shown(folder))], True
        hashes[path.relative_to(folder).as_posix()] = str(cache[key][-1])
    if changed:
        _keep_cache(cache_file, cache)
    return hashes


def _hashed(path: Path, file: str) -> str:
    try:
        return sha256_file(path)
    except OSError as error:
        raise problem_error(BadDataError, file, path.name, f"cannot be read ({error.strerror})") from None


def _keep_cache(path: Path, cache: dict[str, list[object]]) -> None:
    """A cache that cannot be written costs time, not the plan."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(cache), "utf-8")
        partial.replace(path)
    except OSError:
        return


def digest(source: DataSource | SeriesSource | LabelledSource, root: Root) -> str:
    """sha256 that names the prepared data; raises MissingError where a local folder or tokenizer is not there."""
    if not isinstance(source, DataSource):
        return set_digest(source, root)
    return sha256_json(
        {
            "kind": source.kind,
            **_origin(source, root),
            "tokenizer": tokenizer_sha256(source, root),
            "validation": source.validation,
            "rules": RULES["data"],
        }
    )


def _origin(source: DataSource, root: Root) -> dict[str, object]:
    """What decides the documents; a key that has its usual value is left out, so that adding one moved no digest."""
    origin: dict[str, object] = {}
    if source.kind == "folder":
        folder = (root.path / str(source.path)).resolve()
        origin = {"files": folder_hashes(root, folder, folder_files(root, source))}
    elif source.kind == "fetched":
        origin = {"pinned": source.pinned} | ({"fetch": source.fetch.identity} if source.fetch else {})
    else:
        origin = {"sha256": source.sha256}
    usual = {"field": "text", "split": "hash"}
    return origin | {key: getattr(source, key) for key, value in usual.items() if getattr(source, key) != value}
