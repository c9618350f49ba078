"""Prices of runs, worked out beforehand: against counts of a built model, and in their directions."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import pytest

from repro.cost import FLOPS_FORMULA, MARGIN, Cost, estimate, flops_per_token, memory_gb, parameters
from repro.plan import build_plan
from repro.spec.catalogue import ModelSpec, TierTask
from repro.spec.errors import ConfigError
from repro.spec.load import load_configuration
from repro.spec.paths import find_root

REAL = load_configuration(find_root())
PLANNING = REAL.hardware[REAL.suite.planning_device]
TINY = {"n_layer": 3, "n_head": 2, "d_model": 16, "context": 8, "vocab": 40}


@pytest.mark.parametrize(("bias", "tied"), list(product([False, True], repeat=2)))
def test_parameters_are_those_of_the_built_baseline(bias: bool, tied: bool) -> None:
    from repro.nn.gpt import GPT, GPTConfig, count_parameters
    from repro.nn.method_api import load_method

    spec = ModelSpec(**TINY, bias=bias, tied=tied)
    assert parameters(spec) == count_parameters(GPT(GPTConfig(**spec.model_dump()), load_method("pre_ln")))["total"]


@pytest.mark.parametrize(("name", "millions"), [("124m", 124), ("355m", 355), ("774m", 774), ("1558m", 1558)])
def test_named_sizes_are_what_they_are_called(name: str, millions: float) -> None:
    """GPT-2's own counts have biases and a vocabulary that is not padded: half a percent."""
    assert parameters(REAL.models[f"gpt2_{name}"]) == pytest.approx(millions * 1e6, rel=0.005)


def test_flops_follow_the_named_formula() -> None:
    spec = ModelSpec(**TINY)
    n = parameters(spec) - spec.context * spec.d_model
    assert flops_per_token(spec) == 6 * n + 12 * spec.n_layer * spec.d_model * spec.context
    assert FLOPS_FORMULA.startswith("6*N + 12*L*d*T per token")
    assert flops_per_token(REAL.models["gpt2_124m"]) == pytest.approx(8.6e8, rel=0.01)


def cost_of(tokens: int = 10**9, precision: str = "bf16", **task: object) -> Cost:
    return estimate(REAL.models["gpt2_124m"], tokens, 491520, TierTask.model_validate(task), precision, PLANNING)


def test_a_gpu_run_is_priced_on_the_planning_device() -> None:
    cost = cost_of()
    assert cost.gpu_hours == pytest.approx(cost.flops / (PLANNING.peak["bf16"] * 0.4) / 3600)
    assert (cost.device, cost.devices, cost.minutes) == ("gpu", 1, pytest.approx(cost.gpu_hours * 60))
    assert cost_of(2 * 10**9).gpu_hours == pytest.approx(2 * cost.gpu_hours)
    assert cost_of(precision="fp32").gpu_hours > cost.gpu_hours


def test_a_cpu_run_costs_no_gpu_hours_and_less_time_with_more_threads() -> None:
    one, two = cost_of(device="cpu"), cost_of(device="cpu", threads=2)
    assert (one.gpu_hours, one.device, one.devices) == (0.0, "cpu", 1)
    assert 0 < two.minutes < one.minutes


def test_memory_grows_with_everything_and_holds_weights_and_moments() -> None:
    sizes = [
        ModelSpec(**TINY),
        *(REAL.models[n] for n in ("gpt_d64_l4", "gpt_30m", "gpt2_124m", "gpt2_355m", "gpt2_1558m")),
    ]
    needs = [memory_gb(spec, 4, "gpu") for spec in sizes]
    assert all(small < large for small, large in pairwise(needs))
    assert all(need > MARGIN * 16 * parameters(spec) / 1e9 for spec, need in zip(sizes, needs, strict=True))
    assert memory_gb(sizes[0], 8, "cpu") > memory_gb(sizes[0], 4, "cpu")
    assert cost_of(micro_batch=4).memory_gb < cost_of(micro_batch=16).memory_gb
    assert cost_of(micro_batch=480).memory_gb == cost_of(micro_batch=10**6).memory_gb, "no more than the step has"


def test_every_planned_run_fits_its_planning_device_or_a_laptop() -> None:
    from repro.plan import build_plan

    for tier in REAL.tiers:
        for run in build_plan(REAL.root, tier, configuration=REAL).runs.values():
            bound = 4.0 if run.cost.device == "cpu" else PLANNING.memory_gb
            assert run.cost.memory_gb < bound, run.alias


def test_the_contracts_object() -> None:
    shown = cost_of().as_json()
    assert shown.keys() >= {"gpu_hours", "flops", "memory_gb", "device"}
    assert shown["gpu_hours"] == round(cost_of().gpu_hours, 4)


def test_what_does_not_fit_the_named_device_is_refused_before_anything_is_submitted() -> None:
    paper = REAL.tiers["paper"]
    wide = paper.model_copy(update={"lm": paper.lm.model_copy(update={"micro_batch": 8})})
    tiers = {**REAL.tiers, "paper": wide}
    with pytest.raises(ConfigError) as caught:
        build_plan(REAL.root, "paper", configuration=replace(REAL, tiers=tiers))
    said = [str(problem) for problem in caught.value.problems]
    assert said
    assert all("gpt2_1558m needs about" in line and "H100 80GB HBM3 has 80" in line for line in said)
    there = REAL.hardware[REAL.suite.planning_device].memory_gb
    plan = build_plan(REAL.root, "paper", configuration=REAL)
    assert max(run.cost.memory_gb for run in plan.runs.values()) <= there
