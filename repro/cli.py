"""The command line: names, options and help. What a verb does stands in repro.verbs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from repro.spec.errors import ReproError, of_system
from repro.verbs.groups import JsonFlag, data_app, method_app, records_app

USAGE_ERROR = 64  # typer itself would say 2
INTERRUPTED = 130  # what typer makes of Ctrl-C, without a word

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Reproduction suite and leaderboard for transformer-training papers.",
)
app.add_typer(records_app, name="records")
app.add_typer(method_app, name="method")
app.add_typer(data_app, name="data")

TierOption = Annotated[
    str | None, typer.Option("--tier", help="smoke, desk, proxy or paper; default: config/suite.yaml")
]
StrictFlag = Annotated[bool, typer.Option("--strict", help="exit 1 if a planned run has no result")]


@app.command()
def plan(
    tier: TierOption = None,
    experiment: Annotated[list[str] | None, typer.Option(help="only this experiment; may be repeated")] = None,
    method: Annotated[list[str] | None, typer.Option(help="only this method; may be repeated")] = None,
    cost: Annotated[bool, typer.Option("--cost", help="add the price: GPU hours, memory, time")] = False,
    json: JsonFlag = False,
    key: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Planned runs, one a line, with their state."""
    from repro.verbs import plans

    plans.write_key_of(tier, key) if key else plans.plan(tier, experiment, method, cost, json)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="ID|ALIAS")], tier: TierOption = None, json: JsonFlag = False
) -> None:
    """Resolved configuration of a run, and the file and line that each value came from."""
    from repro.verbs import plans

    plans.show(name, tier, json)


@app.command("check-config")
def check_config(paths: list[Path]) -> None:
    """Checks configuration, records, methods, Snakemake's profiles; tells every problem as file:line: key: problem."""
    from repro.verbs import checks

    checks.check(paths)


@app.command()
def run(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="runs, chunks or aliases")],
    tier: TierOption = None,
    deadline: Annotated[
        float | None, typer.Option(help="seconds after which to save and stop (exit 75)", min=1)
    ] = None,
    steps: Annotated[int | None, typer.Option(help="a short try-out; needs --no-record", min=1)] = None,
    no_record: Annotated[bool, typer.Option("--no-record", help="leave no record and no weights")] = False,
    stamp: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Trains runs and measures them; one record each. What has a record is skipped."""
    from repro.verbs import runs

    runs.run(ids, tier, deadline, steps, no_record, stamp)


@app.command()
def diff(first: str, second: str) -> None:
    """Two records side by side: configuration, metrics, environment; only what differs."""
    from repro.verbs import records

    records.diff(first, second)


@app.command()
def claims(
    paper: Annotated[str | None, typer.Option(help="a, b, c or d")] = None,
    tier: TierOption = None,
    json: JsonFlag = False,
) -> None:
    """A verdict for each claim of the papers, with its reason and its denominators."""
    from repro.verbs import views

    views.claims(paper, tier, json)


@app.command()
def power(claim: str, tier: TierOption = None, json: JsonFlag = False) -> None:
    """Runs per arm that a claim's own test needs for 80 % power."""
    from repro.verbs import power as verb

    verb.power(claim, tier, json)


@app.command()
def tables(
    tier: TierOption = None,
    paper: Annotated[str | None, typer.Option(help="a, b, c or d; default: all")] = None,
    strict: StrictFlag = False,
) -> None:
    """Writes results/tables: planned cells, claims; CSV, Markdown, LaTeX."""
    from repro.verbs import views

    views.tables(tier, paper, strict)


@app.command()
def leaderboard(track: str = "lm", tier: TierOption = None, json: JsonFlag = False) -> None:
    """Writes and shows the leaderboard of a track."""
    from repro.verbs import views

    views.leaderboard(track, tier, json)


@app.command()
def site(tier: TierOption = None) -> None:
    """Writes results/site: static pages that open from the disk, a whole one and one for each paper."""
    from repro.verbs import views

    views.site(tier)


@app.command()
def report(
    tier: TierOption = None,
    verdicts: Annotated[bool, typer.Option("--verdicts", help="and print the verdicts")] = False,
    log: Annotated[Path | None, typer.Option(help="Snakemake's log, for what Slurm did not take")] = None,
) -> None:
    """Tables, leaderboard and page of whatever is recorded now."""
    from repro.verbs import views

    views.report(tier, verdicts, log)


@app.command()
def status(tier: TierOption = None, json: JsonFlag = False) -> None:
    """How far a campaign is: planned, running with step and rate, recorded, failed with reason and log, GPU hours."""
    from repro.verbs import campaign

    campaign.status(tier, json)


@app.command()
def retry(
    failed: Annotated[bool, typer.Option("--failed", help="failed, oom and timeout runs; no others can be")] = False,
    tier: TierOption = None,
) -> None:
    """Marks failures for one more attempt, which the next run makes; the records of the first stay."""
    from repro.verbs import campaign

    campaign.retry(tier, failed)


@app.command()
def bench(ids: Annotated[list[str] | None, typer.Argument(metavar="[P1...]")] = None, json: JsonFlag = False) -> None:
    """Performance as ratios of interleaved runs, equality asserted first."""
    from repro.bench import main as bench_main

    bench_main.bench(ids or [], json)


@app.command()
def doctor() -> None:
    """What is installed and what is not: each line ok, warn or fail, with the mend."""
    from repro.verbs import doctor as verb

    verb.doctor()


def main() -> None:
    """Entry point: problems go to standard error, one a line, and become the contract's exit codes."""
    out = sys.stdout
    try:
        app()
    except (ReproError, OSError) as error:
        told = error if isinstance(error, ReproError) else of_system(error)
        print(told, file=sys.stderr)
        sys.exit(told.exit_code)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            print("stopped by the keyboard", file=sys.stderr)
        reader_left = sys.stdout is not out  # typer mutes the stream then, and would say 1
        sys.exit(0 if reader_left else USAGE_ERROR if end.code == 2 else end.code)
