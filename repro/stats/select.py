"""Finds the planned cells that a claim speaks about, and joins them with the records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from repro.plan import Cell, Plan, Run
from repro.spec.claims import VIEWS, Arm, Claim, Selector
from repro.spec.errors import ConfigError, problem_error
from repro.stats.cells import COMPLETE, DIVERGED, CellResult, IndexLike, cell_result


@dataclass(frozen=True)
class ArmData:
    """One arm of a comparison: its results by learning rate, a single one unless the claim spans the grid."""

    label: str
    grid: dict[float, CellResult]
    run: Run

    @property
    def only(self) -> CellResult:
        """The result of an arm that is one cell."""
        (result,) = self.grid.values()
        return result

    @property
    def planned_seeds(self) -> list[int]:
        """Seeds in the plan's order."""
        return list(next(iter(self.grid.values())).states)

    @property
    def finished(self) -> set[int]:
        """Seeds all of whose runs are complete or diverged."""
        return {
            seed
            for seed in self.planned_seeds
            if all(result.states.get(seed) in (COMPLETE, DIVERGED) for result in self.grid.values())
        }

    def count(self, name: str) -> int:
        """`planned`, `complete`, `diverged`, `failed` or `missing` runs of all its cells."""
        return sum(int(getattr(result, name)) for result in self.grid.values())


def metric_of(claim: Claim) -> str | None:
    """The protocol to read: none for counts of divergence, the validation loss for tolerances."""
    if claim.metric not in VIEWS:
        return claim.metric
    return "val_loss" if claim.metric == "lr_tolerance" else None


def _matches(cell: Cell, arm: Arm, axes: dict[str, Any]) -> bool:
    named = cell.method == arm.method and all(cell.params.get(key) == value for key, value in arm.params.items())
    return named and all(cell.axes.get(key) == value for key, value in axes.items())


def find_arms(claim: Claim, cells: Selector, plan: Plan, index: IndexLike) -> dict[str, ArmData] | str:
    """Arms by role, or the sentence that says what this plan lacks.

    Raises ConfigError where the claim leaves open which of several cells is meant.
    """
    if cells.experiment not in plan.cells:
        return f"experiment {cells.experiment} is not in this plan"
    found: dict[str, ArmData] = {}
    for role, arm in cells.arms.items():
        matching = [cell for cell in plan.cells[cells.experiment] if _matches(cell, arm, cells.axes)]
        if not matching:
            return f"{arm.label} is not planned in {cells.experiment} here"
        _check_one_each(claim, f"cells.{role}", arm, matching)
        grid = {float(cell.axes["lr"]): cell_result(cell, index, metric_of(claim)) for cell in matching}
        found[role] = ArmData(arm.label, grid, plan.runs[matching[0].run_ids[0]])
    return found


def _check_one_each(claim: Claim, key: str, arm: Arm, matching: list[Cell]) -> None:
    """Refuses more cells than the claim can mean: one, or one for each learning rate if it spans the grid."""
    by_rate: dict[object, list[Cell]] = {}
    for cell in matching:
        by_rate.setdefault(cell.axes["lr"] if claim.metric == "lr_tolerance" else None, []).append(cell)
    for rate, cells in by_rate.items():
        if len(cells) > 1:
            where = f"{cells[0].experiment}{'' if rate is None else f' at learning rate {rate}'}"
            message = (
                f"{claim.id}: {arm.label} fits several cells of {where}: {', '.join(cell.label for cell in cells)};"
                f" they differ in {', '.join(_differing(cells))}, which the claim must name"
            )
            raise problem_error(ConfigError, f"config/claims/paper_{claim.paper}.yaml", f"{claim.id}.{key}", message)


def _differing(cells: list[Cell]) -> list[str]:
    """Axes and parameters that are not the same in all cells."""
    points = [{**cell.params, **cell.axes} for cell in cells]
    return [key for key in points[0] if any(point.get(key) != points[0][key] for point in points)]


@dataclass(frozen=True)
class Gaps:
    """Where our setting is not the paper's, and where the paper's is not known."""

    differ: tuple[str, ...]
    unknown: tuple[str, ...]


def setting_gaps(claim: Claim, run: Run) -> Gaps:
    """Model, data and tokens of `run` against those that the claim names."""
    base = str(run.axes["model"])
    ours = {"model": run.task.model.get(base, base), "data": run.data, "tokens": run.tokens}
    theirs = {"model": claim.setting.model, "data": claim.setting.data, "tokens": claim.setting.tokens}
    unknown = {key for key, value in theirs.items() if value in (None, "unknown")}
    said = {key: f"{value:,}" if isinstance(value, int) else str(value) for key, value in ours.items()}
    differ = [key for key in ours if key not in unknown and theirs[key] != ours[key]]
    return Gaps(
        tuple(f"{key} ({said[key]}, not {theirs[key]})" for key in differ),
        tuple(f"{key} (ours {said[key]})" for key in ours if key in unknown),
    )
