"""The registry of theory checks: one file each in repro/theory/checks, known without running any of them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from repro.spec.errors import shown, suggest
from repro.spec.literal import read_info
from repro.spec.model import Float, Int, Name, Strict, Text
from repro.spec.values import ValueInfo

FOLDER = Path(__file__).resolve().parents[1] / "theory" / "checks"


class CheckInfo(Strict):
    """The literal INFO of a check's file.

    `params` are its settings at full size, which experiments and tiers replace by name; `seconds` and `memory_gb`
    are what one record takes at full size on one thread.
    """

    title: Text
    says: Text
    ref: Text
    rules: Annotated[Int, Field(ge=1)]
    params: dict[Name, Any] = {}
    values: Annotated[dict[Name, ValueInfo], Field(min_length=1)]
    seconds: Annotated[Float, Field(gt=0)] = 30.0
    memory_gb: Annotated[Float, Field(gt=0)] = 3.0


@dataclass(frozen=True, slots=True)
class Check:
    """One file of the registry."""

    name: str
    info: CheckInfo

    @property
    def id(self) -> str:
        """Name with its rules version: numbers are comparable within one id only."""
        return f"{self.name}.v{self.info.rules}"


def _read() -> dict[str, Check]:
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        if path.name != "__init__.py":
            file = f"repro/theory/checks/{path.name}"
            found[path.stem] = Check(path.stem, read_info(ast.parse(path.read_text("utf-8")), file, CheckInfo))
    return found


CHECKS: dict[str, Check] = _read()


def with_params(check: Check, *changes: Mapping[str, Any]) -> dict[str, Any]:
    """The check's parameters with `changes` laid over them in order.

    Raises ValueError for a name that the check does not have and for a value of another type than the default's.
    """
    params = dict(check.info.params)
    for change in changes:
        for key, value in change.items():
            if key not in params:
                raise ValueError(f"{shown(key)} is no parameter of {check.name}{suggest(key, params)}")
            params[key] = like_default(key, value, params[key])
    return params


def like_default(key: str, value: Any, default: Any) -> Any:
    """`value` in the type of `default`; raises ValueError. A whole number may stand for a float."""
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(default, list) and isinstance(value, list) and default:
        return [like_default(f"{key}.{place}", item, default[0]) for place, item in enumerate(value)]
    if type(value) is not type(default):
        raise ValueError(f"{key}: {shown(value)} is not of type {type(default).__name__}, as {default!r} is")
    return value
