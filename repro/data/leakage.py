"""Which documents decide, and whether training text and validation text overlap: exactly, folded, or nearly."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from repro.data.near import Near, Sketches
from repro.spec.errors import Problem

MAX_NAMED = 50  # overlapping documents that a message names one by one
_BATCH_BYTES = 4 << 20  # of training text looked at together
_BLANKS = bytes(sign for sign in range(128) if chr(sign).isspace())
_LOWER = bytes(range(256)).lower()


def document_hash(text: str | bytes) -> bytes:
    """sha256 of the text's UTF-8 bytes: a document's identity, wherever it stands."""
    return hashlib.sha256(text.encode("utf-8") if isinstance(text, str) else text).digest()


def fold(text: str) -> str:
    """The text without what a copy often changes: case, and the kind and number of blanks."""
    return " ".join(text.casefold().split())


def squeezed(text: str | bytes) -> bytes:
    """UTF-8 of the text without case and without any blank: what documents are compared by, exactness aside.

    Equals `"".join(text.casefold().split())`; ASCII, which is most of it, goes through one table.
    """
    data = text.encode("utf-8") if isinstance(text, str) else text
    if not data.isascii():
        data = b"".join(_folded_runs(data))
    return data.translate(_LOWER, _BLANKS)


def _folded_runs(data: bytes) -> Iterator[bytes]:
    """ASCII as it is, the runs between folded: folding works sign by sign, so each run can be taken alone."""
    beyond = np.flatnonzero(np.frombuffer(data, np.uint8) > 127)
    cuts = np.flatnonzero(np.diff(beyond) > 1)
    done = 0
    for start, last in zip(beyond[[0, *(cuts + 1)]].tolist(), beyond[[*cuts, -1]].tolist(), strict=True):
        yield data[done:start]
        yield _folded_run(data[start : last + 1])
        done = last + 1
    yield data[done:]


@lru_cache(maxsize=4096)
def _folded_run(data: bytes) -> bytes:
    """Few runs are many of all: dashes and quotation marks."""
    return "".join(data.decode("utf-8", "replace").casefold().split()).encode("utf-8")


def folded_hash(text: str | bytes) -> bytes:
    """sha256 of the text without case and blanks."""
    return hashlib.sha256(squeezed(text)).digest()


def is_validation(digest: bytes, validation: float) -> bool:
    """Whether the document with this hash is held out: the hash read as a fraction lies below `validation`.

    Depends on the document alone, so order, shards and workers cannot change the split.
    """
    return int.from_bytes(digest[:8], "big") < int(validation * 2.0**64)


@dataclass(frozen=True, slots=True, order=True)
class Hit:
    """Validation document `val` is training document `train` (both counted from 0), exactly or folded."""

    val: int
    train: int
    kind: Literal["exact", "folded"]


@dataclass(frozen=True, slots=True)
class Overlap:
    """All validation documents that stand in the training text; equal texts are equal folded too.

    `near` names, for those that do not, the training document that holds most of each, from half of it on.
    """

    hits: tuple[Hit, ...]
    near: tuple[Near, ...] = ()

    @property
    def exact(self) -> int:
        """Validation documents with an equal training document."""
        return sum(hit.kind == "exact" for hit in self.hits)

    @property
    def folded(self) -> int:
        """Validation documents with a training document equal after folding; includes the exact ones."""
        return len(self.hits)

    def problems(self, file: str, of: str = "document") -> list[Problem]:
        """One problem for each of the first 50 hits, counting documents (or what `of` says) from 1."""
        words = {"exact": "is", "folded": "is, but for case and blanks,"}
        messages = [
            f"validation {of} {hit.val + 1} {words[hit.kind]} training {of} {hit.train + 1}"
            for hit in self.hits[:MAX_NAMED]
        ]
        if len(self.hits) > MAX_NAMED:
            messages.append(f"and {len(self.hits) - MAX_NAMED} more")
        return [Problem(file, None, "leakage", message) for message in messages]

    def as_json(self) -> dict[str, Any]:
        """Counts, and the first 50 near duplicates, counted from 1, nearest first."""
        nearest = sorted(self.near, key=lambda near: (-near.share, near.val))[:MAX_NAMED]
        rows = [{"val": n.val + 1, "train": n.train + 1, "share": round(n.share, 3)} for n in nearest]
        return {"exact": self.exact, "folded": self.folded, "near": len(self.near), "nearest": rows}


def find_overlap(train: Iterable[str | bytes], val: Iterable[str | bytes]) -> Overlap:
    """Validation documents that also stand in `train`, each with the first training document that it equals.

    An exact match goes before a folded one. Memory grows with `val` alone; `train` is read once.
    """
    watch = Watch(val)
    return combined(watch.look(batch, first) for first, batch in _batches(train))


def _batches(texts: Iterable[str | bytes]) -> Iterator[tuple[int, list[bytes]]]:
    first, held, size = 0, [], 0
    for text in texts:
        held.append(text.encode("utf-8") if isinstance(text, str) else text)
        size += len(held[-1])
        if size >= _BATCH_BYTES:
            yield first, held
            first, held, size = first + len(held), [], 0
    yield first, held


class Watch:
    """Looks out for validation documents; several may look at different parts of the training text."""

    def __init__(self, val: Iterable[str | bytes]) -> None:
        self._exact: dict[bytes, list[int]] = {}
        self._folded: dict[bytes, list[int]] = {}
        self._sketches = Sketches(self._noted(val))

    def _noted(self, val: Iterable[str | bytes]) -> Iterator[bytes]:
        for number, text in enumerate(val):
            folded = squeezed(text)
            self._exact.setdefault(document_hash(text), []).append(number)
            self._folded.setdefault(hashlib.sha256(folded).digest(), []).append(number)
            yield folded

    def look(self, texts: list[bytes], first: int) -> Overlap:
        """What is found in training documents first, first + 1 ...; an overlap with this part alone."""
        folded = [squeezed(text) for text in texts]
        hits = []
        for number, (text, short) in enumerate(zip(texts, folded, strict=True), first):
            hits += [Hit(val, number, "exact") for val in self._exact.get(document_hash(text), ())]
            hits += [Hit(val, number, "folded") for val in self._folded.get(hashlib.sha256(short).digest(), ())]
        return Overlap(tuple(hits), tuple(self._sketches.find(folded, first)))


def combined(parts: Iterable[Overlap]) -> Overlap:
    """One overlap out of those with all parts of the training text, in any order."""
    exact: dict[int, int] = {}
    folded: dict[int, int] = {}
    near: dict[int, Near] = {}
    for part in parts:
        for hit in part.hits:
            best = exact if hit.kind == "exact" else folded
            best[hit.val] = min(hit.train, best.get(hit.val, hit.train))
        for found in part.near:
            known = near.get(found.val, found)
            near[found.val] = max(known, found, key=lambda one: (one.share, -one.train))
    hits = [Hit(val, train, "exact") for val, train in exact.items()]
    hits += [Hit(val, train, "folded") for val, train in folded.items() if val not in exact]
    others = [near[val] for val in sorted(near) if val not in folded]
    return Overlap(tuple(sorted(hits)), tuple(others))
