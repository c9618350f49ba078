"""Several processes on one job after another, such that the death of any of them is an error with a reason.

Processes are spawned, not forked: nothing of the parent (threads, locks, open files) comes with them. A worker
ends with its parent, however that one dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import multiprocessing
import os
import signal
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from repro.spec.errors import CannotWriteError, ReproError, StoppedError, problem_error

MAX_WORKERS = 64
Job = Callable[[Any], Any]


class Maker(NamedTuple):
    """What a worker does: `make(*arguments)` is called once in each process and gives the function for every task."""

    make: Callable[..., Job]
    arguments: tuple[Any, ...]


class _Failure(NamedTuple):
    """An exception on its way to the parent: those of other libraries may not survive a pickle."""

    kind: type[ReproError] | None
    problems: tuple[Any, ...]
    number: int | None
    text: str

    def error(self, file: str) -> Exception:
        """The exception to raise in the parent."""
        if self.kind is not None:
            return self.kind(self.problems)
        if self.number is not None:
            return OSError(self.number, self.text)
        return RuntimeError(f"a worker failed at {file}:\n{self.text}")


def available_cores() -> int:
    """Cores that this process may use: a job of a cluster rarely has all of its machine."""
    return min(MAX_WORKERS, len(os.sched_getaffinity(0)))


def run(maker: Maker, tasks: Iterable[Any], workers: int, what: str) -> Iterator[Any]:
    """Results of all `tasks`, as they come; one worker, or the worker of a single task, is this process itself.

    `what` names the work in messages.

    Raises what a task raised (ReproError, OSError), or StoppedError if a worker was killed. All workers have ended
    when this returns or raises.
    """
    waiting = iter(tasks)
    first = list(islice(waiting, 2))
    tasks = chain(first, waiting)
    if workers <= 1 or len(first) < 2:
        job = maker.make(*maker.arguments)
        yield from map(job, tasks)
        return
    with contextlib.closing(_Pool(maker, workers, what)) as pool:
        yield from pool.run(tasks)


class _Pool:
    """Processes with one pipe each; a process is started when there is a task for it."""

    def __init__(self, maker: Maker, size: int, what: str) -> None:
        self.maker, self.size, self.what = maker, size, what
        self.context = multiprocessing.get_context("spawn")
        self.workers: dict[Connection, Any] = {}
        self.busy: set[Connection] = set()

    def run(self, tasks: Iterator[Any]) -> Iterator[Any]:
        """Hands out tasks, one to a worker; reads the source no further than the workers are."""
        for task in tasks:
            idle = next((pipe for pipe in self.workers if pipe not in self.busy), None)
            if idle is None and len(self.workers) < self.size:
                idle = self._start()
            while idle is None:
                yield self._result()
                idle = next((pipe for pipe in self.workers if pipe not in self.busy), None)
            self._send(idle, task)
        while self.busy:
            yield self._result()

    def _start(self) -> Connection:
        ours, theirs = self.context.Pipe()
        arguments = (theirs, self.maker, os.getpid())
        process = self.context.Process(target=_serve, args=arguments, daemon=True)
        with _no_main_module():
            process.start()
        theirs.close()
        self.workers[ours] = process
        return ours

    def _send(self, pipe: Connection, task: Any) -> None:
        try:
            pipe.send(task)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise
            raise self._death(pipe) from None
        self.busy.add(pipe)

    def _result(self) -> Any:
        """The next result; a pipe that closes without one is a dead worker."""
        pipe = next(found for found in wait(list(self.busy)) if isinstance(found, Connection))
        try:
            result = pipe.recv()
        except (EOFError, OSError):
            raise self._death(pipe) from None
        self.busy.discard(pipe)
        if isinstance(result, _Failure):
            raise result.error(self.what)
        return result

    def _death(self, pipe: Connection) -> ReproError:
        process = self.workers[pipe]
        process.join(5)
        code = process.exitcode
        how = (
            f"was killed by signal {-code} ({_signal_name(-code)})" if code and code < 0 else f"ended with code {code}"
        )
        hint = "; the system does that when memory runs out" if code == -signal.SIGKILL else ""
        message = f"a worker process {how}{hint}. What was finished is kept: call again to go on"
        return problem_error(StoppedError, self.what, "", message)

    def close(self) -> None:
        """Ends all processes, at once: what they have finished is on disk, what they have not is void."""
        for pipe, process in self.workers.items():
            process.kill()
            pipe.close()
        for process in self.workers.values():
            process.join()


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Keeps a new process from importing the program that was started: nothing of it is needed, and it costs time."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _serve(pipe: Connection, maker: Maker, parent: int) -> None:
    """Body of a worker: task in, result out, until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    with contextlib.suppress(OSError, AttributeError):  # not on Linux: the closed pipe ends it a task later
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        return
    job: Job | None = None
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task = pipe.recv()
            try:
                job = job or maker.make(*maker.arguments)
                result = job(task)
            except Exception as error:  # all of them are the parent's to tell
                result = _failure(error)
            pipe.send(result)


def _failure(error: Exception) -> _Failure:
    if isinstance(error, ReproError):
        return _Failure(type(error), tuple(error.problems), None, "")
    if isinstance(error, OSError) and error.errno:
        return _Failure(None, (), error.errno, error.strerror or str(error))
    if isinstance(error, MemoryError):
        return _Failure(CannotWriteError, tuple(_out_of_memory().problems), None, "")
    return _Failure(None, (), None, traceback.format_exc())


def _out_of_memory() -> ReproError:
    return problem_error(CannotWriteError, "worker", "memory", "is used up; use fewer workers")
