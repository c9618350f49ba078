"""Kills a run of 200 steps at random moments, again and again, and compares its end with the unbroken run's.

`python -m tests.e2e.random_kills 20`: a quarter of an hour on two cores. The tests do it five times to a training
without the suite around it (tests/unit/test_interrupts.py).
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from tests.e2e.suite import Suite, numbers

STEPS = 200


def killed(suite: Suite, identity: str, kills: int, draw: random.Random) -> int:
    """Trains one run with up to `kills` kills of its whole process group; how many met it at work."""
    met = 0
    for _ in range(kills):
        process, moment = suite.start("repro", "run", identity), draw.uniform(3, 25)
        try:
            process.communicate(timeout=moment)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            met += 1
            print(f"killed after {moment:.1f} s", flush=True)
        if suite.record_file(identity).exists():
            break
    suite.repro("run", identity)
    return met


def main() -> None:
    """Prints what was done and ends with 0 only if every end is the unbroken one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int, nargs="?", default=20)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    folder, draw, met, runs = Path(tempfile.mkdtemp(prefix="kills-")), random.Random(asked.seed), 0, 0
    # Few kills a run: five starts from one checkpoint are taken for a run that dies by itself.
    suite = Suite.make(folder / "clone", steps=STEPS, seeds=asked.kills)
    suite.repro("data", "prepare", "embedded_lm")
    started = time.monotonic()
    try:
        for run in suite.plan():
            if met >= asked.kills:
                break
            suite.repro("run", run["id"])
            unbroken = suite.records()[f"{run['id']}.json"]
            suite.record_file(run["id"]).unlink()
            met, runs = met + killed(suite, run["id"], min(4, asked.kills - met), draw), runs + 1
            record = suite.records()[f"{run['id']}.json"]
            assert numbers(record) == numbers(unbroken), run["id"]
            print(f"{run['alias']}: {record['attempts']} starts, {record['resumes']} resumed: equal", flush=True)
    finally:
        shutil.rmtree(folder)
    assert met >= asked.kills / 2, f"only {met} kills met a run at work"
    print(f"{met} kills of {runs} runs in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
