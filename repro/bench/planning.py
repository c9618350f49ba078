"""P11: how long `repro plan` takes to list 1,000 runs, and that it imports nothing heavy."""

from __future__ import annotations

import json
import re
import sys

from repro.bench.measure import NotEqualError, Question, Row, interleave, noise_of, run_timed
from repro.bench.registry import Session, ratio
from repro.bench.situation import SIZE, make_checkout

HEAVY = {"torch", "lightning", "transformers", "datasets", "pandas", "scipy", "matplotlib", "jinja2", "snakemake"}
RUNS, ROUNDS = 1_000, 9
_PLAN = ("-m", "repro", "plan", "--tier", SIZE, "--json")
_START = (sys.executable, "-c", "import yaml, pydantic")


@ratio("P11", "repro plan of 1,000 runs beyond python with yaml and pydantic", ("pyyaml", "pydantic"))
def plan_seconds(session: Session) -> list[Row]:
    """Seconds of the verb, all output included, beyond an interpreter that imports what any reader of YAML does."""
    root = make_checkout(session.root, session.folder / "plan", RUNS, chunk=1)
    heavy = imported(run_timed((sys.executable, "-X", "importtime", *_PLAN), root.path)[1]) & HEAVY
    if heavy:
        raise NotEqualError(f"repro plan imports {', '.join(sorted(heavy))}")
    expect_runs(run_timed((sys.executable, *_PLAN), root.path)[1], RUNS)
    times = interleave(
        {
            "start": lambda: run_timed(_START, root.path)[0],
            "plan": lambda: run_timed((sys.executable, *_PLAN), root.path)[0],
            "start again": lambda: run_timed(_START, root.path)[0],
        },
        ROUNDS,
        session.tell,
    )
    detail = f"{RUNS} lines, each a planned run; none of {', '.join(sorted(HEAVY))} is imported"
    return [_QUESTION.answer(times, noise_of(times, "start", "start again"), detail)]


_QUESTION = Question(
    id="P11",
    ratio=f"repro plan of {RUNS} runs - bare python",
    peer="python -c 'import yaml, pydantic'",
    formula=lambda t: t["plan"] - t["start"],
    bar=1.0,
    unit="seconds",
    packages=("pyyaml", "pydantic"),
)


def imported(text: str) -> set[str]:
    """Top-level packages in the report of `python -X importtime`."""
    return {name.partition(".")[0] for name in re.findall(r"^import time: .*\| +(\S+)$", text, re.MULTILINE)}


def expect_runs(text: str, runs: int) -> None:
    """NotEqualError unless the output holds `runs` different planned runs, one a line."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    found = {line["id"] for line in lines if line["state"] == "missing"}
    if len(found) != runs or len(lines) != runs:
        raise NotEqualError(f"{len(lines)} lines with {len(found)} missing runs, not {runs}")
