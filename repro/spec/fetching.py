"""Where the files of a source come from when they are fetched, as data: addresses, sizes and hashes that are known."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Self

from pydantic import Field, RootModel, StringConstraints, model_validator

from repro.spec.model import Digest, Int, Strict, Text

_PLAIN = r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*$"  # no part begins with a dot: none leads out
FileName = Annotated[str, StringConstraints(pattern=_PLAIN, max_length=300, strict=True)]
HttpsUrl = Annotated[str, StringConstraints(pattern=r"^https://[A-Za-z0-9.-]+(/[A-Za-z0-9_.%~+-]+)+$", max_length=500)]
HubName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,96}/[A-Za-z0-9_.-]{1,96}$", strict=True)]
Revision = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$", strict=True)]
_PATTERN = r"^[A-Za-z0-9_*?\[-][A-Za-z0-9_.*?\[\]-]*(/[A-Za-z0-9_*?\[-][A-Za-z0-9_.*?\[\]-]*)*$"  # likewise
FilePattern = Annotated[str, StringConstraints(pattern=_PATTERN, max_length=200, strict=True)]
Bytes = Annotated[Int, Field(ge=0, lt=1 << 50)]


class FetchFile(Strict):
    """One file by its address; what is not known of it is pinned at the first download."""

    name: FileName
    url: HttpsUrl
    bytes: Bytes | None = None
    sha256: Digest | None = None


class Fetch(Strict):
    """Either `files`, or a data set of the Hugging Face hub: `hub`, `revision` and the `pattern` of its files.

    `shards` is how many files the pattern means, `bytes` what they weigh together as they are downloaded.
    """

    files: Annotated[list[FetchFile], Field(max_length=10_000)] = []
    hub: HubName | None = None
    revision: Revision | None = None
    pattern: FilePattern | None = None
    shards: Annotated[Int, Field(ge=1, le=10_000)] | None = None
    bytes: Bytes | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        of_hub = (self.hub, self.revision, self.pattern, self.shards)
        if self.files and any(value is not None for value in of_hub):
            raise ValueError("either files or hub, not both")
        if not self.files and any(value is None for value in of_hub):
            raise ValueError("files, or hub with revision, pattern and shards, are needed")
        names = [file.name for file in self.files]
        if len(set(names)) < len(names):
            raise ValueError("a name stands twice in files")
        return self

    def check_names(self, suffixes: Iterable[str]) -> None:
        """ValueError for a file that nobody here would read: a script, say. None is ever run."""
        allowed = tuple(suffixes)
        names = [file.name for file in self.files] + ([self.pattern] if self.pattern else [])
        others = [name for name in names if not name.endswith((*allowed, "*"))]
        if others:
            raise ValueError(f"fetch brings {', '.join(others[:5])}; only files of {', '.join(allowed)} are read")

    @property
    def identity(self) -> dict[str, object]:
        """What of it says which bytes are meant; addresses may change."""
        if self.hub:
            return {"hub": self.hub, "revision": self.revision, "pattern": self.pattern}
        return {"files": {file.name: file.sha256 for file in self.files}}

    @property
    def total_bytes(self) -> int | None:
        """What will be downloaded, where it is known."""
        sizes = [file.bytes for file in self.files]
        return self.bytes if not sizes or None in sizes else sum(size or 0 for size in sizes)


class Encoder(Strict):
    """A pretrained model in Hugging Face form that a metric reads from scratch/fetched."""

    title: Text
    licence: Text
    fetch: Fetch

    @model_validator(mode="after")
    def _model_files(self) -> Self:
        self.fetch.check_names((".json", ".txt", ".model", ".safetensors", ".bin"))
        return self


class Encoders(RootModel[dict[FileName, Encoder]]):
    """config/encoders.yaml."""


def is_plain(name: str) -> bool:
    """Whether a name from outside may become a path below a folder of ours."""
    return len(name) <= 300 and bool(re.fullmatch(_PLAIN, name))
