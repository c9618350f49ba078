"""The contract of a method, checked in seconds on a CPU: what every table and verdict takes for granted.

`check_method` builds tiny models and never raises for what a method does wrong: each fault is a failed check
with a sentence that says what was found.
"""

from __future__ import annotations

import fnmatch
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn

from repro.nn.anatomy import axes, count_parameters, parameter_groups
from repro.nn.contract_laws import coefficient, dt_zero, norms
from repro.nn.contract_runs import parameters, state
from repro.nn.contract_subject import (
    BATCH,
    CONTEXT,
    HEADS,
    KINDS,
    LAYERS,
    VOCAB,
    WIDTH,
    Broken,
    Subject,
    near,
    require,
    token_batch,
)
from repro.nn.foreign import Fault, told
from repro.nn.gpt import GPT, GPTConfig
from repro.nn.method_api import Method, Role, Site, load_class, load_module
from repro.spec.errors import shown
from repro.spec.methods import MethodEntry, MethodInfo


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the contract: its name, whether it is kept, and what was found."""

    name: str
    ok: bool
    detail: str


def _info(subject: Subject) -> str:
    info, method = subject.entry.info, subject.method()
    require(
        MethodInfo.model_validate(load_module(subject.entry).INFO) == info,
        "INFO is changed when the file runs",
    )
    _flags(method)
    for key, value in info.params.items():
        require(
            getattr(method, key) == value,
            f"INFO.params.{key} is {value}, the object has {getattr(method, key)}",
        )
    wanted = ["x", "branch", "site", *(["carry"] if method.uses_carry else [])]
    try:
        inspect.signature(method.step).bind(*wanted)
    except TypeError:
        raise Broken(f"step must take ({', '.join(wanted)})") from None
    return f"{info.title}; parameters {dict(info.params) or 'none'}"


def _flags(method: Method) -> None:
    """The settings as the built object has them: `__init__` may have changed those of the class."""
    for name in ("norms", "no_decay"):
        held = getattr(method, name)
        texts = isinstance(held, tuple) and all(isinstance(word, str) for word in held)
        require(texts, f'{name}: {shown(held)} is no tuple of texts, such as ("in",)')
    for name in ("qk_norm", "split_qkv", "uses_carry"):
        require(isinstance(getattr(method, name), bool), f"{name}: {shown(getattr(method, name))} is no bool")
    require(set(method.norms) <= {"in", "out"}, f'norms: {shown(method.norms)} may hold only "in" and "out"')
    require(len(set(method.norms)) == len(method.norms), f"norms: {shown(method.norms)} names a place twice")
    kind, eps = method.norm_kind, method.norm_eps
    require(kind in ("layer", "rms"), f'norm_kind: {shown(kind)} is neither "layer" nor "rms"')
    require(isinstance(eps, (int, float)) and 0 <= eps < 1, f"norm_eps: {shown(eps)} is no number from 0 to 1")


def _shapes(subject: Subject) -> str:
    with torch.device("meta"):
        GPT(GPTConfig(LAYERS, WIDTH, HEADS, CONTEXT, VOCAB), subject.method())
    grid: list[dict[str, Any]] = [{key: value} for key, values in subject.entry.info.grid.items() for value in values]
    for params in [{}, *grid]:
        for bias in (False, True):
            model = subject.model(params, bias=bias)
            for batch, length in ((BATCH, CONTEXT), (1, 1)):
                logits = model(token_batch(batch, length))
                require(logits.shape == (batch, length, VOCAB), f"logits have shape {tuple(logits.shape)}")
                require(logits.dtype == torch.float32, f"logits have type {logits.dtype}")
                require(logits.isfinite().all(), f"logits are not finite {params or ''}")
    with torch.autocast("cpu", torch.bfloat16):
        require(model(token_batch()).isfinite().all(), "logits are not finite in bfloat16")
    return f"[batch, tokens, vocab], finite, {1 + len(grid)} settings with and without biases"


def _gradients(subject: Subject) -> str:
    model = subject.model(tied=False)
    tokens = token_batch()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    late = []
    for step in range(3):
        loss, count = model.loss_sums(tokens, tokens.roll(-1, 1))
        (loss / count).backward()
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            if gradient is None:
                raise Broken(f"{name} has no part in the loss")
            require(gradient.isfinite().all(), f"{name} has a gradient that is not finite at step {step}")
            silent = not gradient.any()
            allowed = any(fnmatch.fnmatch(f".{name}", f"*.{end}") for end in subject.entry.info.zero_grad_ok)
            if silent and step == 0 and allowed:
                late.append(name)
            require(not silent or (step < 2 and allowed), f"{name} has gradient zero at step {step}")
        optimiser.step()
        optimiser.zero_grad()
    return f"finite and not zero for all parameters{f', after two steps for {len(late)}' if late else ''}"


def _same_seed(subject: Subject) -> str:
    runs = []
    for noise in (3, 4):
        torch.manual_seed(noise)
        model = subject.model(seed=5)
        loss, _ = model.loss_sums(token_batch(), token_batch())
        loss.backward()
        runs.append([loss.detach(), *model.state_dict().values(), *(p.grad for p in model.parameters())])
    same = all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    require(same, "two models of one seed differ in weights, loss or gradients")
    again, evaluated = model(token_batch()), model.eval()(token_batch())
    require(torch.equal(again, evaluated), "two calls of one model differ, or training and evaluation do")
    other = subject.model(seed=6).state_dict().values()
    require(
        any(not torch.equal(a, b) for a, b in zip(other, runs[0][1:], strict=False)),
        "the seed changes nothing",
    )
    return "two builds give the same weights, loss and gradients bit for bit"


def _graph_breaks(subject: Subject) -> str:
    torch._dynamo.reset()
    found = torch._dynamo.explain(subject.model())(token_batch())
    reasons = "; ".join(str(reason.reason).splitlines()[0] for reason in found.break_reasons[:2])
    require(found.graph_break_count == 0, f"{found.graph_break_count} breaks of the compiled graph: {reasons}")
    return "one graph, no break"


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _map_sizes(method: Method) -> dict[Role, tuple[int, int]]:
    """(inputs, outputs) of every linear map of a block, by role."""
    wide: dict[Role, tuple[int, int]] = {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    roles: tuple[Role, ...] = ("q", "k", "v", "o") if method.split_qkv else ("o",)
    fused: dict[Role, tuple[int, int]] = {} if method.split_qkv else {"qkv": (WIDTH, 3 * WIDTH)}
    return dict.fromkeys(roles, (WIDTH, WIDTH)) | fused | wide


def _initial_weights(subject: Subject) -> str:
    """The suite draws the maps' weights, from the method's `weight_std`; what `linear` itself sets would be lost."""
    method = subject.method()
    found = {}
    with mock.patch.object(nn.Linear, "reset_parameters", lambda linear: nn.init.zeros_(linear.weight)):
        for layer in range(LAYERS):
            for role, (n_in, n_out) in _map_sizes(method).items():
                for part in method.linear(n_in, n_out, role, layer, LAYERS, False).modules():
                    if isinstance(part, nn.Linear):
                        require(not part.weight.any(), f"linear sets the weights of {role}; weight_std is the place")
                        found[role] = method.weight_std(part, role, layer, LAYERS)
                        require(found[role] >= 0, f"weight_std gives {found[role]} for {role}")
    return "standard deviations " + ", ".join(f"{role} {std:.3g}" for role, std in found.items())


def _declared(method: Method, bias: bool) -> int:
    """Parameters that the hooks give when asked afresh, beyond the matrices of a plain decoder."""
    total = _count(method.final_norm(WIDTH, bias))
    for layer in range(LAYERS):
        for role, (n_in, n_out) in _map_sizes(method).items():
            total += _count(method.linear(n_in, n_out, role, layer, LAYERS, bias)) - n_in * n_out
        for kind in KINDS:
            total += len(method.norms) * _count(method.norm(WIDTH, bias))
            own = method.extra(Site(method, layer, LAYERS, kind, WIDTH, bias))  # noqa: S610 - not Django's
            for value in own.values():
                total += _count(value) if isinstance(value, nn.Module) else value.numel()
        total += 2 * WIDTH if method.qk_norm else 0
    return total


def _parameter_count(subject: Subject) -> str:
    for bias in (False, True):
        tied, untied = (count_parameters(subject.model(bias=bias, tied=tied)) for tied in (True, False))
        plain = (VOCAB + CONTEXT) * WIDTH + LAYERS * 12 * WIDTH**2
        own = _declared(subject.method(), bias)
        total = tied["total"]
        require(
            total == plain + own,
            f"{total} parameters; plain decoder {plain} + declared {own} = {plain + own}",
        )
        difference = untied["total"] - total
        require(difference == VOCAB * WIDTH, f"an untied head adds {difference}, not {VOCAB * WIDTH} parameters")
    return f"{plain} of the plain decoder + {own} of the method; a tied head counted once"


def _causality(subject: Subject) -> str:
    model = subject.loud()
    tokens = token_batch(1).repeat(CONTEXT, 1)
    for first in range(1, CONTEXT):  # row `first` differs from row 0 from that token on
        tokens[first, first:] = (tokens[first, first:] + 1) % VOCAB
    logits = model(tokens)
    require(near(logits[:1], model(tokens[:1])), "the logits of one row depend on the other rows of its batch")
    for first in range(1, CONTEXT):
        earlier, later = slice(None, first), slice(first, None)
        moved = float((logits[first, earlier] - logits[0, earlier]).abs().max())
        same = near(logits[first, earlier], logits[0, earlier])
        require(same, f"a change of token {first} moves an earlier logit by {moved:.2g}")
        moves = not near(logits[first, later], logits[0, later])
        require(moves, f"a change of token {first} moves no later logit")
    return "no logit depends on a later token or on another row of the batch"


def _decay_groups(subject: Subject) -> str:
    for tied in (True, False):
        model = subject.model(tied=tied)
        groups = parameter_groups(model, 0.1)
        listed = [id(parameter) for group in groups for parameter in group["params"]]
        require(
            sorted(listed) == sorted({id(p) for p in model.parameters()}),
            "a parameter is in no group or in two",
        )
        for group in groups:
            for name, parameter in zip(group["names"], group["params"], strict=True):
                require(axes(parameter) > 1 or not group["weight_decay"], f"{name} has one axis and is decayed")
    names = [name for name, _ in model.named_parameters()]
    for end in subject.method().no_decay:
        require(any(f".{name}".endswith(f".{end}") for name in names), f"no_decay: no parameter ends in {end}")
    return ", ".join(f"{len(group['names'])} at {group['weight_decay']}" for group in groups)


CHECKS: dict[str, Callable[[Subject], str]] = {
    "info": _info,
    "shapes": _shapes,
    "gradients": _gradients,
    "same_seed": _same_seed,
    "state": state,
    "parameters": parameters,
    "initial_weights": _initial_weights,
    "graph_breaks": _graph_breaks,
    "dt_zero": dt_zero,
    "parameter_count": _parameter_count,
    "norms": norms,
    "coefficient": coefficient,
    "causality": _causality,
    "decay_groups": _decay_groups,
}


def check_method(entry: MethodEntry) -> list[CheckResult]:
    """Every check of the contract in its order; a method that cannot even be loaded fails the check "loads"."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        try:
            with told():
                subject = Subject(entry, load_class(entry))
                subject.method()
        except Fault as fault:
            return [CheckResult("loads", False, str(fault))]
        return [CheckResult("loads", True, entry.path.name), *(_run(name, subject) for name in CHECKS)]


def _run(name: str, subject: Subject) -> CheckResult:
    try:
        with told():
            return CheckResult(name, True, CHECKS[name](subject))
    except Fault as fault:
        return CheckResult(name, False, str(fault))
