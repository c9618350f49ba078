"""Which recorded failures are to be tried again. A wish is good for one more attempt, and lies in scratch/.

Records are never changed: the attempt that follows is a record of its own, which names the one that it supersedes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from repro.records.store import replace_text
from repro.spec.paths import Root


def retries_path(root: Root) -> Path:
    """The file with all wishes."""
    return root.scratch / "retry.json"


def read_retries(root: Root) -> dict[str, int]:
    """{id of a record: its attempt that is to be superseded}; empty where nothing, or nothing readable, is there."""
    try:
        found = json.loads(retries_path(root).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(key): value for key, value in found.items() if isinstance(value, int)}


def add_retries(root: Root, wishes: Mapping[str, int]) -> None:
    """Adds wishes to those that are there; raises CannotWriteError."""
    replace_text(retries_path(root), json.dumps(read_retries(root) | dict(wishes), indent=1, sort_keys=True) + "\n")
