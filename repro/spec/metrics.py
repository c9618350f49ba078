"""The registry of metrics: one file each in repro/evaluate/protocols, known without running any of them.

A protocol fixes all that changes a number and makes one or more values of it; experiments ask for protocols,
tables and claims speak of values.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from repro.spec.checks import CHECKS, Check
from repro.spec.literal import read_info
from repro.spec.model import Int, Name, Strict, Text
from repro.spec.values import ValueInfo

Folder = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,80}$", strict=True)]
FOLDER = Path(__file__).resolve().parents[1] / "evaluate" / "protocols"


class ProtocolInfo(Strict):
    """The literal INFO of a metric's file; `options` is what else fixes the numbers, `rules` their version.

    `task` is the kind of run that it measures. `needs` names what has to be fetched before anything can be measured:
    folders of scratch/fetched.
    """

    title: Text
    says: Text
    rules: Annotated[Int, Field(ge=1)]
    values: Annotated[dict[Name, ValueInfo], Field(min_length=1)]
    options: dict[Name, Any] = {}
    needs: list[Folder] = []
    task: Literal["lm", "forecast", "classify", "flow"] = "lm"


@dataclass(frozen=True, slots=True)
class Protocol:
    """One file of the registry."""

    name: str
    info: ProtocolInfo

    @property
    def id(self) -> str:
        """Name with its rules version: numbers are comparable within one id only."""
        return f"{self.name}.v{self.info.rules}"


@dataclass(frozen=True, slots=True)
class Metric:
    """One value of a protocol or of a check, by the name that records, tables and claims use.

    `family` is the protocol's or the check's name; a check's values stand in the run's own record.
    """

    name: str
    unit: str
    better: Literal["lower", "higher", "none"]
    family: str
    protocol: str
    checked: bool


def _protocols() -> dict[str, Protocol]:
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        if path.name != "__init__.py":
            file = f"repro/evaluate/protocols/{path.name}"
            found[path.stem] = Protocol(path.stem, read_info(ast.parse(path.read_text("utf-8")), file, ProtocolInfo))
    return found


def _metrics() -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    makers: list[Protocol | Check] = [*PROTOCOLS.values(), *CHECKS.values()]
    for maker in makers:
        for name, value in maker.info.values.items():
            if name in found:
                raise ValueError(f"two metrics make a value called {name}")
            found[name] = Metric(name, value.unit, value.better, maker.name, maker.id, isinstance(maker, Check))
    return found


PROTOCOLS: dict[str, Protocol] = _protocols()
METRICS: dict[str, Metric] = _metrics()


def values_of(makers: list[str] | tuple[str, ...]) -> list[str]:
    """Names of the values that protocols and checks make, each once, in the order in which they are asked for."""
    infos = [(PROTOCOLS.get(name) or CHECKS[name]).info for name in dict.fromkeys(makers)]
    return [value for info in infos for value in info.values]
