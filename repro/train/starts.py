"""Starts of a run, in a file of its folder: when, from which step, and whether a start ended in words of its own.

A start that a signal, a node or a crash ended says nothing. Many in a row from one checkpoint are a run that dies by
itself, whoever starts it.
"""

from __future__ import annotations

import time
from itertools import takewhile
from pathlib import Path

STARTS_ALLOWED = 5  # from one and the same checkpoint, without a word at their end
_ENDED = "ended"


def _lines(folder: Path) -> list[str]:
    path = folder / "starts"
    return [line.split()[-1] for line in path.read_text("ascii").splitlines()] if path.is_file() else []


def _append(folder: Path, word: str) -> None:
    with open(folder / "starts", "a", encoding="ascii") as stream:
        stream.write(f"{int(time.time())} {word}\n")


def note_start(folder: Path, step: int) -> tuple[int, int]:
    """Notes one more start, from `step`: how many there have been, and how many in a row from there without a word."""
    _append(folder, str(step))
    return count_starts(folder), len(list(takewhile(str(step).__eq__, reversed(_lines(folder)))))


def note_end(folder: Path) -> None:
    """The last start came to an end of its own: a record, an error told to the user, a stop between two steps."""
    _append(folder, _ENDED)


def count_starts(folder: Path) -> int:
    """How many starts there have been."""
    return sum(word != _ENDED for word in _lines(folder))
