"""Cells that differ in their learning rate alone, and the rate that their tuning runs choose."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from repro.plan import Cell
from repro.spec.metrics import METRICS
from repro.stats.cells import MISSING, CellResult, IndexLike, cell_result, runs_result
from repro.stats.choice import Choice, choose_rate, fresh_result, tuning_values


@dataclass(frozen=True)
class Tuned:
    """One method at one point of the rest of the grid: its cells by rate, and the choice among them."""

    cells: dict[float, Cell]
    choice: Choice

    @property
    def chosen(self) -> Cell | None:
        """The cell whose report seeds speak for the method; None while nothing is chosen."""
        return None if self.choice.rate is None else self.cells[self.choice.rate]

    def result(self, index: IndexLike, metric: str) -> CellResult:
        """The chosen cell's result on its report seeds; every seed is missing while nothing is chosen."""
        first = next(iter(self.cells.values()))
        results = {rate: cell_result(cell, index, metric) for rate, cell in self.cells.items()}
        found = fresh_result(results, self.choice, first.tuning_seeds, first.seeds)
        return found or CellResult(dict.fromkeys(first.seeds, MISSING), {})


def tuned(cells: Iterable[Cell], index: IndexLike, metric: str = "val_loss") -> list[Tuned]:
    """The groups of an experiment that chooses its rate, in the plan's order; empty if no cell has tuning seeds."""
    groups: dict[str, dict[float, Cell]] = {}
    for cell in cells:
        if cell.tuning_seeds:
            rest = {key: value for key, value in cell.axes.items() if key != "lr"}
            name = json.dumps([cell.method, cell.params, rest], sort_keys=True)
            groups.setdefault(name, {})[float(cell.axes["lr"])] = cell
    lower = METRICS[metric].better == "lower"
    return [Tuned(group, _choice(group, index, metric, lower)) for group in groups.values()]


def _choice(group: dict[float, Cell], index: IndexLike, metric: str, lower: bool) -> Choice:
    seeds = next(iter(group.values())).tuning_seeds
    results = {rate: runs_result(cell.tuning_ids, cell.tuning_seeds, index, metric) for rate, cell in group.items()}
    return choose_rate(tuning_values(results, seeds, lower), seeds, lower)
