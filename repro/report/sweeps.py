"""The loss against what an experiment sweeps, learning rates or a parameter of a method. No global state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from repro.plan import Cell, Plan
from repro.records.index import Index
from repro.report.figures import PALETTE, PANEL_INCHES
from repro.stats.cells import COMPLETE, DIVERGED, cell_result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
SCORE = "val_loss"
SHOWN = (COMPLETE, DIVERGED)  # states that leave something to see
WORDS = {"lr": "learning rate", "dt": "residual step dt", "beta": "residual coefficient beta"}
SHIFT = 1.04  # crosses of several lines at one place stand side by side


def sweep_rows(plan: Plan, index: Index, experiment: str) -> Iterator[dict[str, Any]]:
    """One row a planned run: its line, the swept name and value, its state, and the loss of a complete one."""
    cells = plan.cells[experiment]
    swept = swept_name(cells)
    if swept is None:
        return
    for cell in cells:
        result = cell_result(cell, index, SCORE)
        for seed, state in result.states.items():
            yield {
                "line": _line_of(cell, swept),
                "swept": swept,
                "x": cell.axes.get(swept, cell.params.get(swept)),
                "seed": seed,
                "state": state,
                "loss": result.values.get(seed),
            }


def swept_name(cells: Sequence[Cell]) -> str | None:
    """`lr` where there are several rates, else the only parameter of which the only method has several values."""
    if len({cell.axes.get("lr") for cell in cells}) > 1:
        return "lr"
    if len({cell.method for cell in cells}) > 1:
        return None
    values: dict[str, set[Any]] = {}
    for cell in cells:
        for name, value in cell.params.items():
            values.setdefault(name, set()).add(value)
    swept = [name for name, found in values.items() if len(found) > 1]
    return swept[0] if len(swept) == 1 else None


def _line_of(cell: Cell, swept: str) -> str:
    """The method and what else tells its cells apart."""
    first, *rest = cell.label.split("/")
    if swept in cell.params:
        first = cell.method
    return "/".join([first, *(part for part in rest if not part.startswith(swept))])


def sweep(rows: Sequence[Row]) -> Figure:
    """Points are seeds, lines run through means; a value with a diverged seed has a cross and no mean."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PANEL_INCHES[0] * 1.6, PANEL_INCHES[1] + 0.6), layout="constrained")
    axes = figure.subplots()
    lines = list(dict.fromkeys(row["line"] for row in rows))
    top = max((row["loss"] for row in rows if row["loss"] is not None), default=1.0)
    for place, name in enumerate(lines):
        own = [row for row in rows if row["line"] == name]
        _draw_line(axes, name, own, PALETTE[place % len(PALETTE)], top, SHIFT ** (place - (len(lines) - 1) / 2))
    swept = str(rows[0]["swept"])
    scale = "log" if min(row["x"] for row in rows) > 0 else "linear"
    drawn = sum(row["state"] in SHOWN for row in rows)
    figure.suptitle(f"{drawn} of {len(rows)} runs", fontsize=10)
    axes.set(xscale=scale, xlabel=WORDS.get(swept, swept), ylabel="validation loss (nats/token)")
    axes.grid(visible=True, linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if any(row["state"] == DIVERGED for row in rows):
        axes.plot([], [], "x", color="#555555", label="a seed diverged: k of n")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _draw_line(axes: Axes, name: str, rows: list[Row], colour: str, top: float, shift: float) -> None:
    axes.plot([], [], color=colour, label=name)
    means: dict[float, float] = {}
    for x in sorted({row["x"] for row in rows}):
        here = [row for row in rows if row["x"] == x]
        losses = [row["loss"] for row in here if row["loss"] is not None]
        axes.plot([x] * len(losses), losses, ".", color=colour, alpha=0.5, markersize=4)
        diverged = sum(row["state"] == DIVERGED for row in here)
        if diverged:
            axes.plot([x * shift], [top * 1.03], "x", color=colour)
            axes.annotate(f"{diverged}/{len(here)}", (x * shift, top * 1.045), color=colour, fontsize=6, ha="center")
        whole = all(row["state"] == COMPLETE for row in here) and len(losses) == len(here)
        means[x] = fmean(losses) if whole else math.nan
    axes.plot(list(means), list(means.values()), color=colour, linewidth=1.4)
