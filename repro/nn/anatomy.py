"""What a built model is made of: decay groups, parameter counts, sites of norms and scales."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from repro.nn.method_api import Site
from repro.nn.stack import Stack


def ends_with(name: str, ends: tuple[str, ...] | list[str]) -> bool:
    """Whether a parameter's dotted name is, or ends in, one of `ends`."""
    return any(f".{name}".endswith(f".{end}") for end in ends)


def axes(tensor: Tensor) -> int:
    """Axes along which a tensor has more than one number: a gain of shape [1, d] has one, as one of shape [d]."""
    return sum(size > 1 for size in tensor.shape)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Groups for an optimiser, each with "params", their "names" and "weight_decay"; an empty group is left out.

    Weight decay acts on matrices and tables only: nothing of fewer than two axes is decayed (gains, biases,
    residual coefficients, also as [1, d]), nor what the method names in `no_decay`. A tied table stands once.
    """
    spared = [end for module in model.modules() if isinstance(module, Stack) for end in module.method.no_decay]
    groups: list[dict[str, Any]] = [{"params": [], "names": [], "weight_decay": decay} for decay in (weight_decay, 0.0)]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            group = groups[axes(parameter) < 2 or ends_with(name, spared)]
            group["params"].append(parameter)
            group["names"].append(name)
    return [group for group in groups if group["params"]]


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Numbers of parameters, shared ones once: "total", and "non_embedding" = without tables and output head."""
    outer: list[nn.Module] = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    outer += [module for name, module in model.named_children() if name == "head"]
    embedding = {id(parameter) for module in outer for parameter in module.parameters()}
    parameters = list(model.parameters())
    return {
        "total": sum(parameter.numel() for parameter in parameters),
        "non_embedding": sum(p.numel() for p in parameters if id(p) not in embedding),
    }


def kept_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All that a model is, by name: parameters (a tied one once) and persistent buffers. A weights file holds these."""
    stored = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in stored}
    return {**dict(model.named_parameters()), **buffers}


@torch.no_grad()
def put_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Puts `tensors` in place of `kept_tensors`; ValueError, and nothing changed, if names or shapes differ."""
    kept = kept_tensors(model)
    if wrong := sorted(kept.keys() ^ tensors.keys()):
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise ValueError(f"holds other parameters than the model: {wrong[0]}{more}")
    for name, tensor in kept.items():
        given = tensors[name]
        if (given.shape, given.dtype) != (tensor.shape, tensor.dtype):
            raise ValueError(f"{name} is {given.dtype} {list(given.shape)}, not {tensor.dtype} {list(tensor.shape)}")
    for name, tensor in kept.items():
        tensor.copy_(tensors[name])


def structure(model: nn.Module) -> list[str]:
    """Every norm and every parameter of a method's own, as `path: Kind(shape) xN`, equal ones of all blocks as one.

    Kept in a run's record: what was trained, not what was asked for.
    """
    found: Counter[str] = Counter()
    for path, module in model.named_modules():
        place = re.sub(r"(^|\.)blocks\.\d+(\.|$)", r"\1blocks.*\2", path)
        leaf = next(module.children(), None) is None
        if isinstance(module, Site):
            for name, parameter in module.named_parameters(recurse=False):
                found[f"{place}.{name}: Parameter({', '.join(map(str, parameter.shape))})"] += 1
        elif leaf and not isinstance(module, (nn.Linear, nn.Embedding, nn.Identity)):
            shapes = [str(number) for parameter in module.parameters() for number in parameter.shape][:1]
            found[f"{place}: {type(module).__name__}({', '.join(shapes)})"] += 1
    return [f"{what} x{count}" for what, count in found.items()]
