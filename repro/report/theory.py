"""Figures beside the loss curves: of theory checks from the rows in their records, of descents from their curves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.plan import Cell, Plan
from repro.records.index import Index
from repro.report import theory_a, theory_b, theory_d
from repro.report.figures import render, write_bytes
from repro.report.sweeps import SHOWN, sweep, sweep_rows
from repro.report.table import write_file
from repro.spec.errors import BadDataError, problem_error, shown
from repro.spec.experiment import LmExperiment
from repro.spec.metrics import METRICS
from repro.spec.paths import Root

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[dict[str, Any]]
ERRORS = ("train_error", "dev_error")
CONTROLS = {"none": "as they are", "permuted": "targets of other windows", "persistence": "targets less persistence"}


@dataclass(frozen=True)
class Drawing:
    """One figure: its name, what to see in it, how it is drawn, which rows of a record it is made of, what they say."""

    name: str
    caption: str
    draw: Callable[[Rows], Figure]
    key: str = "rows"
    says: Callable[[Rows], str] | None = None

    def text(self, rows: Rows) -> str:
        """For those who do not see the figure."""
        return f"{self.caption} {self.says(rows) if self.says else f'{len(rows)} points.'}"


def _widest(rows: Rows) -> Rows:
    """States at the start of the widest nets of the check: one curve a method."""
    start = [row for row in rows if row["state"] == "start"]
    width = max((row["width"] for row in start), default=0)
    return [row for row in start if row["width"] == width]


def _ends(rows: Rows) -> Rows:
    """Of each run the layers at its last probed step."""
    last = {(row["method"], row["seed"]): row["step"] for row in rows}
    return [row for row in rows if row["step"] == last[row["method"], row["seed"]]]


def _descents(curves: Rows) -> Figure:
    named = [{**curve, "panel": CONTROLS[curve["control"]]} for curve in curves]
    panels = list(dict.fromkeys(curve["panel"] for curve in named))
    return theory_d.loss_curves(named, panels, "Training loss by residual coefficient, one step size for all")


# By the check, or by the task of a training, that the records come from. What is not here has a table and no figure.
DRAWINGS: dict[str, tuple[Drawing, ...]] = {
    "a_growth": (
        Drawing(
            "moments",
            "Hidden state by layer at the start, with the bounds of A-T1 dotted.",
            lambda rows: theory_a.moments(_widest(rows)),
            says=lambda rows: theory_a.in_words(_widest(rows), "mean_abs", "Mean absolute value"),
        ),
    ),
    "b_gram": (Drawing("spectrum", "Smallest eigenvalue by family; hollow below its round-off.", theory_b.spectrum),),
    "b_convergence": (
        Drawing(
            "curves",
            "Risk over time, first draw of the first seed; dotted, the slope that the theorem promises.",
            theory_b.convergence,
        ),
    ),
    "b_control": (Drawing("control", "The control cannot fall below its floor.", theory_b.control),),
    "b_limits": (Drawing("limits", "Error against depth and against width.", theory_b.limits),),
    "b_continuity": (Drawing("trajectories", "Tokens through depth, first seed.", theory_b.trajectories, "paths"),),
    "d_rank_collapse": (
        Drawing(
            "ratio",
            "Singular values of the attention sub-layer's output by beta and d_QK: the collapse needs variance 1/d_QK.",
            theory_d.singular_values,
        ),
    ),
    "d_rate": (
        Drawing("descents", "Loss of gradient descent by beta, every draw.", theory_d.descents, "curves"),
        Drawing("rates", "Rate of convergence against the kernel and against sigma_min.", theory_d.rates),
        Drawing("conditioning", "sigma_min and the kernel along training.", theory_d.along_training, "spectra"),
    ),
    "forecast": (Drawing("descents", "Training loss by beta, every seed; controls beside.", _descents, "curve"),),
    "classify": (
        Drawing(
            "depth", "Error by layers kept, with and without residuals, every seed.", theory_d.depth_errors, "errors"
        ),
    ),
    "lm": (
        Drawing(
            "moments",
            "Hidden state by layer in the last step of training: mean over all seeds, band from smallest to largest.",
            lambda rows: theory_a.moments(_ends(rows), "Hidden state by layer at the end of training"),
            "layers",
            lambda rows: theory_a.in_words(_ends(rows), "mean_abs", "Mean absolute value"),
        ),
        Drawing(
            "gradients",
            "Norm of each block's gradient in the last step of training, before clipping.",
            lambda rows: theory_a.gradients(_ends(rows), "Gradient norm by layer at the end of training"),
            "layers",
            lambda rows: theory_a.in_words(theory_a.blocks(_ends(rows)), "grad_norm", "Norm of the gradient"),
        ),
        Drawing(
            "sweep",
            "Final validation loss against what is swept: points are seeds, lines their means, crosses diverged seeds.",
            sweep,
            "sweep",
        ),
    ),
    "flow": (Drawing("descents", "Risk by depth and width, every seed.", theory_b.descents, "curve"),),
}


def drawings(plan: Plan, index: Index, experiment: str) -> Iterator[tuple[Drawing, Rows]]:
    """The figures of one experiment with rows to draw, each row with the seed that drew it."""
    cells = plan.cells.get(experiment, [])
    if not cells:
        return
    for drawing in _chosen(plan, experiment):
        if drawing.key == "sweep":
            rows = list(sweep_rows(plan, index, experiment))
            rows = rows if any(row["state"] in SHOWN for row in rows) else []
        elif drawing.key == "layers":
            rows = [row for cell in cells for row in _layers(index, cell)]
        else:
            rows = [row for cell in cells for row in _rows(index, cell, drawing.key)]
        if rows:
            yield drawing, rows


def _chosen(plan: Plan, experiment: str) -> tuple[Drawing, ...]:
    """What the check or the task has; of language models' figures those that the experiment asks for."""
    run, asked = plan.runs[plan.cells[experiment][0].run_ids[0]], plan.configuration.experiments[experiment]
    found = DRAWINGS.get(run.method if run.kind == "check" else run.config["task"], ())
    return tuple(each for each in found if each.name in asked.figures) if isinstance(asked, LmExperiment) else found


