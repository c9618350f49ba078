"""Figures of theory checks: which check has which figures, and how they are made of its records' rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.plan import Plan
from repro.records.index import Index
from repro.report import theory_a, theory_b
from repro.report.figures import render, write_bytes
from repro.report.table import write_file
from repro.spec.paths import Root

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Drawing:
    """One figure of a check: its name, what to see in it, which rows of a record's details it is made of."""

    name: str
    caption: str
    draw: Callable[[Rows], Figure]
    key: str = "rows"


# A check that is not here has a table and no figure.
DRAWINGS: dict[str, tuple[Drawing, ...]] = {
    "a_growth": (
        Drawing("moments", "Hidden state by layer, with the bounds of A-T1 drawn in.", theory_a.moments, "layers"),
        Drawing("gradients", "Gradient norm by layer.", theory_a.gradients, "layers"),
    ),
    "b_gram": (Drawing("spectrum", "Smallest eigenvalue by family; hollow below its round-off.", theory_b.spectrum),),
    "b_convergence": (
        Drawing("curves", "Risk over time; dotted, the slope that the theorem promises.", theory_b.convergence),
    ),
    "b_control": (Drawing("control", "The control cannot fall below its floor.", theory_b.control),),
    "b_limits": (Drawing("limits", "Error against depth and against width.", theory_b.limits),),
    "b_continuity": (Drawing("trajectories", "Tokens through depth.", theory_b.trajectories, "paths"),),
}


def drawings(plan: Plan, index: Index, experiment: str) -> Iterator[tuple[Drawing, Rows]]:
    """The figures of one experiment with rows to draw, each row with the seed that drew it."""
    cells = plan.cells.get(experiment, [])
    if not cells or plan.runs[cells[0].run_ids[0]].kind != "check":
        return
    for drawing in DRAWINGS.get(cells[0].method, ()):
        rows = [row for cell in cells for row in _rows(index, cell.run_ids, drawing.key)]
        if rows:
            yield drawing, rows


def _rows(index: Index, run_ids: Sequence[str], key: str) -> Iterator[dict[str, Any]]:
    for run_id in run_ids:
        record = index.train(run_id)
        if record is not None and record.status == "complete":
            yield from ({**row, "seed": record.seed} for row in record.raw["probes"].get(key, []))


def figure_name(experiment: str, drawing: Drawing) -> str:
    """`theory_b_gram_spectrum`, the stem of the figure's files."""
    return f"theory_{experiment}_{drawing.name}"


def write_theory(root: Root, plan: Plan, index: Index) -> list[Path]:
    """SVG and PNG of every figure that has rows; raises CannotWriteError."""
    written = []
    for experiment in plan.cells:
        for drawing, rows in drawings(plan, index, experiment):
            images = render(drawing.draw(rows))
            base = root.figures(plan.tier) / figure_name(experiment, drawing)
            written.append(write_file(base.with_suffix(".svg"), images["svg"].decode("utf-8")))
            written.append(write_bytes(base.with_suffix(".png"), images["png"]))
    return written
