"""A small suite on the real Slurm: its profile, its controller, and looks at what goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.cluster.slurm import Cluster
from tests.e2e.suite import Suite

PATIENCE = 400  # seconds for something that takes some tens on a quiet machine
# What one node without accounting needs, as docs/cluster.md says; and quicker looks than a real cluster would like.
SINGLE_NODE = """
slurm-status-command: squeue
slurm-no-account: true
"""
# The executor looks at its jobs ever more seldom while none ends, 10 s later each time, up to 180 s: here after 4 s.
EAGER = """
import sys
import snakemake_executor_plugin_slurm as plugin
plugin.Executor.next_seconds_between_status_checks = property(lambda self: 4, lambda self, value: None)
from snakemake.cli import main
sys.exit(main())
"""
QUICK = ("--max-jobs-per-timespan", "10/1s", "--slurm-init-seconds-before-status-checks", "2")
CONTROLLER = ("snakemake", "--profile", "slurm", *QUICK, "--config", "tier=smoke")


def wait_until(what: Callable[[], Any], why: str) -> Any:
    """The first true answer of `what`."""
    deadline = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < deadline, f"waited in vain for {why}"
        time.sleep(0.2)
    return found


@dataclass
class World:
    """One suite, and the cluster that it runs on."""

    suite: Suite
    cluster: Cluster

    @classmethod
    def make(cls, path: Path, cluster: Cluster, data: Path | None = None, **tier: Any) -> World:
        """A chunk for each run; `data` made or copied; the profile as a single node without accounting needs it."""
        seeds = tier.pop("seeds")
        suite = Suite.make(path, steps=tier.pop("steps"), seeds=seeds)
        suite.write_experiment(seeds=seeds)  # a tier never has more than the experiment asks for
        suite.edit_tier(**{"chunk": 1, **tier})
        profile = path / "slurm" / "config.yaml"
        profile.write_text(profile.read_text("utf-8") + SINGLE_NODE, "utf-8")
        suite.environment = suite.environment | cluster.access
        if data is not None:
            shutil.copytree(data, path / "scratch" / "data")
        suite.snakemake("data")
        return cls(suite, cluster)

    @contextmanager
    def controller(self, *words: str, eager: bool = False, **environment: str) -> Iterator[subprocess.Popen[str]]:
        """Snakemake with the product's profile in a process group of its own; it does not outlive the block.

        `eager` where no job ends well: then Snakemake runs as ever, but looks at its jobs as often as in the beginning.
        """
        process = subprocess.Popen(
            [
                sys.executable,
                *(("-c", EAGER) if eager else ("-m", "snakemake")),
                *CONTROLLER[1:3],
                *words,
                *CONTROLLER[3:],
            ],
            cwd=self.suite.path,
            env=self.suite.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def finish(self, process: subprocess.Popen[str], code: int = 0) -> str:
        """What a controller said, at its end."""
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, f"exit {process.returncode}\n{out[-3000:]}\n{err[-20000:]}"
        return out + err

    def job_of(self, chunk: str) -> str | None:
        """Slurm's number of the chunk's job that has not ended; the oldest, if there are more."""
        found = [job for job, _, comment in self.cluster.jobs() if comment == f"rule_run_wildcards_{chunk}"]
        return min(found, key=int) if found else None

    def checkpoint(self, identity: str, after: float = 0.0) -> bool:
        """Whether the run has a checkpoint younger than `after`."""
        folder = self.suite.path / "scratch" / "ckpt" / identity
        with suppress(OSError):
            return any(file.stat().st_mtime > after for file in folder.glob("step-*.pt"))
        return False

    def running_job(self, run: dict[str, Any]) -> str:
        """The number of a run's job, once that has written a checkpoint of its own."""
        wait_until(lambda: self.checkpoint(run["id"]), f"a checkpoint of {run['alias']}")
        return str(wait_until(lambda: self.job_of(run["chunk"]), f"the job of {run['alias']}"))

    def kill_job(self, job: str) -> None:
        """Kills all of a job's processes at once, as a node that goes down."""
        for process in self.cluster.processes(job):
            with suppress(psutil.Error):
                process.kill()
