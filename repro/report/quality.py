"""Quality notes: what does not stop a table, but a reader should know before trusting it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from repro.plan import Plan, Run
from repro.records.index import Index, Record
from repro.report.joined import stranger_words, strangers

FINISHED = ("complete", "diverged")
SHOWN = 5  # names a note lists before it counts the rest
FIRST_LOSS_SLACK = 1.0  # nats above ln(vocabulary) that an untrained model may start with


@dataclass(frozen=True)
class Note:
    """`severity` is `error` (not counted anywhere), `warning` (counted, look at it) or `info`; `value` a count."""

    severity: str
    rule: str
    value: int
    message: str


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _recorded(plan: Plan, index: Index) -> list[tuple[Run, Record]]:
    return [(run, record) for run in plan.runs.values() if (record := index.train(run.id))]


def _starts_oddly(run: Run, record: Record) -> bool:
    """Whether the first training loss, before much is learned, lies outside [0, ln V + 1], V the vocabulary."""
    losses = (record.raw.get("curve") or {}).get("train_loss", [])
    first = losses[0] if losses and run.config.get("task") == "lm" else None
    return first is not None and not 0 <= first <= math.log(run.config["model"]["vocab"]) + FIRST_LOSS_SLACK


def _mixed_versions(plan: Plan, index: Index) -> Iterator[str]:
    """Cells whose seeds were made with different packages, rules of the code, or Python."""
    for cell in (cell for cells in plan.cells.values() for cell in cells):
        used = [record.raw["environment"] for run_id in cell.run_ids if (record := index.train(run_id))]
        stacks = [{"python": one["python"], **one["packages"]} for one in used]
        names = sorted({name for stack in stacks for name in stack})
        differing = [name for name in names if len({stack.get(name) for stack in stacks}) > 1]
        if differing:
            yield f"{cell.experiment}/{cell.label} ({_listed(differing)})"


def _short_cells(plan: Plan, index: Index) -> Iterator[str]:
    """Cells with fewer finished runs than planned, of those that have any."""
    for cell in (cell for cells in plan.cells.values() for cell in cells):
        done = [record for run_id in cell.run_ids if (record := index.train(run_id)) and record.status in FINISHED]
        if 0 < len(done) < len(cell.run_ids):
            yield f"{cell.experiment}/{cell.label} ({len(done)} of {len(cell.run_ids)})"


def _mixed_data(plan: Plan, index: Index) -> Iterator[str]:
    """Experiments whose runs saw different bytes under one name of a split."""
    for name, cells in plan.cells.items():
        seen: dict[tuple[str, str], set[str]] = {}
        for run_id in (run_id for cell in cells for run_id in cell.run_ids):
            record = index.train(run_id)
            for part in record.raw["data"] if record else []:
                seen.setdefault((part["name"], part["split"]), set()).add(part["sha256"])
        differing = sorted(f"{source} {split}" for (source, split), hashes in seen.items() if len(hashes) > 1)
        if differing:
            yield f"{name} ({_listed(differing)})"


def _findings(plan: Plan, index: Index) -> Iterator[tuple[str, str, list[str]]]:
    """(severity, rule, what it is about) of each kind of note; the last may be empty."""
    pairs = _recorded(plan, index)
    yield "error", "record refused, in no number", [str(problem) for problem in index.problems]
    unlike = [record.raw["alias"] for record in index.unlike()]
    yield "error", "measured by another encoder or other packages than most, in no number", unlike
    yield "warning", "on record, not in the plan", [stranger_words(record) for record in strangers(plan, index)]
    dirty = [run.alias for run, record in pairs if record.raw["code"]["dirty"]]
    yield "warning", "made by code with uncommitted changes", dirty
    odd = [run.alias for run, record in pairs if _starts_oddly(run, record)]
    yield "warning", "loss at the start outside 0 to ln(vocabulary) + 1", odd
    stuck = [run.alias for run, record in pairs if record.raw.get("learned") is False]
    yield "warning", "ended above the entropy of single tokens: learned nothing", stuck
    yield "warning", "seeds of one cell made with different versions", list(_mixed_versions(plan, index))
    yield "warning", "data of one name with different content in one experiment", list(_mixed_data(plan, index))
    yield "info", "fewer finished runs than planned", list(_short_cells(plan, index))
    again = [f"{run.alias} ({index.attempts(run.id)} attempts)" for run, _ in pairs if index.attempts(run.id) > 1]
    yield "info", "took more than one attempt", again


def quality_notes(plan: Plan, index: Index) -> list[Note]:
    """All notes on one tier's records, the gravest first."""
    notes = [
        Note(severity, rule, len(names), _listed(names)) for severity, rule, names in _findings(plan, index) if names
    ]
    reasons = Counter(
        f"{record.status}: {record.raw['status_detail'].get('reason')}"
        for _, record in _recorded(plan, index)
        if record.status in ("failed", "oom", "timeout")
    )
    return notes + [Note("warning", "runs that failed", count, reason) for reason, count in reasons.most_common()]
