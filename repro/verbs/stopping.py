"""A signal that comes before anything is under way; small, so that it stands before the rest is imported."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

STOPPED = 75  # StoppedError's exit code, whose module is not imported yet


def stop_at_once() -> None:
    """From here on a signal to stop ends this process in order; the trainer puts its own handlers over these.

    SystemExit, which no handling of a fault on the way out takes for one.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, _stop)


def _stop(number: int, _: FrameType | None) -> None:
    os.write(sys.stderr.fileno(), f"stopped by {signal.Signals(number).name}: the same command goes on\n".encode())
    sys.exit(STOPPED)
