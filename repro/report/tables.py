"""Tables per paper and of claims: one row a planned cell or claim, never fewer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from repro.plan import Plan
from repro.records.index import Index
from repro.report.boards import noise_note
from repro.report.cells import (
    COUNT_HEAD,
    NOTHING,
    cell_data,
    closing_notes,
    complete_words,
    count_data,
    count_words,
    meta,
    metric_head,
    summary_data,
    summary_words,
)
from repro.report.checks import experiment_checks, paper_checks
from repro.report.joined import Row, heading_notes, joined
from repro.report.table import Table, Value, write_table
from repro.spec.claims import Claim
from repro.spec.metrics import METRICS, values_of
from repro.spec.paths import Root
from repro.stats.cells import Summary, summarise
from repro.stats.ranking import rank_intervals
from repro.stats.tuned import Tuned, tuned
from repro.stats.verdict import COUNTS, Verdict, judge

MIN_GROUP = 2  # a ranking of one method says nothing


def trainings_of(plan: Plan, paper: str) -> list[str]:
    """Experiments of one paper that train."""
    experiments = plan.configuration.experiments
    return [name for name in plan.cells if experiments[name].paper == paper and experiments[name].task != "check"]


def paper_table(plan: Plan, index: Index, paper: str) -> Table:
    """All planned cells of all trainings of one paper."""
    return _cells_table(
        plan, index, trainings_of(plan, paper), f"paper_{paper}", f"Paper {paper.upper()}: planned cells"
    )


def experiment_table(plan: Plan, index: Index, experiment: str) -> Table:
    """All planned cells of one experiment, or the values of a check."""
    if plan.configuration.experiments[experiment].task == "check":
        return experiment_checks(plan, index, experiment)
    title = plan.configuration.experiments[experiment].title or experiment
    return _cells_table(plan, index, [experiment], experiment, title)


def _cells_table(plan: Plan, index: Index, names: list[str], name: str, title: str) -> Table:
    metrics = values_of([name for e in names for name in plan.configuration.experiments[e].metrics])
    by_name = {experiment: joined(plan, index, experiment) for experiment in names}
    rates = {label: words for rows in by_name.values() for label, words in _rate_words(rows, index).items()}
    first = {place for rows in by_name.values() for place in first_groups(rows)}
    rows = [row for found in by_name.values() for row in found]
    axes = dict.fromkeys(key for row in rows for key in row.cell.axes)
    shown, data, strong = [], [], set()
    for place, row in enumerate(rows):
        summaries = {metric: summarise(row.measured[metric]) for metric in metrics if metric in row.measured}
        words = [summary_words(summaries[metric]) if metric in summaries else "not asked for" for metric in metrics]
        key = (row.cell.experiment, row.cell.label)
        rate = (rates.get(key, "given"),) if rates else ()
        head_words = (*key, *rate, complete_words(row))
        strong |= {(place, len(head_words) + at) for at, metric in enumerate(metrics) if (*key, metric) in first}
        shown.append((*head_words, *words, *count_words(row)))
        numbers = [summary_data(metric, summaries.get(metric, Summary("not asked for", 0))) for metric in metrics]
        chosen = {"rate": rates.get(key, "given")} if rates else {}
        told = dict.fromkeys(axes, NOTHING) | cell_data(row.cell)  # tasks have axes of their own, a table one head
        data.append(meta(plan, row) | told | chosen | count_data(row) | _merged(numbers))
    fixed = ("experiment", "cell", *(("learning rate",) if rates else ()), "complete")
    head = (*fixed, *(metric_head(metric) for metric in metrics), *COUNT_HEAD)
    notes = (*heading_notes(plan, names, metrics), *_noise(rows), *closing_notes(plan, index, names))
    return Table(name, f"{title} (tier {plan.tier})", notes, head, tuple(shown), tuple(data), frozenset(strong))


def _noise(rows: list[Row]) -> list[str]:
    """The A/A line of the validation loss, and what bold face means, where there is such a column."""
    results = [row.measured["val_loss"] for row in rows if "val_loss" in row.measured]
    return [f"validation loss, {noise_note(results)}", BOLD_NOTE] if results else []


BOLD_NOTE = (
    "bold: the first rank group among the methods of one point of the grid (paired t tests over seeds, Holm over all"
    " pairs at 5 %), where there is more than one group; never merely the best mean"
)


def first_groups(rows: list[Row]) -> set[tuple[str, str, str]]:
    """(experiment, cell, metric) of what no other method of the same point beats, where something is beaten."""
    points: dict[str, list[Row]] = {}
    for row in rows:
        points.setdefault(json.dumps(row.cell.axes, sort_keys=True), []).append(row)
    found: set[tuple[str, str, str]] = set()
    for group in points.values():
        for metric in group[0].measured:
            if METRICS[metric].better == "none":
                continue
            results = {row.cell.label: row.measured[metric] for row in group}
            ranks = [rank for rank in rank_intervals(results, METRICS[metric].better == "lower") if rank.low]
            best = [rank.name for rank in ranks if rank.low == 1]
            if len(ranks) >= MIN_GROUP and len(best) < len(ranks):
                found |= {(group[0].cell.experiment, name, metric) for name in best}
    return found


def _rate_words(rows: list[Row], index: Index) -> dict[tuple[str, str], str]:
    """What each cell's rate is to its method: chosen, with the edge marked, or not chosen; empty without tuning."""
    groups: list[Tuned] = tuned([row.cell for row in rows], index)
    words = {}
    for group in groups:
        for rate, cell in group.cells.items():
            chosen = group.choice.rate == rate
            text = f"chosen: {group.choice.words}" if chosen else (group.choice.reason or "not chosen")
            words[cell.experiment, cell.label] = text
    return words


