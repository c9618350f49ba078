"""Finds the planned cells that a claim speaks about, and joins them with the records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from repro.plan import Cell, Plan, Run
from repro.spec.claim_model import STEPS_SHARE
from repro.spec.claims import UNKNOWN, VIEWS, Arm, Claim, Selector
from repro.spec.errors import ConfigError, problem_error
from repro.spec.metrics import METRICS
from repro.stats.cells import COMPLETE, DIVERGED, MISSING, CellResult, IndexLike, cell_result
from repro.stats.steps import steps_share_of
from repro.stats.tuned import tuned

SCORE = "val_loss"  # what a tolerance is read of
OF_TASK = {"forecast": "single-layer Transformer", "flow": "mean-field Transformer"}


@dataclass(frozen=True)
class ArmData:
    """One arm of a comparison: its results by learning rate, a single one unless the claim spans the grid."""

    label: str
    grid: dict[float, CellResult]
    run: Run
    run_ids: dict[int, str]  # by seed; of the first learning rate where there are several
    all_ids: tuple[str, ...]

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
    return SCORE if claim.metric == "lr_tolerance" else None


def _matches(cell: Cell, arm: Arm, axes: dict[str, Any]) -> bool:
    named = cell.method == arm.method and all(cell.params.get(key) == value for key, value in arm.params.items())
    return named and all(cell.axes.get(key) == value for key, value in (*axes.items(), *arm.axes.items()))


def find_arms(claim: Claim, cells: Selector, plan: Plan, index: IndexLike) -> dict[str, ArmData] | str:
    """Arms by role, or the sentence that says what this plan lacks.

    Raises ConfigError where the claim leaves open which of several cells is meant.
    """
    if cells.experiment not in plan.cells:
        return f"experiment {cells.experiment} is not in this plan"
    found: dict[str, ArmData] = {}
    for role, arm in cells.arms.items():
        fitting = [cell for cell in plan.cells[cells.experiment] if _matches(cell, arm, cells.axes)]
        if not fitting:
            return f"{arm.label} is not planned in {cells.experiment} here"
        matching, said = _at_rate(claim, cells, fitting, index)
        if not matching:
            return f"{arm.label}: learning rate {said}"
        _check_one_each(claim, f"cells.{role}", arm, matching)
        grid = {float(cell.axes.get("lr", 0.0)): cell_result(cell, index, metric_of(claim)) for cell in matching}
        ids = dict(zip(matching[0].seeds, matching[0].run_ids, strict=True))
        every = tuple(run_id for cell in matching for run_id in cell.run_ids)
        found[role] = ArmData(f"{arm.label}{said}", grid, plan.runs[matching[0].run_ids[0]], ids, every)
    return {"a": steps_share(found["a"], found["b"], index)} if claim.metric == STEPS_SHARE else found


def steps_share(a: ArmData, b: ArmData, index: IndexLike) -> ArmData:
    """Arm `a` with one number a seed: the share of its steps after which it has the loss that `b` ends at."""
    states = {
        seed: b.only.states.get(seed, MISSING) if state == COMPLETE else state for seed, state in a.only.states.items()
    }
    values = {
        seed: steps_share_of(index.train(a.run_ids[seed]), index.train(b.run_ids[seed]))
        for seed, state in states.items()
        if state == COMPLETE
    }
    result = CellResult(states, values)
    return replace(a, label=f"{a.label} to where {b.label} ends", grid={0.0: result}, all_ids=(*a.all_ids, *b.all_ids))


def _at_rate(claim: Claim, cells: Selector, fitting: list[Cell], index: IndexLike) -> tuple[list[Cell], str]:
    """Cells at the rate that the claim means, and what a label adds; no cell, and the reason, while none is chosen.

    The rate is named by the claim, or chosen on tuning seeds where the experiment has some; a tolerance takes all.
    """
    if claim.metric == "lr_tolerance":
        return fitting, ""
    if cells.rate:
        rates = sorted({float(cell.axes["lr"]) for cell in fitting})
        rate = rates[0 if cells.rate == "lowest" else -1]
        return [cell for cell in fitting if float(cell.axes["lr"]) == rate], ""
    groups = tuned(fitting, index)
    if not groups:
        return fitting, ""
    words = groups[0].choice.words
    if any(group.chosen is None for group in groups):
        return [], words
    return [group.chosen for group in groups if group.chosen], f", lr {words}"


def _check_one_each(claim: Claim, key: str, arm: Arm, matching: list[Cell]) -> None:
    """Refuses more cells than the claim can mean: one, or one for each learning rate if it spans the grid."""
    by_rate: dict[object, list[Cell]] = {}
    for cell in matching:
        by_rate.setdefault(cell.axes.get("lr") if claim.metric == "lr_tolerance" else None, []).append(cell)
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


def setting_gaps(claim: Claim, run: Run, plan: Plan) -> Gaps:
    """Our setting against the one that the claim names; where a number is compared, also how it is measured."""
    theirs = claim.setting
    if theirs is None:
        return Gaps((), ())
    pairs: dict[str, tuple[Any, Any]] = {
        "model": (_model_words(run), theirs.model),
        "data": (run.data or UNKNOWN, theirs.data),
        "tokens": (run.tokens, theirs.tokens),
    }
    if claim.is_numeric:
        source = plan.configuration.sources.get(run.data or UNKNOWN)
        metric = METRICS.get(claim.metric)
        pairs["protocol"] = (metric.family if metric else claim.metric, theirs.protocol)
        pairs["eval_tokens"] = (getattr(source, "final_tokens", UNKNOWN), theirs.eval_tokens)
        pairs["selection"] = ("final", theirs.selection)
    unknown = {key for key, (_, their) in pairs.items() if their in (None, UNKNOWN)}
    differ = [key for key, (our, their) in pairs.items() if key not in unknown and our != their]
    return Gaps(
        tuple(f"{key} ({_said(pairs[key][0])}, not {_said(pairs[key][1])})" for key in differ),
        tuple(f"{key} (ours {_said(our)})" for key, (our, _) in pairs.items() if key in unknown),
    )


def _model_words(run: Run) -> str:
    """The name of the model that runs: a listed one, or what the task itself fixes."""
    named = str(run.axes.get("model", UNKNOWN))
    return OF_TASK.get(str(run.config.get("task")), run.task.sized(named))


def _said(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
