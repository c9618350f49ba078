"""Columns that every table of cells shares: identity of a row, counts of its runs, words and numbers of a metric."""

from __future__ import annotations

import json
from collections.abc import Iterable

from repro.plan import Cell, Plan
from repro.records.index import Index
from repro.report.joined import NOT_SUBMITTED, Row, incomplete, metric_words, seeds_words, stranger_words, strangers
from repro.report.table import Value
from repro.spec.metrics import METRICS
from repro.spec.rules import RULES
from repro.stats.cells import Summary

NOTHING = "none"  # a word, so that no cell is empty and no gap reads as 0
COUNT_HEAD = ("diverged", "failed", "missing", "attempts", "seeds not complete")


def summary_words(summary: Summary) -> str:
    """`2.241 (sd 0.012), [2.231, 2.251]`, or the state."""
    if summary.mean is None:
        return summary.state
    if summary.sd is None or summary.interval is None:
        return f"{summary.mean:.5g} (one run: no spread)"
    low, high = summary.interval
    return f"{summary.mean:.5g} (sd {summary.sd:.2g}), [{low:.5g}, {high:.5g}]"


def summary_data(metric: str, summary: Summary) -> dict[str, Value]:
    """Columns of one metric for machines; the state stands in the mean's place where there is none."""
    low, high = summary.interval or (NOTHING, NOTHING)
    return {
        f"{metric}_protocol": METRICS[metric].protocol,
        f"{metric}_mean": summary.state if summary.mean is None else summary.mean,
        f"{metric}_sample_sd": NOTHING if summary.sd is None else summary.sd,
        f"{metric}_t95_low": low,
        f"{metric}_t95_high": high,
        f"{metric}_n": summary.n,
    }


def metric_head(metric: str) -> str:
    """Head of a metric's column: protocol, unit, and what stands in it."""
    return f"{metric_words(metric)}: mean (sample sd), [95 % t]"


def meta(plan: Plan, row: Row) -> dict[str, Value]:
    """What a number of this row must not travel without."""
    return {
        "tier": plan.tier,
        "data": row.run.data or NOTHING,
        "data_digest": row.run.config.get("data", NOTHING),
        **{f"rules_{part}": version for part, version in RULES.items()},
    }


def cell_data(cell: Cell) -> dict[str, Value]:
    """Identity of one row."""
    return {
        "experiment": cell.experiment,
        "cell": cell.label,
        "method": cell.method,
        "params": json.dumps(cell.params, sort_keys=True, allow_nan=False),
        **cell.axes,
    }


def count_data(row: Row) -> dict[str, Value]:
    """Planned runs by what became of them."""
    trained = row.trained
    return {
        "planned": trained.planned,
        "complete": trained.complete,
        "diverged": trained.diverged,
        "failed": trained.failed,
        "missing": trained.missing,
        "attempts": row.attempts,
        "seeds_not_complete": seeds_words(row),
    }


def complete_words(row: Row) -> str:
    """`7 of 8`."""
    return f"{row.trained.complete} of {row.trained.planned}"


def count_words(row: Row) -> tuple[str, ...]:
    """Cells under COUNT_HEAD."""
    trained = row.trained
    counts = (trained.diverged, trained.failed, trained.missing, row.attempts)
    return (*map(str, counts), seeds_words(row))


def closing_notes(plan: Plan, index: Index, names: Iterable[str]) -> tuple[str, ...]:
    """What the figures are, strangers, and the incomplete line of some experiments."""
    wanted = set(names)
    runs = [run for run in plan.runs.values() if wanted & set(run.experiments)]
    lines, refused = incomplete(index, runs), [run for run in runs if index.is_refused(run.id)]
    apart = [stranger_words(record) for record in strangers(plan, index) if wanted & set(record.raw["experiments"])]
    notes = ["means, sample standard deviations (divisor n - 1) and 95 % t intervals over all planned seeds, or words"]
    if lines:
        notes.append(f"incomplete: {len(lines)} things are missing or failed, the first is {lines[0]}")
    if refused:
        notes.append(f"{NOT_SUBMITTED}: {', '.join(run.alias for run in refused)} (`repro status` says why)")
    if apart:
        notes.append(f"on record but not in the plan, in no number here: {', '.join(apart)}")
    return tuple(notes)
