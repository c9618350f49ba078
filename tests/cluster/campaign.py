"""Fifty faults on a real Slurm, by hand: `python -m tests.cluster.campaign`. Writes docs/fault-campaign.md.

A small suite runs under the workflow while jobs, processes, checkpoints and the controller are disturbed at random
moments, from a seed. At the end every planned run has one record with the numbers of an undisturbed local run.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import pickle
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from tests.cluster.slurm import Cluster
from tests.cluster.world import CONTROLLER, EAGER, World, wait_until
from tests.e2e.suite import REPOSITORY, numbers

PLANTED = "step-000009999.pt"  # named as later than any of the run's own
LIMIT = 5400  # seconds after which a campaign has failed


class Trap:
    """What a pickle must never get to do: make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.path}",))


@dataclass
class Campaign:
    """One campaign: its world, what was done to it, and what it led to."""

    world: World
    plan: list[dict[str, Any]]
    rng: random.Random
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    done: Counter[str] = field(default_factory=Counter)
    touched: dict[str, float] = field(default_factory=dict)
    foreign: tuple[str, bytes] | None = None
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def suite_path(self) -> Path:
        """The checkout."""
        return self.world.suite.path

    @property
    def trap(self) -> Path:
        """The file that a pickled checkpoint would make if it were run."""
        return self.suite_path / "scratch" / "trapped"

    def start(self) -> None:
        """The documented way back after a killed controller is the way to start, too."""
        self.world.suite.call("snakemake", "--unlock", "--config", "tier=smoke")
        log = open(self.suite_path / "scratch" / "controller.log", "ab")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-c", EAGER, *CONTROLLER[1:]],
            cwd=self.suite_path,
            env=self.world.suite.environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self.starts += 1

    def at_work(self) -> tuple[dict[str, Any], str] | None:
        """A run in the middle of its training, with progress since it was last disturbed, and its job."""
        running = {comment: job for job, state, comment in self.world.cluster.jobs() if state == "RUNNING"}
        self.rng.shuffle(self.plan)
        for run in self.plan:
            job = running.get(f"rule_run_wildcards_{run['chunk']}")
            if job and self.world.checkpoint(run["id"], self.touched.get(run["chunk"], 0.0)):
                return run, job
        return None

    def watch(self) -> None:
        """Remembers each record when it is first seen: it must stay as it is."""
        with suppress(FileNotFoundError):
            for name, state in self.world.suite.states().items():
                self.seen.setdefault(name, state)

    def inject(self, kind: str, pause: float) -> bool:
        """One fault, on the next run that is at work; False if nothing is left to disturb."""
        while (target := self.at_work()) is None:
            self.watch()
            if self.process is not None and self.process.poll() is not None:
                return False
            time.sleep(0.2)
        run, job = target
        if self.foreign is None:
            self.foreign = self.newest(run)
        time.sleep(pause)
        with suppress(
            psutil.Error, OSError, AssertionError, ValueError, IndexError
        ):  # it may have ended meanwhile: then this one is void
            FAULTS[kind](self, run, job)
            self.touched[run["chunk"]] = time.time()
            self.done[kind] += 1
            return True
        return True

    def newest(self, run: dict[str, Any]) -> tuple[str, bytes] | None:
        """(id, content) of a run's newest checkpoint."""
        with suppress(OSError, IndexError):
            return run["id"], sorted(self.folder(run).glob("step-*.pt"))[-1].read_bytes()
        return None

    def folder(self, run: dict[str, Any]) -> Path:
        """Where a run's checkpoints lie."""
        return self.suite_path / "scratch" / "ckpt" / str(run["id"])


def processes(campaign: Campaign, job: str, word: str) -> list[psutil.Process]:
    """Processes of a job whose command line holds `word`."""
    return [process for process in campaign.world.cluster.processes(job) if word in " ".join(process.cmdline())]


def signalled(word: str, number: signal.Signals) -> Callable[[Campaign, dict[str, Any], str], None]:
    """A fault: a signal to one process of the job."""

    def fault(campaign: Campaign, run: dict[str, Any], job: str) -> None:
        found = [
            p for p in processes(campaign, job, word) if "tee" not in p.cmdline() and "snakemake" not in p.cmdline()
        ]
        found[-1].send_signal(number)

    return fault


def scancel(campaign: Campaign, run: dict[str, Any], job: str) -> None:
    """The job is cancelled: SIGTERM, and SIGKILL a little later."""
    campaign.world.cluster.call("scancel", job)


