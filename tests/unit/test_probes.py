"""Probes: what they read equals the direct computation, and a training with them has the same bits as without."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from repro.nn.gpt import GPT, GPTConfig, initialise
from repro.nn.method_api import Branch, Method, Site, load_method
from repro.nn.probes import Probes

LAYERS, WIDTH = 3, 16


def model(name: str = "peri_ln") -> GPT:
    net = GPT(GPTConfig(LAYERS, WIDTH, 2, 8, 19, bias=True), load_method(name))
    initialise(net, 0)
    return net


def tokens(seed: int, batch: int = 2) -> Tensor:
    return torch.randint(19, (batch, 8), generator=torch.Generator().manual_seed(seed))


def hooks(net: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in net.modules())


def backward(net: GPT, seeds: tuple[int, ...], batch: int = 2) -> float:
    total = 0.0
    for seed in seeds:
        rows = tokens(seed, batch)
        loss, count = net.loss_sums(rows, rows.roll(-1, 1))
        (loss / count / len(seeds)).backward()
        total += float(loss.detach())
    return total


def training(probed: bool, name: str) -> tuple[list[float], list[Tensor], list[Any]]:
    """Losses, end weights and rows of six steps of AdamW; every second step is probed or not."""
    net, losses, rows = model(name), [], []
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-2)
    state = torch.get_rng_state()
    for step in range(6):
        optimiser.zero_grad()
        if probed and step % 2 == 0:
            with Probes(net) as probes:
                losses.append(backward(net, (step, step + 100)))
            probes.before_step()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimiser.step()
            probes.after_step()
            rows.append(probes.rows())
        else:
            losses.append(backward(net, (step, step + 100)))
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimiser.step()
        assert hooks(net) == 0
    assert torch.equal(state, torch.get_rng_state())
    return losses, [p.detach() for p in net.parameters()], rows


@pytest.mark.parametrize("name", ["peri_ln", "pre_ln", "simplenorm"])
def test_a_probed_training_has_the_bits_of_a_plain_one(name: str) -> None:
    with_losses, with_weights, rows = training(True, name)
    losses, weights, none = training(False, name)
    assert with_losses == losses
    assert all(torch.equal(a, b) for a, b in zip(with_weights, weights, strict=True))
    assert (len(rows), none) == (3, [])
    assert all(
        isinstance(value, float) for found in rows for row in found for key, value in row.items() if key != "layer"
    )


def test_rows_are_what_direct_computation_gives() -> None:
    net = model()
    seen: list[list[Tensor]] = [[] for _ in range(LAYERS + 1)]
    with Probes(net) as probes:
        own = [net.stack.blocks[0].register_forward_pre_hook(lambda _m, i: seen[0].append(i[0].detach().double()))]
        for layer, block in enumerate(net.stack.blocks, 1):
            own.append(block.register_forward_hook(lambda _m, _i, o, n=layer: seen[n].append(o.detach().double())))
        backward(net, (1, 2), batch=2)
        backward(net, (3,), batch=5)  # micro-batches of unequal size
    for handle in own:
        handle.remove()
    gradients = [p.grad.double().norm() for p in net.stack.blocks[1].parameters() if p.grad is not None]
    probes.before_step()
    before = [p.detach().double().clone() for p in net.stack.blocks[1].parameters()]
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    probes.after_step()
    rows = probes.rows()
    assert [row["layer"] for row in rows] == list(range(LAYERS + 1))
    for row, parts in zip(rows, seen, strict=True):
        x = torch.cat([part.reshape(-1, WIDTH) for part in parts])
        assert len(x) == (2 + 2 + 5) * 8
        assert row["mean_abs"] == pytest.approx(float(x.abs().mean()), rel=1e-5)
        assert row["entry_variance"] == pytest.approx(float(x.var(-1, correction=0).mean()), rel=1e-5)
        assert row["data_variance"] == pytest.approx(float(x.var(0, correction=0).mean()), rel=1e-5)
        assert row["max_abs"] == pytest.approx(float(x.abs().max()), rel=1e-6)
    assert rows[2]["grad_norm"] == pytest.approx(float(torch.stack(gradients).norm()), rel=1e-5)
    moved = math.sqrt(
        sum(
            float((p.detach().double() - b).square().sum())
            for p, b in zip(net.stack.blocks[1].parameters(), before, strict=True)
        )
    )
    size = math.sqrt(sum(float(b.square().sum()) for b in before))
    assert rows[2]["update_ratio"] == pytest.approx(moved / size, rel=1e-3)
    tables = torch.cat([net.wte.weight.grad.flatten(), net.wpe.weight.grad.flatten()])  # type: ignore[union-attr]
    assert rows[0]["grad_norm"] >= float(tables.norm()) > 0


def test_an_error_inside_leaves_no_hook_behind_and_rows_say_what_is_not_known() -> None:
    net = model()
    probes = Probes(net)

    def fails() -> None:
        with probes:
            assert hooks(net) == LAYERS + 1
            raise KeyError("x")

    with pytest.raises(KeyError):
        fails()
    assert hooks(net) == 0
    assert probes.rows()[0] == {
        "layer": 0, "mean_abs": None, "entry_variance": None, "data_variance": None, "max_abs": None,
        "grad_norm": None, "update_ratio": None,
    }  # fmt: skip


def test_numbers_that_are_not_finite_become_none() -> None:
    net = model("no_norm")
    with torch.no_grad():
        net.wte.weight.fill_(math.inf)
    with Probes(net) as probes:
        backward(net, (0,))
    probes.before_step()
    assert [row["mean_abs"] for row in probes.rows()] == [None] * (LAYERS + 1)
    assert probes.rows()[1]["grad_norm"] is None


class Carried(Method):
    """x + f(x) with the sum of all branches beside it."""

    uses_carry = True

    def begin(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def step(self, x: Tensor, branch: Branch, site: Site, *carry: Tensor) -> tuple[Tensor, Tensor]:
        added = branch(x)
        return x + added, carry[0] + added


def test_a_carry_and_half_precision_are_read_too() -> None:
    net = GPT(GPTConfig(LAYERS, WIDTH, 2, 8, 19), Carried())
    initialise(net, 0)
    with torch.autocast("cpu", torch.bfloat16), Probes(net) as probes:
        net(tokens(0))
    assert all(row["mean_abs"] > 0 for row in probes.rows())
    with pytest.raises(ValueError, match="one stack"):
        Probes(nn.Linear(2, 2))
