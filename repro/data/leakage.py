"""Which documents decide, and whether training text and validation text overlap."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from repro.spec.errors import Problem

MAX_NAMED = 50  # overlapping documents that a message names one by one


def document_hash(text: str) -> bytes:
    """sha256 of the text's UTF-8 bytes: a document's identity, wherever it stands."""
    return hashlib.sha256(text.encode("utf-8")).digest()


def fold(text: str) -> str:
    """The text without what a copy often changes: case, and the kind and number of blanks."""
    return " ".join(text.casefold().split())


def folded_hash(text: str) -> bytes:
    """sha256 of the folded text."""
    return document_hash(fold(text))


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
    """All validation documents that stand in the training text; equal texts are equal folded too."""

    hits: tuple[Hit, ...]

    @property
    def exact(self) -> int:
        """Validation documents with an equal training document."""
        return sum(hit.kind == "exact" for hit in self.hits)

    @property
    def folded(self) -> int:
        """Validation documents with a training document equal after folding; includes the exact ones."""
        return len(self.hits)

    def problems(self, file: str) -> list[Problem]:
        """One problem for each of the first 50 hits, counting documents from 1 as lines are counted."""
        words = {"exact": "is", "folded": "is, but for case and blanks,"}
        messages = [
            f"validation document {hit.val + 1} {words[hit.kind]} training document {hit.train + 1}"
            for hit in self.hits[:MAX_NAMED]
        ]
        if len(self.hits) > MAX_NAMED:
            messages.append(f"and {len(self.hits) - MAX_NAMED} more")
        return [Problem(file, None, "leakage", message) for message in messages]


def find_overlap(train: Iterable[str], val: Iterable[str]) -> Overlap:
    """Validation documents that also stand in `train`, each with the first training document that it equals.

    An exact match goes before a folded one. Memory grows with `val` alone; `train` is read once.
    """
    by_exact: dict[bytes, list[int]] = {}
    by_folded: dict[bytes, list[int]] = {}
    for number, text in enumerate(val):
        by_exact.setdefault(document_hash(text), []).append(number)
        by_folded.setdefault(folded_hash(text), []).append(number)
    exact: dict[int, int] = {}
    folded: dict[int, int] = {}
    for number, text in enumerate(train):
        for found in by_exact.get(document_hash(text), ()):
            exact.setdefault(found, number)
        for found in by_folded.get(folded_hash(text), ()):
            folded.setdefault(found, number)
    hits = [Hit(found, number, "exact") for found, number in exact.items()]
    hits += [Hit(found, number, "folded") for found, number in folded.items() if found not in exact]
    return Overlap(tuple(sorted(hits)))
