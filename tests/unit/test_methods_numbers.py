"""Every method against hand-made numbers: the shared table of methods, and case T13 on placements."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from repro.nn.method_api import Branch, Method, Site, load_method
from repro.nn.stack import MLP, Attention, Stack, causal_attention

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
TABLE = SHARED / "papers" / "methods.csv"
T13 = SHARED / "cases" / "T13" / "expected.json"
X = {"x2": torch.tensor([1.0, 2.0], dtype=torch.double), "x4": torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.double)}
KIND = {"rms": "rms", "ln": "layer"}


def table(name: str) -> dict[str, list[float]]:
    """The numbers of one row of the shared table; nothing where the table is not beside this checkout."""
    if not TABLE.is_file():
        return {}
    with TABLE.open(encoding="utf-8", newline="") as stream:
        rows = {row["id"]: row for row in csv.DictReader(stream)}
    return json.loads(rows[name]["numeric_example_output"])


def numbers(*names: str) -> Any:
    """Parametrises a test over (row, key, wanted numbers)."""
    cases = [(name, key, wanted) for name in names for key, wanted in table(name).items()]
    if not cases:
        return pytest.mark.skip(reason="../shared/papers/methods.csv is not there")
    return pytest.mark.parametrize(("name", "key", "wanted"), cases, ids=[f"{n}-{k}" for n, k, _ in cases])


def f(z: Tensor) -> Tensor:
    """(2 z1, -z2, 2 z3, -z4)"""
    return z * torch.tensor([2.0, -1.0], dtype=z.dtype).repeat(z.shape[-1] // 2)


def g(z: Tensor) -> Tensor:
    """(2 z1 + 1, -z2/2, 2 z3 + 1, -z4/2)"""
    pairs = z.shape[-1] // 2
    factor, shift = torch.tensor([2.0, -0.5], dtype=z.dtype), torch.tensor([1.0, 0.0], dtype=z.dtype)
    return z * factor.repeat(pairs) + shift.repeat(pairs)


BRANCH: dict[str, Callable[[Tensor], Tensor]] = {"f": f, "g": g}


def exact(method: Method, kind: str = "rms") -> Method:
    """Norms of the asked kind with eps = 0, as the numbers are defined."""
    method.norm_kind, method.norm_eps = KIND[kind], 0.0  # type: ignore[assignment]
    return method


def place(method: Method, d: int, layer: int = 0, depth: int = 12) -> Site:
    return Site(method, layer, depth, "attn", d, True).double()


def check(got: Tensor, wanted: list[float]) -> None:
    assert got.reshape(-1).tolist() == pytest.approx(wanted, abs=1.5e-6)


def one_step(method: Method, x: Tensor, branch: Branch) -> Tensor:
    return method.step(x, branch, place(method, x.shape[-1]))


@numbers("pre_ln", "post_ln", "peri_ln", "no_norm")
def test_placement_equals_the_table(name: str, key: str, wanted: list[float]) -> None:
    where, branch, kind = [*key.split("."), "rms"][:3]
    check(one_step(exact(load_method(name), kind), X[where], BRANCH[branch]), wanted)


@numbers("step_dt")
def test_step_dt_equals_the_table(name: str, key: str, wanted: list[float]) -> None:
    parts = key.split(".")
    dt = 0.0 if parts[0] == "dt0" else 0.1
    host, where, *rest = parts[1:] if parts[0] == "dt0" else parts
    branch, kind = ("g", [*rest, "rms"][0]) if dt == 0.0 else (rest[0], rest[1])
    check(one_step(exact(load_method(f"{host}_ln", {"dt": dt}), kind), X[where], BRANCH[branch]), wanted)


@numbers("beta_skip")
def test_beta_skip_equals_the_table(name: str, key: str, wanted: list[float]) -> None:
    beta, where, branch = key[1:].rsplit(".", 2)
    check(one_step(load_method("beta_skip", {"beta": float(beta)}), X[where], BRANCH[branch]), wanted)


def put(module: nn.Module, branch: str, d: int) -> None:
    """The plain map inside a built map becomes f or g."""
    linear = nn.Linear(d, d).double()
    with torch.no_grad():
        columns = BRANCH[branch](torch.eye(d, dtype=torch.double)) - BRANCH[branch](torch.zeros(d, dtype=torch.double))
        linear.weight.copy_(columns.T)
        linear.bias.copy_(BRANCH[branch](torch.zeros(d, dtype=torch.double)))
    module[0] = linear  # type: ignore[operator]


@numbers("simple_norm")
def test_simplenorm_equals_the_table(name: str, key: str, wanted: list[float]) -> None:
    part, where, branch = key.split(".")
    x, method = X[where].view(1, 1, -1), exact(load_method("simplenorm"))
    d = x.shape[-1]
    if part == "linear":
        inner = method.linear(d, d, "down", 0, 1, False).double()
        put(inner, branch, d)
    elif part == "attn":
        inner = Attention(method, 0, 1, d, 1, False).double()
        put(inner.v, branch, d)
        put(inner.o, branch, d)
    else:
        mlp = MLP(method, 0, 1, d, d, False).double()
        put(mlp.up, branch, d)
        put(mlp.down, branch, d)

        def inner(z: Tensor) -> Tensor:
            return mlp.down(torch.relu(mlp.up(z)))

    check(one_step(method, x, inner), wanted)


def seen_by_attention(attention: Attention, x: Tensor, attend: Callable[..., Tensor] = causal_attention) -> Tensor:
    """q as the attention core gets it."""
    kept: list[Tensor] = []

    def spy(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        kept.append(q)
        return attend(q, k, v)

    attention(x, attend=spy)
    return kept[0]


@pytest.mark.skipif(not TABLE.is_file(), reason="../shared/papers/methods.csv is not there")
def test_qk_norm_acts_on_whole_vectors() -> None:
    x, wanted = X["x4"].view(1, 1, 4), table("qk_norm")
    attention = Attention(exact(load_method("pre_qk")), 0, 1, 4, 2, False).double()
    with torch.no_grad():
        attention.qkv.weight.copy_(torch.eye(4, dtype=torch.double).repeat(3, 1))
    check(seen_by_attention(attention, x), wanted["full_vector"])
    plain = Attention(load_method("pre_ln"), 0, 1, 4, 2, False).double()
    plain.qkv.weight = attention.qkv.weight
    # The per-head form fits into a method's step, without touching the model.
    heads = [
        nn.functional.rms_norm(seen_by_attention(plain, x), (2,)),
        nn.functional.normalize(seen_by_attention(plain, x), dim=-1),
    ]
    check(heads[0], wanted["per_head"])
    check(heads[1], wanted["per_head_l2"])


class ResiDual(Method):
    """b = f(x); x <- N(x + b); r <- r + b; end: x + N(r) (Xie et al. 2023)."""

    norms = ("out",)
    uses_carry = True

    def begin(self, x: Tensor) -> Tensor:
        return x

    def step(self, x: Tensor, branch: Branch, site: Site, carry: Tensor) -> tuple[Tensor, Tensor]:
        added = branch(x)
        return site.norm_out(x + added), carry + added

    def end(self, x: Tensor, carry: Tensor, norm: nn.Module) -> Tensor:
        return x + norm(carry)


class Fixed(nn.Module):
    """f or g in the place of attention or MLP."""

    def __init__(self, branch: str) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return BRANCH[self.branch](x)


@numbers("resi_dual")
def test_a_carry_gives_resi_dual(name: str, key: str, wanted: list[float]) -> None:
    where, branch, kind, what = key.split(".")
    x, method = X[where], exact(ResiDual(), kind)
    d = x.shape[-1]
    stack = Stack(method, 1, d, 1, d, True).double()
    block = stack.blocks[0]
    block.attn, block.mlp = Fixed(branch), Fixed(branch)
    first = method.step(x, block.attn, block.attn_site, method.begin(x))
    second = method.step(first[0], block.mlp, block.mlp_site, first[1])
    found = {
        "x1": first[0],
        "r1": first[1],
        "x2": second[0],
        "r2": second[1],
        "out": stack(x),
        "out_after_1": method.end(*first, stack.final_norm),
    }
    check(found[what], wanted)


class ValueResidual(Method):
    """V <- (V_first + V) / 2: the first layer's values come in through the carry and the branch's `attend`."""

    norms = ("in",)
    uses_carry = True

    def step(self, x: Tensor, branch: Branch, site: Site, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if site.kind == "mlp":
            return x + branch(site.norm_in(x)), carry
        kept = [carry]

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            kept[0] = v if carry is None else carry
            return causal_attention(q, k, v if carry is None else (v + carry) / 2)

        return x + branch(site.norm_in(x), attend=attend), kept[0]


def test_a_value_residual_fits_into_step_and_carry() -> None:
    x = torch.randn(1, 3, 4, dtype=torch.double)
    stack = Stack(ValueResidual(), 3, 4, 2, 8, False).double()
    values = []
    for block in stack.blocks:
        block.attn.qkv.register_forward_hook(
            lambda _m, _i, out: values.append(out[..., 8:].view(1, 3, 2, 2).transpose(1, 2))
        )
    mixed = []
    for block in stack.blocks:
        block.attn.o.register_forward_hook(lambda _m, inputs, _o: mixed.append(inputs[0][:, 0]))
    stack(x)
    for layer in range(3):  # a first token attends to itself only, so it shows the mixed value itself
        wanted = values[0] if layer == 0 else (values[0] + values[layer]) / 2
        assert torch.allclose(mixed[layer], wanted[:, :, 0].reshape(1, 4))


class Placed(Method):
    """One row of case T13 as a method."""

    norms = ("in", "out")

    def __init__(self, rule: Callable[[Tensor, Branch, Site], Tensor]) -> None:
        super().__init__()
        self._rule = rule

    def step(self, x: Tensor, branch: Branch, site: Site) -> Tensor:
        return self._rule(x, branch, site)


PLACEMENTS: dict[str, Callable[[], Method]] = {
    "pre: x+f(n(x))": lambda: load_method("pre_ln"),
    "post: n(x+f(x))": lambda: load_method("post_ln"),
    "sandwich/peri: x+n(f(n(x)))": lambda: load_method("peri_ln"),
    "deepnorm alpha=3: n(3x+f(x))": lambda: Placed(lambda x, f, s: s.norm_out(3 * x + f(x))),
    "WRONG deepnorm (alpha on the branch): n(x+3f(x))": lambda: Placed(lambda x, f, s: s.norm_out(x + 3 * f(x))),
    "res-post (branch output only): x+n(f(x))": lambda: Placed(lambda x, f, s: x + s.norm_out(f(x))),
    "hybrid ffn: n(x)+f(n(x))": lambda: Placed(lambda x, f, s: (n := s.norm_in(x)) + f(n)),
    "LNS at layer 4 (1-based): x+f(n(x)/2)": lambda: Placed(
        lambda x, f, s: x + f(s.norm_in(x) / math.sqrt(s.layer + 1))
    ),
    "WRONG LNS (0-based, divides by sqrt 3): x+f(n(x)/1.732)": lambda: Placed(
        lambda x, f, s: x + f(s.norm_in(x) / math.sqrt(s.layer))
    ),
    "residual coefficients a=0.5,b=2 on pre: 0.5x+2f(n(x))": lambda: Placed(
        lambda x, f, s: 0.5 * x + 2 * f(s.norm_in(x))
    ),
    "WRONG coefficients swapped: 2x+0.5f(n(x))": lambda: Placed(lambda x, f, s: 2 * x + 0.5 * f(s.norm_in(x))),
}


@pytest.mark.skipif(not T13.is_file(), reason="../shared/cases/T13 is not there")
def test_t13_each_placement_is_its_own_row() -> None:
    case = json.loads(T13.read_text("utf-8"))
    x = torch.tensor(case["x"], dtype=torch.double)
    assert set(case["y"]) == set(PLACEMENTS)
    rows = {}
    for row, make in PLACEMENTS.items():
        method = exact(make())
        fourth = place(method, 2, layer=3)
        rows[row] = method.step(x, lambda z: torch.stack([2 * z[1] + 1, -z[0]]), fourth)
        check(rows[row], case["y"][row])
    for a, b in itertools.combinations(rows.values(), 2):
        assert (a - b).abs().max() > 1e-3
