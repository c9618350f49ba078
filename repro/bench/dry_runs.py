"""P9 and P10: what a dry run of Snakemake costs with this suite's Snakefile, against bare jobs and against itself.

All times are taken beyond the start of Snakemake on a Snakefile of one job, measured in the same rounds.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from repro.bench.measure import (
    NotEqualError,
    Question,
    Row,
    Times,
    beyond,
    interleave,
    noise_of,
    run_timed,
)
from repro.bench.registry import Session, ratio
from repro.bench.situation import make_checkout, plan_of, record, twin
from repro.dag import stamp
from repro.dispatch import write_stamp
from repro.plan import Plan
from repro.records.index import load_index
from repro.spec.paths import Root

PEER = ("snakemake",)
_COMMAND = (sys.executable, "-m", "snakemake", "-n", "--cores", "1")
_BARE = """\
rule all:
    input:
        [f"out/{{i}}.txt" for i in range({jobs})],

rule one:
    output:
        "out/{{i}}.txt",
    shell:
        "touch {{output}}"
"""
_GENERATED = """\
rule all:
    input:
        [f"out/{{i}}.txt" for i in range({jobs})],

for i in range({jobs}):

    rule:
        name:
            f"one_{{i}}"
        output:
            f"out/{{i}}.txt",
        shell:
            "touch {{output}}"
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of runs: planned, missing in the half-done situation, of the ladder for slopes, of generated rules."""

    planned: int = 10_000
    missing: int = 100
    ladder: tuple[int, ...] = (1_000, 2_500, 5_000)
    generated: int = 5_000
    rounds: int = 5


@dataclass(frozen=True, slots=True)
class Series:
    """Times of all sides of one interleaved series, and what the same code twice was off."""

    times: Times
    noise: float


@ratio("P9", "dry run of 10,000 new runs / of 10,000 bare jobs", PEER)
def new_runs(session: Session) -> list[Row]:
    """Our Snakefile against a bare one with as many jobs, growth with size, and one generated rule a run."""
    sizes = Sizes()
    series = _series(session, sizes)
    equal = f"both list {sizes.planned} jobs; ours are the planned chunks"
    rows = [question.answer(series.times, series.noise, equal) for question in _new_questions(sizes)]
    return [*rows, *_against_generated(session, sizes, series)]


@ratio("P10", "dry run with 100 of 10,000 runs missing / with all missing", PEER)
def half_done(session: Session) -> list[Row]:
    """A campaign that is nearly done must cost what is left of it, not what was planned."""
    sizes = Sizes()
    series = _series(session, sizes)
    equal = f"jobs are exactly the chunks of the {sizes.missing} missing runs"
    return [question.answer(series.times, series.noise, equal) for question in _done_questions(sizes)]


def _new_questions(sizes: Sizes) -> list[Question]:
    planned = str(sizes.planned)
    ladder = (*sizes.ladder, sizes.planned)

    def against_bare(t: Mapping[str, float]) -> float:
        return beyond(t[f"{planned} new"], t[f"{planned} bare"], t["start"])

    def growth(t: Mapping[str, float]) -> float:
        return slope_ratio({size: t[f"{size} new"] for size in ladder})

    bare = f"{planned} bare one-output jobs"
    slopes = f"seconds a run towards {ladder[-1]} / towards {ladder[0]} runs"
    return [
        Question("P9", f"dry run of {planned} new runs / {bare}", bare, against_bare, 1.5, packages=PEER),
        Question("P9", slopes, "ours at small sizes", growth, 1.2, packages=PEER),
    ]


def _done_questions(sizes: Sizes) -> list[Question]:
    planned, missing = sizes.planned, sizes.missing

    def part(name: str) -> Callable[[Mapping[str, float]], float]:
        return lambda t: beyond(t[name], t[f"{planned} new"], t["start"])

    def idle(t: Mapping[str, float]) -> float:
        return t["none"] / t["start"]

    peer = f"all {planned} missing"
    some, kept = f"{missing} of {planned} missing", "stamps of the others kept"
    nothing = f"nothing to do of {planned} / start on one job"
    return [
        Question("P10", f"{some} / all missing", peer, part("some"), 0.3, packages=PEER),
        Question("P10", f"{some}, {kept} / all missing", peer, part("some, stamped"), 0.3, packages=PEER),
        Question("P10", nothing, "bare Snakefile, one job", idle, 1.5, packages=PEER),
    ]


def slope_ratio(seconds: Mapping[int, float]) -> float:
    """Slope of a line through the larger half of the sizes over the slope through the smaller half (1 = linear)."""
    sizes = sorted(seconds)
    middle = len(sizes) // 2
    small, large = sizes[: middle + 1], sizes[len(sizes) - middle - 1 :]
    low, high = (statistics.linear_regression(part, [seconds[s] for s in part]).slope for part in (small, large))
    return high / low if low > 0 else float("inf")


def _series(session: Session, sizes: Sizes) -> Series:
    """All dry runs that the asked ratios need, in one series; each is compared with the plan before any time counts."""
    if "dry runs" not in session.shared:
        sides = {"start": _bare(session, 1), "start again": _bare(session, 1)}
        session.tell("making checkouts of new runs")
        sides |= {f"{sizes.planned} new": _new(session, sizes.planned)}
        if "P9" in session.ids:
            sides |= {f"{size} new": _new(session, size) for size in sizes.ladder}
            sides |= {f"{sizes.planned} bare": _bare(session, sizes.planned)}
        if "P10" in session.ids:
            sides |= done_sides(session, sizes)
        times = interleave(sides, sizes.rounds, session.tell)
        session.shared["dry runs"] = Series(times, noise_of(times, "start", "start again"))
    found: Series = session.shared["dry runs"]
    return found


def _against_generated(session: Session, sizes: Sizes, series: Series) -> list[Row]:
    """For information: one round is enough to see why a rule a run is not the way."""
    session.tell(f"{sizes.generated} generated rules")
    folder = _snakefile(session, f"generated-{sizes.generated}", _GENERATED, sizes.generated)
    seconds, text = run_timed(_COMMAND, folder)
    expect_jobs(job_counts(text), sizes.generated, "generated rules")
    ours = f"{sizes.generated} new"
    peer = f"one generated rule a run, {sizes.generated} runs"

    def formula(t: Mapping[str, float]) -> float:
        return beyond(t[ours], t["generated"], t["start"])

    times = {"generated": [seconds]} | {name: [statistics.median(series.times[name])] for name in (ours, "start")}
    question = Question("P9", f"{sizes.generated} new runs / {peer}", peer, formula, None, packages=PEER)
    return [question.answer(times, series.noise, "both list as many jobs")]


def _snakefile(session: Session, name: str, text: str, jobs: int) -> Path:
    folder = session.folder / name
    folder.mkdir(exist_ok=True)
    (folder / "Snakefile").write_text(text.format(jobs=jobs), "utf-8")
    return folder


def _bare(session: Session, jobs: int) -> Callable[[], float]:
    """A bare Snakefile; its job count is asserted once, which also warms it up."""
    folder = _snakefile(session, f"bare-{jobs}", _BARE, jobs)
    session.tell(f"{jobs} bare jobs")
    expect_jobs(job_counts(run_timed(_COMMAND, folder)[1]), jobs, "the bare Snakefile")
    return lambda: run_timed(_COMMAND, folder)[0]


def _new(session: Session, runs: int) -> Callable[[], float]:
    """A checkout of `runs` new runs, chunk 1."""
    root = make_checkout(session.root, session.folder / f"new-{runs}", runs, chunk=1)
    return checked(session, root, plan_of(root), {run.chunk for run in plan_of(root).runs.values()})


def checked(session: Session, root: Root, plan: Plan, chunks: set[str]) -> Callable[[], float]:
    """A dry run in `root`, after it was shown to list exactly `chunks`, a part of the plan's."""
    session.tell(f"dry run: {len(chunks)} of {len(plan.runs)} missing")
    expect_chunks(run_timed(_COMMAND, root.path)[1], chunks)
    return lambda: run_timed(_COMMAND, root.path)[0]


