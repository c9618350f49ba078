"""What a method may change in a Transformer: five hooks, a few flags, and a place for its own parameters.

The model owns attention, MLP and data. It asks a method how a sub-layer's branch joins the stream, how a linear
map is built, where norms stand, and hands state from sub-layer to sub-layer to those methods that ask for it.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from repro.nn.norms import EPS, RMSNorm
from repro.spec.errors import shown
from repro.spec.methods import FOLDER, MethodEntry, registry, resolve

# Attention takes `attend=` besides its input: a function of q, k, v [batch, heads, tokens, head size] in place of
# causal softmax attention, so that a method's `step` can put norms, scales or carried values inside.
Branch = Callable[..., Tensor]
Role = Literal["qkv", "q", "k", "v", "o", "up", "down"]

WEIGHT_STD = 0.02  # GPT-2
TO_STREAM = ("o", "down")


class Site(nn.Module):
    """One sub-layer's place in the stack, its norms and the method's own parameters there.

    `layer` counts blocks from 0, `depth` is the number of blocks, `kind` is "attn" or "mlp". `norm_in` and
    `norm_out` exist only where the method's `norms` names them: asking for another one is an error, never identity.
    """

    norm_in: Callable[[Tensor], Tensor]
    norm_out: Callable[[Tensor], Tensor]

    def __init__(
        self, method: Method, layer: int, depth: int, kind: Literal["attn", "mlp"], d_model: int, bias: bool
    ) -> None:
        super().__init__()
        self.layer, self.depth, self.kind, self.d_model = layer, depth, kind, d_model
        self._method = method
        for place in method.norms:
            self.add_module(f"norm_{place}", method.norm(d_model, bias))
        for name, value in method.extra(self).items():  # noqa: S610 - not Django's
            if isinstance(value, nn.Module):
                self.add_module(name, value)
            else:
                self.register_parameter(name, nn.Parameter(value))

    def reset_parameters(self) -> None:
        """The method's own parameters and modules back to what `extra` makes them."""
        with torch.no_grad():
            for name, value in self._method.extra(self).items():  # noqa: S610 - not Django's
                if isinstance(value, nn.Module):
                    self.get_submodule(name).load_state_dict(value.state_dict())
                else:
                    self.get_parameter(name).copy_(value)

    def own_modules(self) -> list[nn.Module]:
        """The modules that `extra` made, with all inside them."""
        made = [child for name, child in self.named_children() if name not in ("norm_in", "norm_out")]
        return [module for child in made for module in child.modules()]


class Method:
    """Base of every method; a method overrides what it changes.

    Parameters of INFO arrive as attributes (`self.dt`). One object serves all layers of one model and holds no
    state of the forward pass.
    """

    norms: tuple[str, ...] = ()  # places of a sub-layer that have a norm: "in", "out"
    norm_kind: Literal["layer", "rms"] = "layer"
    norm_eps: float = EPS
    qk_norm: bool = False  # RMSNorm on the whole projected q and k, before the split into heads
    split_qkv: bool = False  # roles "q", "k", "v" instead of one fused "qkv"
    uses_carry: bool = False  # step, begin and end take and give a carry
    no_decay: tuple[str, ...] = ()  # ends of names of parameters of two or more axes that weight decay leaves alone

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, **params: object) -> None:
        self.params = dict(params)
        for name, value in params.items():
            setattr(self, name, value)

    def __init_subclass__(cls) -> None:
        """A misspelt hook or flag would silently leave the default in place; raises TypeError instead."""
        known = [name for name in dir(Method) if not name.startswith("_")]
        for name in vars(cls):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            if near and name not in known:
                raise TypeError(f"{name} is no part of the method interface; did you mean {near[0]}?")

    def step(self, x: Tensor, branch: Branch, site: Site, *carry: Any) -> Any:
        """The residual rule: stream x [batch, tokens, d] and the sub-layer's branch -> new stream.

        With `uses_carry`: (x, branch, site, carry) -> (new stream, new carry).
        """
        raise NotImplementedError(f"{type(self).__module__}: a method must define step")

    def linear(self, n_in: int, n_out: int, role: Role, layer: int, depth: int, bias: bool) -> nn.Module:
        """The module for one linear map inside a block; norms around or scales on a map go here.

        Its weights are drawn by `initialise`, with the standard deviation that `weight_std` gives.
        """
        return nn.Linear(n_in, n_out, bias=bias)

    def weight_std(self, linear: nn.Linear, role: Role, layer: int, depth: int) -> float:
        """Standard deviation of a map's weights at start: GPT-2's 0.02, by 1/sqrt(2 depth) where it writes to x."""
        return WEIGHT_STD / math.sqrt(2 * depth) if role in TO_STREAM else WEIGHT_STD

    def extra(self, site: Site) -> Mapping[str, Tensor | nn.Module]:
        """Own parameters (by their values at start) and modules of one site, by the name they get on it."""
        return {}

    def norm(self, d: int, bias: bool) -> nn.Module:
        """A norm of the method's kind over d numbers; only a LayerNorm has a bias. ValueError for an unknown kind."""
        if self.norm_kind == "rms":
            return RMSNorm(d, self.norm_eps)
        if self.norm_kind == "layer":
            return nn.LayerNorm(d, self.norm_eps, bias=bias)
        raise ValueError(f'norm_kind: {shown(self.norm_kind)} is neither "layer" nor "rms"')

    def final_norm(self, d: int, bias: bool) -> nn.Module:
        """What stands between the last block and the head."""
        return self.norm(d, bias)

    def begin(self, x: Tensor) -> Any:
        """The carry that the first sub-layer gets, made from the embedding; with `uses_carry` only."""
        return None

    def end(self, x: Tensor, carry: Any, norm: nn.Module) -> Tensor:
        """What the head reads, from the last stream and carry and the final norm; with `uses_carry` only."""
        return norm(x)

    def before_training(self, model: nn.Module, tokens: Tensor) -> None:
        """Called once by the runner with a first batch [batch, tokens], before the first step."""

    def after_step(self, model: nn.Module) -> None:
        """Called by the runner after every optimiser step."""


def load_module(entry: MethodEntry) -> ModuleType:
    """A method's file as a module, the package's own run once a process; raises whatever it raises."""
    if entry.path.parent == FOLDER:
        return importlib.import_module(f"repro.methods.{entry.name}")
    return run_file(entry)


def run_file(entry: MethodEntry) -> ModuleType:
    """A method's file, run now, whether or not it ran before; raises whatever it raises."""
    spec = importlib.util.spec_from_file_location(f"repro_method_{entry.name}", entry.path)
    if spec is None or spec.loader is None:
        raise TypeError(f"{entry.path.name} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for the names in annotations
    spec.loader.exec_module(module)
    return module


def load_class(entry: MethodEntry) -> type[Method]:
    """The class of a method's file; raises TypeError if it is no Method, and whatever the file raises."""
    found = load_module(entry).Method
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise TypeError(f"{entry.name}: class Method must be a subclass of repro.nn.method_api.Method")
    return found


def load_method(
    name: str, params: Mapping[str, object] | None = None, entries: Mapping[str, MethodEntry] | None = None
) -> Method:
    """The method `name` with `params` over its defaults; raises ValueError for an unknown name or parameter."""
    entry, full = resolve(name, params or {}, _own() if entries is None else entries)
    return load_class(entry)(**full)


@functools.cache
def _own() -> dict[str, MethodEntry]:
    """The package's own methods, parsed once: Python runs a file once a process too."""
    return registry()
