"""The training child: imports torch once, then takes the jobs of a chunk one after the other.

It writes a record for every end that it lives to see. Its parent (repro.train.runner) hears of each step through
a pipe, watches its memory, and writes the record of an end that the child could not.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from repro.data.prepare import load_manifest
from repro.data.tokenise import tokenizer
from repro.evaluate.evidence import Evidence, compute
from repro.records.measured import Measured
from repro.records.schema import finite
from repro.records.skeleton import eval_skeleton
from repro.records.store import newest_record, write_record
from repro.spec.errors import CannotWriteError, ReproError, problem_error
from repro.spec.paths import Root
from repro.train.launch import Limits, find_device, prepare_process, recall, seen_environment, train
from repro.train.outcome import end_fields, failure, load_weights, log_traceback, progress_fields
from repro.train.state import TrainState
from repro.train.tasks import make_task

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


@contextmanager
def lease(folder: Path) -> Iterator[bool]:
    """True if this process alone may train the run of `folder`; the lock goes with the process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = open(folder / "lock", "w")  # noqa: SIM115 - held until the run ends
    except OSError as error:
        raise problem_error(
            CannotWriteError, f"{folder.parent.name}/{folder.name}", "lock", str(error.strerror)
        ) from None
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def count_start(folder: Path) -> int:
    """Notes one more start of a run; returns how many there have been."""
    with open(folder / "starts", "a") as stream:
        stream.write(f"{int(time.time())}\n")
    return len((folder / "starts").read_text().splitlines())


class Worker:
    """Runs jobs; `batch` holds what they share."""

    def __init__(self, batch: dict[str, Any], pipe: Pipe) -> None:
        self.batch, self.pipe = batch, pipe
        self.root = Root(Path(batch["root"]))
        self.stop: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda received, _frame: self.stop.append(received))

    def limits(self, job: dict[str, Any]) -> Limits:
        """Limits of one job."""
        share, longest = self.batch["checkpoint_share"], self.batch["checkpoint_longest"]
        return Limits(self.batch["deadline"], job["wall_limit"], self.stop, share, longest)

    def run(self, job: dict[str, Any]) -> bool:
        """Trains what has no record, then measures what has no eval record; False if it was stopped before its end."""
        folder = Path(job["checkpoints"])
        with lease(folder) as free:
            if not free:
                self.pipe.send({"event": "busy", "id": job["id"]})
                return True
            self.pipe.send({"event": "job", "id": job["id"]})
            record = job["record"] or self._made_meanwhile(job) or self._train(job, folder)
            if record is None:
                return False
            if record["status"] == "complete" and not self.batch["no_record"]:
                self._evaluate(job, record)
            if record["status"] in ("complete", "diverged"):
                shutil.rmtree(folder, ignore_errors=True)
        loss, speed = record["probes"].get("val_loss_last"), (record["speed"] or {}).get("tokens_per_second")
        self.pipe.send({"event": "done", "id": job["id"], "status": record["status"], "loss": loss, "speed": speed})
        return True

    def _made_meanwhile(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """A record that another process wrote between the plan and our lease."""
        return None if self.batch["no_record"] else newest_record(self.root, job["base"])

    def _train(self, job: dict[str, Any], folder: Path) -> dict[str, Any] | None:
        config, starts, resumed, state = job["base"]["config"], 1, 0, TrainState()
        try:
            starts = count_start(folder)
            state, found = recall(job, self.pipe.send)
            resumed = starts - 1 if found else 0
            find_device(job["device"])
            job["unigram_entropy"] = load_manifest(self.root, config["data"])["unigram_entropy"]
            done = train(config, job, state, found, self.limits(job), self.pipe.send)
            if done.state.status == "stopped":
                return None
            fields = end_fields(done, config, job, starts, resumed)
        except ReproError:
            raise
        except Exception as error:  # any fault of a method or of the disk is a result, not the end of the chunk
            log_traceback(Path(job["log"]))
            status, reason = failure(error, self.root.path)
            fields = progress_fields(state, config, starts, resumed)
            fields |= {"status": status, "status_detail": {"step": state.step, "reason": reason}}
        fields |= {"environment": job["base"]["environment"] | seen_environment(job["device"])}
        return self._write(job["base"] | fields)

    def _write(self, record: dict[str, Any]) -> dict[str, Any]:
        record = record | {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        if not self.batch["no_record"]:
            write_record(self.root, record)
        return record

    def _evaluate(self, job: dict[str, Any], record: dict[str, Any]) -> None:
        """One record for each metric that has none; a fault is a failed record of that metric alone."""
        made = [eval_skeleton(job["base"], record["weights_sha256"], name, job["eval_tokens"]) for name in job["evals"]]
        todo = [item for item in made if newest_record(self.root, item["base"]) is None]
        evidence: Evidence | None = None
        for item in todo:
            opened = time.monotonic()
            self.pipe.send({"event": "measure", "protocol": item["protocol"]})
            try:
                evidence = evidence or self._evidence(job, record)
                fields = metric_fields(item["values"], compute(item["protocol"], evidence))
            except Exception as error:
                log_traceback(Path(job["log"]))
                fields = failed_fields(failure(error, self.root.path)[1])
            wall = time.monotonic() - opened
            spent = {"wall": wall, "train": 0.0, "eval": wall, "compile": 0.0, "wait": 0.0}
            self._write(item["base"] | {"time": spent, "attempts": 1, "resumes": 0} | fields)

    def _evidence(self, job: dict[str, Any], record: dict[str, Any]) -> Evidence:
        """The recorded final weights, looked at through the run's own task; never the weights in memory."""
        config = record["config"]
        task = make_task(config, Path(job["data"]), job["micro_batch"])
        net, device = task.build(), find_device(job["device"])
        load_weights(net, Path(job["weights"]), record["weights_sha256"])
        coder = tokenizer(load_manifest(self.root, config["data"])["tokenizer"])
        fetched = self.root.scratch / "fetched"
        return Evidence(task, net.to(device), job["eval_tokens"], device, coder.raw, fetched)


def failed_fields(reason: str) -> dict[str, Any]:
    """Status of a metric that could not be computed."""
    return {"status": "failed", "status_detail": {"step": None, "reason": reason}}


def metric_fields(values: dict[str, dict[str, Any]], measured: Measured) -> dict[str, Any]:
    """Status, numbers and details of one eval record; a value that is no finite number is null, and said."""
    kept = {name: finite(measured.values[name]) for name in values}
    without = [name for name, value in kept.items() if value is None]
    reason = f"{', '.join(without)}: no finite number" if without else None
    return {
        "status": "complete",
        "status_detail": {"step": None, "reason": reason},
        "metrics": [{**values[name], "value": kept[name], "n": measured.n} for name in values],
        "probes": measured.details,
    }


def main() -> int:
    """Reads a batch of jobs from standard input; 0 when all have ended, 75 when it was stopped before."""
    die_with_parent()
    batch = json.loads(sys.stdin.read())
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
    return 0


if __name__ == "__main__":
    # Not sys.exit: threads of the libraries must not hold up the end of a stopped job.
    code = main()
    sys.stdout.flush()
    os._exit(code)
