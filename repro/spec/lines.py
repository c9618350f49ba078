"""Rows as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from repro.spec.errors import printable


def aligned(rows: Iterable[Sequence[object]], header: Sequence[str]) -> list[str]:
    """Left-aligned columns for people, the header first."""
    texts = [[printable(str(cell)) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in texts) for i in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in texts]
