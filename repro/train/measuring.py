"""Metrics of one trained run: an eval record each, made of the recorded final weights."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from repro.data.prepare import load_manifest
from repro.data.tokenise import prepared_tokenizer
from repro.evaluate.evidence import Evidence, compute
from repro.records.skeleton import eval_skeleton
from repro.records.store import newest_record
from repro.train.faults import failed_fields, failure, log_traceback
from repro.train.measured import metric_fields, spent
from repro.train.outcome import load_weights
from repro.train.process import find_device
from repro.train.tasks import make_task

if TYPE_CHECKING:
    from repro.train.child import Worker


def measure(worker: Worker, job: dict[str, Any], record: dict[str, Any]) -> bool:
    """One record for each metric that has none; a fault is a failed record of that metric alone.

    False if a signal or the deadline came before the last one: the same command goes on there.
    """
    made = [eval_skeleton(job["base"], record["weights_sha256"], name, job["eval_tokens"]) for name in job["evals"]]
    known = job["superseded"]
    todo = [i for i in made if newest_record(worker.root, i["base"], known.get(i["base"]["id"], 0)) is None]
    evidence: Any = None
    for item in todo:
        if worker.late:
            return False
        opened = time.monotonic()
        worker.pipe.send({"event": "measure", "protocol": item["protocol"]})
        try:
            evidence = evidence or _evidence(worker, job, record)
            fields = metric_fields(item["values"], compute(item["protocol"], evidence))
        except Exception as error:
            log_traceback(Path(job["log"]))
            fields = failed_fields(failure(error, worker.root.path)[1])
        worker.write(item["base"] | spent(time.monotonic() - opened) | fields)
    return True


def _evidence(worker: Worker, job: dict[str, Any], record: dict[str, Any]) -> Any:
    """The recorded final weights, looked at through the run's own task; never the weights in memory."""
    config = record["config"]
    torch.use_deterministic_algorithms(True, warn_only=True)
    task = make_task(config, Path(job["data"]), job["micro_batch"])
    net, device = task.build(), find_device(job["device"])
    load_weights(net, Path(job["weights"]), record["weights_sha256"])
    if config["task"] != "lm":
        return task.evidence(net.to(device), device)
    coder = prepared_tokenizer(Path(job["data"]), load_manifest(worker.root, config["data"]))
    fetched = worker.root.scratch / "fetched"
    return Evidence(task, net.to(device), job["eval_tokens"], device, coder.raw, fetched)
