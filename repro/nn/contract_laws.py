"""Checks of a method's rule on one sub-layer and of its norms in a model: what the formula says, by numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from repro.nn.anatomy import structure
from repro.nn.contract_subject import WIDTH, Subject, affine, near, require, silent, step, stream, token_batch
from repro.nn.gpt import GPT
from repro.nn.method_api import Branch, Method, Site
from repro.nn.norms import RMSNorm


def _silent_law(method: Method, site: Site, x: Tensor, branch: Branch) -> str:
    """What a sub-layer does with a branch that adds nothing: identity, norm or none."""
    y = step(method, site, x, branch)
    require(y.isfinite().all(), f"the {site.kind} sub-layer gives numbers that are not finite")
    if near(y, x):
        return "identity"
    return "norm" if near(y, method.norm(WIDTH, False)(x), 1e-3) else "none"


def dt_zero(subject: Subject) -> str:
    """A sub-layer whose branch is silent, by itself or by dt = 0, does what INFO declares."""
    declared, x = subject.entry.info.dt_zero, stream()
    zeros: list[tuple[Method, Branch, str]] = [(subject.method(), silent, "a silent branch")]
    if _is_number(subject, "dt"):
        zeros.append((subject.method(dt=0.0), affine, "dt = 0"))
    laws = [
        (f"{cause}, {site.kind} sub-layer {site.layer}", _silent_law(method, site, x, branch))
        for method, branch, cause in zeros
        for site in subject.sites(method)
    ]
    for where, law in laws:
        require(declared in ("none", law), f"dt_zero is declared {declared}; with {where} it is {law}")
    return f"{declared}, as declared" if declared != "none" else "no law declared"


def norms(subject: Subject) -> str:
    """Every norm, declared or built, is called, normalises, and matters for the logits."""
    model = subject.loud()
    base = model(token_batch())
    sites = {
        f"{path}.norm_{place}"
        for path, m in model.named_modules()
        if isinstance(m, Site)
        for place in subject.method().norms
    }
    acting = [
        (path, module)
        for path, module in model.named_modules()
        if path in sites or isinstance(module, (nn.LayerNorm, nn.RMSNorm, RMSNorm))
    ]
    for path, module in acting:
        _norm_acts(model, path, module, base)
    return f"{len(acting)} norms act: {'; '.join(structure(model)) or 'none declared, none built'}"


def _norm_acts(model: GPT, path: str, module: nn.Module, base: Tensor) -> None:
    """It is called, it normalises, and what it gives reaches the logits."""
    seen: list[tuple[Tensor, Tensor]] = []
    push = torch.linspace(-1.0, 2.0, steps=7)  # differs from token to token: softmax ignores a shift of all keys

    def disturb(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen.append((inputs[0].detach(), output.detach()))
        return output + push[torch.arange(output.numel()) % 7].view_as(output)

    handle = module.register_forward_hook(disturb)
    try:
        disturbed = model(token_batch())
    finally:
        handle.remove()
    require(seen, f"{path} is built but never called")
    require(not near(disturbed, base), f"{path} is called, but its output reaches no logit")
    for given, output in seen:
        require(not torch.equal(given, output), f"{path} returns its input")
        _normalised(path, module, output)


def _normalised(path: str, module: nn.Module, output: Tensor) -> None:
    gain = getattr(module, "weight", None)
    if not isinstance(module, (nn.LayerNorm, nn.RMSNorm, RMSNorm)) or (gain is not None and not gain.all()):
        return
    shift = getattr(module, "bias", None)
    unit = (output - (0 if shift is None else shift)) / (1 if gain is None else gain)
    rms = unit.square().mean(-1).sqrt()
    require(
        near(rms, torch.ones_like(rms), 1e-2),
        f"{path} gives a root mean square of {float(rms.mean()):.3g}, not 1",
    )
    if isinstance(module, nn.LayerNorm):
        mean = unit.mean(-1)
        require(
            near(mean, torch.zeros_like(mean), 1e-2),
            f"{path} gives a mean of {float(mean.mean()):.3g}, not 0",
        )


def coefficient(subject: Subject) -> str:
    """A number called dt scales the branch, one called beta the skip, told by differences."""
    known: dict[str, Callable[[Subject], None]] = {"dt": _dt_on_branch, "beta": _beta_on_skip}
    declared = [key for key in known if _is_number(subject, key)]
    for key in declared:
        known[key](subject)
    return f"{', '.join(declared)} where declared" if declared else "no dt or beta declared"


def _is_number(subject: Subject, key: str) -> bool:
    return type(subject.entry.info.params.get(key)) in (int, float)


def _settings(subject: Subject, key: str) -> Iterator[tuple[str, list[tuple[Method, Site]]]]:
    """For each place of the stack: the method with nothing, a part and twice the part of `key`, with its site.

    Whole numbers stay whole: 0, 1, 2 in place of 0, 0.5, 1.
    """
    values = (0, 1, 2) if type(subject.entry.info.params[key]) is int else (0.0, 0.5, 1.0)
    methods = [subject.method(**{key: value}) for value in values]
    for places in zip(*(subject.sites(method, opened=True) for method in methods), strict=True):
        yield f"{places[0].kind} sub-layer {places[0].layer}", list(zip(methods, places, strict=True))


def _dt_on_branch(subject: Subject) -> None:
    """A silent branch leaves nothing for dt to act on; else dt is a factor of what the branch adds."""
    law, x = subject.entry.info.dt_zero, stream()
    for where, ((none, s0), (half, s1), (full, s2)) in _settings(subject, "dt"):
        unmoved = near(step(half, s1, x, silent), step(full, s2, x, silent))
        require(unmoved, f"dt acts on the skip of the {where}: it changes the output of a silent branch")
        at0, at_half, at1 = (step(m, s, x, affine) for m, s in ((none, s0), (half, s1), (full, s2)))
        require(not near(at_half, at1), f"dt has no effect in the {where}")
        linear = near(2 * (at_half - at0), at1 - at0)
        scaled = near(at_half, step(full, s2, x, partial(affine, factor=0.5)))
        kept = {"identity": linear, "norm": scaled, "none": linear or scaled}[law]
        require(kept, f"dt is not a factor of the branch in the {where}")


def _beta_on_skip(subject: Subject) -> None:
    """Without a norm on the sum, beta adds beta x; with one, only the ratio of skip to branch matters."""
    law, x = subject.entry.info.dt_zero, stream()
    part = 1 if type(subject.entry.info.params["beta"]) is int else 0.5
    for where, ((none, s0), (half, s1), (full, s2)) in _settings(subject, "beta"):
        at0, at_half, at1 = (step(m, s, x, affine) for m, s in ((none, s0), (half, s1), (full, s2)))
        added = near(at_half - at0, part * x) and near(at1 - at0, 2 * part * x)
        scaled = near(at_half, step(full, s2, x, partial(affine, factor=2.0)), 1e-3) and not near(at_half, at1)
        require(scaled if law == "norm" else added, f"beta is not the factor of the skip in the {where}")
