"""How times are taken and judged: interleaved rounds, medians, the spread over rounds, and a noise guard."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

Times = dict[str, list[float]]
Formula = Callable[[Mapping[str, float]], float]

NOISE_FREE = 0.03  # the same code twice may differ by this; beyond it bars are widened
NOISE_CAP = 0.10  # a bar widened by more than this would no longer be one
# What a user's shell may hold and the measured processes must not see.
_UNSET = ("REPRO_ROOT", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "SNAKEMAKE_PROFILE", "SNAKEMAKE_OUTPUT_CACHE")


class NotEqualError(Exception):
    """Ours and the peer did not do the same work, so no time of them means anything."""


class Progress:
    """One live line on standard error, on a terminal only."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        """Shows what is being measured; an empty text wipes the line."""
        if self.live:
            print(f"\r\x1b[K{text[:110]}", end="", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result. `ok` is None where there is nothing to judge: no peer, or no bar.

    `unit` is "ratio" or "seconds"; `spread` the range over rounds; `noise` how far the same code measured twice
    was off; `detail` why there is no number, or what was shown to be equal. With `at_least` the bar is a lower one.
    """

    id: str
    ratio: str
    median: float | None
    minimum: float | None
    spread: float | None
    bar: float | None
    ok: bool | None
    peer: str
    versions: dict[str, str]
    unit: str = "ratio"
    noise: float | None = None
    rounds: int = 0
    detail: str = ""
    at_least: bool = False

    def as_json(self) -> dict[str, Any]:
        """The contract's fields first; numbers to six digits."""
        return {key: _short(value) for key, value in asdict(self).items()}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def run_timed(argv: Sequence[str], cwd: Path) -> tuple[float, str]:
    """Seconds of wall time of one process, and all that it printed; NotEqualError if it does not end well."""
    environment = {key: value for key, value in os.environ.items() if key not in _UNSET}
    begun = time.perf_counter()
    done = subprocess.run(
        argv, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    seconds = time.perf_counter() - begun
    if done.returncode:
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise NotEqualError(f"{' '.join(argv[1:4])} ended with code {done.returncode}: {last}")
    return seconds, done.stdout


def interleave(sides: Mapping[str, Callable[[], float]], rounds: int, tell: Callable[[str], None]) -> Times:
    """Calls every side once a round, in turn: a slow minute of the machine hits all of them alike.

    A side returns its own seconds, so it may set up its situation outside the measured part.
    """
    times: Times = {name: [] for name in sides}
    for number in range(rounds):
        for name, side in sides.items():
            tell(f"round {number + 1} of {rounds}: {name}")
            times[name].append(side())
    tell("")
    return times


def beyond(ours: float, peer: float, start: float) -> float:
    """(ours - start) / (peer - start); infinite where noise hides the peer's own part."""
    return (ours - start) / (peer - start) if peer > start else math.inf


def noise_of(times: Times, first: str, second: str) -> float:
    """How far two medians of one and the same command lie apart, as a fraction."""
    return abs(statistics.median(times[first]) / statistics.median(times[second]) - 1.0)


def allowed(bar: float, noise: float) -> float:
    """An upper bar, widened by the machine's noise where that is more than 3 %, by at most 10 %."""
    return bar * (1.0 + min(noise, NOISE_CAP)) if noise > NOISE_FREE else bar


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Versions of Python and of the packages that a ratio depends on."""
    return {"python": sys.version.split()[0]} | {name: metadata.version(name) for name in packages}


def absent(packages: Sequence[str]) -> list[str]:
    """Those of `packages` that are not installed."""
    missing = []
    for name in packages:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    return missing


@dataclass(frozen=True, slots=True)
class Question:
    """One ratio: its words, its formula over one time of each side, and its upper bar (None: for information)."""

    id: str
    ratio: str
    peer: str
    formula: Formula
    bar: float | None
    unit: str = "ratio"
    packages: tuple[str, ...] = ()

    def answer(self, times: Times, noise: float | None, detail: str) -> Row:
        """The row: formula of the medians, of the minima, and its range over rounds."""
        rounds = min(len(values) for values in times.values())
        median = self.formula({name: statistics.median(values) for name, values in times.items()})
        minimum = self.formula({name: min(values) for name, values in times.items()})
        singles = [self.formula({name: values[i] for name, values in times.items()}) for i in range(rounds)]
        finite = [value for value in singles if math.isfinite(value)]
        if not math.isfinite(median):
            detail = "noise hides the part beyond the start; measure again on a quieter machine"
        ok = None if self.bar is None else median <= allowed(self.bar, noise or 0.0)
        return Row(
            id=self.id,
            ratio=self.ratio,
            median=median if math.isfinite(median) else None,
            minimum=minimum if math.isfinite(minimum) else None,
            spread=max(finite) - min(finite) if finite else None,
            bar=self.bar,
            ok=ok,
            peer=self.peer,
            versions=versions_of(self.packages),
            unit=self.unit,
            noise=noise,
            rounds=rounds,
            detail=detail,
        )
