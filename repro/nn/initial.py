"""Weights at start, keyed by name: what two methods share starts with the same numbers in both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from repro.nn.method_api import WEIGHT_STD, Site
from repro.nn.stack import Block

Draws = list[tuple[Tensor, str, float]]


def initialise(model: nn.Module, seed: int) -> None:
    """Draw all weights of `model` for `seed`, in place, whatever torch's own generators hold.

    Matrices are N(0, std): 0.02 for tables and head, a method's `weight_std` inside blocks; biases 0, gains 1.
    Every draw has a generator of its own, seeded by (seed, place in the model, role), so neither a further
    parameter nor a norm around a map, nor q, k and v as one map or three, moves the other draws. What a method
    makes in `extra` stays as it makes it. Raises ValueError on the meta device, where there is nothing to draw into.
    """
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError("a model on the meta device has no weights to draw; build it on a real device")
    drawn = dict(_block_maps(model))
    made = {own for site in model.modules() if isinstance(site, Site) for own in site.own_modules()}
    done: set[int] = set()  # a tied table is drawn once, as the table
    with torch.no_grad():
        for path, module in model.named_modules():
            if module in made:
                continue  # its site sets it
            if isinstance(module, (nn.Linear, nn.Embedding)):
                pieces = drawn.get(module, [(module.weight, path, WEIGHT_STD)])
                for weight, key, std in pieces if id(module.weight) not in done else []:
                    _draw(weight, seed, key, std)
                done.add(id(module.weight))
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif callable(reset := getattr(module, "reset_parameters", None)):
                _reset(reset, seed, path)


def _block_maps(model: nn.Module) -> Iterator[tuple[nn.Module, Draws]]:
    """What to draw for each linear map of each block: (weight or a part of it, key, standard deviation)."""
    for block in model.modules():
        if not isinstance(block, Block):
            continue
        layer, depth = block.attn_site.layer, block.attn_site.depth
        for role, built in block.maps().items():
            parts = ("q", "k", "v") if role == "qkv" else (role,)
            maps = [module for module in built.modules() if isinstance(module, nn.Linear)]
            for index, linear in enumerate(maps):
                std = block.method.weight_std(linear, role, layer, depth)
                place = f"blocks.{layer}" + (f".{index}" if index else "")
                pieces = zip(linear.weight.chunk(len(parts)), parts, strict=True)
                yield linear, [(piece, f"{place}.{part}", std) for piece, part in pieces]


def _seed(seed: int, key: str) -> int:
    digest = hashlib.sha256(f"{seed}/{key}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _draw(weight: Tensor, seed: int, key: str, std: float) -> None:
    generator = torch.Generator().manual_seed(_seed(seed, key))
    weight.copy_(torch.empty(weight.shape).normal_(0.0, std, generator=generator))


def _reset(reset: Callable[[], object], seed: int, path: str) -> None:
    """Norms and a method's own modules set themselves; where they draw, they draw the same each time."""
    with torch.random.fork_rng(devices=[]):
        # Of the CPU's generator alone: torch.manual_seed also seeds those of devices, which nothing would put back,
        # and takes a millisecond for it, once a norm.
        torch.default_generator.manual_seed(_seed(seed, path))
        reset()
