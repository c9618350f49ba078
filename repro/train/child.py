"""The worker's process: takes the jobs of a chunk one after the other, trainings or theory checks.

It writes a record for every end that it lives to see. Its parent (repro.train.runner) hears of each step through
a pipe, watches its memory, and writes the record of an end that the child could not. What a kind of job needs is
imported with its first job: a check never waits for Lightning.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from repro.records.schema import RETRYABLE
from repro.records.skeleton import eval_skeleton
from repro.records.store import newest_record, write_record
from repro.spec.errors import ReproError
from repro.spec.paths import Root
from repro.train.lease import lease
from repro.train.world import PEER_LOST, PeerLostError, World

EVENTS_FD = "REPRO_EVENTS_FD"


class Pipe:
    """Events to the parent, one JSON line each; a parent that is gone ends the child."""

    def __init__(self) -> None:
        self.stream = os.fdopen(int(os.environ[EVENTS_FD]), "w", buffering=1)

    def send(self, event: dict[str, Any]) -> None:
        """Writes one event."""
        try:
            self.stream.write(json.dumps(event) + "\n")
        except BrokenPipeError:
            os._exit(75)


def die_with_parent() -> None:
    """Asks Linux to end this process with its parent; elsewhere the broken pipe does it at the next step."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
    except (OSError, AttributeError):
        return


class Worker:
    """Runs jobs; `batch` holds what they share."""

    def __init__(self, batch: dict[str, Any], pipe: Pipe) -> None:
        self.batch, self.pipe = batch, pipe
        self.root = Root(Path(batch["root"]))
        self.world = World(**batch["world"])
        self.stop: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda received, _frame: self.stop.append(received))

    def run(self, job: dict[str, Any]) -> bool:
        """Makes what has no record, then measures what has no eval record; False if it was stopped before its end."""
        folder = Path(job["checkpoints"])
        if self.world.rank > 0:
            from repro.train.training import follow

            return bool(job["record"]) or follow(self, job)
        with lease(folder, partial(self._warn, job), lambda: bool(self.stop)) as free:
            if not free:
                return self._pass_over(job)
            self.pipe.send({"event": "job", "id": job["id"]})
            record = job["record"] or self._made_meanwhile(job) or self._make(job, folder)
            if record is None:
                return False
            if self.world.launcher == "srun" and not job["record"] and record["status"] in ("failed", "oom"):
                return False  # the others wait for this process: srun ends them, the next start finds the record
            if job["evals"] and record["status"] == "complete" and not self.batch["no_record"]:
                from repro.train.measuring import measure

                if not measure(self, job, record):
                    return False
            self._tidy(job, record, folder)
        loss, speed = record["probes"].get("val_loss_last"), (record["speed"] or {}).get("tokens_per_second")
        self.pipe.send({"event": "done", "id": job["id"], "status": record["status"], "loss": loss, "speed": speed})
        return True

    def _pass_over(self, job: dict[str, Any]) -> bool:
        """Leaves a run to the process that holds it; False if we were told to stop while we watched it."""
        if not self.stop:
            self.pipe.send({"event": "busy", "id": job["id"]})
        return not self.stop

    def _tidy(self, job: dict[str, Any], record: dict[str, Any], folder: Path) -> None:
        """Removes what the run's records have made superfluous, by the rules of config/suite.yaml."""
        if record["status"] not in RETRYABLE or not self.batch["keep_failed"]:
            shutil.rmtree(folder, ignore_errors=True)
        if not job.get("keep_weights", True) and self._is_measured(job, record):
            Path(job["weights"]).unlink(missing_ok=True)

    def _is_measured(self, job: dict[str, Any], record: dict[str, Any]) -> bool:
        """Whether every metric is there: one that failed needs the weights when it is tried again."""
        if record["status"] != "complete" or self.batch["no_record"]:
            return False  # there are no weights, or nothing is measured
        sha256, known = record["weights_sha256"], job["superseded"]
        bases = [eval_skeleton(job["base"], sha256, name, job["eval_tokens"])["base"] for name in job["metrics"]]
        found = [newest_record(self.root, base, known.get(base["id"], 0)) for base in bases]
        return all(one is not None and one["status"] == "complete" for one in found)

    def _warn(self, job: dict[str, Any], text: str) -> None:
        self.pipe.send({"event": "warning", "text": f"{job['alias']}: {text}"})

    @property
    def late(self) -> bool:
        """Whether a signal or the deadline says that nothing new may be begun."""
        deadline = self.batch["deadline"]
        return bool(self.stop) or (deadline is not None and time.time() >= deadline)

    def _made_meanwhile(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """A record that another process wrote between the plan and our lease."""
        if self.batch["no_record"]:
            return None
        return newest_record(self.root, job["base"], job["superseded"].get(job["id"], 0))

    def _make(self, job: dict[str, Any], folder: Path) -> dict[str, Any] | None:
        if job["kind"] == "check":
            from repro.train.checking import check

            return None if self.late else self.write(job["base"] | check(job, self.root))
        from repro.train.process import find_device

        find_device(job["device"], self.world.per_node)  # before Lightning is imported: a missing one is told at once
        from repro.train.training import training

        fields = training(self, job, folder)
        return None if fields is None else self.write(job["base"] | fields)

    def write(self, record: dict[str, Any]) -> dict[str, Any]:
        """Seals and writes a record, unless this is a try-out; returns it."""
        record = record | {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        if not self.batch["no_record"]:
            write_record(self.root, record)
        return record


def main() -> int:
    """Reads a batch of jobs from standard input; 0 when all have ended, 75 when it was stopped before."""
    die_with_parent()
    batch = json.loads(sys.stdin.read())
    from repro.train.process import prepare_process

    prepare_process(batch["threads"])
    pipe = Pipe()
    worker = Worker(batch, pipe)
    try:
        for job in batch["jobs"]:
            if not worker.run(job):
                return 75
    except ReproError as error:
        pipe.send({"event": "error", "code": error.exit_code, "text": str(error)})
        return error.exit_code
    except PeerLostError:
        return PEER_LOST
    return 0


if __name__ == "__main__":
    # Not sys.exit: threads of the libraries must not hold up the end of a stopped job.
    code = main()
    sys.stdout.flush()
    os._exit(code)
