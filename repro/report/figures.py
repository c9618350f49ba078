"""Loss curves: validation loss against tokens, every seed of every cell, diverged ones marked.

Figures are drawn without a screen and without global state, and the same records give the same bytes.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.plan import Cell, Plan, Run
from repro.records.index import Index
from repro.report.escape import plain
from repro.report.joined import model_words
from repro.report.table import write_file
from repro.spec.errors import CannotWriteError, problem_error
from repro.spec.paths import Root

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito (2008): told apart by most people with colour-blindness; the yellow is too pale for lines.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)))
PANEL_AXES = ("model", "weight_decay", "lr")
AXIS_WORDS = {"weight_decay": "weight decay", "lr": "learning rate"}
PANEL_INCHES = (4.2, 3.2)
COLUMNS = 2
LEGEND_COLUMNS = 3
SETTLED = 0.2  # share of the training after which a healthy loss has come down; the scale starts there
HEADROOM = 1.04
TITLE_LETTERS = 11  # of a title, to an inch
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Line:
    """Validation losses of one seed: tokens and nats a token, and whether it ended by diverging."""

    tokens: tuple[int, ...]
    losses: tuple[float, ...]
    diverged: bool


@dataclass(frozen=True)
class Panel:
    """One point of the experiment's grid: a group of seeds for each method."""

    title: str
    cells: dict[str, list[Line]]
    planned: int

    @property
    def drawn(self) -> int:
        """Seeds with a curve."""
        return sum(len(lines) for lines in self.cells.values())


def _varying(cells: list[Cell]) -> list[str]:
    return [axis for axis in PANEL_AXES if len({cell.axes.get(axis) for cell in cells}) > 1]


def _lines(cell: Cell, index: Index) -> Iterator[Line]:
    for run_id in cell.run_ids:
        record = index.train(run_id)
        curve = record.raw.get("curve") if record else None
        if record is None or not curve:
            continue
        points = [
            (t, loss)
            for t, loss in zip(curve.get("tokens", []), curve.get("val_loss", []), strict=True)
            if loss is not None
        ]
        if points:
            tokens, losses = zip(*points, strict=True)
            yield Line(tokens, losses, record.status == "diverged")


def _value_words(axis: str, cell: Cell, run: Run) -> str:
    if axis == "model":
        return f"model {model_words(run)}"
    return f"{AXIS_WORDS[axis]} {cell.axes[axis]:g}"


def panels(plan: Plan, index: Index, experiment: str) -> list[Panel]:
    """One panel a point of the grid, in the plan's order."""
    cells = plan.cells[experiment]
    axes = _varying(cells)
    found: dict[str, Panel] = {}
    for cell in cells:
        run = plan.runs[cell.run_ids[0]]
        title = ", ".join(_value_words(axis, cell, run) for axis in axes or ["model"])
        panel = found.get(title, Panel(title, {}, 0))
        lines = {**panel.cells, cell.label.split("/")[0]: list(_lines(cell, index))}
        found[title] = Panel(title, lines, panel.planned + len(cell.run_ids))
    return list(found.values())


def _top(lines: list[Line]) -> float:
    """Upper end of the scale: every finished run ends inside it, and differences late in training can be seen."""
    finished = [line for line in lines if not line.diverged]
    if not finished:
        return HEADROOM * max(line.losses[0] for line in lines)
    settled = [loss for line in finished for t, loss in zip(line.tokens, line.losses, strict=True) if _late(line, t)]
    return HEADROOM * max(settled)


def _late(line: Line, tokens: int) -> bool:
    return tokens >= SETTLED * line.tokens[-1]


def _draw_lines(axes: Axes, lines: list[tuple[Line, tuple[str, Any]]], top: float) -> None:
    """All lines of a panel as one collection, which draws many seeds quickly."""
    from matplotlib.collections import LineCollection

    axes.add_collection(
        LineCollection(
            [list(zip(line.tokens, line.losses, strict=True)) for line, _ in lines],
            colors=[colour for _, (colour, _) in lines],
            linestyles=["--" if line.diverged else dash for line, (_, dash) in lines],
            linewidths=1.0,
            alpha=0.75,
        ),
        autolim=False,
    )
    for line, (colour, _) in lines:
        if line.diverged:  # the cross stands where the run was last on the scale
            inside = [point for point in zip(line.tokens, line.losses, strict=True) if point[1] <= top]
            x, y = inside[-1] if inside else (line.tokens[0], top)
            axes.scatter([x], [y], marker="x", color=colour, s=42, linewidths=1.6, clip_on=False, zorder=3)


def _limits(parts: list[Panel]) -> tuple[float, float]:
    """One scale for all panels, so that they can be compared; (0, 1) where nothing is drawn."""
    lines = [line for part in parts for group in part.cells.values() for line in group]
    if not lines:
        return 0.0, 1.0
    low, top = min(min(line.losses) for line in lines), _top(lines)
    return low - 0.05 * (top - low), top