def _merged(parts: Iterable[dict[str, Value]]) -> dict[str, Value]:
    return {key: value for part in parts for key, value in part.items()}


VERDICT_HEAD = ("id", "says", "reported", "source", "ours", "verdict", "reason")


def verdict_rows(verdicts: Sequence[Verdict]) -> list[dict[str, Value]]:
    """The contract's rows of `repro claims`, with hashes and provenance."""
    return [
        {
            "id": verdict.id,
            "paper": verdict.paper,
            "says": verdict.says,
            "reported": verdict.reported,
            "ours": verdict.ours,
            "verdict": verdict.verdict,
            "decided": verdict.decided,
            "reason": verdict.reason,
            "n_planned": verdict.n_planned,
            "n_complete": verdict.n_complete,
            "n_diverged": verdict.n_diverged,
            "n_failed": verdict.n_failed,
            "n_missing": verdict.n_missing,
            "tier": verdict.scale,
            "provenance": verdict.provenance,
            "looks": verdict.looks,
            "claim_sha256": verdict.claim_sha256,
            "family_sha256": verdict.family_sha256,
            "registered": verdict.since or NOTHING,
            "changed_late": verdict.late or NOTHING,
            "aa_spread": NOTHING if verdict.aa_spread is None else verdict.aa_spread,
        }
        for verdict in verdicts
    ]


def _run_counts(verdict: Verdict) -> list[str]:
    return [str(getattr(verdict, f"n_{name}")) for name in COUNTS]


def claims_table(plan: Plan, verdicts: Sequence[Verdict], paper: str) -> Table:
    """One row a claim of one paper, decided or not."""
    chosen = [verdict for verdict in verdicts if verdict.paper == paper]
    shown = tuple(
        (v.id, v.says, v.reported, v.provenance, v.ours, v.verdict, v.reason, *_run_counts(v)) for v in chosen
    )
    names = [name for name in plan.cells if plan.configuration.experiments[name].paper == paper]
    metrics = values_of([name for e in trainings_of(plan, paper) for name in plan.configuration.experiments[e].metrics])
    notes = (*heading_notes(plan, names, metrics), "counts are runs, summed over the arms of a claim")
    title = f"Paper {paper.upper()}: claims and verdicts (tier {plan.tier})"
    return Table(f"claims_{paper}", title, notes, (*VERDICT_HEAD, *COUNTS), shown, tuple(verdict_rows(chosen)))


def write_tables(root: Root, plan: Plan, index: Index, claims: Sequence[Claim], paper: str) -> list[Path]:
    """Cells, checks and claims of one paper as CSV, Markdown and LaTeX; raises CannotWriteError."""
    folder = root.tables(plan.tier)
    verdicts = judge(claims, plan, index, plan.tier)
    tables = [
        paper_table(plan, index, paper),
        claims_table(plan, verdicts, paper),
        paper_checks(plan, index, paper),
    ]
    return [path for table in tables for path in write_table(folder, table)]
