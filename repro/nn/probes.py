"""What goes on inside a model during one step of its training: moments of the hidden state, gradients, updates.

Outside of a `Probes` block nothing of it exists: no hook, no branch in the forward pass. Inside, hooks only read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from repro.nn.stack import Block, Stack

MOMENTS = ("mean_abs", "entry_variance", "data_variance", "max_abs")


@dataclass
class _Moments:
    """Running moments of the rows of several batches, on their device; merged as Chan, Golub and LeVeque (1983) do."""

    count: int
    mean_abs: Tensor
    entry_variance: Tensor
    largest: Tensor
    mean: Tensor  # [d]
    squares: Tensor  # [d], sum of squared distances from the mean

    @classmethod
    def of(cls, x: Tensor) -> _Moments:
        """Of one batch [..., d]."""
        flat = x.detach().reshape(-1, x.shape[-1])
        wide = flat.to(torch.promote_types(flat.dtype, torch.float32))
        size, mean = wide.abs(), wide.mean(0)
        return cls(
            len(wide),
            size.mean(),
            wide.var(-1, correction=0).mean(),
            size.max(),
            mean,
            (wide - mean).square().sum(0),
        )

    def merged(self, other: _Moments) -> _Moments:
        """Of both batches together."""
        total = self.count + other.count
        share = other.count / total
        apart = other.mean - self.mean
        return _Moments(
            total,
            torch.lerp(self.mean_abs, other.mean_abs, share),
            torch.lerp(self.entry_variance, other.entry_variance, share),
            torch.maximum(self.largest, other.largest),
            self.mean + apart * share,
            self.squares + other.squares + apart.square() * (self.count * share),
        )

    def numbers(self) -> dict[str, float]:
        """As plain numbers; waits for the device."""
        return {
            "mean_abs": float(self.mean_abs),
            "entry_variance": float(self.entry_variance),
            "data_variance": float(self.squares.mean()) / self.count,
            "max_abs": float(self.largest),
        }


class Probes:
    """Probes of one optimiser step of a model that holds one stack of blocks.

    Use: `with Probes(model) as probes:` around the forward and backward passes (all micro-batches), then
    `probes.before_step()` (before clipping, so that gradients are those of the loss), the optimiser's step,
    `probes.after_step()`, `probes.rows()`. Without the two calls the rows have None for gradient and update.
    Between the two it keeps a copy of all weights. Several processes: each one's rows are of its own tokens.
    Raises ValueError for a model without a stack.
    """

    def __init__(self, model: nn.Module) -> None:
        stacks = [module for module in model.modules() if isinstance(module, Stack)]
        if len(stacks) != 1:
            raise ValueError(f"probes need a model with one stack of blocks; this one has {len(stacks)}")
        self.blocks = [block for block in stacks[0].blocks if isinstance(block, Block)]
        inside = {id(parameter) for block in self.blocks for parameter in block.parameters()}
        outside = [parameter for parameter in model.parameters() if id(parameter) not in inside]
        self._parameters = [outside, *(list(block.parameters()) for block in self.blocks)]
        self._moments: list[_Moments | None] = [None] * (len(self.blocks) + 1)
        self._handles: list[RemovableHandle] = []
        self._gradients: list[Tensor] = []
        self._before: list[list[Tensor]] = []
        self._updates: list[Tensor] = []

    def __enter__(self) -> Self:
        self._handles.append(self.blocks[0].register_forward_pre_hook(self._read_input))
        for layer, block in enumerate(self.blocks, 1):

            def read(_block: nn.Module, _inputs: Any, output: Any, layer: int = layer) -> None:
                self._see(layer, output)

            self._handles.append(block.register_forward_hook(read))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _read_input(self, _block: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._see(0, inputs[0])

    @torch.no_grad()
    def _see(self, layer: int, stream: Any) -> None:
        found = _Moments.of(stream[0] if isinstance(stream, tuple) else stream)  # a block with a carry gives a pair
        known = self._moments[layer]
        self._moments[layer] = found if known is None else known.merged(found)

    @torch.no_grad()
    def before_step(self) -> None:
        """Takes the norms of the gradients and a copy of the weights."""
        self._gradients = [_norm([p.grad for p in group if p.grad is not None]) for group in self._parameters]
        self._before = [[p.detach().clone() for p in group] for group in self._parameters]

    @torch.no_grad()
    def after_step(self) -> None:
        """Takes the size of the update over that of the weights before it, and lets go of the copy."""
        self._updates = [
            _norm([p - was for p, was in zip(group, before, strict=True)]) / _norm(before)
            for group, before in zip(self._parameters, self._before, strict=True)
        ]
        self._before = []

    def rows(self) -> list[dict[str, Any]]:
        """One row a layer, in order, of plain numbers.

        "layer" 0 is what the first block reads, with gradient and update of everything outside the blocks; layer l
        is block l and what it gives. "mean_abs", "max_abs" over all entries; "entry_variance": over the d entries
        of a token, mean over tokens; "data_variance": over tokens, mean over entries; "grad_norm"; "update_ratio" =
        ||update|| / ||weights||. None where it was not asked for or is no finite number.
        """
        found = []
        for layer, moments in enumerate(self._moments):
            row: dict[str, Any] = {"layer": layer}
            seen = moments.numbers() if moments else dict.fromkeys(MOMENTS)
            row |= {name: _finite(seen[name]) for name in MOMENTS}
            row["grad_norm"] = _finite(self._gradients[layer]) if self._gradients else None
            row["update_ratio"] = _finite(self._updates[layer]) if self._updates else None
            found.append(row)
        return found


def _norm(tensors: list[Tensor]) -> Tensor:
    """Euclidean norm over all entries of all tensors; 0 of none."""
    return nn.utils.get_total_norm(tensors) if tensors else torch.zeros(())


def _finite(value: Any) -> float | None:
    """A plain number, or None for what JSON has no word for."""
    return float(value) if value is not None and math.isfinite(value) else None