def requeue(campaign: Campaign, run: dict[str, Any], job: str) -> None:
    """Slurm itself starts the job again, as after a preemption."""
    campaign.world.cluster.call("scontrol", "requeue", job)


def controller(campaign: Campaign, run: dict[str, Any], job: str) -> None:
    """Snakemake is killed, and started again as docs/cluster.md says."""
    assert campaign.process is not None
    os.killpg(campaign.process.pid, signal.SIGKILL)
    campaign.process.wait()
    time.sleep(campaign.rng.uniform(0, 3))
    campaign.start()


def truncated(campaign: Campaign, run: dict[str, Any], job: str) -> None:
    """The node goes down, and the newest checkpoint is cut to half; one before it is there."""
    campaign.world.kill_job(job)
    # With only another run's checkpoint left a run refuses to start (exit 65), as it should; here it goes on.
    (campaign.folder(run) / PLANTED).unlink(missing_ok=True)
    *_, _before, newest = sorted(campaign.folder(run).glob("step-*.pt"))
    os.truncate(newest, newest.stat().st_size // 2)


def planted(content: Callable[[Campaign], bytes]) -> Callable[[Campaign, dict[str, Any], str], None]:
    """A fault: the node goes down, and a file that is no checkpoint of this run lies there as the newest."""

    def fault(campaign: Campaign, run: dict[str, Any], job: str) -> None:
        data = content(campaign)
        campaign.world.kill_job(job)
        path = campaign.folder(run) / PLANTED
        path.write_bytes(data)
        path.with_suffix(".sha256").write_text(hashlib.sha256(data).hexdigest())

    return fault


def foreign_content(campaign: Campaign) -> bytes:
    """Another run's checkpoint."""
    assert campaign.foreign is not None
    return campaign.foreign[1]


FAULTS: dict[str, Callable[[Campaign, dict[str, Any], str], None]] = {
    "`scancel` of the job": scancel,
    "`scontrol requeue` of the job": requeue,
    "`kill -9` of the training child": signalled("repro.train.child", signal.SIGKILL),
    "`kill -9` of the supervising parent": signalled("-m repro run", signal.SIGKILL),
    "SIGTERM to the supervising parent": signalled("-m repro run", signal.SIGTERM),
    "`kill -9` of Snakemake, started again": controller,
    "newest checkpoint cut to half, job killed": truncated,
    "garbage as newest checkpoint, job killed": planted(lambda campaign: campaign.rng.randbytes(50_000)),
    "another run's checkpoint as newest, job killed": planted(foreign_content),
    "a pickle with a call as newest checkpoint, job killed": planted(lambda c: pickle.dumps(Trap(c.trap))),
}


def undisturbed(world: World, plan: list[dict[str, Any]]) -> dict[str, Any]:
    """{id: numbers} of a local run that nothing disturbed; all traces of it are removed."""
    world.suite.repro("run", *(run["id"] for run in plan))
    found = {record["id"]: numbers(record) for record in world.suite.records().values()}
    for part in ("records", "ckpt", "final", "cache"):
        shutil.rmtree(world.suite.path / "scratch" / part, ignore_errors=True)
    return found


def finish(campaign: Campaign) -> int:
    """Waits for the controller's end; its exit code."""
    assert campaign.process is not None

    def ended() -> bool:
        campaign.watch()
        return campaign.process is not None and campaign.process.poll() is not None

    wait_until(ended, "the end of the campaign")
    return int(campaign.process.returncode)


def check(campaign: Campaign, local: dict[str, Any]) -> dict[str, Any]:
    """What the campaign led to; raises AssertionError if anything was lost, doubled or changed."""
    suite = campaign.world.suite
    records = suite.records()
    states = suite.states()
    different = [name for name, record in records.items() if numbers(record) != local.get(record["id"])]
    assert different == [], f"other numbers than the undisturbed run: {different}"
    assert sorted(record["id"] for record in records.values()) == sorted(local), "a record is lost, or there are two"
    assert {name: states[name] for name in campaign.seen} == campaign.seen, "a record was written again"
    assert not campaign.trap.exists(), "a checkpoint was run"
    with open(suite.path / "results" / "tables" / "smoke" / "paper_a.csv", encoding="utf-8") as stream:
        complete = sum(int(row["complete"]) for row in csv.DictReader(stream))
    assert complete == len(campaign.plan)
    trained = [record for record in records.values() if record["kind"] == "train"]
    logs = "".join(log.read_text() for log in (suite.path / ".snakemake" / "slurm_logs").rglob("*.log"))
    return {
        "records": len(records),
        "attempts": Counter(record["attempts"] for record in trained),
        "starts": sum(record["attempts"] for record in trained),
        "passed": logs.count("; passed over"),
    }


def version(*command: str) -> str:
    """The last word of a program's version."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]


def commit() -> str:
    """What the suite is copied from."""
    git = ("git", "-C", str(REPOSITORY))
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], check=False).returncode
    return version(*git, "rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")


def report(campaign: Campaign, found: dict[str, Any], seconds: float, asked: argparse.Namespace) -> str:
    """The summary as Markdown."""
    packages = ", ".join(
        f"{n} {metadata.version(n)}" for n in ("snakemake", "snakemake-executor-plugin-slurm", "torch")
    )
    rows = [f"| {kind} | {campaign.done[kind]} |" for kind in FAULTS]
    attempts = ", ".join(f"{count} with {starts}" for starts, count in sorted(found["attempts"].items()))
    slurm = campaign.world.cluster.call("sinfo", "--version").split()[-1]
    return "\n".join(
        [
            "# Fault campaign on a real Slurm",
            "",
            "Generated by `python -m tests.cluster.campaign`; do not edit.",
            "",
            f"{time.strftime('%Y-%m-%d')}, commit {asked.commit}, Slurm {slurm},"
            f" {packages}, Python {platform.python_version()}; one node,"
            f" {os.cpu_count()} CPU cores, no accounting.",
            "",
            f"{len(campaign.plan)} language-model runs of {asked.steps} steps in chunks of {asked.chunk}, submitted by"
            f" `snakemake --profile slurm`. {sum(campaign.done.values())} faults at random moments (seed {asked.seed}),"
            " each aimed at a run in the middle of its training that had written a checkpoint since it was last"
            " disturbed; it struck up to two seconds later, when some runs had ended and the next one of the chunk was"
            " hit.",
            "",
            "| fault | times |",
            "|---|---|",
            *rows,
            "",
            f"Outcome after {seconds / 60:.0f} minutes on a machine shared with others and {campaign.starts} starts of"
            " Snakemake, the last of which ended with 0:",
            "",
            f"- {found['records']} records, one for each planned run and metric, each with the numbers of an"
            " undisturbed local run, bit for bit (curve, metrics, weights, budget);",
            f"- starts of each run, as its record counts them: {attempts}; {found['starts']} in all;",
            "- no record was written a second time (mtime and inode of each stayed as first seen);",
            f"- {found['passed']} times a start said that it passed over such a checkpoint (logs of jobs that ended"
            " well are not kept, so these are not all), and the call in a pickle was never run;",
            "- the tables were built, and all planned runs are complete in them.",
            "",
            "The executor's looks at its jobs, up to 180 s apart while none ends, were 4 s apart here.",
            "",
        ]
    )


def main() -> None:
    """Runs a campaign; the summary is written only if nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--chunk", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "fault-campaign.md")
    asked = parser.parse_args()
    asked.commit = commit()
    cluster, folder = Cluster.start(), Path(tempfile.mkdtemp(prefix="campaign-"))
    campaign = None
    try:
        world = World.make(folder / "clone", cluster, steps=asked.steps, seeds=asked.runs, chunk=asked.chunk)
        plan = world.suite.plan()
        assert len(plan) == asked.runs
        local = undisturbed(world, plan)
        campaign = Campaign(world, plan, random.Random(asked.seed))
        kinds = [list(FAULTS)[number % len(FAULTS)] for number in range(asked.faults)]
        campaign.rng.shuffle(kinds)
        begun = time.monotonic()
        campaign.start()
        while kinds and time.monotonic() - begun < LIMIT:
            if not campaign.inject(kinds[-1], campaign.rng.uniform(0, 2)):
                break
            if sum(campaign.done.values()) + len(kinds) > asked.faults:
                print(f"{time.monotonic() - begun:6.0f} s  {kinds.pop()}", flush=True)
        code = finish(campaign)
        found = check(campaign, local)
        assert code == 0, f"the last controller ended with {code}"
        assert not kinds, f"the runs ended before {len(kinds)} faults were injected: take more runs"
        asked.out.write_text(report(campaign, found, time.monotonic() - begun, asked), "utf-8")
        print(asked.out.read_text("utf-8"))
    finally:
        if campaign is not None and campaign.process is not None and campaign.process.poll() is None:
            os.killpg(campaign.process.pid, signal.SIGKILL)
        cluster.stop()
        print(f"left for a look: {folder}")


if __name__ == "__main__":
    main()
