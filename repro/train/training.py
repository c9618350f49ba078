"""One job of kind train: from its newest checkpoint, or from the start, to what its record says."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.data.prepare import load_manifest
from repro.spec.errors import ReproError
from repro.train.contract import broken_contract
from repro.train.faults import failure, log_traceback
from repro.train.launch import Limits, recall, train
from repro.train.outcome import end_fields, progress_fields
from repro.train.process import find_device, seen_environment
from repro.train.ranks import is_peer_loss
from repro.train.starts import STARTS_ALLOWED, note_end, note_start
from repro.train.state import TrainState
from repro.train.world import PeerLostError

if TYPE_CHECKING:
    from repro.train.child import Worker


def training(worker: Worker, job: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """What the worker adds to the record; None if the run was stopped before its end and can go on."""
    config, starts, resumed, state = job["base"]["config"], 1, 0, TrainState()
    try:
        find_device(job["device"], worker.world.per_node)
        job["unigram_entropy"] = _unigram_entropy(worker, config)
        state, found = recall(job, worker.pipe.send, tidy=True)
        starts, idle = note_start(folder, state.step)
        resumed = starts - 1 if found else 0
        if idle > STARTS_ALLOWED:
            fields = _failed(state, config, starts, resumed, _given_up(state))
        else:
            done = train(config, job, state, found, _limits(worker, job), worker.pipe.send)
            fields = {} if done.state.status == "stopped" else end_fields(done, config, job, starts, resumed)
            fields |= _without_number(worker, job, fields)
    except ReproError:
        note_end(folder)
        raise
    except Exception as error:  # any fault of a method or of the disk is a result, not the end of the chunk
        log_traceback(Path(job["log"]))
        if worker.world.size > 1 and is_peer_loss(error):
            raise PeerLostError from None
        status, reason = failure(error, worker.root.path)
        fields = _failed(state, config, starts, resumed, reason, status)
    with suppress(OSError):  # a full disk has its own words already
        note_end(folder)
    return fields | _seen(job) if fields else None


def follow(worker: Worker, job: dict[str, Any]) -> bool:
    """Takes this process's part in a run whose record the first process writes; False if it was stopped.

    A fault of this process is told to its supervisor, since the first one would wait for it.
    """
    state = TrainState()
    try:
        state, found = recall(job, _silent)
        find_device(job["device"], worker.world.per_node)
        done = train(job["base"]["config"], job, state, found, _limits(worker, job), _silent)
    except ReproError:
        raise
    except Exception as error:
        log_traceback(Path(job["log"]))
        if is_peer_loss(error):
            raise PeerLostError from None
        status, reason = failure(error, worker.root.path)
        reason += f" (in process {worker.world.rank} of {worker.world.size})"
        worker.pipe.send({"event": "fault", "id": job["id"], "status": status, "reason": reason, "step": state.step})
        return True
    return done.state.status != "stopped"


def _silent(_: dict[str, Any]) -> None:
    """Steps and warnings are the first process's to tell."""


def _failed(
    state: TrainState, config: dict[str, Any], starts: int, resumed: int, reason: str, status: str = "failed"
) -> dict[str, Any]:
    fields = progress_fields(state, config, starts, resumed)
    return fields | {"status": status, "status_detail": {"step": state.step, "reason": reason}}


def _given_up(state: TrainState) -> str:
    """A run that dies again and again before its next checkpoint, whoever starts it."""
    return f"{STARTS_ALLOWED} starts from step {state.step} ended without a word before the next checkpoint"


def _without_number(worker: Worker, job: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """What replaces the good end of a run whose method breaks the contract: its loss is not what it says.

    Every other end is a result as it is. A try-out of a method that is being written is only warned.
    """
    fault = broken_contract(worker.root, job["base"]) if fields.get("status") == "complete" else None
    if fault is None:
        return {}
    if worker.batch["no_record"]:
        worker.pipe.send({"event": "warning", "text": f"{job['alias']}: {fault}"})
        return {}
    Path(job["weights"]).unlink(missing_ok=True)
    detail = fields["status_detail"] | {"reason": fault}
    return {"status": "failed", "status_detail": detail, "weights_sha256": None, "learned": None}


def _seen(job: dict[str, Any]) -> dict[str, Any]:
    return {"environment": job["base"]["environment"] | seen_environment(job["device"])}


def _limits(worker: Worker, job: dict[str, Any]) -> Limits:
    batch = worker.batch
    share, longest = batch["checkpoint_share"], batch["checkpoint_longest"]
    return Limits(batch["deadline"], job["wall_limit"], worker.stop, share, longest, worker.world)


def _unigram_entropy(worker: Worker, config: dict[str, Any]) -> float | None:
    """What knowing the frequencies of tokens alone leaves, in nats a token; None for what is no text."""
    if config["task"] != "lm":
        return None
    return float(load_manifest(worker.root, config["data"])["unigram_entropy"])
