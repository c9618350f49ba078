"""Growth: the bound of A-T1 on real stacks, what breaks it, fits, ascent, the checks themselves and their figures."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from repro.nn.gpt import GPT, GPTConfig, initialise
from repro.nn.method_api import Branch, Method, Site, load_method
from repro.nn.stack import Block
from repro.report import theory_a
from repro.report.figures import render
from repro.spec.checks import CHECKS
from repro.theory.battery import adversarial, network_walk, stack_and_input, start_and_scaled, token_rows, trained
from repro.theory.growth import (
    Law,
    Walk,
    disturb_block,
    exponent,
    measured_law,
    moments,
    rate_per_block,
    together,
    walk,
)
from repro.theory.nets import (
    Shape,
    ascend,
    build,
    embedding,
    final_state,
    layer_by_layer,
    make_loud,
    numbers,
    rms,
    states,
    sublayers,
)

SHAPE = Shape(3, 8, 2)


class Wrong(Method):
    """x + 2 norm_out(f(x)): twice what a law of factor 1 allows."""

    norms = ("out",)

    def step(self, x: Tensor, branch: Branch, site: Site, *carry: Any) -> Any:
        return x + 2 * site.norm_out(branch(x))


@given(st.integers(0, 10_000), st.sampled_from([1.0, 0.3]))
@settings(max_examples=15, deadline=None)
def test_the_bound_holds_for_any_weights_and_a_walk_is_the_stack(seed: int, dt: float) -> None:
    stack = make_loud(build(load_method("peri_ln", {"dt": dt}), SHAPE, seed, bias=True), seed)
    for block in stack.blocks:
        disturb_block(block, torch.Generator().manual_seed(seed))
    x = embedding(SHAPE, 3, seed)
    made = walk(stack, x, Law("adds", dt))
    assert 0 < made.slack.worst <= 1 + 1e-12
    assert made.slack.violations == []
    with torch.no_grad():
        assert torch.equal(made.x, final_state(stack, x))
        bound = rms(x)
        for part in sublayers(stack):
            norm = part.site.norm_out
            bound = bound + dt * (norm.weight.abs().max() + rms(norm.bias))  # type: ignore[attr-defined]
    assert made.bound is not None
    assert torch.allclose(made.bound, bound)
    assert made.rows[-1]["mean_abs_bound"] == pytest.approx(float(bound.mean()))


def test_a_broken_bound_is_kept_with_its_layer() -> None:
    stack = build(Wrong(), SHAPE, 0, bias=True, eps=0.0)
    with torch.no_grad():  # all branches point one way
        for part in sublayers(stack):
            part.last_linear().weight.zero_()
            part.last_linear().bias.copy_(torch.arange(8.0) - 3.5)
    made = walk(stack, 0.01 * embedding(SHAPE, 2, 0), Law("adds", 1.0))
    assert made.slack.rms == pytest.approx(2, rel=0.02)
    assert made.slack.violations[0] == {"layer": 1, "inequality": "rms", "ratio": pytest.approx(2, rel=0.02)}
    assert walk(stack, embedding(SHAPE, 2, 0), None, measured=True).slack.violations == []


@pytest.mark.parametrize(
    ("name", "params", "law"),
    [
        ("peri_ln", {"dt": 0.3}, Law("adds", 0.3)),
        ("simplenorm", {}, Law("adds", 1.0)),
        ("post_ln", {}, Law("replaces", 1.0)),
        ("pre_ln", {}, None),
        ("no_norm", {}, None),
    ],
)
def test_how_a_norm_joins_the_stream_is_told_by_numbers(name: str, params: dict[str, Any], law: Law | None) -> None:
    stack = make_loud(build(load_method(name, params), SHAPE, 0), 0)
    for part, (x, carry) in zip(sublayers(stack), states(stack, embedding(SHAPE, 2, 1)), strict=False):
        found = measured_law(part, x.detach(), carry)
        assert (found and found.kind) == (law and law.kind)
        assert found is None or law is None or found.factor == pytest.approx(law.factor)
        assert all(not module._forward_hooks for module in part.branch.modules())


def test_moments_by_hand() -> None:
    x = torch.tensor([[[1.0, -3.0], [2.0, 6.0]]], dtype=torch.float64)
    assert moments(x) == {"mean_abs": 3.0, "entry_variance": 4.0, "data_variance": (0.25 + 4.5**2) / 2, "max_abs": 6.0}


def test_exponents_and_rates_of_known_curves() -> None:
    curves = [[3.0 * layer**power for layer in range(1, 13)] for power in (0.4, 0.6)]
    fit = exponent(curves)
    assert fit.value == pytest.approx(0.5)
    # Student's t of one degree of freedom, standard error 0.1
    assert fit.high - fit.value == pytest.approx(12.7062 * 0.1, rel=1e-4)
    assert exponent(curves[:1]).high == pytest.approx(0.4)
    assert math.isnan(exponent([[1.0, 0.0, 2.0]]).value)
    assert rate_per_block([0.1 * 1.2**layer for layer in range(10)]) == pytest.approx(math.log(1.2))


def test_ascent_climbs_and_keeps_the_norm_where_asked() -> None:
    goal = torch.tensor([3.0, 4.0], dtype=torch.float64)
    weight = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    climbed = list(ascend(lambda: weight @ goal, [weight], 60, 0.1, keep_norm=True))
    assert climbed == sorted(climbed)
    assert float(weight.detach().norm()) == pytest.approx(1)
    assert climbed[-1] == pytest.approx(5, rel=1e-2)
    assert list(ascend(lambda: weight.sum() * math.inf, [weight], 3, 0.1)) == []


def test_an_adversary_comes_near_the_bound_and_not_above() -> None:
    law = Law("adds", 1.0)
    stack, x = adversarial(load_method("peri_ln"), law, Shape(6, 16, 2), 20, 0)
    slack = walk(stack, x, law).slack
    assert 0.75 < slack.rms <= 1


def test_the_streamed_block_has_the_weights_law_of_a_whole_stack() -> None:
    methods = {"peri_ln": (load_method("peri_ln"), Law("adds", 1.0)), "pre_ln": (load_method("pre_ln"), None)}
    found = list(start_and_scaled(methods, 12, 64, 8, 0, 0))
    assert [(p.state, p.label) for p in found] == [("start", "peri_ln"), ("start", "pre_ln"), ("scaled", "peri_ln")]
    ratio = found[0].walk.rows[-1]["entry_variance"] / 24
    assert 0.6 < ratio < 1.6
    whole = build(load_method("pre_ln"), Shape(12, 64, 1), 0, eps=0.0)
    alike = walk(whole, embedding(Shape(12, 64, 1), 8, 0, std=math.sqrt(2) * 0.02), None)
    assert found[1].walk.rows[-1]["mean_abs"] == pytest.approx(alike.rows[-1]["mean_abs"], rel=0.3)


def test_any_model_can_be_walked_after_training() -> None:
    model, tokens, losses = trained(load_method("peri_ln"), 2, 16, 8, 0)
    assert losses[-1] < losses[0]
    made = network_walk(model, tokens, Law("adds", 1.0))
    assert made.slack.worst <= 1 + 1e-12
    plain = GPT(GPTConfig(2, 16, 2, 16, 64), load_method("peri_ln"))
    initialise(plain, 0)
    rows = token_rows(1, 4, 0)
    stack, x = stack_and_input(plain, rows)
    assert torch.equal(x, (plain.wte(rows) + plain.wpe.weight[:4]).detach())
    assert not stack._forward_pre_hooks
    with pytest.raises(ValueError, match="no stack"):
        stack_and_input(nn.Linear(2, 2), rows)


SMALL: dict[str, dict[str, Any]] = {
    "a_growth": {"layers": 6, "width": 64, "small_width": 32, "small_draws": 2, "train_width": 16, "train_steps": 3,
                 "train_draws": 2, "ascent_width": 16, "ascent_steps": 8},
    "a_prenorm_growth": {"layers": 12, "width": 32, "draws": 2, "ascent_steps": 4},
    "a_sensitivity": {"width": 8, "draws": 1, "tokens": 2, "iterations": 20},
    "a_step": {"depths": [2, 4], "width": 32, "draws": 1, "tokens": 4},
    "a_uncertainty": {"layers": 4, "width": 16, "samples": 6, "draws": 1, "ascent_width": 16, "ascent_steps": 4},
    "a_hamiltonian": {"ellipsoid_width": 64, "width": 16, "draws": 1, "steps": 20},
    "a_related": {"layers": 4, "width": 64, "train_width": 16, "train_steps": 3, "ascent_layers": 4,
                  "ascent_width": 16, "ascent_steps": 4},
}  # fmt: skip
BOUNDED = ("_slack", "_peri_ratio")


@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_check_makes_its_values_again_from_its_seed(name: str) -> None:
    module = importlib.import_module(f"repro.theory.checks.{name}")
    info = CHECKS[name].info
    params = {**info.params, **SMALL[name]}
    assert SMALL[name].keys() <= info.params.keys()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, again = module.run(params, 3), module.run(params, 3)
    assert torch.equal(state, torch.get_rng_state())
    assert list(first.values) == list(info.values)
    assert (first.values, first.n) == (again.values, again.n)
    assert first.values != module.run(params, 4).values
    assert all(isinstance(value, float) and math.isfinite(value) for value in first.values.values())
    assert all(v <= 1 + 1e-9 for k, v in first.values.items() if any(word in k for word in BOUNDED))
    assert first.details["rows"]
    assert len(json.dumps(first.details, allow_nan=False)) < 300_000


def test_numbers_are_seeds_of_their_own() -> None:
    assert len({numbers(seed, key) for seed in range(5) for key in range(5)}) == 25
    assert numbers(3, 1) == numbers(3, 1)


def test_figures_of_rows_and_of_nothing() -> None:
    rows = [
        {"method": name, "layer": layer, "mean_abs": 1.0 + layer + draw, "entry_variance": 2.0 + layer,
         "grad_norm": 1.0, "mean_abs_bound": 2.0 + 2 * layer if name == "peri_ln" else None, "variance_bound": None}
        for name in ("peri_ln", "pre_ln <$x$>")
        for draw in (0, 1)
        for layer in range(4)
    ]  # fmt: skip
    figure = theory_a.moments(rows)
    first = figure.axes[0]
    assert [list(line.get_ydata()) for line in first.lines[:2]] == [[1.5, 2.5, 3.5, 4.5], [2.0, 4.0, 6.0, 8.0]]
    assert len(first.collections) == 2  # bands of both methods
    assert render(figure)["png"] == render(theory_a.moments(rows))["png"]
    gradients = theory_a.gradients(rows)
    assert list(gradients.axes[0].lines[0].get_xdata()) == [1, 2, 3]
    words = theory_a.in_words(rows, "mean_abs", "Mean absolute value")
    assert words.startswith("Mean absolute value by layer: peri_ln from 1.5 at layer 0 to 4.5 at 3; pre_ln")
    empty = theory_a.moments([])
    assert [axes.texts[0].get_text() for axes in empty.axes] == ["not run", "not run"]
    assert theory_a.in_words([], "mean_abs", "x") == "x by layer: no numbers yet."


def test_blocks_one_by_one_are_those_of_the_whole_stack() -> None:
    method = load_method("simplenorm")
    stack = build(method, SHAPE, 5, eps=0.0)
    for block, whole in zip(layer_by_layer(method, SHAPE, 5, eps=0.0), stack.blocks, strict=True):
        own, theirs = block.state_dict(), whole.state_dict()
        assert own.keys() == theirs.keys()
        assert all(torch.equal(own[key], theirs[key]) for key in own)
        x = embedding(SHAPE, 2, 1)
        assert torch.equal(block(x), whole(x))


def test_walks_together_are_the_walks_alone() -> None:
    laws = {"peri_ln": Law("adds", 0.3), "pre_ln": None}
    rules = [load_method(name, {"dt": 0.3}) for name in laws]
    stack = make_loud(build(rules[0], SHAPE, 2, bias=True, eps=0.0), 2)
    x = embedding(SHAPE, 4, 1)
    one_by_one, side_by_side = (
        [Walk(rule, x, law) for rule, law in zip(rules, laws.values(), strict=True)] for _ in range(2)
    )
    for block in stack.blocks:
        assert isinstance(block, Block)
        together(side_by_side, block)
        for alone in one_by_one:
            alone.through(block)
    for alone, beside in zip(one_by_one, side_by_side, strict=True):
        assert torch.allclose(alone.x, beside.x, rtol=1e-12)
        assert alone.laws == beside.laws
        assert len(alone.rows) == len(beside.rows) == SHAPE.layers + 1
        assert alone.rows[-1]["mean_abs"] == pytest.approx(beside.rows[-1]["mean_abs"], rel=1e-12)
    assert side_by_side[0].slack.rms == pytest.approx(one_by_one[0].slack.rms, rel=1e-12)
    assert side_by_side[0].slack.rms > 0
    assert not torch.allclose(side_by_side[0].x, side_by_side[1].x)


def test_a_check_does_not_wait_for_the_compiler() -> None:
    code = """import sys, torch
from repro.nn.method_api import load_method
from repro.theory.battery import trained
from repro.train.process import prepare_process
prepare_process(1)
trained(load_method("peri_ln"), 1, 8, 1, 0)
print(torch.are_deterministic_algorithms_enabled(), "torch._dynamo" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
