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
from repro.spec.model import MAX_NUMBER, Float, Int, Name, Strict, Text, rounded, whole
from repro.spec.values import ValueInfo

MAX_WHOLE = 10**7  # of a size or a count; far beyond any machine here
FOLDER = Path(__file__).resolve().parents[1] / "theory" / "checks"


class CheckInfo(Strict):
    """The literal INFO of a check's file.

    `params` are its settings at full size, which experiments and tiers replace by name, with values of the same kind
    (`like_default`); `words` names all that a parameter of text may be, `may_be_empty` lists that may hold nothing.
    `seconds` and `memory_gb` are what one record takes at full size on one thread.
    """

    title: Text
    says: Text
    ref: Text
    rules: Annotated[Int, Field(ge=1)]
    params: dict[Name, Any] = {}
    words: dict[Name, list[Text]] = {}
    may_be_empty: list[Name] = []
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

    Raises ValueError for a name that the check does not have and for a value that it cannot work with.
    """
    defaults = check.info.params
    params = dict(defaults)
    for change in changes:
        for key, value in change.items():
            if key not in defaults:
                raise ValueError(f"{shown(key)} is no parameter of {check.name}{suggest(key, defaults)}")
            params[key] = _allowed(check.info, key, value)
    return params


def _allowed(info: CheckInfo, key: str, value: Any) -> Any:
    """`value` as the default's kind, with what the check's INFO says of it beyond that; raises ValueError."""
    if value == [] and key in info.may_be_empty:
        return []
    found = like_default(key, value, info.params[key])
    for word in found if isinstance(found, list) else [found]:
        if key in info.words and word not in info.words[key]:
            raise ValueError(f"{key}: {shown(word)} is not known{suggest(word, info.words[key])}")
    return found


def like_default(key: str, value: Any, default: Any) -> Any:
    """`value` in the type and the range of `default`; raises ValueError.

    A whole number may stand for a float, `1e3` for a whole number. What is above 0 by default stays above 0, as
    every size and count is; a list keeps something in it, no item twice, each like the least of the default's.
    """
    if isinstance(default, list) and isinstance(value, list) and default:
        return _items(key, value, min(default))
    number = _number(value, default)
    if type(number) is not type(default):
        raise ValueError(f"{key}: {shown(value)} is not of type {type(default).__name__}, as {default!r} is")
    if type(default) in (int, float) and not _in_range(number, default):
        least = "0 or more" if default == 0 else "1 or more" if isinstance(default, int) else "above 0"
        most = f", {MAX_WHOLE} at most," if isinstance(default, int) else ""
        raise ValueError(f"{key}: {shown(value)} is out of range: {least}{most} is expected, as {default!r} is")
    return number


def _in_range(number: float, default: float) -> bool:
    above = number >= 0 if default == 0 else number > 0 or default < 0
    return above and number <= (MAX_WHOLE if isinstance(default, int) else MAX_NUMBER)


def _items(key: str, values: list[Any], least: Any) -> list[Any]:
    if not values:
        raise ValueError(f"{key}: needs an item at least")
    read = _row if isinstance(least, list) else like_default  # a row may repeat a number
    items = [read(f"{key}.{place}", item, least) for place, item in enumerate(values)]
    doubled = [item for place, item in enumerate(items) if item in items[:place]]
    if doubled:
        raise ValueError(f"{key}: names {shown(doubled[0])} twice")
    return items


def _row(key: str, row: Any, default: list[Any]) -> list[Any]:
    if not isinstance(row, list) or len(row) != len(default):
        raise ValueError(f"{key}: {shown(row)} is no list of {len(default)}, as {default!r} is")
    return [like_default(f"{key}.{place}", item, default[place]) for place, item in enumerate(row)]


def _number(value: Any, default: Any) -> Any:
    """`value` as the kind of number that `default` is, where it stands for one; else as it is."""
    try:
        return whole(value) if type(default) is int else rounded(value) if type(default) is float else value
    except ValueError:
        return value
