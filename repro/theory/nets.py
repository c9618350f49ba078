"""Stacks of registered methods in float64 and their sub-layers one by one: what the checks of theory look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from repro.nn.initial import initialise
from repro.nn.method_api import TO_STREAM, Method, Site
from repro.nn.norms import RMSNorm
from repro.nn.stack import Block, Stack

NORMS = (nn.LayerNorm, nn.RMSNorm, RMSNorm)
EMBEDDING_STD = math.sqrt(2) * 0.02  # GPT-2 at start: a row of the token table plus one of the position table
TINY_EPS = 1e-24  # lets a norm act as one of eps = 0, and still gives 0 for a vector of zeros
FLOOR = 0.01
OPEN = 0.7  # for gates that start shut, as in the contract of methods


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a stack: blocks, width d, heads; the hidden width of the MLP is 4 d."""

    layers: int
    width: int
    heads: int


@dataclass(frozen=True, slots=True)
class Sublayer:
    """One attention or MLP sub-layer: a call takes (stream [.., tokens, d], carry) to the next ones."""

    method: Method
    branch: nn.Module
    site: Site

    def __call__(self, x: Tensor, carry: Any = None) -> tuple[Tensor, Any]:
        """The next stream and carry."""
        if self.method.uses_carry:
            new: tuple[Tensor, Any] = self.method.step(x, self.branch, self.site, carry)
            return new
        return self.method.step(x, self.branch, self.site), None

    def map_to_stream(self) -> nn.Module:
        """What the method built for the branch's last linear map, norms around it included."""
        maps: dict[str, nn.Module] = self.branch.maps()  # type: ignore[operator]
        return next(built for role, built in maps.items() if role in TO_STREAM)

    def last_linear(self) -> nn.Linear:
        """The branch's last linear map; ValueError if the method built none of torch's."""
        found = [module for module in self.map_to_stream().modules() if isinstance(module, nn.Linear)]
        if not found:
            raise ValueError(f"the last map of the {self.site.kind} branch holds no nn.Linear")
        return found[-1]

    def closing_norm(self) -> nn.Module | None:
        """The norm that acts last on what the branch gives, as far as the structure tells; None without one."""
        if "out" in self.method.norms:
            return self.site.get_submodule("norm_out")
        parts = list(self.map_to_stream().children())
        return parts[-1] if parts and isinstance(parts[-1], NORMS) else None


def step_size(method: Method) -> float:
    """The method's dt; 1 where it has none."""
    return float(method.params.get("dt", 1.0))  # type: ignore[arg-type]


def block_sublayers(block: Block, method: Method | None = None) -> list[Sublayer]:
    """Attention, then MLP, of one block; `method` takes the place of the block's own (another dt, say)."""
    rule = method or block.method
    return [Sublayer(rule, block.attn, block.attn_site), Sublayer(rule, block.mlp, block.mlp_site)]


def sublayers(stack: Stack) -> list[Sublayer]:
    """All 2 D sub-layers in their order."""
    blocks = [block for block in stack.blocks if isinstance(block, Block)]
    return [part for block in blocks for part in block_sublayers(block)]


def states(stack: Stack, x: Tensor) -> list[tuple[Tensor, Any]]:
    """(stream, carry) before each sub-layer and after the last: 2 D + 1 of them; no final norm."""
    found: list[tuple[Tensor, Any]] = [(x, stack.method.begin(x) if stack.method.uses_carry else None)]
    for part in sublayers(stack):
        found.append(part(*found[-1]))
    return found


def final_state(stack: Stack, x: Tensor) -> Tensor:
    """The stream after the last block, before the final norm."""
    last: Tensor = states(stack, x)[-1][0]
    return last


def build(method: Method, shape: Shape, seed: int, *, bias: bool = False, eps: float | None = None) -> Stack:
    """A stack in float64 with the weights of `seed`; `eps` replaces that of every norm. Global generators stay."""
    with torch.random.fork_rng(devices=[]):
        stack = Stack(method, shape.layers, shape.width, shape.heads, 4 * shape.width, bias)
    initialise(stack, seed)
    if eps is not None:
        set_eps(stack, eps)
    return stack.double()


