"""The ratios: each a function with an id, found in the modules of this package.

A new ratio is a function in any module here with `@ratio("P99", ...)` above it; nothing else is edited.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.bench.measure import NotEqualError, Progress, Row, absent, versions_of
from repro.spec.paths import Root


@dataclass
class Session:
    """One call of the verb: the checkout that is measured, a folder to build situations in, what was asked for.

    `shared` lets ratios that need the same long series take it once.
    """

    root: Root
    folder: Path
    ids: tuple[str, ...]
    tell: Progress
    shared: dict[str, Any] = field(default_factory=dict)


Measure = Callable[[Session], list[Row]]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A registered ratio; `packages` are what its peer needs."""

    id: str
    title: str
    packages: tuple[str, ...]
    measure: Measure


_RATIOS: dict[str, Ratio] = {}


def ratio(identity: str, title: str, packages: tuple[str, ...] = ()) -> Callable[[Measure], Measure]:
    """Registers a function that measures one ratio (it may return several rows of one id)."""

    def register(measure: Measure) -> Measure:
        _RATIOS[identity] = Ratio(identity, title, packages, measure)
        return measure

    return register


def ratios() -> dict[str, Ratio]:
    """All ratios by id, P1 before P10."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"repro.bench.{module.name}")
    return dict(sorted(_RATIOS.items(), key=lambda item: (len(item[0]), item[0])))


def rows_of(one: Ratio, session: Session) -> list[Row]:
    """Measures one ratio. An absent peer is a row with `ok` None, unequal work one with `ok` False."""
    missing = absent(one.packages)
    if missing:
        return [_empty(one, None, f"not installed: {', '.join(missing)}")]
    try:
        return one.measure(session)
    except NotEqualError as error:
        return [_empty(one, False, str(error))]


def _empty(one: Ratio, ok: bool | None, detail: str) -> Row:
    present = [name for name in one.packages if not absent([name])]
    return Row(one.id, one.title, None, None, None, None, ok, "", versions_of(present), detail=detail)
