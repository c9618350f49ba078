"""Types that every specification is made of: closed, frozen, and with no silent conversion."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, StrictBool, StringConstraints

MAX_NUMBER = 1e300  # far beyond any quantity here, and safely within a float
NAME_PATTERN = r"^[a-z][a-z0-9_]{0,40}$"


class Strict(BaseModel):
    """Unknown keys are refused, values are fixed once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _number(value: object) -> int | float:
    """Text and booleans never count as numbers: `"1e-4"` and `true` are refused, not converted."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("a number is expected, without quotes")
    if abs(value) > MAX_NUMBER or math.isnan(value):
        raise ValueError("a finite number is expected")
    return value


def whole(value: object) -> int | float:
    """`1e5` is a whole number, `1.5` is not."""
    number = _number(value)
    if isinstance(number, float):
        if not number.is_integer():
            raise ValueError("a whole number is expected")
        return int(number)
    return number


def rounded(value: object) -> float:
    """12 significant digits, so that 0.1 * 3 and 0.3 are one value with one identity."""
    return float(f"{_number(value):.12g}") + 0.0  # which makes -0.0 the same zero


Bool = StrictBool  # the words and numbers that pydantic would convert are refused: "yes", "1", 0
Int = Annotated[int, BeforeValidator(whole)]
Float = Annotated[float, BeforeValidator(rounded)]
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, strict=True)]
Text = Annotated[str, StringConstraints(max_length=2000, strict=True)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$", strict=True)]
