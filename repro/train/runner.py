"""The torch-free parent of a training child: hands it jobs, hears its progress, and outlives its death.

Memory is watched from here and not from a thread of the child, since a single call that fills memory can hold
the interpreter's lock until the kernel ends the process (docs/decisions/003-supervision.md).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import IO, Any

import psutil

from repro.records.skeleton import eval_skeleton
from repro.records.store import newest_record, write_record
from repro.spec.errors import MissingError, Problem, ReproError, StoppedError, problem_error
from repro.spec.paths import Root
from repro.train.lease import BEAT_SECONDS, beat
from repro.train.starts import count_starts
from repro.train.world import PEER_LOST, VARIABLES, World, agreed_port, free_port

POLL_SECONDS = 0.05
LAST_WORDS_SECONDS = 20.0
EXIT_STOPPED = StoppedError.exit_code
DEATHS_ALLOWED = 2  # deaths at one step or in one metric, after which that run or metric is a failed one

Event = dict[str, Any]
Listener = Callable[[Event], None]


@dataclass
class Child:
    """One child process, and what is known of the job it is at."""

    process: subprocess.Popen[bytes]
    events: int
    buffer: bytes = b""
    job: dict[str, Any] | None = None
    step: int = 0
    others: list[subprocess.Popen[bytes]] = field(default_factory=list)  # of the same run, on this node
    protocol: str | None = None
    begun: float = field(default_factory=time.monotonic)
    beaten: float = 0.0
    broken: float = 0.0
    first_code: int = 0
    over_memory: float | None = None
    lost: bool = False  # another process trains its run
    error: Event | None = None
    fault: Event | None = None

    @property
    def code(self) -> int:
        """The exit code of the process that ended first of those that did not end well, or of our own one."""
        return self.first_code or self.process.returncode

    def everyone(self) -> list[subprocess.Popen[bytes]]:
        """The training processes of this node."""
        return [self.process, *self.others]


def run_jobs(batch: dict[str, Any], listen: Listener) -> Counter[str]:
    """Runs all jobs of `batch`; returns how many ended with which status.

    Raises StoppedError when it was told to stop, or where another process holds a run; MissingError where a
    device, data or a package are not there, so that the child cannot even start.
    """
    queue = list(batch["jobs"])
    outcome: Counter[str] = Counter()
    deaths: Counter[tuple[str, str]] = Counter()
    stopped: list[int] = []
    forward = {
        s: signal.signal(s, lambda n, _f: stopped.append(n)) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    }
    try:
        while queue:
            child = _start(batch | {"jobs": queue})
            _follow(child, queue, outcome, stopped, listen)
            _judge(child, batch, queue, outcome, deaths, stopped)
    finally:
        for number, handler in forward.items():
            signal.signal(number, handler)
    if outcome["busy"]:
        raise StoppedError([Problem("run", None, "", f"{outcome['busy']} run(s) are being trained by another process")])
    return outcome


def _start(batch: dict[str, Any]) -> Child:
    """The child, and beside it the other processes of its run that belong on this node."""
    read_end, write_end = os.pipe()
    log = Path(batch["log"])
    log.parent.mkdir(parents=True, exist_ok=True)
    first = World(**batch["world"])
    port = agreed_port(os.environ, batch["meeting"]) if first.launcher == "srun" else free_port()
    training = any(job["record"] is None for job in batch["jobs"])
    worlds = [first, *(first.started_here() if training else ())]
    with open(log, "ab") as stream:
        processes = [_process(batch, world, port, write_end, stream) for world in worlds]
    os.close(write_end)
    os.set_blocking(read_end, False)
    return Child(processes[0], read_end, others=processes[1:])


def _process(batch: dict[str, Any], world: World, port: int, events: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    threads = str(batch["threads"])
    limits = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "REPRO_EVENTS_FD": str(events)}
    process = subprocess.Popen(
        [sys.executable, "-m", "repro.train.child"],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        pass_fds=[events],
        env=_clean_environment() | limits | world.environment("127.0.0.1", port),
        cwd=batch["root"],
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(batch | {"world": asdict(world)}).encode())
    process.stdin.close()
    return process


def _clean_environment() -> dict[str, str]:
    """Without what an outer Slurm job or launcher left behind, and with this very package first on the path."""
    left = ("SLURM_NTASKS", "SLURM_PROCID", *VARIABLES)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(left)}
    package = str(Path(__file__).resolve().parents[2])
    others = [part for part in kept.get("PYTHONPATH", "").split(os.pathsep) if part and part != package]
    return kept | {"PYTHONPATH": os.pathsep.join([package, *others])}


def _follow(
    child: Child, queue: list[dict[str, Any]], outcome: Counter[str], stopped: list[int], listen: Listener
) -> None:
    """Reads events until the child has closed its end; passes signals on, and ends a child over its memory."""
    told = False
    with DefaultSelector() as selector:
        selector.register(child.events, EVENT_READ)
        while True:
            ready = selector.select(POLL_SECONDS)
            if stopped and not told:
                for process in child.everyone():
                    process.send_signal(signal.SIGTERM)
                told = True
            _watch_memory(child)
            _watch_wall(child)
            _watch_group(child)
            _beat(child)
            if ready and not _read(child, queue, outcome, listen):
                break
    os.close(child.events)
    for process in child.everyone():
        process.wait()


def _read(child: Child, queue: list[dict[str, Any]], outcome: Counter[str], listen: Listener) -> bool:
    data = os.read(child.events, 1 << 16)
    *lines, child.buffer = (child.buffer + data).split(b"\n")
    for line in lines:
        _note(child, json.loads(line), queue, outcome, listen)
    return bool(data)


def _note(child: Child, event: Event, queue: list[dict[str, Any]], outcome: Counter[str], listen: Listener) -> None:
    kind = event["event"]
    if kind == "job":
        child.job = next(job for job in queue if job["id"] == event["id"])
        child.step, child.protocol, child.begun = 0, None, time.monotonic()
    elif kind in ("start", "step"):
        child.step = event["step"]
    elif kind == "measure":
        child.protocol = event["protocol"]
    elif kind in ("done", "busy"):
        queue[:] = [job for job in queue if job["id"] != event["id"]]
        outcome[event.get("status", "busy")] += 1
        child.job = None
    elif kind == "error":
        child.error = event
    elif kind == "fault":
        child.fault = event
        child.job = next((job for job in queue if job["id"] == event["id"]), None)  # None: the first one told its own
        child.step = event["step"]
        child.process.kill()  # it waits for a process that has ended
    listen(event | {"job": child.job})


def _watch_memory(child: Child) -> None:
    if child.job is None or child.over_memory is not None or child.job["device"] != "cpu":
        return
    for process in child.everyone():
        try:
            resident = psutil.Process(process.pid).memory_info().rss / 1e9
        except psutil.Error:
            continue
        if resident > child.job["memory_gb"]:
            child.over_memory = resident
            child.process.kill()


def _watch_group(child: Child) -> None:
    """The processes of a run end together: one that is left alone would wait for the others for ever.

    One that ends because it has lost another says so, and the other is given time to say why it went.
    """
    first, codes = child.process.poll(), [process.poll() for process in child.others]
    faults = [code for code in (first, *codes) if code not in (None, 0, EXIT_STOPPED)]
    if first is None and not faults:
        return
    child.broken = child.broken or time.monotonic()
    child.first_code = child.first_code or next((code or 0 for code in faults if code != PEER_LOST), 0)
    if faults and set(faults) == {PEER_LOST} and time.monotonic() - child.broken < LAST_WORDS_SECONDS:
        return
    for process in child.everyone():
        process.kill()


def _beat(child: Child) -> None:
    """Shows other machines that the run's holder is alive; ends a child that stood still so long that it lost it."""
    now = time.monotonic()
    if child.job and now - child.beaten >= BEAT_SECONDS:
        child.beaten = now
        if not beat(Path(child.job["checkpoints"]), child.process.pid):
            child.lost = True
            child.process.kill()


