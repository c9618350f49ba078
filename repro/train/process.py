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


def find_device(kind: str, wanted: int = 1) -> torch.device:
    """The device that was planned; MissingError (exit 69) where `wanted` are not there, never others in their place."""
    there = torch.cuda.device_count() if kind == "gpu" and torch.cuda.is_available() else 0
    if kind == "gpu" and there < wanted:
        seen = "none is visible" if not there else f"{wanted} of them, {there} visible"
        raise problem_error(MissingError, "device", "gpu", f"the plan says gpu and {seen}; nothing was run")
    return torch.device("cuda" if kind == "gpu" else "cpu")


def seen_environment(kind: str) -> dict[str, Any]:
    """What only the worker can say of its machine; nothing to add on a CPU, whose kernels are deterministic here."""
    if kind != "gpu" or not torch.cuda.is_available():
        return {}
    return {"device": torch.cuda.get_device_name(), "deterministic": False}
