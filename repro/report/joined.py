"""The plan left-joined with the records: what is there, what is not, and what nobody planned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from repro.plan import Cell, Plan, Run
from repro.records.index import Index, Record
from repro.spec.experiment import LmExperiment
from repro.spec.metrics import METRICS, values_of
from repro.spec.rules import RULES
from repro.stats.cells import COMPLETE, DIVERGED, FAILED, MISSING, UNMEASURED, CellResult, cell_result

NOT_SUBMITTED = "missing (not submitted)"  # the contract's word; it counts as missing


@dataclass(frozen=True)
class Row:
    """One planned cell with the states of its trainings, and per metric the states and values of its evaluations."""

    cell: Cell
    run: Run  # the first seed's; what is read of it is the same for all
    trained: CellResult
    measured: dict[str, CellResult]
    not_submitted: tuple[int, ...]  # seeds without a record because Slurm did not take their job
    attempts: int
    tokens_per_second: float | None
    origins: tuple[str, ...]


def joined(plan: Plan, index: Index, experiment: str) -> list[Row]:
    """A row for each planned cell of `experiment`, in the plan's order, recorded or not."""
    metrics = values_of(plan.configuration.experiments[experiment].metrics)
    rows = []
    for cell in plan.cells.get(experiment, []):
        records = [record for run_id in cell.run_ids if (record := index.train(run_id))]
        rows.append(
            Row(
                cell,
                plan.runs[cell.run_ids[0]],
                cell_result(cell, index),
                {metric: cell_result(cell, index, metric) for metric in metrics},
                tuple(s for s, run_id in zip(cell.seeds, cell.run_ids, strict=True) if index.is_refused(run_id)),
                sum(index.attempts(run_id) for run_id in cell.run_ids),
                _speed(records),
                tuple(sorted({str(record.raw["origin"]) for record in records})),
            )
        )
    return rows


def _speed(records: list[Record]) -> float | None:
    """Median tokens a second over the complete runs that say so."""
    speeds = [record.raw.get("speed") or {} for record in records if record.status == "complete"]
    known = [float(speed["tokens_per_second"]) for speed in speeds if speed.get("tokens_per_second") is not None]
    return median(known) if known else None


def model_words(run: Run) -> str:
    """The model that runs, and the one it stands in for where they differ; for a check its name."""
    if "model" not in run.axes:
        return f"check {run.method}" if run.kind == "check" else str(run.config["task"])
    base = str(run.axes["model"])
    actual = run.task.sized(base)
    return actual if actual == base else f"{actual} for {base}"


def metric_words(metric: str) -> str:
    """`val_loss.v1 (nats/token)`, `rougel_tf of rouge_tf.v1 (F, 0..1)`: no name without its protocol and unit."""
    found = METRICS[metric]
    name = found.protocol if found.name == found.family else f"{found.name} of {found.protocol}"
    return f"{name} ({found.unit})"


def _runs_of(plan: Plan, experiments: list[str]) -> list[Run]:
    """The first run of each cell."""
    return [plan.runs[cell.run_ids[0]] for name in experiments for cell in plan.cells.get(name, [])]


def data_words(plan: Plan, experiments: list[str]) -> str:
    """Sources and digests that the runs of `experiments` train on."""
    runs = [run for run in _runs_of(plan, experiments) if run.data]
    return ", ".join(sorted({f"{run.data} (digest {run.config['data'][:12]})" for run in runs})) or "none"


def seed_words(plan: Plan, experiments: list[str]) -> str:
    """Planned seeds a cell; experiments may differ."""
    numbers = sorted({len(cell.seeds) for name in experiments for cell in plan.cells.get(name, [])})
    return " or ".join(map(str, numbers)) or "no"


def _left_out(plan: Plan, experiments: list[str]) -> list[str]:
    """Models that the experiments name and that this tier does not train."""
    known = [plan.configuration.experiments[name] for name in experiments if name in plan.configuration.experiments]
    named = {model for each in known if isinstance(each, LmExperiment) for model in each.model}
    return sorted(named & set(plan.configuration.tiers[plan.tier].lm.without))


def heading_notes(plan: Plan, experiments: list[str], metrics: list[str]) -> tuple[str, ...]:
    """What every table says about its numbers: tier, models, data, protocols, rules, seeds."""
    runs = _runs_of(plan, experiments)
    models = sorted({f"{'model ' if 'model' in run.axes else ''}{model_words(run)}" for run in runs})
    left_out = _left_out(plan, experiments)
    return (
        f"tier {plan.tier}, {', '.join(models) or 'nothing planned'}",
        *([f"not trained at this tier: {', '.join(left_out)}"] if left_out else []),
        f"data {data_words(plan, experiments)}",
        f"protocols {', '.join(map(metric_words, metrics)) or 'none'}",
        "rules " + ", ".join(f"{part} {RULES[part]}" for part in ("train", "data")),
        f"{seed_words(plan, experiments)} seeds planned a cell",
    )


def incomplete(index: Index, runs: Iterable[Run]) -> list[str]:
    """What keeps a plan's runs from being complete, a line each: those failed or missing, metrics not measured."""
    lines = []
    for run in runs:
        record = index.train(run.id)
        if record is None:
            lines.append(f"{run.alias}: {NOT_SUBMITTED if index.is_refused(run.id) else MISSING}")
        elif record.status not in ("complete", "diverged"):
            lines.append(f"{run.alias}: {record.status}")
        elif record.status == "complete":
            found = index.evals(run.id)
            missing = [metric for metric in run.metrics if metric not in found or found[metric].status != "complete"]
            lines += [f"{run.alias}: {metric} not measured" for metric in missing]
    return lines


def strangers(plan: Plan, index: Index) -> list[Record]:
    """Runs of this tier on record that the plan does not hold: other seeds, older code, other settings.

    They are shown apart and enter no number. Where the plan was narrowed, only the strangers of its experiments.
    """
    found = []
    for identity, attempts in index.records.items():
        if identity in plan.runs or attempts[-1].entry.kind == "eval":
            continue
        raw = attempts[-1].raw
        narrowed_away = set(raw["experiments"]) & set(plan.configuration.experiments) - set(plan.cells)
        if raw["tier"] == plan.tier and not (narrowed_away and not set(raw["experiments"]) & set(plan.cells)):
            found.append(attempts[-1])
    return sorted(found, key=lambda record: (str(record.raw["alias"]), record.id))


def stranger_words(record: Record) -> str:
    """`a_quality/post_ln/s9@smoke (1a2b3c4d5e6f, complete)`."""
    return f"{record.raw['alias']} ({record.id}, {record.status})"


def seeds_words(row: Row) -> str:
    """Seeds by state, those that are complete left out: `diverged: 3; missing (not submitted): 4 5`."""
    found = {state: row.trained.seeds_in(state) for state in (DIVERGED, FAILED, MISSING, UNMEASURED)}
    found[MISSING] = [seed for seed in found[MISSING] if seed not in row.not_submitted]
    found[NOT_SUBMITTED] = list(row.not_submitted)
    parts = [f"{state}: {' '.join(map(str, seeds))}" for state, seeds in found.items() if seeds]
    return "; ".join(parts) or f"all {COMPLETE}"
