"""A small suite in a temporary checkout: one experiment, few short runs, the real workflow around them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
PARTS = ("Snakefile", "workflow", "config", "repro", "slurm", "requirements.lock", "environment.yml")
TIMEOUT = 400  # seconds; two slow cores and an import of lightning for each child
EXPERIMENT: dict[str, Any] = {
    "name": "a_small",
    "paper": "a",
    "task": "lm",
    "model": "gpt2_124m",
    "data": "openwebtext",
    "tokens": 1.0e9,
    "batch_tokens": 1024,
    "optimizer": {"name": "adamw", "lr": 6.0e-4, "weight_decay": 0.1},
    "methods": ["pre_ln"],
    "seeds": 5,
    "metrics": ["val_loss"],
}


@dataclass
class Suite:
    """A checkout to run commands in."""

    path: Path

    @classmethod
    def make(cls, path: Path, steps: int = 20, seeds: int = 2, **experiment: Any) -> Suite:
        """Copies the working files; keeps one experiment of `steps` steps, and no claims on others."""
        path.mkdir(parents=True)
        for part in PARTS:
            source = REPOSITORY / part
            ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(source, path / part, ignore=ignore) if source.is_dir() else shutil.copy(source, path / part)
        for old in [*(path / "config" / "experiments").iterdir(), *(path / "config" / "claims").iterdir()]:
            old.unlink()
        suite = cls(path)
        suite.write_experiment(**experiment)
        # A model that trains for seconds, so that a kill finds it at work.
        suite.edit_tier(tokens=1024 * steps, seeds=seeds, model={"gpt2_124m": "gpt_d64_l4"})
        return suite

    def write_experiment(self, **changes: Any) -> None:
        """Writes config/experiments/NAME.yaml."""
        content = EXPERIMENT | changes
        target = self.path / "config" / "experiments" / f"{content['name']}.yaml"
        target.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")

    def edit_tier(self, **changes: Any) -> None:
        """Changes the smallest tier's settings of language models."""
        path = self.path / "config" / "tiers.yaml"
        tiers = yaml.safe_load(path.read_text("utf-8"))
        tiers["smoke"]["lm"].update(changes)
        path.write_text(yaml.safe_dump(tiers, sort_keys=False), "utf-8")

    @cached_property
    def environment(self) -> dict[str, str]:
        """Of a plain shell: nothing of ours set, one thread."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("REPRO_", "SLURM_", "PYTEST"))}
        return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(self.path)}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """`python -m WORDS` in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=self.path,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def call(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Runs to the end; asserts the exit code unless `code` is None."""
        process = self.start(*words)
        try:
            out, err = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # nothing of a failed test goes on beside the others
            raise
        done = subprocess.CompletedProcess(words, process.returncode, out, err)
        if code is not None:
            assert done.returncode == code, f"{words}: exit {done.returncode}\n{out[-3000:]}\n{err[-20000:]}"
        return done

    def repro(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """`repro WORDS`."""
        return self.call("repro", *words, code=code)

    def snakemake(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """`snakemake -c2 WORDS` at the smallest tier."""
        return self.call("snakemake", "-c2", *words, "--config", "tier=smoke", code=code)

    def plan(self) -> list[dict[str, Any]]:
        """`repro plan --json`."""
        return [json.loads(line) for line in self.repro("plan", "--tier", "smoke", "--json").stdout.splitlines()]

    @property
    def record_folder(self) -> Path:
        """Records of the smallest tier."""
        return self.path / "scratch" / "records"

    def records(self) -> dict[str, dict[str, Any]]:
        """{file name: record} of all record files."""
        files = sorted(self.record_folder.rglob("*.json"))
        return {file.name: json.loads(file.read_text("utf-8")) for file in files if not file.name.startswith(".")}

    def record_file(self, identity: str) -> Path:
        """File of one record."""
        return self.record_folder / identity[:2] / f"{identity}.json"

    def wait_for_checkpoint(self, identity: str) -> None:
        """Until the run has a checkpoint."""
        folder, deadline = self.path / "scratch" / "ckpt" / identity, time.monotonic() + TIMEOUT
        while not list(folder.glob("step-*.pt")):
            assert time.monotonic() < deadline, "waited in vain for a checkpoint"
            time.sleep(0.05)

    def states(self) -> dict[str, tuple[int, int]]:
        """(mtime, inode) of each record file: what was not written again has kept both."""
        return {
            file.name: (file.stat().st_mtime_ns, file.stat().st_ino)
            for file in sorted(self.record_folder.rglob("*.json"))
        }


def training_children(pid: int) -> list[psutil.Process]:
    """The processes that train, below a `repro run`."""
    return [c for c in psutil.Process(pid).children(recursive=True) if "repro.train.child" in c.cmdline()]


def numbers(record: dict[str, Any]) -> dict[str, Any]:
    """What must come back bit for bit: everything of a record but times, code state and counts of starts."""
    keys = (
        "id",
        "status",
        "status_detail",
        "config",
        "curve",
        "metrics",
        "probes",
        "budget",
        "weights_sha256",
        "learned",
    )
    return {key: record[key] for key in keys}
