"""What a user can do wrong, said once: file, line, key, message, and an exit code."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_SHOWN = 80  # characters of a user's own text that a message repeats


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing wrong with one input; `str()` is `file:line: key: message`."""

    file: str
    line: int | None
    key: str
    message: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return printable(": ".join(part for part in (place, self.key, self.message) if part))


class ReproError(Exception):
    """A user can cause this: it is shown as a list of problems, never as a traceback."""

    exit_code = 64

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = sorted(set(problems), key=lambda p: (p.file, p.line or 0, p.key, p.message))
        super().__init__("\n".join(str(problem) for problem in self.problems))


class ConfigError(ReproError):
    """Configuration or usage error."""

    exit_code = 64


class BadDataError(ReproError):
    """Data or a record that is not what it says."""

    exit_code = 65


class MissingError(ReproError):
    """Something needed is not there: data not fetched, no such device, no package."""

    exit_code = 69


class CannotWriteError(ReproError):
    """The disk is full or the place is read-only."""

    exit_code = 73


class StoppedError(ReproError):
    """Stopped before the end and can go on: deadline, preemption, another writer at work."""

    exit_code = 75


def problem_error(cls: type[ReproError], file: str, key: str, message: str, line: int | None = None) -> ReproError:
    """An error of class `cls` that holds one problem."""
    return cls([Problem(file, line, key, message)])


# What the system says of a path that somebody named, and of a place that takes no more.
_NAMED = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM)
)
_FULL = frozenset((errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def of_system(error: OSError) -> ReproError:
    """The system's refusal, which no verb foresaw, as a problem; raises any other than one of path or space anew."""
    if error.errno not in _NAMED | _FULL:
        raise error
    cls = CannotWriteError if error.errno in _FULL else ConfigError
    file = "" if error.filename is None else shown(str(error.filename))
    return problem_error(cls, file, "", f"cannot be used ({error.strerror})")


def printable(text: str) -> str:
    """`text` on one line, without signs that a terminal would act on."""
    return text if text.isprintable() else "".join(ch if ch.isprintable() else "?" for ch in text)


def shown(value: object) -> str:
    """A user's value as it may stand in a message: one line, printable, short."""
    text = printable(value if isinstance(value, str) else repr(value))
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def suggest(word: object, known: Iterable[str]) -> str:
    """`; did you mean "x"? known: a, b, c`, the first part only where a name is near."""
    names = sorted(known)
    near = difflib.get_close_matches(str(word)[:100].casefold(), names, n=1, cutoff=0.6)
    hint = f'; did you mean "{near[0]}"?' if near else ";"
    return f"{hint} known: {', '.join(names)}"
