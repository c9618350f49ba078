"""Free room, asked for before anything is written, on each file system that is written to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from repro.spec.errors import CannotWriteError, Problem, problem_error
from repro.spec.paths import Root

SPARE_BYTES = 16 << 20  # left on each disk beyond what is needed


def check_space(root: Root, needs: Iterable[tuple[Path, float]]) -> None:
    """CannotWriteError if the bytes to be written below the folders do not fit on the file systems they lie on.

    Folders on one file system are added up; each is made if it is not there (CannotWriteError if it cannot be).
    """
    wanted: dict[int, tuple[Path, float]] = {}
    for folder, needed in needs:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            device = os.stat(folder).st_dev
        except OSError as error:
            raise problem_error(CannotWriteError, root.shown(folder), "", f"{error.strerror}") from None
        place, before = wanted.get(device, (folder, 0.0))
        wanted[device] = (place, before + needed)
    problems = [problem for place, needed in wanted.values() if (problem := _too_full(root, place, needed))]
    if problems:
        raise CannotWriteError(problems)


def _too_full(root: Root, place: Path, needed: float) -> Problem | None:
    free = shutil.disk_usage(place).free
    if free >= needed + SPARE_BYTES:
        return None
    message = f"about {(needed + SPARE_BYTES) / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free"
    return Problem(root.shown(place), None, "disk", message)
