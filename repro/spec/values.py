"""What a protocol or a check says of each number that it makes."""

from __future__ import annotations

from typing import Literal

from repro.spec.model import Float, Strict, Text

ROUND_OFF = 1e-9  # of a mean that may stand at the end of its span


class ValueInfo(Strict):
    """Unit of one value, which way is better (`none` for what only describes), and the span that it cannot leave."""

    unit: Text
    better: Literal["lower", "higher", "none"]
    low: Float | None = None
    high: Float | None = None

    def holds(self, value: float) -> bool:
        """Whether a number is one that this value can have."""
        above = self.low is None or value >= self.low - ROUND_OFF
        return above and (self.high is None or value <= self.high + ROUND_OFF)

    @property
    def span(self) -> str:
        """The numbers that it can have, in words."""
        low, high = ("" if end is None else f"{end:g}" for end in (self.low, self.high))
        return f"{low}..{high}"
