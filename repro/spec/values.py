"""What a protocol or a check says of each number that it makes."""

from __future__ import annotations

from typing import Literal

from repro.spec.model import Strict, Text


class ValueInfo(Strict):
    """Unit of one value, and which way is better; `none` for what only describes."""

    unit: Text
    better: Literal["lower", "higher", "none"]
