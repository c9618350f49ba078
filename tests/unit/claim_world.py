"""A bare world for the claims engine: cells, seeds and values as a test wants them, without a plan or a record file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from repro.plan import Cell
from repro.spec.claim_ledger import Ledger
from repro.spec.claims import Claim
from repro.spec.metrics import METRICS
from repro.spec.paths import Root
from repro.stats.verdict import Verdict, judge

Values = Mapping[str, Mapping[int, float | str | None]]  # arm -> seed -> value, a status, or nothing recorded
CREATED = "2026-01-10T12:00:00Z"
HERE = Root(Path(__file__).resolve().parents[2])

BASE: dict[str, Any] = {
    "id": "A-C1",
    "says": "one arm is better than the other",
    "source": {"paper": "a paper, v1", "where": "table 1", "provenance": "paper"},
    "metric": "val_loss",
    "margin": "none",
    "setting": "theory",
    "falsified_if": "it is the other way round",
}


def rule(test: str, n: int = 8, **changes: Any) -> dict[str, Any]:
    """A decision rule with the usual rest."""
    made = {"test": test, "planned_n": n, "decided_at": "desk", "family": "f"}
    if test != "every_run":
        made |= {"alternative": "two-sided", "alpha": 0.05}
    return made | changes


def claim(kind: str, reported: Any, decide: dict[str, Any], arms: tuple[str, ...] = ("one",), **changes: Any) -> Claim:
    """A claim over cells whose methods are called as in `arms`; a third arm and more are `others`."""
    cells: dict[str, Any] = {"experiment": "e", "a": arms[0]}
    if len(arms) == 2 and kind != "ordering":
        cells["b"] = arms[1]
    elif len(arms) > 1:
        cells["others"] = list(arms[1:])
    entry = {**BASE, "kind": kind, "reported": reported, "decide": decide, "cells": cells}
    return Claim.model_validate(entry | changes)


def margin(value: float, unit: str = "nats") -> dict[str, Any]:
    """A margin of ours."""
    return {"margin": {"value": value, "unit": unit}, "margin_source": "assumption"}


def _record(status: str, value: float | None = None, created: str = CREATED) -> SimpleNamespace:
    return SimpleNamespace(status=status, value=lambda name: value, raw={"created": created})


class World:
    """Plan and index of one experiment `e`, whose cells are the arms of `values`."""

    def __init__(self, values: Values, created: str = CREATED, **run: Any) -> None:
        """`run` replaces what is planned: data, tokens, model."""
        self.values, self.created = values, created
        task = SimpleNamespace(sized=lambda model: model)
        axes = {"model": run["model"]} if "model" in run else {}
        planned = SimpleNamespace(data=run.get("data"), tokens=run.get("tokens", 0), axes=axes, task=task, config={})
        self.cells = {
            "e": [
                Cell("e", arm, arm, {}, {}, tuple(f"{arm}-{seed}" for seed in seeds), tuple(seeds))
                for arm, seeds in values.items()
            ]
        }
        self.runs = dict.fromkeys((run_id for cell in self.cells["e"] for run_id in cell.run_ids), planned)
        sources = {"text": SimpleNamespace(final_tokens=run.get("eval_tokens", 1000))}
        self.configuration = SimpleNamespace(root=HERE, sources=sources)

    def _outcome(self, run_id: str) -> float | str | None:
        arm, seed = run_id.rsplit("-", 1)
        return self.values[arm][int(seed)]

    def train(self, run_id: str) -> SimpleNamespace | None:
        outcome = self._outcome(run_id)
        if outcome is None:
            return None
        return _record(outcome if isinstance(outcome, str) else "complete", created=self.created)

    def evals(self, run_id: str) -> dict[str, SimpleNamespace]:
        outcome = self._outcome(run_id)
        measured = _record("complete", outcome if isinstance(outcome, float) else None)
        return {} if isinstance(outcome, str) or outcome is None else {METRICS["val_loss"].family: measured}


def verdict(one: Claim, values: Values, scale: str = "desk", ledger: Ledger | None = None, **world: Any) -> Verdict:
    """The verdict on a single claim in a family of its own."""
    made: Any = World(values, **world)
    (found,) = judge([one], made, made, scale, ledger=ledger or Ledger())
    return found


def seeds(*values: float | str | None) -> dict[int, float | str | None]:
    """Seeds from 1 on."""
    return dict(enumerate(values, start=1))


def around(centre: float, spread: float = 0.01, n: int = 8) -> dict[int, float | str | None]:
    """`n` values whose mean is `centre`, evenly spaced within `spread` on each side."""
    return seeds(*(centre + spread * (2 * place / (n - 1) - 1) for place in range(n)))
