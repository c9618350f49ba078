"""`repro run`: a torch-free parent that finds out what is missing, and starts a training child only for that."""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from repro.cluster import seconds_left as allocation_left
from repro.dispatch import Options, find_runs, make_batch, todo, write_stamp
from repro.plan import Run
from repro.records.index import load_index
from repro.records.progress import EVERY, Note, drop_note, write_note
from repro.spec.errors import BadDataError, ConfigError, problem_error
from repro.spec.paths import Root, find_root
from repro.train.runner import Event, run_jobs
from repro.train.world import find_world
from repro.verbs.output import say

ENDING = 60.0  # seconds kept for the end of a job: the last look at the clock, a checkpoint, the way out


def run(
    ids: list[str], tier: str | None, deadline: float | None, steps: int | None, no_record: bool, stamp: Path | None
) -> None:
    """Trains and measures what is missing of `ids`; then writes the stamp, if one was asked for."""
    if (steps is not None) != no_record:
        raise problem_error(ConfigError, "command line", "--steps", "goes with --no-record, and --no-record with it")
    root = find_root()
    plan, runs = find_runs(root, ids, tier)
    index = load_index(root)
    index.refuse_problems()
    left = seconds_left(deadline)
    options = Options(None if left is None else time.time() + left, steps, no_record)
    missing = runs if no_record else todo(plan, runs, index)
    for meeting, group in enumerate(_by_process(missing)):
        batch = make_batch(root, plan, group, index, options)
        world = find_world(group[0].alias, group[0].cost.devices, group[0].task.nodes, os.environ)
        if world.launcher == "allocation":  # this very command again, once for each device
            words = world.start_tasks([sys.executable, "-m", "repro", *sys.argv[1:]])
            os.execvp(words[0], words)  # noqa: S606 - no shell is wanted
        batch |= {"world": asdict(world), "meeting": meeting}
        first = world.rank == 0
        progress = Progress(len(group), root if first and not no_record else None)
        try:
            run_jobs(batch, progress)
        finally:
            progress.close()
            if first:
                shutil.rmtree(root.scratch / "trial", ignore_errors=True)
    if stamp is not None and not int(os.environ.get("SLURM_PROCID") or 0):
        _check_whole(plan, runs)
        write_stamp(stamp, runs)


def seconds_left(asked: float | None) -> float | None:
    """The deadline asked for; else the time that an allocation of Slurm still has, less what ending in order takes."""
    if asked is not None:
        return asked
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    left = int(end) - time.time() if end.isdecimal() else allocation_left()
    return None if left is None else max(1.0, left - ENDING)


def _by_process(runs: list[Run]) -> list[list[Run]]:
    """The number of threads decides bits and is fixed for a process; a run on several devices has its own ones.

    So has each method: what its file does to the process when it is imported stays among its own runs.
    """
    groups: dict[tuple[int, str, str], list[Run]] = {}
    for item in runs:
        own = item.id if item.cost.devices > 1 else ""
        method = item.method if item.kind == "train" else ""
        groups.setdefault((item.config["threads"], own, method), []).append(item)
    return list(groups.values())


def _check_whole(plan: Any, runs: list[Run]) -> None:
    """A stamp is a promise that every run has its records."""
    left = todo(plan, runs, load_index(plan.configuration.root))
    if left:
        raise problem_error(BadDataError, "records", left[0].id, f"{len(left)} run(s) ended without a record")


def _numbers(event: Event) -> str:
    """What a person wants to see at the end of a run; nothing where there is no number."""
    parts = []
    if event.get("loss") is not None:
        parts.append(f"validation loss {event['loss']:.4f} nats a token")
    if event.get("speed") is not None:
        parts.append(f"{event['speed']:.0f} tokens/s")
    return "".join(f", {part}" for part in parts)


class Progress:
    """One live line on a terminal: run, step, rate, time left; elsewhere only what went wrong.

    With a `root` also a note of each run for `repro status`; without one it is a try-out.
    """

    def __init__(self, total: int, root: Root | None = None) -> None:
        self.total, self.done, self.root = total, 0, root
        self.live = sys.stderr.isatty()
        self.started, self.first, self.last_shown, self.last_noted = time.monotonic(), 0, 0.0, 0.0
        self.steps, self.noted = 0, ""

    def close(self) -> None:
        """No run of this process is going on any more, however the last one ended."""
        self._forget(self.noted)

    def _forget(self, identity: str) -> None:
        if self.root and identity:
            drop_note(self.root, identity)

    def __call__(self, event: Event) -> None:
        """Takes one event of the child."""
        kind, job = event["event"], event.get("job")
        alias = job["alias"] if job else ""
        if kind == "start":
            self.started, self.first, self.steps = time.monotonic(), event["step"], event["steps"]
            if event["step"]:
                self._line(f"{alias}: resumed at step {event['step']} of {event['steps']}")
        elif kind == "step":
            self._note(job, event["step"])
            if self.live:
                self._show(alias, event["step"])
        elif kind == "warning":
            self._line(event["text"])
        elif kind == "busy":
            self._line(f"{event['id']}: another process is training this run")
        elif kind == "done":
            self.done += 1
            self._forget(event["id"])
            if event["status"] != "complete" or self.live or self.root is None:
                self._line(f"{event['id']}: {event['status']}{_numbers(event)} ({self.done} of {self.total})")

    def _line(self, text: str) -> None:
        say(f"\r\x1b[K{text}" if self.live else text)

    def _rate(self, step: int) -> float:
        """Steps a second since the run's start."""
        return (step - self.first) / max(1e-9, time.monotonic() - self.started)

    def _note(self, job: dict[str, Any] | None, step: int) -> None:
        now = time.monotonic()
        if job is None or self.root is None or now - self.last_noted < EVERY:
            return
        self.last_noted = now
        if self.noted != job["id"]:
            self._forget(self.noted)
        self.noted = job["id"]
        write_note(self.root, Note(job["id"], job["alias"], step, self.steps, self._rate(step), time.time()))

    def _show(self, alias: str, step: int) -> None:
        now = time.monotonic()
        if now - self.last_shown < 0.2:
            return
        self.last_shown = now
        rate = self._rate(step)
        left = (self.steps - step) / rate if rate else 0.0
        text = f"[{self.done + 1}/{self.total}] {alias} step {step}/{self.steps} {rate:.1f} steps/s, {left:.0f} s left"
        print(f"\r\x1b[K{text[:150]}", end="", file=sys.stderr, flush=True)
