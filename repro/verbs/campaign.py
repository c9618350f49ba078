"""`repro status` and `repro retry`: a campaign while it runs, and new attempts of what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from repro.dag import bind, is_missing
from repro.plan import Plan, Run, build_plan
from repro.records.index import Index, Record, load_index
from repro.records.progress import SILENT, Note, read_notes
from repro.records.retries import add_retries
from repro.records.schema import RETRYABLE
from repro.report.joined import NOT_SUBMITTED
from repro.spec.errors import ConfigError, problem_error
from repro.spec.paths import find_root
from repro.verbs.output import emit, say


@dataclass(frozen=True, slots=True)
class Failure:
    """One recorded failure: of a run, or of one metric of it."""

    run: Run
    record: Record
    log: str

    @property
    def reason(self) -> str:
        """What the record says."""
        return str(self.record.raw["status_detail"]["reason"])

    @property
    def alias(self) -> str:
        """The record's own name: that of the run, or of its metric."""
        return str(self.record.raw["alias"])


def _open(tier: str | None) -> tuple[Plan, Index]:
    root = find_root()
    plan = build_plan(root, tier)
    index = bind(plan, load_index(root))
    index.refuse_problems()
    return plan, index


def failures(plan: Plan, index: Index) -> Iterator[Failure]:
    """Failed, oom and timeout records of planned runs and of their metrics, in the plan's order."""
    for run in plan.runs.values():
        record = index.latest(run.id)
        for each in [record, *index.evals(run.id).values()] if record else []:
            if each is not None and each.status in RETRYABLE:
                yield Failure(run, each, f"scratch/logs/{run.chunk}.log")


def retry(tier: str | None, failed: bool) -> None:
    """Marks failures for one more attempt; the next run of Snakemake, or of `repro run`, makes it."""
    if not failed:
        message = "is what can be tried again: failed, oom and timeout runs, never diverged or complete ones"
        raise problem_error(ConfigError, "command line", "--failed", message)
    plan, index = _open(tier)
    wishes = {}
    for found in failures(plan, index):
        wishes[found.record.id] = found.record.entry.attempt
        print(f"{found.record.id}  {found.alias}: {found.record.status}, {found.reason}")
    if wishes:
        add_retries(plan.configuration.root, wishes)
    after = f"; start them with `snakemake --config tier={plan.tier}`" if wishes else ""
    say(f"{len(wishes)} failure(s) at tier {plan.tier} will be tried once more{after}")
    if any(found.record.status == "timeout" for found in failures(plan, index)):
        say("a timeout goes on from its checkpoint: raise wall_minutes in config/tiers.yaml, or it ends at once again")


def status(tier: str | None, as_json: bool) -> None:
    """Prints how far the campaign of a tier is."""
    plan, index = _open(tier)
    found = summary(plan, index)
    if as_json:
        emit(found)
        return
    states = ", ".join(f"{number} {state}" for state, number in found["runs"].items())
    todo = f"{found['to_train']} to train, {found['to_measure']} to measure"
    print(f"tier {plan.tier}: {found['planned']} planned, {todo}; recorded: {states or 'none'}")
    print(f"GPU hours: {found['gpu_hours_so_far']:.1f} so far, about {found['gpu_hours_to_come']:.1f} to come")
    for note in found["running"]:
        silent = f", silent for {note['age']:.0f} s" if note["age"] > SILENT else ""
        left = (note["steps"] - note["step"]) / note["rate"] if note["rate"] > 0 else None
        time = f", {left / 60:.0f} min left" if left is not None and not silent else ""
        print(f"running  {note['alias']} step {note['step']}/{note['steps']} {note['rate']:.2f} steps/s{time}{silent}")
    for alias, words in found["not_submitted"].items():
        print(f"{NOT_SUBMITTED} {alias}: {words}")
    for item in found["failures"]:
        print(f"{item['status']:8} {item['alias']}: {item['reason']} ({item['log']})")


def summary(plan: Plan, index: Index) -> dict[str, Any]:
    """The same as plain data. `age` in seconds; planned = to train + recorded, whatever the recorded status."""
    recorded = [record for record in map(index.settled, plan.runs) if record is not None]
    missing = [run for run in plan.runs.values() if is_missing(plan, run, index)]
    to_train = [run for run in missing if index.settled(run.id) is None]
    open_ids = {run.id for run in missing}
    notes = [note for note in read_notes(plan.configuration.root) if note.id in open_ids]
    return {
        "tier": plan.tier,
        "planned": len(plan.runs),
        "missing": len(missing),
        "to_train": len(to_train),
        "to_measure": len(missing) - len(to_train),
        "runs": dict(sorted(Counter(record.status for record in recorded).items())),
        "gpu_hours_so_far": round(sum(_gpu_hours(index, run) for run in plan.runs.values()), 3),
        "gpu_hours_to_come": round(sum(run.cost.gpu_hours for run in to_train), 3),
        "running": [_note(note) for note in notes],
        "not_submitted": {run.alias: index.refused[run.id] for run in missing if index.is_refused(run.id)},
        "failures": [
            {"id": f.record.id, "alias": f.alias, "status": f.record.status, "reason": f.reason, "log": f.log}
            for f in failures(plan, index)
        ],
    }


def _note(note: Note) -> dict[str, Any]:
    names = ("id", "alias", "step", "steps", "rate", "age")
    return {name: round(value, 3) if isinstance(value := getattr(note, name), float) else value for name in names}


def _gpu_hours(index: Index, run: Run) -> float:
    """What all attempts of a run and its metrics took of accelerators; 0 where it is planned for a CPU."""
    if run.cost.device != "gpu":
        return 0.0
    records = [*index.records.get(run.id, []), *index.evals(run.id).values()]
    return sum(float((record.raw["time"] or {}).get("wall") or 0.0) for record in records) / 3600 * run.cost.devices
