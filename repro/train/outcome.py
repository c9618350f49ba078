"""From a run at its end to its record: the part of a record that only the worker knows."""

from __future__ import annotations

import hashlib
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import nn

from repro.nn.anatomy import count_parameters, kept_tensors, parameter_groups, put_tensors, structure
from repro.records.schema import finite
from repro.train.launch import Finished
from repro.train.saving import saving, write_whole
from repro.train.state import TrainState


def save_weights(net: nn.Module, path: Path) -> str:
    """Writes parameters and persistent buffers as safetensors, atomically; returns its sha256; raises SaveError."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in kept_tensors(net).items()}
    data = save(tensors)
    with saving():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    return hashlib.sha256(data).hexdigest()


def load_weights(net: nn.Module, path: Path, sha256: str) -> None:
    """Puts the tensors of `path` into `net`; ValueError if the file, its names or shapes are not the recorded ones."""
    if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        raise ValueError(f"{path.name} does not match the recorded weights")
    try:
        put_tensors(net, load_file(path))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def progress_fields(state: TrainState, config: dict[str, Any], started: int, resumed: int) -> dict[str, Any]:
    """Budget, curve and times: for every end, also one in the middle."""
    per_step = config["tokens_per_step"]
    return {
        "curve": state.curve(),
        "budget": {
            "tokens_planned": config["steps"] * per_step,
            "tokens_seen": state.step * per_step,
            "steps": state.step,
            "tokens_per_step": per_step,
        },
        "time": {
            "wall": max(state.wall_seconds, state.train_seconds + state.eval_seconds),
            "train": state.train_seconds,
            "eval": state.eval_seconds,
            "compile": 0.0,
            "wait": 0.0,
        },
        "attempts": started,
        "resumes": resumed,
    }


def speed_fields(state: TrainState, config: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Tokens a second (median step without evaluation) and MFU; MFU is null without an entry for this very device."""
    rate = config["tokens_per_step"] / median(state.step_seconds) if state.step_seconds else None
    name = torch.cuda.get_device_name() if job["device"] == "gpu" else None
    entry = job["peaks"].get(name) if name else None
    flops = job["flops_per_token"]
    share = rate * flops / (entry[config["precision"]] * job["devices"]) if rate and entry and flops else None
    return {
        "tokens_per_second": finite(rate),
        "mfu": finite(share) if share is not None and share <= 1 else None,  # above 1 the peak is another device's
        "flops_formula": job["flops_formula"],
        "peak_entry": name if entry else None,
    }


def end_fields(
    done: Finished, config: dict[str, Any], job: dict[str, Any], started: int, resumed: int
) -> dict[str, Any]:
    """Everything the worker adds to the record of a run that reached an end of its own."""
    state = done.state
    fields = progress_fields(state, config, started, resumed)
    start, last = state.start_val_loss, state.val_history[-1] if state.val_history else None
    fields |= {
        "status": state.status or "complete",
        "status_detail": {"step": state.step, "reason": state.reason},
        "speed": speed_fields(state, config, job),
        "probes": {
            "val_loss_start": finite(start),
            "val_loss_last": finite(last),
            **_counted(done.net),
            **_decayed(done.net, config["optimizer"]),
            **({"samples_sha256": state.samples} if state.samples else {}),
            **({"layers": state.layers} if state.layers else {}),
        },
        "structure": structure(done.net),
    }
    if fields["status"] == "complete":
        fields["weights_sha256"] = save_weights(done.net, Path(job["weights"]))
        floor = job["unigram_entropy"]
        fields["learned"] = None if floor is None else last is not None and last < floor
    return fields


def _decayed(net: nn.Module, spec: dict[str, Any]) -> dict[str, Any]:
    """How many tensors and numbers of the model each weight decay acts on (case T16)."""
    if spec["name"] == "gd":
        return {}
    groups = parameter_groups(net, spec["weight_decay"])
    rows = [(group["weight_decay"], [parameter.numel() for parameter in group["params"]]) for group in groups]
    return {"decay_groups": [{"weight_decay": d, "tensors": len(n), "parameters": sum(n)} for d, n in rows]}


def _counted(net: nn.Module) -> dict[str, Any]:
    return {f"parameters_{key}": number for key, number in count_parameters(net).items()}
