"""Checkpoints: tensors and plain types only, whole or not there, and never another run's."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from repro.spec.errors import BadDataError, problem_error
from repro.train.saving import saving, write_whole
from repro.train.state import TrainState

KEPT = 2
CONTENT = {"model": dict, "optimizer": dict, "rng": torch.Tensor, "state": str}
PLAIN = (torch.Tensor, int, float, str, bytes, type(None))
FOREIGN = "belongs to another configuration"


def save(folder: Path, step: int, content: dict[str, Any]) -> Path:
    """Writes `step-<step>.pt` with its sha256 beside it, and keeps the last two.

    Raises SaveError where the disk says no, and then leaves nothing half-written to fill it; TypeError for what
    could not be loaded again as data only.
    """
    _refuse_objects(content, "checkpoint")
    buffer = io.BytesIO()
    torch.save(content | {"step": step}, buffer)
    data = buffer.getvalue()
    path = folder / f"step-{step:09d}.pt"
    with saving():
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".step-*"):  # by a process that was killed while it saved
            left.unlink(missing_ok=True)
        # The hash first: a kill between the two leaves no file that would have to be passed over.
        write_whole(path.with_suffix(".sha256"), hashlib.sha256(data).hexdigest().encode())
        try:
            write_whole(path, data)
        except OSError:
            path.with_suffix(".sha256").unlink(missing_ok=True)
            raise
    # Files of later steps are what was passed over when the run started: they must not crowd out the good ones.
    kept = sorted(found for found in folder.glob("step-*.pt") if found.name <= path.name)[-KEPT:]
    for old in set(folder.glob("step-*.pt")).difference(kept):
        with suppress(OSError):
            old.unlink()
            old.with_suffix(".sha256").unlink(missing_ok=True)
    return path


def _refuse_objects(value: Any, key: str) -> None:
    """TypeError that names what is neither a tensor nor plain: nobody could load the file, this suite neither."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            _refuse_objects(item, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            _refuse_objects(item, f"{key}.{place}")
    elif not isinstance(value, PLAIN):
        raise TypeError(f"{key} is a {type(value).__name__}; a checkpoint holds tensors and plain values only")


def _load(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != path.with_suffix(".sha256").read_text().strip():
        raise ValueError("its content does not match its hash")
    content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or not isinstance(content.get("step"), int):
        raise ValueError("it is no checkpoint")
    return content


def _check_whole(content: dict[str, Any]) -> None:
    """ValueError, or what a broken state raises, for a file of this run that a training could not go on from."""
    if any(not isinstance(content.get(key), kind) for key, kind in CONTENT.items()):
        raise ValueError("it is no checkpoint")
    if TrainState.from_text(content["state"]).step != content["step"]:
        raise ValueError("its step is not that of its state")


def newest(folder: Path, full_sha256: str) -> tuple[dict[str, Any] | None, list[str]]:
    """The valid checkpoint of this very configuration with the highest step stored inside, and what was passed over.

    A file is read as data only (`weights_only`), so nothing in it can run.
    """
    best: dict[str, Any] | None = None
    passed: list[str] = []
    for path in sorted(folder.glob("step-*.pt"), reverse=True):
        try:
            content = _load(path)
            if content.get("full_sha256") == full_sha256:
                _check_whole(content)
        except Exception as error:  # whatever a broken file raises, it is not this run's state
            passed.append(f"{path.name}: {type(error).__name__}")
            continue
        if content.get("full_sha256") != full_sha256:
            passed.append(f"{path.name}: {FOREIGN}")
        elif best is None or content["step"] > best["step"]:
            best = content
    return best, passed


def set_aside(folder: Path, passed: list[str]) -> None:
    """Renames what was found broken, so that later saves do not count it among the last two; a foreign file stays."""
    for line in passed:
        if not line.endswith(FOREIGN):
            path = folder / line.partition(": ")[0]
            with suppress(OSError):
                path.rename(path.with_suffix(".broken"))


WRAPPERS = ("_orig_mod.", "module.", "net.")  # what torch.compile, DDP and our own module put before a name


def plain_names(weights: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Weights by the names of the model itself, and which wrapper's prefix was taken off all of them, if any."""
    taken = ""
    while front := next((w for w in WRAPPERS if weights and all(name.startswith(w) for name in weights)), None):
        weights = {name.removeprefix(front): value for name, value in weights.items()}
        taken += front
    return weights, taken


def load_into(net: nn.Module, found: dict[str, Any], where: str) -> str:
    """Puts a checkpoint's weights into `net`, all of them and no others; returns a note on names, or nothing.

    Raises BadDataError that names the keys, or the shapes, that do not fit.
    """
    weights, taken = plain_names(found["model"])
    wanted = net.state_dict()
    faults = [f"{key} is missing" for key in wanted if key not in weights]
    faults += [f"{key} is not of this model" for key in weights if key not in wanted]
    faults += [
        f"{key} has shape {list(weights[key].shape)}, not {list(tensor.shape)}"
        for key, tensor in wanted.items()
        if key in weights and weights[key].shape != tensor.shape
    ]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise problem_error(BadDataError, where, f"step {found['step']}", faults[0] + more)
    net.load_state_dict(weights)
    return f"the prefix {taken} was taken off its names" if taken else ""
