"""Arithmetic that must not raise in the middle of a table."""

from __future__ import annotations

import math


def exp(value: float) -> float:
    """exp, with infinity where it overflows: a value of its own, which a record shows as null with a reason."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
