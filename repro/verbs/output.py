"""Standard output: JSON lines or plain columns, never both."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from repro.spec.lines import aligned


def emit(value: Any) -> None:
    """One JSON document on one line; NaN and infinities are a ValueError."""
    print(json.dumps(value, allow_nan=False))


def columns(rows: Iterable[Sequence[object]], header: Sequence[str]) -> None:
    """Left-aligned columns for people."""
    for line in aligned(rows, header):
        print(line)


def say(text: str) -> None:
    """A message for people, on standard error."""
    print(text, file=sys.stderr)
