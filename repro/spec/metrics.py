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

from repro.spec.literal import read_info
from repro.spec.model import Int, Name, Strict, Text

Folder = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,80}$", strict=True)]
FOLDER = Path(__file__).resolve().parents[1] / "evaluate" / "protocols"


class ValueInfo(Strict):
    """Unit of one value, and which way is better."""

    unit: Text
    better: Literal["lower", "higher"]


class ProtocolInfo(Strict):
    """The literal INFO of a metric's file; `options` is what else fixes the numbers, `rules` their version.

    `needs` names what has to be fetched before anything can be measured: folders of scratch/fetched.
    """

    title: Text
    says: Text
    rules: Annotated[Int, Field(ge=1)]
    values: Annotated[dict[Name, ValueInfo], Field(min_length=1)]
    options: dict[Name, Any] = {}
    needs: list[Folder] = []


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
    """One value of a protocol, by the name that records, tables and claims use."""

    name: str
    unit: str
    better: Literal["lower", "higher"]
    family: str
    protocol: str


def _protocols() -> dict[str, Protocol]:
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        if path.name != "__init__.py":
            file = f"repro/evaluate/protocols/{path.name}"
            found[path.stem] = Protocol(path.stem, read_info(ast.parse(path.read_text("utf-8")), file, ProtocolInfo))
    return found


def _metrics() -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    for protocol in PROTOCOLS.values():
        for name, value in protocol.info.values.items():
            if name in found:
                raise ValueError(f"two metrics make a value called {name}")
            found[name] = Metric(name, value.unit, value.better, protocol.name, protocol.id)
    return found


PROTOCOLS: dict[str, Protocol] = _protocols()
METRICS: dict[str, Metric] = _metrics()


def values_of(protocols: list[str] | tuple[str, ...]) -> list[str]:
    """Names of the values that `protocols` make, each once, in the order in which they are asked for."""
    return [name for protocol in dict.fromkeys(protocols) for name in PROTOCOLS[protocol].info.values]