def done_sides(session: Session, sizes: Sizes) -> dict[str, Callable[[], float]]:
    """Checkouts with some runs missing (with and without the stamps of the others), and with none."""
    root = make_checkout(session.root, session.folder / "some", sizes.planned, chunk=1)
    plan = plan_of(root)
    runs = list(plan.runs.values())
    left, done = runs[:: len(runs) // sizes.missing][: sizes.missing], set(plan.runs)
    done -= {run.id for run in left}
    session.tell(f"writing the records of {len(done)} runs")
    record(root, plan, (plan.runs[identity] for identity in done))
    load_index(root).refuse_problems()
    stamped, none = twin(root, session.folder / "stamped"), twin(root, session.folder / "none")
    for identity in done:
        run = plan.runs[identity]
        write_stamp(stamp(stamped, run.chunk), [run])
    record(none, plan, left)
    chunks = {run.chunk for run in left}
    sides = {"some": checked(session, root, plan, chunks), "some, stamped": checked(session, stamped, plan, chunks)}
    finish_views(none)
    return sides | {"none": checked(session, none, plan, set())}


def finish_views(root: Root) -> None:
    """Touches the outputs of all jobs that a dry run still lists; a run among them is a NotEqualError."""
    for _ in range(3):
        text = run_timed(_COMMAND, root.path)[1]
        if not job_counts(text):
            return
        expect_chunks(text, set())
        for line in re.findall(r"^ +output: (.+)$", text, re.MULTILINE):
            for name in line.split(", "):
                path = root.path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
    raise NotEqualError("all is recorded and all outputs are there, but Snakemake still wants to run jobs")


def job_counts(text: str) -> dict[str, int]:
    """Jobs by rule out of a dry run's table; empty if there is nothing to be done."""
    table = text.rpartition("Job stats:")[2] if "Job stats:" in text else ""
    return {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", table, re.MULTILINE) if name != "total"}


def expect_jobs(counts: Mapping[str, int], jobs: int, what: str) -> None:
    """NotEqualError unless there are `jobs` jobs beside the target rule."""
    found = sum(count for name, count in counts.items() if name != "all")
    if found != jobs:
        raise NotEqualError(f"{what}: {found} jobs, not {jobs}")


def expect_chunks(text: str, chunks: set[str]) -> None:
    """NotEqualError unless a dry run lists a job of rule run for each of `chunks` and for no other."""
    listed = re.findall(r"^Job \d+: chunk ([0-9a-f]{12}): ", text, re.MULTILINE)
    counted = job_counts(text).get("run", 0)
    if set(listed) != chunks or counted != len(chunks):
        raise NotEqualError(f"{counted} run jobs of {len(set(listed))} chunks, but {len(chunks)} have missing runs")
