"""Static pages of one tier, a whole one and one for each paper. They need no script, no network, no server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.plan import Plan, Run
from repro.records.index import Index
from repro.report.boards import boards, leaderboard_table
from repro.report.escape import plain
from repro.report.figures import alt_text, with_curves, write_bytes, write_figures
from repro.report.joined import incomplete
from repro.report.quality import quality_notes
from repro.report.table import Table, write_file
from repro.report.tables import claims_table, experiment_table
from repro.report.theory import drawings, figure_name, write_theory
from repro.spec.claims import PAPERS, TITLES, Claim
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
    files: list[tuple[str, str, str]]  # alias, status and file of each recorded run; on a paper's page only


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


def _experiments(plan: Plan, index: Index, paper: str | None) -> list[ExperimentPart]:
    experiments, curves = plan.configuration.experiments, set(with_curves(plan))
    return [
        ExperimentPart(
            name,
            experiments[name].title or name,
            experiment_table(plan, index, name),
            [*_curves(plan, index, name, name in curves), *_theory(plan, index, name)],
            experiments[name].assumptions,
            _files(plan, index, name) if paper else [],
        )
        for name, cells in plan.cells.items()
        if cells and paper in (None, experiments[name].paper)
    ]


def _files(plan: Plan, index: Index, experiment: str) -> list[tuple[str, str, str]]:
    """The record behind each run of an experiment, as a path from the page to the file."""
    runs = [run_id for cell in plan.cells[experiment] for run_id in (*cell.run_ids, *cell.tuning_ids)]
    found = [(plan.runs[run_id], index.train(run_id)) for run_id in dict.fromkeys(runs)]
    return [(run.alias, record.status, f"../../../{record.entry.path}") for run, record in found if record]


def _curves(plan: Plan, index: Index, name: str, drawn: bool) -> list[Picture]:
    return [Picture(f"figures/curves_{name}.svg", alt_text(plan, index, name), CURVES)] if drawn else []


def _theory(plan: Plan, index: Index, name: str) -> list[Picture]:
    """Pictures of checks and of probes; the table below holds their numbers."""
    return [
        Picture(f"figures/{figure_name(name, drawing)}.svg", drawing.text(rows), drawing.caption)
        for drawing, rows in drawings(plan, index, name)
    ]


def render_page(plan: Plan, index: Index, claims: Sequence[Claim], paper: str | None = None) -> str:
    """The whole page as text, or the page of one paper: its claims, experiments and records."""
    verdicts = [v for v in judge(claims, plan, index, plan.tier) if paper in (None, v.paper)]
    runs = [run for run in plan.runs.values() if paper is None or _speaks_of(plan, run, paper)]
    open_points = incomplete(index, runs)
    tracks = [] if paper else sorted({track for run in plan.runs.values() for track in run.tracks})
    return str(
        environment()
        .get_template("index.html")
        .render(
            tier=plan.tier,
            tier_title=plan.configuration.tiers[plan.tier].title,
            heading=f"Paper {paper.upper()}: {TITLES[paper]}" if paper else "Reproduction results",
            pages=_pages(plan, paper),
            runs=len(runs),
            recorded=sum(index.train(run.id) is not None for run in runs),
            words=WORDS,
            provenance=PROVENANCE,
            papers=_papers(plan, verdicts),
            boards=[leaderboard_table(plan, index, track) for track in tracks if boards(plan, track)],
            experiments=_experiments(plan, index, paper),
            notes=quality_notes(plan, index),
            open_points=open_points,
        )
    )


def _speaks_of(plan: Plan, run: Run, paper: str) -> bool:
    return any(plan.configuration.experiments[name].paper == paper for name in run.experiments)


def planned_papers(plan: Plan) -> list[str]:
    """Papers that have an experiment in the plan."""
    planned = {plan.configuration.experiments[name].paper for name, cells in plan.cells.items() if cells}
    return [letter for letter in PAPERS if letter in planned]


def _pages(plan: Plan, here: str | None) -> list[tuple[str, str]]:
    """Words and file of the other pages."""
    papers = [(f"Paper {letter.upper()}", f"paper_{letter}.html") for letter in planned_papers(plan) if letter != here]
    return [("All papers", "index.html"), *papers] if here else papers


def write_site(root: Root, plan: Plan, index: Index, claims: Sequence[Claim]) -> list[Path]:
    """`results/site/<tier>/index.html`, then `paper_<letter>.html`, figures beside them; raises CannotWriteError."""
    folder = root.site(plan.tier)
    for figure in [*write_figures(root, plan, index), *write_theory(root, plan, index)]:
        write_bytes(folder / "figures" / figure.name, figure.read_bytes())
    papers = planned_papers(plan)
    for old in set(folder.glob("paper_*.html")) - {folder / f"paper_{paper}.html" for paper in papers}:
        old.unlink()
    pages = {"index.html": None, **{f"paper_{paper}.html": paper for paper in papers}}
    return [write_file(folder / name, render_page(plan, index, claims, paper)) for name, paper in pages.items()]
