"""Standard output: JSON lines or plain columns, never both."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from repro.spec.errors import printable


def emit(value: Any) -> None:
    """One JSON document on one line; NaN and infinities are a ValueError."""
    print(json.dumps(value, allow_nan=False))


def columns(rows: Iterable[Sequence[object]], header: Sequence[str]) -> None:
    """Left-aligned columns for people."""
    texts = [[printable(str(cell)) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in texts) for i in range(len(header))]
    for row in texts:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def say(text: str) -> None:
    """A message for people, on standard error."""
    print(text, file=sys.stderr)
