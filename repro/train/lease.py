"""One writer a run: a lock file in its folder, with the holder's job and a heartbeat.

On one machine the kernel decides (`flock`), and frees the lock with the process. Between machines a network file system
may not hand locks on, so the supervisor also touches the file every few seconds: a second process that gets the lock
watches it for a while, and leaves if it is touched. No clocks are compared, and nothing has to be cleaned up.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from repro.spec.errors import CannotWriteError, ReproError, problem_error

BEAT_SECONDS = 10.0
AGE_SECONDS = 90.0  # a lock that is not touched for so long is nobody's; above the minute that NFS keeps attributes
POLL_SECONDS = 1.0

# What file systems without such locks answer: then the heartbeat alone decides.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

Tell = Callable[[str], None]
Stop = Callable[[], bool]


def _me() -> dict[str, object]:
    return {"host": platform.node(), "job": os.environ.get("SLURM_JOB_ID"), "pid": os.getpid()}


@contextmanager
def lease(folder: Path, tell: Tell, stop: Stop = lambda: False) -> Iterator[bool]:
    """True if this process alone may train the run of `folder`; the lock goes with the process.

    Where the last holder was on another machine, this waits until its lock is old, seen to be alive, or `stop` says so.
    """
    path = folder / "lock"
    with _opened(path) as stream:
        locked = _lock(stream)
        if locked is False:
            yield False
            return
        other = _holder(path, here=locked is None)
        if other and _is_alive(path, other, tell, stop):
            yield False
            return
        mine = json.dumps(_me()) + "\n"
        stream.truncate(0)
        stream.write(mine)
        stream.flush()
        os.fsync(stream.fileno())
        if other and not _is_still(path, mine):
            yield False
            return
        try:
            yield True
        finally:
            _release(path, mine)


def _release(path: Path, mine: str) -> None:
    """A run that ended leaves no holder to wait for; what another process wrote meanwhile is not ours to clear."""
    with suppress(OSError):
        if path.read_text("utf-8") == mine:
            os.truncate(path, 0)


def _opened(path: Path) -> IO[str]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "a+")
    except OSError as error:
        raise _cannot(path, error) from None


def _cannot(path: Path, error: OSError) -> ReproError:
    folder = path.parent
    return problem_error(CannotWriteError, f"{folder.parent.name}/{folder.name}", "lock", str(error.strerror))


def _lock(stream: IO[str]) -> bool | None:
    """Whether the kernel gives us the lock; None where the file system has no locks."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        raise _cannot(Path(stream.name), error) from None
    return True


def _holder(path: Path, here: bool) -> str | None:
    """The job of a holder on another machine, or `here` too, in words; None where there is none."""
    try:
        holder = json.loads(path.read_text("utf-8"))
        return None if holder["host"] == platform.node() and not here else f"job {holder.get('job')}"
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _is_alive(path: Path, holder: str, tell: Tell, stop: Stop) -> bool:
    """Whether the lock is touched while we look at it; one that we may not watch to the end may be."""
    first, end = _touched(path), time.monotonic() + AGE_SECONDS
    tell(f"its lock is held by another process ({holder}); watching it for up to {AGE_SECONDS:.0f} s")
    while time.monotonic() < end:
        time.sleep(POLL_SECONDS)
        if stop() or _touched(path) != first:
            return True
    tell(f"its lock was not touched for {AGE_SECONDS:.0f} s: taken over")
    return False


def _is_still(path: Path, mine: str) -> bool:
    """Whether nobody on a third machine took the same lock over at the same time: the last to write has it."""
    time.sleep(2 * POLL_SECONDS)
    return path.read_text("utf-8") == mine


def _touched(path: Path) -> int:
    """Time of change, asked of the file server: opening a file revalidates what NFS remembers of it."""
    with open(path) as stream:
        return os.fstat(stream.fileno()).st_mtime_ns


def beat(folder: Path, pid: int) -> bool:
    """Says that the holder, process `pid` of this machine, is alive; False where another one has taken the lock over.

    A disk that says no ends no training.
    """
    path = folder / "lock"
    with suppress(OSError, ValueError, TypeError, KeyError):
        holder = json.loads(path.read_text("utf-8"))
        if (holder["host"], holder["pid"]) != (platform.node(), pid):
            return False
        os.utime(path)
    return True
