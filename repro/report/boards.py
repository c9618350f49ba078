"""Leaderboards: rank intervals of all methods of a track, each at the learning rate that its tuning runs chose."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from repro.plan import Plan
from repro.records.index import Index
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
from repro.report.joined import Row, heading_notes, joined
from repro.report.table import Table, Value, strict_json, write_file, write_table
from repro.spec.metrics import METRICS
from repro.spec.paths import Root
from repro.stats.cells import CellResult, summarise
from repro.stats.ranking import Rank, rank_intervals
from repro.stats.spread import aa_spread
from repro.stats.tuned import tuned

SCORE = "val_loss"  # what leaderboards rank by
# Where NOTHING is no word of its own: a method, a model or a source may well be called so.
_PARTS = (f"{SCORE}_{part}" for part in ("sample_sd", "t95_low", "t95_high"))
MAY_BE_EMPTY = frozenset(("rank_low", "rank_high", "tokens_per_second", "origin", *_PARTS))

RANK_NOTE = (
    "rank: 1 + methods significantly better, to the number ranked - methods significantly worse; paired t tests over"
    " seeds (3 at least), two-sided, Holm over all pairs at 5 %; equal first numbers are one group"
)
TUNING_NOTE = (
    "the learning rate of each method is the one with the best mean on the tuning seeds, which enter no number here;"
    " an optimum at the grid's edge is marked"
)


@dataclass(frozen=True)
class Entry:
    """One method on a board: the row of its chosen cell, its result, and the words on its learning rate."""

    name: str
    row: Row
    result: CellResult
    rate: str


def boards(plan: Plan, track: str) -> list[str]:
    """Experiments that every method of `track` takes part in."""
    experiments = plan.configuration.experiments
    return [name for name in plan.cells if experiments[name].takes_all and experiments[name].task == track]


def _entries(plan: Plan, index: Index, experiment: str) -> dict[str, list[Entry]]:
    """Entries by the point of the grid at which they are compared."""
    rows = {row.cell.label: row for row in joined(plan, index, experiment)}
    groups = tuned([row.cell for row in rows.values()], index, SCORE)
    found: dict[str, list[Entry]] = {}
    if not groups:
        for label, row in rows.items():
            point = json.dumps(row.cell.axes, sort_keys=True)
            found.setdefault(point, []).append(
                Entry(label, row, row.measured[SCORE], f"{row.cell.axes['lr']:g} (fixed)")
            )
        return found
    for group in groups:
        cell = group.chosen or next(iter(group.cells.values()))
        row, result = rows[cell.label], group.result(index, SCORE)
        if group.chosen is None:
            row = replace(row, trained=result, attempts=0, tokens_per_second=None, origins=())
        point = json.dumps({key: value for key, value in cell.axes.items() if key != "lr"}, sort_keys=True)
        name = "/".join(part for part in cell.label.split("/") if not part.startswith("lr"))
        found.setdefault(point, []).append(Entry(name, row, result, group.choice.words))
    return found


def _placed(plan: Plan, index: Index, experiment: str) -> Iterable[tuple[Rank, Entry]]:
    """Methods in the order of the board, ranked within one point of the grid."""
    for entries in _entries(plan, index, experiment).values():
        named = {entry.name: entry for entry in entries}
        ranks = rank_intervals({name: entry.result for name, entry in named.items()}, METRICS[SCORE].better == "lower")
        yield from ((rank, named[rank.name]) for rank in ranks)


def place_words(rank: Rank) -> str:
    """`1 to 3`, `2`, or `no rank`."""
    if rank.low is None:
        return "no rank"
    return str(rank.low) if rank.low == rank.high else f"{rank.low} to {rank.high}"


def leaderboard_table(plan: Plan, index: Index, track: str) -> Table:
    """All methods of a track: rank interval, score, counts; those that are not complete below, without a rank."""
    names = boards(plan, track)
    placed = [pair for name in names for pair in _placed(plan, index, name)]
    shown, data = [], []
    for rank, entry in placed:
        row, summary = entry.row, summarise(entry.result)
        speed = "none" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}"
        origin = ", ".join(row.origins) or NOTHING
        words = (summary_words(summary), entry.rate, complete_words(row), *count_words(row), speed, origin)
        shown.append((place_words(rank), entry.name, *words))
        numbers: dict[str, Value] = {
            "rank_low": rank.low or NOTHING,
            "rank_high": rank.high or NOTHING,
            "learning_rate": entry.rate,
            **summary_data(SCORE, summary),
            "tokens_per_second": NOTHING if row.tokens_per_second is None else row.tokens_per_second,
            "origin": origin,
        }
        data.append(meta(plan, row) | cell_data(row.cell) | count_data(row) | numbers)
    head = (
        "rank",
        "method",
        metric_head(SCORE),
        "learning rate",
        "complete",
        *COUNT_HEAD,
        "tokens/s, median",
        "origin",
    )
    notes = (
        *heading_notes(plan, names, [SCORE]),
        RANK_NOTE,
        *([TUNING_NOTE] if any(cell.tuning_seeds for name in names for cell in plan.cells[name]) else []),
        noise_note([entry.result for _, entry in placed]),
        "a method with a diverged, failed or missing planned run has no rank",
        *closing_notes(plan, index, names),
    )
    first = frozenset((place, 1) for place, (rank, _) in enumerate(placed) if rank.low == 1)
    strong = first if len(first) < sum(rank.low is not None for rank, _ in placed) else frozenset()
    title = f"Leaderboard of track {track} (tier {plan.tier})"
    return Table(f"leaderboard_{track}", title, notes, head, tuple(shown), tuple(data), strong)


def noise_note(results: Iterable[CellResult]) -> str:
    """The A/A line of some cells: what a difference has to be held against."""
    spread = aa_spread(results)
    return "A/A line: not known, no cell has two runs" if spread is None else f"A/A line: {spread.words()}"


def leaderboard_rows(table: Table) -> list[dict[str, object]]:
    """Rows of a leaderboard for JSON: null where there is no number, and `state` says why."""
    rows = []
    for data in table.data:
        mean = data[f"{SCORE}_mean"]
        row = {key: None if value == NOTHING and key in MAY_BE_EMPTY else value for key, value in data.items()}
        state = mean if isinstance(mean, str) else "complete"
        number = None if isinstance(mean, str) else mean
        rows.append(row | {"state": state, f"{SCORE}_mean": number, "params": json.loads(str(data["params"]))})
    return rows


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
