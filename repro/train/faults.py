"""From an exception to what a record may say of it: one line, without paths of this machine."""

from __future__ import annotations

import errno
import re
import traceback
from pathlib import Path
from typing import Any

import torch

from repro.train.saving import SaveError


def failure(error: BaseException, root: Path) -> tuple[str, str]:
    """(status, reason) of an exception: class and message in one line, paths cut to their last part."""
    unsaved = isinstance(error, SaveError)
    if isinstance(error, SaveError):
        error = error.__cause__ or error
    text = " ".join(str(error).split())
    memory = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
        words in text for words in ("can't allocate memory", "not enough memory", "out of memory")
    )
    said = without_paths(f"{type(error).__name__}: {text}", root)
    if isinstance(error, ModuleNotFoundError) and error.name:
        said += f" (not installed: pip install {error.name.partition('.')[0].replace('_', '-')})"
    full_disk = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    reason = ("save_failed: " if unsaved or full_disk else "") + said[:500]
    return "oom" if memory else "failed", reason


_QUOTED = re.compile(r"""(['"])/[^'"]*/([^/'"]*)\1""")
_PATH = re.compile(r"(?:\b[a-z]+:/)?(?<!\w)/(?:[^/\s'\"()\[\]{}<>,;=]+/)+")


def without_paths(text: str, root: Path) -> str:
    """`text` with paths outside the checkout cut to their last part: they can name people and machines."""
    inside = text.replace(f"{root}/", "")
    return _PATH.sub("", _QUOTED.sub(r"\1\2\1", inside))


def log_traceback(log: Path) -> None:
    """Tracebacks go to the log only: they hold paths and values that no record should."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a", encoding="utf-8") as stream:
        traceback.print_exc(file=stream)


def failed_fields(reason: str) -> dict[str, Any]:
    """Status of a metric or check that could not be computed."""
    return {"status": "failed", "status_detail": {"step": None, "reason": reason}}
