"""`repro claims|tables|leaderboard|site|report`: derived views of whatever is recorded."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from repro.cluster import note_refusals
from repro.dag import bind, is_fresh, note_outputs, views, write_key
from repro.plan import Plan, build_plan
from repro.records.index import Index, load_index
from repro.spec.claims import PAPERS, Claim, known_names, load_claims
from repro.spec.errors import BadDataError, ConfigError, problem_error, shown, suggest
from repro.spec.paths import Root, find_root
from repro.verbs.output import columns, emit, say

INCOMPLETE = 1  # exit code of --strict


@dataclass(frozen=True, slots=True)
class World:
    """All that a view is made of."""

    root: Root
    plan: Plan
    index: Index
    claims: list[Claim]


def _world(tier: str | None) -> World:
    """Reads everything; a record that is not what it says, or too many equal failures, stop a view before it starts."""
    root = find_root()
    plan = build_plan(root, tier)
    index = bind(plan, load_index(root))
    index.refuse_problems()
    claims = load_claims(root, known_names(plan.configuration))
    _refuse_same_failure(plan, index)
    return World(root, plan, index, claims)


def _refuse_same_failure(plan: Plan, index: Index) -> None:
    """One bad node can fail a whole campaign; 200 equal failures are not a result."""
    reasons: dict[str, int] = {}
    recorded = [record for record in map(index.train, plan.runs) if record is not None]
    for record in recorded:
        if record.status == "failed":
            reason = str(record.raw["status_detail"]["reason"]).split(":")[0]
            reasons[reason] = reasons.get(reason, 0) + 1
    limit = plan.configuration.suite.same_failure_limit
    for reason, count in reasons.items():
        if count > max(3, limit * len(recorded)):
            message = f"{count} of {len(recorded)} recorded runs failed with {shown(reason)}; mend that first"
            raise problem_error(BadDataError, "records", "quality", message)


def _known_paper(paper: str | None) -> tuple[str, ...]:
    if paper is not None and paper not in PAPERS:
        message = f"{shown(paper)} is not known{suggest(paper, PAPERS)}"
        raise problem_error(ConfigError, "command line", "--paper", message)
    return (paper,) if paper else PAPERS


def claims(paper: str | None, tier: str | None, as_json: bool) -> None:
    """Prints a verdict for each claim."""
    from repro.report.tables import verdict_rows
    from repro.stats.verdict import judge

    papers, world = _known_paper(paper), _world(tier)
    verdicts = [v for v in judge(world.claims, world.plan, world.index, world.plan.tier) if v.paper in papers]
    if as_json:
        for row in verdict_rows(verdicts):
            emit(row)
        return
    print_verdicts(world, papers)


def print_verdicts(world: World, papers: tuple[str, ...]) -> None:
    """A short table for people; the reasons stand in full in the claims' files and on the page."""
    from repro.stats.verdict import judge

    verdicts = judge(world.claims, world.plan, world.index, world.plan.tier)
    rows = [
        (
            verdict.id,
            verdict.verdict,
            f"{verdict.n_complete}/{verdict.n_planned}",
            verdict.n_diverged,
            verdict.n_failed,
            verdict.n_missing,
            textwrap.shorten(verdict.says, 58, placeholder="..."),
            textwrap.shorten(verdict.reason, 70, placeholder="..."),
        )
        for verdict in verdicts
        if verdict.paper in papers
    ]
    columns(rows, ("claim", f"verdict @{world.plan.tier}", "complete", "div", "fail", "miss", "says", "reason"))


def tables(tier: str | None, paper: str | None, strict: bool) -> None:
    """Writes the tables of one paper or of all."""
    from repro.report.joined import incomplete
    from repro.report.tables import write_tables

    papers, world = _known_paper(paper), _world(tier)
    for name in papers:
        _told(world, f"paper_{name}", write_tables(world.root, world.plan, world.index, world.claims, name))
    open_points = incomplete(world.index, world.plan.runs.values())
    if open_points:
        say(f"incomplete: {len(open_points)} open points, the first: {open_points[0]}")
        if strict:
            sys.exit(INCOMPLETE)


def _told(world: World, view: str, paths: list[Path]) -> None:
    """Notes what was written, brings the key up to date, and makes the outputs younger than their key."""
    note_outputs(world.plan, world.index, view, paths)
    write_key(world.plan, world.index, view)
    for path in paths:
        path.touch()
        say(world.root.shown(path))


def leaderboard(track: str, tier: str | None, as_json: bool) -> None:
    """Writes the leaderboard, and prints it."""
    from repro.report.boards import boards, leaderboard_rows, leaderboard_table, write_leaderboard

    world = _world(tier)
    tracks = sorted({name for entry in world.plan.configuration.methods.values() for name in entry.info.tracks})
    if track not in tracks or not boards(world.plan, track):
        message = f"{shown(track)} has no board{suggest(track, tracks)}"
        raise problem_error(ConfigError, "command line", "--track", message)
    paths = write_leaderboard(world.root, world.plan, world.index, track)
    table = leaderboard_table(world.plan, world.index, track)
    _told(world, "leaderboard", paths)
    if as_json:
        for row in leaderboard_rows(table):
            emit(row)
        return
    columns(table.rows, table.head)


def site(tier: str | None) -> None:
    """Writes the page."""
    _write_site(_world(tier))


def _write_site(world: World) -> None:
    from repro.report.site import write_site

    _told(world, "site", write_site(world.root, world.plan, world.index, world.claims))


def report(tier: str | None, verdicts: bool, log: Path | None = None) -> None:
    """All views of whatever is recorded that are not up to date; with `verdicts` also what they say and where.

    `log` is that of the controller that has just ended: it tells which jobs Slurm did not take.
    """
    from repro.report.boards import boards, write_leaderboard
    from repro.report.tables import write_tables

    if log is not None:
        root = find_root()
        note_refusals(root, build_plan(root, tier).tier, log)
    world = _world(tier)
    stale = {view for view in views(world.plan) if not is_fresh(world.plan, world.index, view)}
    for name in PAPERS:
        if f"paper_{name}" in stale:
            _told(world, f"paper_{name}", write_tables(world.root, world.plan, world.index, world.claims, name))
    if "leaderboard" in stale and boards(world.plan, "lm"):
        _told(world, "leaderboard", write_leaderboard(world.root, world.plan, world.index, "lm"))
    if "site" in stale:
        _write_site(world)
    if verdicts:
        print_verdicts(world, PAPERS)
        _print_places(world)


def _print_places(world: World) -> None:
    tier = world.plan.tier
    recorded = [record for record in map(world.index.train, world.plan.runs) if record is not None]
    print(f"\n{len(recorded)} of {len(world.plan.runs)} planned runs are recorded at tier {tier}.")
    print(f"tables  {world.root.shown(world.root.tables(tier))}")
    print(f"page    {world.root.shown(world.root.site(tier))}/index.html")
