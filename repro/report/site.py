"""One static page a tier: verdicts, leaderboards, tables, curves. It needs no script, no network, no server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.plan import Plan
from repro.records.index import Index
from repro.report.boards import boards, leaderboard_table
from repro.report.escape import plain
from repro.report.figures import alt_text, with_curves, write_bytes, write_figures
from repro.report.joined import incomplete
from repro.report.quality import quality_notes
from repro.report.table import Table, write_file
from repro.report.tables import claims_table, experiment_table
from repro.report.theory import drawings, figure_name, write_theory
from repro.spec.claims import PAPERS, Claim
from repro.spec.paths import Root
from repro.stats.verdict import Verdict, judge

TEMPLATES = Path(__file__).parent / "templates"
WORDS = {
    "reproduced": "The paper's statement holds in its own setting.",
    "not_reproduced": "The paper's statement fails in its own setting.",
    "supported": "Our smaller or different setting agrees.",
    "contradicted": "Our smaller or different setting disagrees.",
    "inconclusive": "Too few runs, or too little difference, to say.",
    "not_run": "No run speaks about it yet.",
    "not_comparable": "The settings differ too much to compare numbers.",
    "not_reported": "The paper's number is not known to us.",
}
PROVENANCE = {
    "seed": "a summary of the paper",
    "paper": "the paper",
    "code": "the authors' code",
    "secondary": "a third party's page",
    "derived": "worked out here",
}


@dataclass(frozen=True)
class PaperPart:
    """Verdicts of one paper."""

    letter: str
    verdicts: list[Verdict]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    """One figure: where it lies beside the page, the same in words, and what to see in it."""

    path: str
    alt: str
    caption: str


CURVES = (
    "Each thin line is one seed. A dashed line with a cross diverged; the cross is its last point on the scale, which"
    " begins after the first fifth of the training."
)


@dataclass(frozen=True)
class ExperimentPart:
    """Table and figures of one experiment."""

    name: str
    title: str
    table: Table
    figures: list[Picture]
    assumptions: Sequence[str]


def environment() -> Any:
    """Jinja with everything escaped, unknown names refused, and text neutralised before it is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: plain(value) if isinstance(value, str) and not hasattr(value, "__html__") else value,
    )
    return made


def _papers(plan: Plan, verdicts: Sequence[Verdict]) -> list[PaperPart]:
    parts = []
    for letter in PAPERS:
        chosen = [verdict for verdict in verdicts if verdict.paper == letter]
        if chosen:
            parts.append(PaperPart(letter, chosen, claims_table(plan, verdicts, letter).notes))
    return parts


def _experiments(plan: Plan, index: Index) -> list[ExperimentPart]:
    experiments, curves = plan.configuration.experiments, set(with_curves(plan))
    return [
        ExperimentPart(
            name,
            experiments[name].title or name,
            experiment_table(plan, index, name),
            [*_curves(plan, index, name, name in curves), *_theory(plan, index, name)],
            experiments[name].assumptions,
        )
        for name, cells in plan.cells.items()
        if cells
    ]


def _curves(plan: Plan, index: Index, name: str, drawn: bool) -> list[Picture]:
    return [Picture(f"figures/curves_{name}.svg", alt_text(plan, index, name), CURVES)] if drawn else []


def _theory(plan: Plan, index: Index, name: str) -> list[Picture]:
    """Pictures of a check; their numbers stand in the table below, which is their text too."""
    return [
        Picture(f"figures/{figure_name(name, drawing)}.svg", f"{drawing.caption} {len(rows)} points.", drawing.caption)
        for drawing, rows in drawings(plan, index, name)
    ]


def render_page(plan: Plan, index: Index, claims: Sequence[Claim]) -> str:
    """The whole page as text."""
    verdicts = judge(claims, plan, index, plan.tier)
    open_points = incomplete(plan, index)
    tracks = sorted({track for run in plan.runs.values() for track in run.tracks})
    return str(
        environment()
        .get_template("index.html")
        .render(
            tier=plan.tier,
            tier_title=plan.configuration.tiers[plan.tier].title,
            runs=len(plan.runs),
            recorded=sum(index.train(run_id) is not None for run_id in plan.runs),
            words=WORDS,
            provenance=PROVENANCE,
            papers=_papers(plan, verdicts),
            boards=[leaderboard_table(plan, index, track) for track in tracks if boards(plan, track)],
            experiments=_experiments(plan, index),
            notes=quality_notes(plan, index),
            open_points=open_points,
        )
    )


def write_site(root: Root, plan: Plan, index: Index, claims: Sequence[Claim]) -> Path:
    """`results/site/<tier>/index.html` with its figures beside it; raises CannotWriteError."""
    folder = root.site(plan.tier)
    for figure in [*write_figures(root, plan, index), *write_theory(root, plan, index)]:
        write_bytes(folder / "figures" / figure.name, figure.read_bytes())
    return write_file(folder / "index.html", render_page(plan, index, claims))
