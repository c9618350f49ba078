"""A method's file is foreign code: whatever it raises becomes one line, and only the user's own Ctrl-C goes through."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Fault(Exception):
    """What foreign code did wrong, in one line."""


def said(error: BaseException) -> str:
    """One line about an error, also about one that cannot say what it is."""
    try:
        first = next(iter(str(error).splitlines()), "")
    except Exception:
        first = "(its message cannot be read)"
    return f"{type(error).__name__}: {first}"


@contextmanager
def told() -> Iterator[None]:
    """Raises Fault for all that is raised inside; KeyboardInterrupt only where Ctrl-C was pressed."""
    pressed: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        signal.default_int_handler(number, frame)

    # Only Python's own handler is replaced: where another one stands, Ctrl-C is somebody else's business. Where it is
    # ignored (a job in the background) nobody can have pressed it.
    standing = signal.getsignal(signal.SIGINT)
    ours = threading.current_thread() is threading.main_thread() and standing is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Fault:
        raise
    except BaseException as error:
        if pressed or (isinstance(error, KeyboardInterrupt) and not ours and standing is not signal.SIG_IGN):
            raise KeyboardInterrupt from None
        raise Fault(said(error)) from None
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
