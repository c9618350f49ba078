"""One job of kind check: a theory check's numbers, drawn from its parameters and seed alone."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

from repro.records.measured import Measured
from repro.records.skeleton import declared
from repro.spec.paths import Root
from repro.train.faults import failed_fields, failure, log_traceback
from repro.train.measured import metric_fields, spent


def check(job: dict[str, Any], root: Root) -> dict[str, Any]:
    """What the worker adds to the record; any fault of the check is a failed record."""
    config, opened = job["base"]["config"], time.monotonic()
    name = config["check"]["name"]
    try:
        module = importlib.import_module(f"repro.theory.checks.{name}")
        measured: Measured = module.run(config["check"]["params"], config["seed"])
        fields = metric_fields(declared(name), measured)
    except Exception as error:  # a check that fails is a result, not the end of the chunk
        log_traceback(Path(job["log"]))
        status, reason = failure(error, root.path)
        fields = failed_fields(reason) | {"status": status}
    return spent(time.monotonic() - opened) | fields
