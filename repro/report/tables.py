"""Tables per paper, of claims, and leaderboards: one row a planned cell or claim, never fewer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from repro.plan import Cell, Plan
from repro.records.index import Index
from repro.report.joined import (
    Row,
    heading_notes,
    incomplete,
    joined,
    metric_words,
    seeds_words,
    stranger_words,
    strangers,
)
from repro.report.table import Table, Value, strict_json, write_file, write_table
from repro.spec.claims import Claim
from repro.spec.metrics import METRICS, values_of
from repro.spec.paths import Root
from repro.spec.rules import RULES
from repro.stats.cells import Summary, summarise
from repro.stats.ranking import Rank, rank_intervals
from repro.stats.verdict import COUNTS, Verdict, judge

NOTHING = "none"  # a word, so that no cell is empty and no gap reads as 0
SCORE = "val_loss"  # what leaderboards rank by

__all__ = [
    "claims_table",
    "experiment_table",
    "incomplete",
    "leaderboard_rows",
    "leaderboard_table",
    "paper_table",
    "verdict_rows",
    "write_leaderboard",
    "write_tables",
]


def summary_words(summary: Summary) -> str:
    """`2.241 (sd 0.012), [2.231, 2.251]`, or the state."""
    if summary.mean is None:
        return summary.state
    if summary.sd is None or summary.interval is None:
        return f"{summary.mean:.5g} (one run: no spread)"
    low, high = summary.interval
    return f"{summary.mean:.5g} (sd {summary.sd:.2g}), [{low:.5g}, {high:.5g}]"


def _summary_data(metric: str, summary: Summary) -> dict[str, Value]:
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


def _meta(plan: Plan, row: Row) -> dict[str, Value]:
    """What a number of this row must not travel without."""
    return {
        "tier": plan.tier,
        "data": row.run.data,
        "data_digest": row.run.config["data"],
        "rules_train": RULES["train"],
        "rules_data": RULES["data"],
    }


def _cell_data(cell: Cell) -> dict[str, Value]:
    return {
        "experiment": cell.experiment,
        "cell": cell.label,
        "method": cell.method,
        "params": json.dumps(cell.params, sort_keys=True, allow_nan=False),
        **cell.axes,
    }


def _count_data(row: Row) -> dict[str, Value]:
    trained = row.trained
    return {
        "planned": trained.planned,
        "complete": trained.complete,
        "diverged": trained.diverged,
        "failed": trained.failed,
        "missing": trained.missing,
        "attempts": row.attempts,
        "seeds_not_complete": seeds_words(trained),
    }


COUNT_HEAD = ("diverged", "failed", "missing", "attempts", "seeds not complete")


def _complete_words(row: Row) -> str:
    return f"{row.trained.complete} of {row.trained.planned}"


def _count_words(row: Row) -> tuple[str, ...]:
    trained = row.trained
    counts = (trained.diverged, trained.failed, trained.missing, row.attempts)
    return (*map(str, counts), seeds_words(trained))


def _closing_notes(plan: Plan, index: Index, names: Iterable[str]) -> tuple[str, ...]:
    """Strangers and the incomplete line of some experiments."""
    wanted = set(names)
    runs = {run.alias for run in plan.runs.values() if wanted & set(run.experiments)}
    lines = [line for line in incomplete(plan, index) if line.rsplit(": ", 1)[0] in runs]
    apart = [stranger_words(record) for record in strangers(plan, index) if wanted & set(record.raw["experiments"])]
    notes = ["means, sample standard deviations (divisor n - 1) and 95 % t intervals over all planned seeds, or words"]
    if lines:
        notes.append(f"incomplete: {len(lines)} things are missing or failed, the first is {lines[0]}")
    if apart:
        notes.append(f"on record but not in the plan, in no number here: {', '.join(apart)}")
    return tuple(notes)


def paper_table(plan: Plan, index: Index, paper: str) -> Table:
    """All planned cells of all experiments of one paper."""
    names = [name for name in plan.cells if plan.configuration.experiments[name].paper == paper]
    return _cells_table(plan, index, names, f"paper_{paper}", f"Paper {paper.upper()}: planned cells")


def experiment_table(plan: Plan, index: Index, experiment: str) -> Table:
    """All planned cells of one experiment."""
    title = plan.configuration.experiments[experiment].title or experiment
    return _cells_table(plan, index, [experiment], experiment, title)


def _cells_table(plan: Plan, index: Index, names: list[str], name: str, title: str) -> Table:
    metrics = values_of([name for e in names for name in plan.configuration.experiments[e].metrics])
    rows = [row for experiment in names for row in joined(plan, index, experiment)]
    shown, data = [], []
    for row in rows:
        summaries = {metric: summarise(row.measured[metric]) for metric in metrics if metric in row.measured}
        words = [summary_words(summaries[metric]) if metric in summaries else "not asked for" for metric in metrics]
        shown.append((row.cell.experiment, row.cell.label, _complete_words(row), *words, *_count_words(row)))
        numbers = [_summary_data(metric, summaries.get(metric, Summary("not asked for", 0))) for metric in metrics]
        data.append(_meta(plan, row) | _cell_data(row.cell) | _count_data(row) | _merged(numbers))
    head = ("experiment", "cell", "complete", *(_metric_head(metric) for metric in metrics), *COUNT_HEAD)
    notes = (*heading_notes(plan, names, metrics), *_closing_notes(plan, index, names))
    return Table(name, f"{title} (tier {plan.tier})", notes, head, tuple(shown), tuple(data))


def _merged(parts: Iterable[dict[str, Value]]) -> dict[str, Value]:
    return {key: value for part in parts for key, value in part.items()}


def _metric_head(metric: str) -> str:
    return f"{metric_words(metric)}: mean (sample sd), [95 % t]"


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
    metrics = values_of([name for e in names for name in plan.configuration.experiments[e].metrics])
    notes = (*heading_notes(plan, names, metrics), "counts are runs, summed over the arms of a claim")
    title = f"Paper {paper.upper()}: claims and verdicts (tier {plan.tier})"
    return Table(f"claims_{paper}", title, notes, (*VERDICT_HEAD, *COUNTS), shown, tuple(verdict_rows(chosen)))


def write_tables(root: Root, plan: Plan, index: Index, claims: Sequence[Claim], paper: str) -> list[Path]:
    """Cells and claims of one paper as CSV, Markdown and LaTeX; raises CannotWriteError."""
    folder = root.tables(plan.tier)
    verdicts = judge(claims, plan, index, plan.tier)
    tables = [paper_table(plan, index, paper), claims_table(plan, verdicts, paper)]
    return [path for table in tables for path in write_table(folder, table)]


def boards(plan: Plan, track: str) -> list[str]:
    """Experiments that every method of `track` takes part in."""
    experiments = plan.configuration.experiments
    return [name for name in plan.cells if experiments[name].methods is None and experiments[name].task == track]


def _place_words(rank: Rank) -> str:
    if rank.low is None:
        return "no rank"
    return str(rank.low) if rank.low == rank.high else f"{rank.low} to {rank.high}"


def _board_rows(plan: Plan, index: Index, experiment: str) -> list[tuple[Rank, Row]]:
    """Methods in the order of the board, ranked within one point of the grid."""
    groups: dict[str, dict[str, Row]] = {}
    for row in joined(plan, index, experiment):
        axes = json.dumps(row.cell.axes, sort_keys=True)
        groups.setdefault(axes, {})[row.cell.label] = row
    found = []
    for rows in groups.values():
        results = {label: row.measured[SCORE] for label, row in rows.items()}
        ranks = rank_intervals(results, METRICS[SCORE].better == "lower")
        found += [(rank, rows[rank.name]) for rank in ranks]
    return found


def leaderboard_table(plan: Plan, index: Index, track: str) -> Table:
    """All methods of a track: rank interval, score, counts; those that are not complete below, without a rank."""
    names = boards(plan, track)
    placed = [pair for name in names for pair in _board_rows(plan, index, name)]
    shown, data = [], []
    for rank, row in placed:
        speed = "none" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}"
        origin = ", ".join(row.origins) or NOTHING
        summary = summarise(row.measured[SCORE])
        words = (summary_words(summary), _complete_words(row), *_count_words(row), speed, origin)
        shown.append((_place_words(rank), row.cell.label, *words))
        numbers: dict[str, Value] = {
            "rank_low": rank.low or NOTHING,
            "rank_high": rank.high or NOTHING,
            **_summary_data(SCORE, summary),
            "tokens_per_second": NOTHING if row.tokens_per_second is None else row.tokens_per_second,
            "origin": origin,
        }
        data.append(_meta(plan, row) | _cell_data(row.cell) | _count_data(row) | numbers)
    head = ("rank", "method", _metric_head(SCORE), "complete", *COUNT_HEAD, "tokens/s, median", "origin")
    notes = (
        *heading_notes(plan, names, [SCORE]),
        RANK_NOTE,
        "a method with a diverged, failed or missing planned run has no rank",
        *_closing_notes(plan, index, names),
    )
    title = f"Leaderboard of track {track} (tier {plan.tier})"
    return Table(f"leaderboard_{track}", title, notes, head, tuple(shown), tuple(data))


def leaderboard_rows(table: Table) -> list[dict[str, object]]:
    """Rows of a leaderboard for JSON: null where there is no number, and `state` says why."""
    rows = []
    for data in table.data:
        mean = data[f"{SCORE}_mean"]
        row = {key: None if value == NOTHING else value for key, value in data.items()}
        state = mean if isinstance(mean, str) else "complete"
        number = None if isinstance(mean, str) else mean
        rows.append(row | {"state": state, f"{SCORE}_mean": number, "params": json.loads(str(data["params"]))})
    return rows


RANK_NOTE = (
    "rank: 1 + methods significantly better, to the number ranked - methods significantly worse; paired t tests over"
    " seeds (3 at least), two-sided, Holm over all pairs at 5 %; equal first numbers are one group"
)


def write_leaderboard(root: Root, plan: Plan, index: Index, track: str) -> list[Path]:
    """The leaderboard as CSV, Markdown, LaTeX and JSON; raises CannotWriteError."""
    table = leaderboard_table(plan, index, track)
    folder = root.tables(plan.tier)
    document = {
        "schema": 1,
        "track": track,
        "tier": plan.tier,
        "score": METRICS[SCORE].protocol,
        "better": METRICS[SCORE].better,
        "notes": table.notes,
        "rows": leaderboard_rows(table),
    }
    return [*write_table(folder, table), write_file(folder / f"{table.name}.json", strict_json(document))]