def _layers(index: Index, cell: Cell) -> Iterator[dict[str, Any]]:
    """Probed layers of a cell; where a planned seed has none, the rows say that there is no mean (`apart`)."""
    rows = list(_rows(index, cell, "layers"))
    seeds = {row["seed"] for row in rows}
    whole = len(seeds) == len(cell.run_ids)
    for row in rows:
        name = cell.label if whole else f"{cell.label} ({len(seeds)} of {len(cell.run_ids)} seeds)"
        yield {**row, "method": name, "apart": not whole}


def _rows(index: Index, cell: Cell, key: str) -> Iterator[dict[str, Any]]:
    for run_id in cell.run_ids:
        record = index.train(run_id)
        if record is None or (key != "curve" and record.status != "complete"):
            continue
        if key == "curve":
            yield from _curve(record.raw, cell)
        elif key == "errors":
            yield {**cell.axes, "seed": record.seed, **{name: _measured(index, run_id, name) for name in ERRORS}}
        else:
            yield from ({**row, "seed": record.seed} for row in record.raw["probes"].get(key, []))


def _measured(index: Index, run_id: str, name: str) -> float | None:
    """A metric of one run; None where it has no current record."""
    record = index.evals(run_id).get(METRICS[name].family)
    return record.value(name) if record else None


def _curve(raw: dict[str, Any], cell: Cell) -> Iterator[dict[str, Any]]:
    """One row a run: its axes and parameters, steps and training losses."""
    if raw.get("curve"):
        steps = [tokens // raw["budget"]["tokens_per_step"] for tokens in raw["curve"]["tokens"]]
        yield {**cell.axes, **cell.params, "seed": raw["seed"], "steps": steps, "losses": raw["curve"]["train_loss"]}


def figure_name(experiment: str, drawing: Drawing) -> str:
    """`theory_b_gram_spectrum`, the stem of the figure's files."""
    return f"theory_{experiment}_{drawing.name}"


def _drawn(experiment: str, drawing: Drawing, rows: Rows) -> dict[str, bytes]:
    """The images; the form of a check's rows is in no schema, and a record may come from anywhere."""
    try:
        return render(drawing.draw(rows))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        message = f"a record's probes are not what the figure needs ({type(error).__name__}: {shown(str(error))})"
        raise problem_error(BadDataError, "results/records", f"{experiment}.{drawing.name}", message) from None


def write_theory(root: Root, plan: Plan, index: Index) -> list[Path]:
    """SVG and PNG of every figure that has rows; raises CannotWriteError, BadDataError for rows of another form."""
    written = []
    for experiment in plan.cells:
        for drawing, rows in drawings(plan, index, experiment):
            images = _drawn(experiment, drawing, rows)
            base = root.figures(plan.tier) / figure_name(experiment, drawing)
            written.append(write_file(base.with_suffix(".svg"), images["svg"].decode("utf-8")))
            written.append(write_bytes(base.with_suffix(".png"), images["png"]))
    return written