def _watch_wall(child: Child) -> None:
    """A child that hangs inside a step is ended some time after its wall limit; the child itself ends at the limit."""
    limit = child.job and child.job["wall_limit"]
    if child.job and limit and time.monotonic() - child.begun > 1.5 * limit + 60:
        child.process.kill()


def _judge(
    child: Child,
    batch: dict[str, Any],
    queue: list[dict[str, Any]],
    outcome: Counter[str],
    deaths: Counter[tuple[str, str]],
    stopped: list[int],
) -> None:
    """After a child's end: go on, give up one run with a record, or give up all with an error."""
    code, job = child.code, child.job
    of_srun = batch["world"]["launcher"] == "srun"
    if child.error is not None:
        raise _error(child.error)
    if child.lost:
        raise StoppedError([Problem("run", None, "", "another process took its lock over while this one stood still")])
    if child.fault is not None and job is not None:
        _end(batch, job, child, child.fault["status"], child.fault["reason"], queue, outcome)
        if of_srun:  # the others wait for a process that has ended: srun ends them, the record stands
            raise StoppedError([Problem("run", None, "", child.fault["reason"])])
        return
    if code == 0 and batch["world"]["rank"] > 0:
        queue.clear()
    if code == 0 and not queue:
        return
    if code == EXIT_STOPPED or stopped:
        raise StoppedError([Problem("run", None, "", "stopped before the end; the same command goes on")])
    if of_srun and child.over_memory is None:
        # Processes of other nodes have lost this one: the job as a whole is submitted again.
        raise StoppedError([Problem("run", None, "", f"a process of this run ended with code {code}")])
    place = (job["id"], child.protocol or f"step {child.step}") if job else ("", "")
    deaths[place] += 1
    status = "oom" if child.over_memory is not None else "failed"
    if status == "failed" and deaths[place] < DEATHS_ALLOWED:
        return
    if job is None:
        log = Root(Path(batch["root"])).shown(Path(batch["log"]))
        message = f"the training process ended with code {code} before its first run; its last words stand in this file"
        raise problem_error(MissingError, log, "", message)
    reason = f"resident memory of {child.over_memory or 0:.2f} GB passed the planned {job['memory_gb']:.2f} GB"
    if status == "failed":
        where = f"while measuring {child.protocol}" if child.protocol else f"at step {child.step}"
        reason = f"the process ended again with code {code} {where}, with no progress between"
    _end(batch, job, child, status, reason, queue, outcome)


