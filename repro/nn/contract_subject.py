"""What the checks of the contract share: the method under test, tiny models of it, and how a fault is said."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from repro.nn.foreign import Fault
from repro.nn.gpt import GPT, GPTConfig
from repro.nn.initial import initialise
from repro.nn.method_api import Branch, Method, Site
from repro.spec.methods import MethodEntry, Scalar

LAYERS, WIDTH, HEADS, CONTEXT, VOCAB = 2, 16, 2, 8, 17
BATCH = 2
Params = Mapping[str, Scalar]
NO_PARAMS: Params = {}
KINDS: tuple[Literal["attn", "mlp"], ...] = ("attn", "mlp")


class Broken(Fault):
    """What a check found wrong."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The method under test, and how to build with it."""

    entry: MethodEntry
    cls: type[Method]

    def method(self, **params: object) -> Method:
        """The method with its defaults, `params` over them."""
        return self.cls(**{**self.entry.info.params, **params})

    def model(self, params: Params = NO_PARAMS, *, bias: bool = True, tied: bool = True, seed: int = 0) -> GPT:
        """A tiny decoder around the method, with the weights of `seed`."""
        config = GPTConfig(LAYERS, WIDTH, HEADS, CONTEXT, VOCAB, bias=bias, tied=tied)
        model = GPT(config, self.method(**params))
        initialise(model, seed)
        return model

    def loud(self, params: Params = NO_PARAMS) -> GPT:
        """A model in which nothing is small: neither eps, nor round-off, nor a gate that starts shut hides a fault."""
        model = self.model(params)
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, nn.Embedding):
                    module.weight.mul_(3 / module.weight.std())
                elif isinstance(module, nn.Linear) and module is not model.head:
                    module.weight.mul_(1 / (module.weight.std() * math.sqrt(module.in_features)))
                elif isinstance(module, Site):
                    _open(module)
                elif isinstance(gain := getattr(module, "weight", None), nn.Parameter) and not gain.any():
                    nn.init.ones_(gain)
        return model

    def sites(self, method: Method, *, opened: bool = False) -> Iterator[Site]:
        """Sites of both kinds and all layers; `opened` lets the method's own parameters act there."""
        for layer in range(LAYERS):
            for kind in KINDS:
                site = Site(method, layer, LAYERS, kind, WIDTH, False)
                if opened:
                    _open(site)
                yield site


def _open(site: Site) -> None:
    """Gates and scales that may start at 0 or 1 get a value that shows."""
    for parameter in site.parameters(recurse=False):
        nn.init.constant_(parameter, 0.7)


def token_batch(batch: int = BATCH, length: int = CONTEXT) -> Tensor:
    """Fixed token ids [batch, length]."""
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(1))


def stream() -> Tensor:
    """A fixed residual stream [batch, tokens, d] whose mean and root mean square are not those of a norm."""
    return 2 * torch.randn(BATCH, CONTEXT, WIDTH, generator=torch.Generator().manual_seed(2)) + 0.3


def require(condition: object, message: str) -> None:
    """Raises Broken with `message` unless the condition holds."""
    if not condition:
        raise Broken(message)


def near(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> bool:
    """Equal up to `tolerance` of the larger one; never true for NaN."""
    scale = max(1.0, float(b.abs().max()))
    return bool((a - b).abs().max() <= tolerance * scale)


def step(method: Method, site: Site, x: Tensor, branch: Branch) -> Tensor:
    """The stream after one sub-layer."""
    if method.uses_carry:
        return method.step(x, branch, site, method.begin(x))[0]
    return method.step(x, branch, site)


def silent(z: Tensor, **_: object) -> Tensor:
    """A branch that adds nothing; like all branches it may be given `attend`."""
    return torch.zeros_like(z)


def affine(z: Tensor, factor: float = 1.0, **_: object) -> Tensor:
    """A fixed branch that is neither even, odd nor constant, times `factor`."""
    return factor * (0.7 * z.flip(-1) + 0.3 * torch.arange(WIDTH) / WIDTH)