def layer_by_layer(method: Method, shape: Shape, seed: int, *, eps: float | None = None) -> Iterator[Block]:
    """The blocks of `build`'s stack of the same seed, without biases, one after the other: one block in memory,
    drawn anew for each layer."""
    with torch.random.fork_rng(devices=[]):
        block = Block(method, 0, shape.layers, shape.width, shape.heads, 4 * shape.width, False).double()
    if eps is not None:
        set_eps(block, eps)
    for layer in range(shape.layers):
        block.attn_site.layer = block.mlp_site.layer = layer
        initialise(block, seed)
        yield block


def set_eps(module: nn.Module, eps: float) -> None:
    """Gives all norms inside `module` this eps."""
    for norm in module.modules():
        if isinstance(norm, NORMS):
            norm.eps = eps


def linears(module: nn.Module) -> list[nn.Linear]:
    """All linear maps inside."""
    return [part for part in module.modules() if isinstance(part, nn.Linear)]


@torch.no_grad()
def make_loud(stack: Stack, seed: int) -> Stack:
    """Weights N(0, 1/fan-in) in all maps of the blocks, gates that start shut opened: no branch is small."""
    generator = torch.Generator().manual_seed(seed)
    for linear in linears(stack):
        linear.weight.normal_(0.0, linear.in_features**-0.5, generator=generator)
    for module in stack.modules():
        for value in module.parameters(recurse=False) if isinstance(module, (Site, *NORMS)) else ():
            if value.numel() and not value.any() and value is not getattr(module, "bias", None):
                value.fill_(OPEN)
    return stack


@torch.no_grad()
def scale_linear(linear: nn.Linear, factor: float) -> None:
    """The map's weight and bias times `factor`, in place."""
    linear.weight.mul_(factor)
    if linear.bias is not None:
        linear.bias.mul_(factor)


def embedding(shape: Shape, tokens: int, seed: int, *, batch: int = 1, std: float = 1.0) -> Tensor:
    """A stream at the input, [batch, tokens, d], entries N(0, std^2)."""
    generator = torch.Generator().manual_seed(seed)
    return std * torch.randn(batch, tokens, shape.width, dtype=torch.float64, generator=generator)


def rms(x: Tensor) -> Tensor:
    """Root mean square over the last axis."""
    return x.square().mean(-1).sqrt()


def numbers(seed: int, *key: int) -> int:
    """A seed for a torch generator, one for each (seed, key)."""
    import numpy as np

    return int(np.random.default_rng([seed, *key]).integers(2**62))


def twice_differentiable() -> AbstractContextManager[None]:
    """Inside, attention uses the plain formula: torch's fused kernel on CPUs has no second derivative."""
    context: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
    return context


def ascend(
    objective: Callable[[], Tensor], parameters: Sequence[Tensor], steps: int, rate: float, *, keep_norm: bool = False
) -> Iterator[float]:
    """Gradient ascent on `objective`; yields its value before each step.

    Each parameter moves along its own gradient by `rate` times its own size, so that weights of all sizes move; one
    that starts at 0 counts as of size FLOOR an entry. `keep_norm` puts each back to its norm at start: worse
    directions, not larger weights. Ends early where the objective or a gradient is no longer finite. Written out
    because making any of torch's optimisers loads its compiler, which takes longer than the ascent.
    """
    sizes = _norms(parameters)
    for _ in range(steps):
        value = objective()
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
        moved = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
        slopes = _norms([g for _, g in moved])
        if not all(map(math.isfinite, (float(value.detach()), *slopes))):
            return
        yield float(value.detach())
        with torch.no_grad():
            for (parameter, gradient), length, slope in zip(moved, _norms([p for p, _ in moved]), slopes, strict=True):
                if slope > 0:
                    floor = FLOOR * math.sqrt(parameter.numel())
                    parameter.add_(gradient * (rate * max(length, floor) / slope))
            if keep_norm:
                for parameter, size, now in zip(parameters, sizes, _norms(parameters), strict=True):
                    parameter.mul_(size / now if now else 1.0)


def _norms(tensors: Sequence[Tensor]) -> list[float]:
    """Euclidean norms in one call: a stack of 48 blocks has 768 parameters, and each call costs microseconds."""
    return torch.stack(torch._foreach_norm(list(tensors))).detach().tolist() if tensors else []
