"""Checks that train a tiny model with the hooks of a run: nothing of it may be lost, and no setting without effect."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice, product

import torch
from torch import Tensor

from repro.nn.anatomy import kept_tensors, parameter_groups, put_tensors
from repro.nn.contract_subject import LAYERS, Broken, Params, Subject, require, token_batch
from repro.nn.foreign import said
from repro.nn.gpt import GPT
from repro.nn.method_api import run_file
from repro.spec.errors import shown
from repro.spec.methods import Scalar

STEPS = 2
SETTINGS = 40  # of the other parameters, before a parameter is said to have no effect
RATE = 1e-2
FAR = 1e3  # a stream this large reaches bounds that ordinary numbers never meet
NO_TEXT = "no_such_text"


def _hook(model: GPT, name: str, *given: object) -> None:
    """A hook of the method, called as the runner calls it."""
    torch.default_generator.manual_seed(0)  # a run keeps torch's generator with its checkpoints
    try:
        getattr(model.stack.method, name)(model, *given)
    except Exception as error:
        raise Broken(f"{name} raises {said(error)}") from None


def _started(model: GPT) -> torch.optim.AdamW:
    """An optimiser after `before_training`, as a run makes it."""
    _hook(model, "before_training", token_batch())
    return torch.optim.AdamW(parameter_groups(model, 0.1), lr=RATE)


def _train(model: GPT, optimiser: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimiser.zero_grad()
        loss, count = model.loss_sums(token_batch(), token_batch().roll(-1, 1))
        (loss / count).backward()
        optimiser.step()
        _hook(model, "after_step")


@torch.no_grad()
def _logits(model: GPT) -> Tensor:
    logits: Tensor = model.eval()(token_batch())
    model.train()
    return logits


def _copies(model: GPT) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in kept_tensors(model).items()}


def state(subject: Subject) -> str:
    """A model after some steps, built again from its saved tensors by a fresh process, is the same and trains on so."""
    model = subject.model()
    optimiser = _started(model)
    _train(model, optimiser, STEPS)
    logits = _logits(model)
    broken = [name for name, parameter in model.named_parameters() if not parameter.isfinite().all()]
    require(not broken, f"{', '.join(broken[:2])}: not finite after {STEPS} steps with before_training and after_step")
    require(logits.isfinite().all(), f"logits are not finite after {STEPS} steps with before_training and after_step")
    # The file runs once more, as in the process that evaluates: what a class or module remembers is not there.
    twin = Subject(subject.entry, run_file(subject.entry).Method).model()
    rule = "what training sets belongs into parameters or persistent buffers of `extra`"
    try:
        put_tensors(twin, _copies(model))
    except ValueError as error:
        raise Broken(f"a fresh model does not take the saved tensors ({error}); {rule}") from None
    same = torch.equal(logits, _logits(twin))
    require(same, f"a fresh model with the saved tensors gives other logits than the trained one; {rule}")
    again = torch.optim.AdamW(parameter_groups(twin, 0.1), lr=RATE)
    again.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    _train(model, optimiser, 1)
    _train(twin, again, 1)
    pairs = zip(_copies(model).items(), _copies(twin).values(), strict=True)
    apart = [name for (name, a), b in pairs if not torch.equal(a, b)]
    require(not apart, f"{', '.join(apart[:2])}: another value in a resumed run after its next step; {rule}")
    return f"saved tensors are all of a model after {STEPS} steps; hooks called as a run calls them"


@dataclass(frozen=True, slots=True)
class Trace:
    """What a setting makes of a model: names and decay of its tensors, numbers at start and after some steps."""

    names: tuple[str, ...]
    outputs: tuple[Tensor, ...]
    tensors: tuple[Tensor, ...]

    def is_as(self, other: Trace) -> bool:
        """The same outputs and the same tensors in the same groups."""
        same = self.names == other.names and _equal(self.outputs, other.outputs)
        return same and _equal(self.tensors, other.tensors)


def _equal(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> bool:
    """Bit for bit, where NaN is NaN."""
    pairs = list(zip(ours, theirs, strict=False))
    return len(ours) == len(theirs) and all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def _trace(subject: Subject, params: Params) -> Trace:
    model = subject.model(params)
    groups = [f"{name} {group['weight_decay']}" for group in parameter_groups(model, 0.1) for name in group["names"]]
    start, outputs = _copies(model), [_logits(model)]
    loud = subject.loud(params)
    outputs.append(_logits(loud))
    with torch.no_grad():
        loud.wte.weight.mul_(FAR)
    outputs.append(_logits(loud))
    _train(model, _started(model), STEPS)
    end = _copies(model)
    outputs.append(_logits(model))
    return Trace((*groups, *start, *end), tuple(outputs), (*start.values(), *end.values()))


def parameters(subject: Subject) -> str:
    """Every parameter of INFO makes another model when it changes, and so does every value of its grid."""
    search = _Search(subject, {})
    for key in subject.entry.info.params:
        search.require_effect(key)
    return f"{', '.join(subject.entry.info.params) or 'none declared'}: other values make other models"


@dataclass(frozen=True, slots=True)
class _Search:
    """Looks for a setting of the other parameters in which two values of one differ; each trace is made once."""

    subject: Subject
    known: dict[tuple[tuple[str, Scalar], ...], Trace | None]

    def require_effect(self, key: str) -> None:
        """Raises Broken for values that should differ and do not, and for a parameter that nothing reads."""
        info = self.subject.entry.info
        default = info.params[key]
        listed = [value for value in info.grid.get(key, []) if value != default]
        # A whole number above the size of these models may count layers or steps that they do not have.
        listed = [value for value in listed if type(value) is not int or abs(value) <= min(LAYERS, STEPS)]
        for one, other in combinations([default, *listed], 2):
            if self.differ(key, one, other) is False:
                raise Broken(self.fault(key, one, other))
        if not listed:
            same = []
            for value in _others(default):
                differs = self.differ(key, default, value)
                if differs:
                    return
                same += [value] if differs is False else []
            if same:
                raise Broken(self.fault(key, default, same[0]))

    def fault(self, key: str, one: Scalar, other: Scalar) -> str:
        """Why two values make one model, as far as can be told."""
        held = [getattr(self.subject.method(**{key: value}), key, None) for value in (one, other)]
        note = f" (the object has {shown(held[0])} for both)" if held[0] == held[1] else ""
        return f"{key} = {shown(one)} and {shown(other)} make the same model, bit for bit{note}"

    def differ(self, key: str, one: Scalar, other: Scalar) -> bool | None:
        """Whether two values differ in any setting of the others; None if no setting takes both."""
        tried = None
        for setting in islice(self.settings(key), SETTINGS):
            ours, theirs = (self.trace({**setting, key: value}) for value in (one, other))
            if ours and theirs:
                if not ours.is_as(theirs):
                    return True
                tried = False
        return tried

    def settings(self, key: str) -> Iterator[Params]:
        """The defaults, then one, two ... other parameters moved: choices may have to be made before `key` acts."""
        info = self.subject.entry.info
        moves = {
            name: [value for value in dict.fromkeys((*info.grid.get(name, []), *_others(default))) if value != default]
            for name, default in info.params.items()
            if name != key
        }
        for count in range(len(moves) + 1):
            for names in combinations(moves, count):
                for values in product(*(moves[name] for name in names)):
                    yield dict(zip(names, values, strict=True))

    def trace(self, params: Params) -> Trace | None:
        """None where the method refuses the values."""
        place = tuple(sorted(params.items()))
        if place not in self.known:
            try:
                self.known[place] = _trace(self.subject, params)
            except Exception:
                self.known[place] = None
        return self.known[place]


def _others(value: Scalar) -> list[Scalar]:
    """Further values of a parameter's type, the likeliest first."""
    found: list[Scalar]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        found = [value + 1, 1, 2, 0, 2 * value]
    elif isinstance(value, float):
        found = [value / 2, 2 * value, 1.0, 0.0, 0.5, -value]
    else:
        found = [NO_TEXT]
    return [other for other in dict.fromkeys(found) if other != value]
