"""Near duplicates: how much of a validation document stands in one training document.

A document is the set of its windows of 12 bytes, folded. Of each validation document the 64 windows with the
smallest hashes are kept, a uniform sample of the set ("min-wise" sampling: Broder, On the resemblance and
containment of documents, SEQUENCES 1997); the share of them that a training document holds estimates the
containment, with a standard error of at most 1/16. So memory grows with the number of validation documents only,
and training text is read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WINDOW = 12  # bytes of folded text, two or three words
SKETCH = 64  # windows kept of a validation document
LEAST = 4  # windows that a document must have to be judged
COMMON = 16  # a window of more validation documents than this says nothing
SHARE = 0.5  # from here on a document counts as a near duplicate

Words = NDArray[np.uint64]
_CHUNK = 1 << 14
_MIX_A, _MIX_B, _MIX_C = (np.uint64(word) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Near(NamedTuple):
    """Of validation document `val` the share `share` stands in training document `train` (both from 0)."""

    val: int
    train: int
    share: float


def window_hashes(data: bytes) -> Words:
    """Hashes of all windows of `data`, uint64 [len(data) - WINDOW + 1]; equal windows have equal hashes."""
    count = max(0, len(data) - WINDOW + 1)
    hashes = np.empty(count, np.uint64)
    for start in range(0, count, _CHUNK):  # small enough for the processor's cache
        stop = min(start + _CHUNK, count)
        # Each window as two numbers, read where they stand, so at any address.
        head: Words = np.ndarray((stop - start,), "<u8", data, start, (1,))
        tail: Words = np.ndarray((stop - start,), "<u4", data, start + 8, (1,))
        words = head * _MIX_A
        words ^= words >> np.uint64(32)
        words += tail.astype(np.uint64) * _MIX_B
        words *= _MIX_C
        words ^= words >> np.uint64(29)
        np.multiply(words, _MIX_A, out=hashes[start:stop])
    return hashes


class Sketches:
    """Samples of the validation documents, and the search for them in training text."""

    def __init__(self, folded: Iterable[bytes]) -> None:
        kept = [np.unique(window_hashes(data))[:SKETCH] for data in folded]
        documents = np.repeat(np.arange(len(kept)), [len(hashes) for hashes in kept])
        hashes = np.concatenate([*kept, np.zeros(0, np.uint64)])
        order = np.argsort(hashes, kind="stable")
        hashes, documents = hashes[order], documents[order]
        _, group, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        telling = counts[group] <= COMMON if hashes.size else np.zeros(0, np.bool_)
        self._hashes, self._documents = hashes[telling], documents[telling]
        self._sizes = np.bincount(self._documents, minlength=len(kept))
        # Few windows of a training text are in any sample: a table of one byte an entry tells most of them apart.
        self._bits = max(16, int(16 * max(1, self._hashes.size) - 1).bit_length())
        self._table = np.zeros(1 << self._bits, np.bool_)
        self._table[self._slots(self._hashes)] = True

    def _slots(self, hashes: Words) -> NDArray[np.int64]:
        return (hashes >> np.uint64(64 - self._bits)).astype(np.int64)

    def find(self, folded: Sequence[bytes], first: int) -> list[Near]:
        """Near duplicates in the training documents `folded`, the first of which is number `first`."""
        if not self._hashes.size:
            return []
        hashes = window_hashes(b"".join(folded))
        at = np.flatnonzero(self._table[self._slots(hashes)])
        place = np.searchsorted(self._hashes, hashes[at])
        exact = np.flatnonzero(self._hashes[np.minimum(place, self._hashes.size - 1)] == hashes[at])
        at, place = at[exact], place[exact]
        ends = np.cumsum([len(data) for data in folded])
        owner = np.searchsorted(ends, at, side="right")
        inside = at + WINDOW <= ends[owner] if at.size else np.zeros(0, np.bool_)
        return self._judge(owner[inside], place[inside], first)

    def _judge(self, owner: NDArray[Any], place: NDArray[Any], first: int) -> list[Near]:
        """Counts each window of a sample once in each training document."""
        pairs = np.unique(np.stack([owner, place]), axis=1) if owner.size else np.zeros((2, 0), np.int64)
        owner, place = pairs
        last = np.searchsorted(self._hashes, self._hashes[place], side="right")
        times = last - place
        entry = np.repeat(place - (np.cumsum(times) - times), times) + np.arange(int(times.sum()))
        both = np.stack([self._documents[entry], np.repeat(owner, times)])
        found, counts = np.unique(both, axis=1, return_counts=True)
        sizes = self._sizes[found[0]]
        close = np.flatnonzero((counts >= SHARE * sizes) & (sizes >= LEAST))
        return [Near(int(found[0, i]), int(found[1, i]) + first, float(counts[i] / sizes[i])) for i in close]
