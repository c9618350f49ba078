"""Tasks for worker processes of the tests: in a module of its own, as a worker imports what it is given."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from repro.spec.errors import MissingError, Problem


def maker(kind: str) -> Callable[[int], int]:
    """Squares numbers, and ends in the way of `kind` at task 3."""

    def job(task: int) -> int:
        if task != 3:
            return task * task
        if kind == "refuses":
            raise MissingError([Problem("here", None, "", "nothing")])
        if kind == "full":
            raise OSError(28, "No space left on device")
        if kind == "faulty":
            raise ZeroDivisionError("here")
        os.kill(os.getpid(), {"killed": signal.SIGKILL, "terminated": signal.SIGTERM}[kind])
        return 0

    return job
