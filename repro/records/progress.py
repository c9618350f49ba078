"""What is being trained right now: a small file a run in scratch/, rewritten every few seconds by its supervisor."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from repro.records.store import replace_text
from repro.spec.errors import CannotWriteError
from repro.spec.paths import Root

EVERY = 5.0  # seconds between two notes of one run
SILENT = 60.0  # seconds after which a run without a new note is said to be silent


@dataclass(frozen=True, slots=True)
class Note:
    """Where a run was at `time` (seconds since 1970); `rate` in steps a second since its last start."""

    id: str
    alias: str
    step: int
    steps: int
    rate: float
    time: float

    @property
    def age(self) -> float:
        """Seconds since it was written."""
        return max(0.0, time.time() - self.time)


def _path(root: Root, identity: str) -> Path:
    return root.scratch / "progress" / f"{identity}.json"


def write_note(root: Root, note: Note) -> None:
    """Replaces the run's note. A disk that says no ends no training: then there is no note."""
    with suppress(CannotWriteError, OSError):
        replace_text(_path(root, note.id), json.dumps(asdict(note)) + "\n")


def drop_note(root: Root, identity: str) -> None:
    """Forgets a run that has ended."""
    with suppress(OSError):
        _path(root, identity).unlink(missing_ok=True)


def read_notes(root: Root) -> Iterator[Note]:
    """All notes that can be read, by id; one that is being replaced or is broken is left out."""
    for path in sorted((root.scratch / "progress").glob("*.json")):
        try:
            raw = json.loads(path.read_text("utf-8"))
            step, steps, rate, when = int(raw["step"]), int(raw["steps"]), float(raw["rate"]), float(raw["time"])
            yield Note(str(raw["id"]), str(raw["alias"]), step, steps, rate, when)
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            continue
