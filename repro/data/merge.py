"""Which documents stay, and the two token files out of all shards: the same bytes whoever tokenised them.

Copies are found by partitions of the hash, so what has to be in memory is one byte a document, one partition, and
the validation documents; neither the text nor all hashes at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repro.data.packed import TokenFile, TokenWriter
from repro.data.shards import EMPTY, HELD_OUT, ROW, TRAIN, Done, Rows, read_rows, token_shard

_PARTITION = 2_000_000  # documents whose hashes are compared together


@dataclass
class Selection:
    """The verdict on each document, counted over all units in order, and what the manifest says of them.

    `train` is number, bytes of text and hash over the sorted hashes of the training documents; `held` are the rows
    of the validation documents, sorted by hash, and `held_at` their numbers.
    """

    keep: NDArray[np.bool_]
    firsts: list[int]
    train: tuple[int, int, str] = (0, 0, "")
    held: Rows = field(default_factory=lambda: np.zeros(0, ROW))
    held_at: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    duplicates: int = 0
    empty: int = 0
    folded: int = 0

    @property
    def val(self) -> tuple[int, int, str]:
        """As `train`, of the validation documents."""
        sha256 = hashlib.sha256(self.held["digest"].tobytes()).hexdigest()
        return len(self.held), int(self.held["bytes"].sum()), sha256

    def drop(self, places: set[int]) -> None:
        """Takes away validation documents, by place in `held`, that equal training text but for case and blanks."""
        stay = np.ones(len(self.held), np.bool_)
        stay[sorted(places)] = False
        self.folded += len(places)
        self.held, self.held_at = self.held[stay], self.held_at[stay]


def select(folder: Path, units: Sequence[Done], partition: int = _PARTITION) -> Selection:
    """The first of equal documents stays, empty ones do not."""
    counts = [unit.documents for unit in units]
    total = sum(counts)
    firsts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)[:-1].tolist()
    chosen = Selection(np.ones(total, np.bool_), firsts)
    edges = _edges(max(1, -(-total // partition)))
    cuts = [_cuts(read_rows(folder, unit.number)["digest"], edges) for unit in units]
    train_hash, held, held_at = hashlib.sha256(), [], []
    train_count = train_bytes = 0
    for part in range(len(edges) - 1):
        rows, at = _partition(folder, units, firsts, cuts, part)
        chosen.keep[at[rows["kind"] == EMPTY]] = False
        full = rows["kind"] != EMPTY
        chosen.empty += int((~full).sum())
        rows, at = rows[full], at[full]
        order = np.argsort(rows["digest"], kind="stable")
        rows, at = rows[order], at[order]
        again = np.zeros(len(rows), np.bool_)
        again[1:] = rows["digest"][1:] == rows["digest"][:-1]
        chosen.keep[at[again]] = False
        chosen.duplicates += int(again.sum())
        train, kept = (rows["kind"] == TRAIN) & ~again, (rows["kind"] == HELD_OUT) & ~again
        train_hash.update(rows["digest"][train].tobytes())
        train_count, train_bytes = train_count + int(train.sum()), train_bytes + int(rows["bytes"][train].sum())
        held.append(rows[kept])
        held_at.append(at[kept])
    chosen.held, chosen.held_at = np.concatenate(held), np.concatenate(held_at)
    chosen.train = (train_count, train_bytes, train_hash.hexdigest())
    return chosen


def _edges(parts: int) -> list[bytes]:
    """Borders of equal ranges of the first eight bytes of a hash; the last lies beyond all."""
    return [(number * (1 << 64) // parts).to_bytes(9, "big")[1:] for number in range(parts)] + [b"\xff" * 33]


def _cuts(digests: NDArray[Any], edges: list[bytes]) -> list[int]:
    places = np.searchsorted(digests, np.array(edges[1:-1], "S32")).tolist() if len(edges) > 2 else []
    return [0, *places, len(digests)]


def _partition(
    folder: Path, units: Sequence[Done], firsts: list[int], cuts: list[list[int]], part: int
) -> tuple[Rows, NDArray[np.int64]]:
    """Rows of one partition over all units in order, and the number of each document."""
    pieces = [read_rows(folder, unit.number, *cut[part : part + 2]) for unit, cut in zip(units, cuts, strict=True)]
    at = [piece["place"].astype(np.int64) + first for piece, first in zip(pieces, firsts, strict=True)]
    return np.concatenate(pieces), np.concatenate(at)


def write_splits(
    folder: Path, units: Sequence[Done], chosen: Selection, train: TokenWriter, spool: TokenWriter
) -> NDArray[np.int64]:
    """Training documents in the order of the source into `train`, the others into `spool`; where each begins there.

    Returns int64 [documents of the source + 1]; the entry of a document that is not in the spool means nothing.
    """
    starts = np.zeros(len(chosen.keep) + 1, np.int64)
    for unit, first in zip(units, chosen.firsts, strict=True):
        rows = read_rows(folder, unit.number)
        rows = rows[np.argsort(rows["place"])]
        kept = chosen.keep[first : first + len(rows)]
        sizes = rows["tokens"].astype(np.int64)
        with TokenFile.open(token_shard(folder, unit.number), verify=False) as tokens:
            ids = tokens.read(0, tokens.header.count)
        train.append(ids[np.repeat(kept & (rows["kind"] == TRAIN), sizes)])
        held = kept & (rows["kind"] == HELD_OUT)
        starts[first : first + len(rows)][held] = spool.tokens_appended + np.cumsum(sizes[held]) - sizes[held]
        spool.append(ids[np.repeat(held, sizes)])
    return starts