def _end(
    batch: dict[str, Any],
    job: dict[str, Any],
    child: Child,
    status: str,
    reason: str,
    queue: list[dict[str, Any]],
    outcome: Counter[str],
) -> None:
    """Gives one run or one metric up; a run leaves the queue."""
    if _write_end(batch, job, child, status, reason):
        queue[:] = [other for other in queue if other["id"] != job["id"]]
        outcome[status] += 1


def _error(event: Event) -> ReproError:
    cls: type[ReproError] = {69: MissingError}.get(event["code"], ReproError)
    error = cls([Problem("run", None, "", line) for line in event["text"].splitlines()])
    error.exit_code = event["code"]
    return error


def _write_end(batch: dict[str, Any], job: dict[str, Any], child: Child, status: str, reason: str) -> bool:
    """The record of an end that the child did not live to write; False if it is a metric's, and the run goes on."""
    root = Root(Path(batch["root"]))
    seconds = time.monotonic() - child.begun
    common = {
        "status": status,
        "status_detail": {"step": child.step, "reason": reason},
        "time": {"wall": seconds, "train": 0.0, "eval": 0.0, "compile": 0.0, "wait": 0.0},
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    record = job["record"] or newest_record(root, job["base"], job["superseded"].get(job["id"], 0))
    if child.protocol and record:
        item = eval_skeleton(job["base"], record["weights_sha256"], child.protocol, job["eval_tokens"])
        write_record(root, item["base"] | common | {"attempts": 1, "resumes": 0})
        return False
    if not batch["no_record"] and (record is None or record == job["record"]):
        write_record(root, job["base"] | common | _progress(job, child))
    return True


def _progress(job: dict[str, Any], child: Child) -> dict[str, Any]:
    """Starts of a run and, if it is a training, how far it came."""
    counted = {"attempts": max(1, count_starts(Path(job["checkpoints"]))), "resumes": 0}
    if job["kind"] == "check":
        return counted
    config, per_step = job["base"]["config"], job["base"]["config"]["tokens_per_step"]
    budget = {
        "tokens_planned": config["steps"] * per_step,
        "tokens_seen": child.step * per_step,
        "steps": child.step,
        "tokens_per_step": per_step,
    }
    return counted | {"budget": budget}
