"""Settings of a worker's process that decide bits, and the device that it finds."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch

from repro.spec.errors import MissingError, problem_error


def prepare_process(threads: int) -> None:
    """Settings that decide bits: threads, deterministic kernels. Quiet libraries."""
    torch.set_num_threads(threads)
    # use_deterministic_algorithms would load the compiler to tell it too: 1.4 s that checks of theory need not wait.
    torch.set_deterministic_debug_mode("warn")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")


def find_device(kind: str) -> torch.device:
    """The device that was planned; MissingError (exit 69) where it is not there, never another one in its place."""
    if kind == "gpu" and not torch.cuda.is_available():
        raise problem_error(MissingError, "device", "gpu", "the plan says gpu and none is visible; nothing was run")
    return torch.device("cuda" if kind == "gpu" else "cpu")


def seen_environment(kind: str) -> dict[str, Any]:
    """What only the worker can say of its machine; nothing to add on a CPU, whose kernels are deterministic here."""
    if kind != "gpu" or not torch.cuda.is_available():
        return {}
    return {"device": torch.cuda.get_device_name(), "deterministic": False}
