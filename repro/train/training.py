"""One job of kind train: from its newest checkpoint, or from the start, to what its record says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from repro.data.prepare import load_manifest
from repro.spec.errors import ReproError
from repro.train.faults import failure, log_traceback
from repro.train.launch import Limits, recall, train
from repro.train.outcome import end_fields, progress_fields
from repro.train.process import find_device, seen_environment
from repro.train.state import TrainState

if TYPE_CHECKING:
    from repro.train.child import Worker


def training(worker: Worker, job: dict[str, Any], folder: Path, starts: int) -> dict[str, Any] | None:
    """What the worker adds to the record; None if the run was stopped before its end and can go on."""
    config, resumed, state = job["base"]["config"], 0, TrainState()
    torch.use_deterministic_algorithms(True, warn_only=True)  # the compiler's kernels too
    try:
        state, found = recall(job, worker.pipe.send)
        resumed = starts - 1 if found else 0
        find_device(job["device"])
        job["unigram_entropy"] = _unigram_entropy(worker, config)
        done = train(config, job, state, found, _limits(worker, job), worker.pipe.send)
        if done.state.status == "stopped":
            return None
        fields = end_fields(done, config, job, starts, resumed)
    except ReproError:
        raise
    except Exception as error:  # any fault of a method or of the disk is a result, not the end of the chunk
        log_traceback(Path(job["log"]))
        status, reason = failure(error, worker.root.path)
        fields = progress_fields(state, config, starts, resumed)
        fields |= {"status": status, "status_detail": {"step": state.step, "reason": reason}}
    return fields | {"environment": job["base"]["environment"] | seen_environment(job["device"])}


def _limits(worker: Worker, job: dict[str, Any]) -> Limits:
    batch = worker.batch
    share, longest = batch["checkpoint_share"], batch["checkpoint_longest"]
    return Limits(batch["deadline"], job["wall_limit"], worker.stop, share, longest)


def _unigram_entropy(worker: Worker, config: dict[str, Any]) -> float | None:
    """What knowing the frequencies of tokens alone leaves, in nats a token; None for what is no text."""
    if config["task"] != "lm":
        return None
    return float(load_manifest(worker.root, config["data"])["unigram_entropy"])
