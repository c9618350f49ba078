"""P12: what a run of the smallest tier costs inside a chunk, against a process of its own."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repro.bench.measure import NotEqualError, Question, Row, Times, beyond, interleave, run_timed
from repro.bench.registry import Session, ratio
from repro.bench.situation import SIZE, make_checkout, plan_of
from repro.plan import Run
from repro.spec.paths import Root

RUNS, ROUNDS = 20, 2
# Two runs of one configuration may differ in these and in nothing else.
CHANGING = ("time", "speed", "created", "sha256")


@ratio("P12", "a run inside a chunk / in a process of its own", ("torch", "lightning"))
def chunked(session: Session) -> list[Row]:
    """Seconds a run: one `repro run` of a whole chunk over its size, against `repro run` of single runs."""
    together = make_checkout(session.root, session.folder / "together", RUNS, chunk=RUNS)
    alone = make_checkout(session.root, session.folder / "alone", RUNS, chunk=RUNS)
    runs = list(plan_of(together).runs.values())
    for root in (together, alone):
        session.tell("preparing data")
        run_timed((sys.executable, "-m", "repro", "data", "prepare", str(runs[0].data)), root.path)
    picked = [runs[number * (RUNS - 1) // ROUNDS] for number in range(ROUNDS + 1)]
    session.tell(f"one chunk of {RUNS} runs, to compare its records with those of single runs")
    train(together, runs[0].chunk)
    for run in picked:
        train(alone, run.id)
        expect_equal(records_of(together, run), records_of(alone, run))
    times = _times(session, together, alone, picked)
    detail = f"records of {len(picked)} runs equal but for {', '.join(CHANGING)}"
    return [question.answer(times, None, detail) for question in _QUESTIONS]


def _times(session: Session, together: Root, alone: Root, picked: list[Run]) -> Times:
    """Seconds a run, whole and as the records tell them (training and measuring), of both ways."""
    rest, work = iter(picked), {"together, work": list[float](), "alone, work": list[float]()}

    def chunk() -> float:
        seconds = afresh(together, picked[0].chunk) / RUNS
        work["together, work"].append(recorded_seconds(together) / RUNS)
        return seconds

    def single() -> float:
        seconds = afresh(alone, next(rest).id)
        work["alone, work"].append(recorded_seconds(alone))
        return seconds

    return interleave({"together": chunk, "alone": single}, ROUNDS, session.tell) | work


def recorded_seconds(root: Root) -> float:
    """Wall time that the records of a checkout account for."""
    files = root.scratch_records.rglob("*.json")
    walls: list[float] = [json.loads(path.read_text("utf-8"))["time"]["wall"] for path in files]
    return sum(walls)


_PACKAGES = ("torch", "lightning")
_QUESTIONS = (
    Question(
        id="P12",
        ratio=f"seconds a run in a chunk of {RUNS} / alone",
        peer="one process a run",
        formula=lambda t: t["together"] / t["alone"],
        bar=0.3,
        packages=_PACKAGES,
    ),
    Question(
        id="P12",
        ratio="the same beyond training and measuring",
        peer="one process a run",
        formula=lambda t: beyond(t["together"] - t["together, work"], t["alone"] - t["alone, work"], 0.0),
        bar=None,
        packages=_PACKAGES,
    ),
)


def train(root: Root, name: str) -> float:
    """Seconds of `repro run` of a run or a chunk."""
    return run_timed((sys.executable, "-m", "repro", "run", name, "--tier", SIZE), root.path)[0]


def afresh(root: Root, name: str) -> float:
    """As `train`, after what earlier trainings left is gone; the data stay."""
    for part in ("records", "ckpt", "final", "cache"):
        shutil.rmtree(root.scratch / part, ignore_errors=True)
    return train(root, name)


def records_of(root: Root, run: Run) -> dict[str, dict[str, Any]]:
    """Records of a run and of its metrics by id, without what may change from one time to the next."""
    found = {}
    for path in sorted(root.scratch_records.rglob("*.json")):
        raw = json.loads(Path(path).read_text("utf-8"))
        if run.id in (raw["id"], raw["of"]):
            found[raw["id"]] = {key: value for key, value in raw.items() if key not in CHANGING}
    return found


def expect_equal(ours: Mapping[str, Any], peer: Mapping[str, Any]) -> None:
    """NotEqualError unless both hold the same records, at least a training's and one of a metric."""
    if len(ours) < 2 or ours.keys() != peer.keys():
        raise NotEqualError(f"records of {sorted(ours)} inside a chunk, of {sorted(peer)} alone")
    for identity, record in ours.items():
        keys = [key for key in record.keys() | peer[identity].keys() if record.get(key) != peer[identity].get(key)]
        if keys:
            raise NotEqualError(f"record {identity} differs inside a chunk and alone: {', '.join(sorted(keys))}")
