"""What one protocol or check found: the numbers of an eval or check record before they are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Measured:
    """Numbers of one protocol: {value name: number}, the count they are made of, and what else must be said."""

    values: dict[str, float]
    n: int
    details: dict[str, Any] = field(default_factory=dict)