def _draw_panel(axes: Axes, panel: Panel, styles: dict[str, tuple[str, Any]], limits: tuple[float, float]) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.set_title(f"{plain(panel.title)}: {panel.drawn} of {panel.planned} runs", fontsize=9, parse_math=False)
    axes.set_xlabel("training tokens")
    axes.set_ylabel("validation loss (nats/token)")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(visible=True, linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    lines = list(itertools.chain.from_iterable(panel.cells.values()))
    if not lines:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", va="center", color="#555555")
        return
    axes.set_ylim(*limits)
    axes.set_xlim(0, 1.03 * max(line.tokens[-1] for line in lines))
    seeds = itertools.zip_longest(*panel.cells.values())  # seed by seed, so that no method covers the others
    styled = [(line, styles[name]) for group in seeds for name, line in zip(panel.cells, group, strict=True) if line]
    _draw_lines(axes, styled, limits[1])


def _styles(names: list[str]) -> dict[str, tuple[str, Any]]:
    """Colour first, then the dash pattern; beyond the palette the pair still tells methods apart."""
    pairs = [(colour, dash) for dash in DASHES for colour in PALETTE]
    return {name: pairs[place % len(pairs)] for place, name in enumerate(names)}


def _legend(figure: Figure, styles: dict[str, tuple[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, linestyle=dash) for colour, dash in styles.values()]
    marks = Line2D([], [], color="#555555", linestyle="--", marker="x")
    labels = [*(plain(name).replace("$", r"\$") for name in styles), "diverged: last point on the scale"]
    figure.legend(
        [*handles, marks],
        labels,
        loc="outside lower center",
        ncols=LEGEND_COLUMNS,
        frameon=False,
        fontsize=8,
        handlelength=3,
    )


def draw(plan: Plan, index: Index, experiment: str) -> Figure:
    """The figure of one experiment: thin lines are seeds, dashed ones with a cross diverged."""
    from matplotlib.figure import Figure

    parts = panels(plan, index, experiment)
    columns = min(COLUMNS, len(parts))
    rows = -(-len(parts) // columns)
    width = max(columns * PANEL_INCHES[0], 6.4)
    styles = _styles(list(dict.fromkeys(name for part in parts for name in part.cells)))
    height = rows * PANEL_INCHES[1] + 0.5 + 0.2 * (len(styles) // LEGEND_COLUMNS + 1)
    figure = Figure(figsize=(width, height), layout="constrained")
    limits = _limits(parts)
    grid = figure.subplots(rows, columns, squeeze=False).flat
    for axes, part in itertools.zip_longest(grid, parts):
        if part is None:
            axes.set_axis_off()
        else:
            _draw_panel(axes, part, styles, limits)
    drawn, planned = sum(part.drawn for part in parts), sum(part.planned for part in parts)
    title = plan.configuration.experiments[experiment].title or experiment
    heading = textwrap.fill(plain(title), round(width * TITLE_LETTERS))
    figure.suptitle(f"{heading}\n(tier {plan.tier}, {drawn} of {planned} runs)", fontsize=10, parse_math=False)
    _legend(figure, styles)
    return figure


def alt_text(plan: Plan, index: Index, experiment: str) -> str:
    """The figure in words, for those who do not see it."""
    parts = panels(plan, index, experiment)
    lines = [line for part in parts for group in part.cells.values() for line in group]
    planned = sum(part.planned for part in parts)
    diverged = sum(line.diverged for line in lines)
    return (
        f"Validation loss in nats per token against training tokens, experiment {experiment}: {len(lines)} of"
        f" {planned} planned runs have a curve, {diverged} of them diverged; {len(parts)} panels."
    )


def _plain_decades(figure: Figure) -> None:
    """Labels of logarithmic axes as text: parsing them as formulas was a quarter of the time of all figures."""
    from matplotlib.ticker import LogFormatter

    class Decades(LogFormatter):
        """10⁻³ for a power of ten, 2×10⁻³ beside it; which of them are labelled stays matplotlib's choice."""

        def _num_to_string(self, value: float, vmin: float, vmax: float) -> str:
            exponent = math.floor(math.log10(value) + 1e-9)
            factor = value / 10**exponent
            power = f"10{str(exponent).translate(SUPERSCRIPTS)}"
            return power if abs(factor - 1) < 1e-6 else f"{factor:.3g}×{power}"

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                axis.set_major_formatter(Decades())
                axis.set_minor_formatter(Decades(labelOnlyBase=False, minor_thresholds=(1, 0.4)))


def render(figure: Figure) -> dict[str, bytes]:
    """The figure as SVG and PNG bytes, without dates, ids or versions that would change from run to run."""
    import matplotlib as mpl

    found = {}
    _plain_decades(figure)
    with mpl.rc_context({"svg.hashsalt": "repro", "svg.fonttype": "path"}):
        for kind, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
            out = io.BytesIO()
            figure.savefig(out, format=kind, dpi=150, metadata=metadata)
            found[kind] = out.getvalue()
            figure.set_layout_engine("none")  # the first format has placed everything; the next keeps it
    return found


def write_bytes(path: Path, content: bytes) -> Path:
    """As `write_file`, for bytes; raises CannotWriteError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.is_file() and path.read_bytes() == content:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        raise problem_error(CannotWriteError, path.name, "", str(error.strerror)) from None
    return path


def with_curves(plan: Plan) -> list[str]:
    """Experiments that train language models, in the plan's order."""
    experiments = plan.configuration.experiments
    return [name for name, cells in plan.cells.items() if cells and experiments[name].task == "lm"]


def write_figures(root: Root, plan: Plan, index: Index) -> list[Path]:
    """`curves_<experiment>.svg` and `.png` of every planned experiment; raises CannotWriteError."""
    written = []
    for experiment in with_curves(plan):
        images = render(draw(plan, index, experiment))
        base = root.figures(plan.tier) / f"curves_{experiment}"
        written.append(write_file(base.with_suffix(".svg"), images["svg"].decode("utf-8")))
        written.append(write_bytes(base.with_suffix(".png"), images["png"]))
    return written
