"""Paper D's layer and paper B's flow under the suite's one training module: the same numbers as the pure functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from train_world import HASH, limits

from repro.data.sets import prepare_set
from repro.evaluate.evidence import compute
from repro.nn.kernel import common_step
from repro.nn.single_layer import SingleLayerConfig, draw_weights
from repro.spec.data import digest
from repro.spec.hashing import short
from repro.spec.load import load_configuration
from repro.spec.paths import Root, find_root
from repro.spec.sets import SeriesSource
from repro.theory.adjoint import discrete_gradient
from repro.theory.mean_field_model import MeanFieldTransformer
from repro.theory.residual_rate import Problem, descend
from repro.train.flow import Flow
from repro.train.forecast import Forecast
from repro.train.launch import recall, train
from repro.train.state import TrainState

STEPS, WINDOWS, LENGTH = 8, 5, 6
GD = {"shape": "constant", "warmup": 0.0, "final": 1.0}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Root, str]:
    """A root with the embedded weather prepared, and its digest."""
    root = Root(tmp_path_factory.mktemp("series"))
    source = load_configuration(find_root()).sources["embedded_weather"]
    assert isinstance(source, SeriesSource)
    found = digest(source, root)
    prepare_set(root, "embedded_weather", source, found)
    return root, found


def forecast(world: tuple[Root, str], beta: float = 0.5, control: str = "none", seed: int = 1) -> dict[str, Any]:
    return {
        "task": "forecast",
        "model": {"d_qk": 8, "hidden": 16, "skip": "both", "start": "inverse_d_qk"},
        "method": {"name": "beta_skip", "params": {"beta": beta}},
        "data": world[1],
        "windows": {"length": LENGTH, "count": WINDOWS},
        "control": control,
        "validation": {"times": 4, "tokens": WINDOWS * LENGTH},
        "optimizer": {"name": "gd", "lr": {"betas": [0.0, 0.5], "seeds": [1, 2]}},
        "schedule": GD,
        "steps": STEPS,
        "tokens_per_step": WINDOWS * LENGTH,
        "precision": "fp64",
        "rules": {"train": 1},
        "seed": seed,
    }


def flow(seed: int = 1) -> dict[str, Any]:
    model = {"layers": 2, "heads": 3, "sequences": 2, "tokens": 3, "dim": 2, "attention": 1.5, "perturbation": 0.1}
    return {
        "task": "flow",
        "model": model,
        "validation": {"times": 4, "tokens": 6},
        "optimizer": {"name": "gd", "lr": {"step_share": 0.5}},
        "schedule": GD,
        "steps": STEPS,
        "tokens_per_step": 6,
        "precision": "fp64",
        "seed": seed,
    }


def trained(config: dict[str, Any], data: Path, folder: Path) -> Any:
    job = {
        "id": "abcdef012345", "alias": "a/run", "full_sha256": HASH, "data": str(data), "micro_batch": None,
        "checkpoints": str(folder / "ckpt"), "device": "cpu", "devices": 1,
    }  # fmt: skip
    state, found = recall(job, lambda _: None)
    return train(config, job, state, found, limits(), lambda _: None)


def data_of(world: tuple[Root, str]) -> Path:
    return world[0].scratch / "data" / short(world[1])


@pytest.mark.parametrize("control", ["none", "permuted", "persistence"])
def test_a_trained_layer_is_that_of_plain_gradient_descent(
    world: tuple[Root, str], tmp_path: Path, control: str
) -> None:
    """Losses step by step, and the weights at the end, to round-off of float64."""
    config = forecast(world, control=control)
    done = trained(config, data_of(world), tmp_path)
    task = Forecast(config, data_of(world))
    shape = SingleLayerConfig(task.inputs.shape[-1], 8, 16, 0.5)
    problem = Problem(draw_weights(shape, 1), task.inputs, task.targets, shape.form())
    step = task.rate / task.targets.numel()
    (pure,) = descend([problem], step, STEPS)
    assert done.state.train_loss == pytest.approx(
        [loss / task.targets.numel() for loss in pure.losses[:STEPS]], rel=1e-9
    )
    assert done.net.q.weight.dtype == torch.float64


def test_one_step_serves_all_betas_and_seeds_and_is_the_rule_of_the_pure_function(world: tuple[Root, str]) -> None:
    tasks = [Forecast(forecast(world, beta, seed=seed), data_of(world)) for beta in (0.0, 0.5) for seed in (1, 2)]
    assert len({task.rate for task in tasks}) == 1
    problems = []
    for task in tasks:
        shape = SingleLayerConfig(task.inputs.shape[-1], 8, 16, task.config["method"]["params"]["beta"])
        problems.append((draw_weights(shape, task.config["seed"]), task.inputs, shape.form()))
    assert tasks[0].rate == pytest.approx(common_step(problems) * tasks[0].targets.numel(), rel=1e-3)


def test_controls_change_the_targets_as_they_say_and_leave_the_inputs(world: tuple[Root, str]) -> None:
    plain, permuted, residual = (
        Forecast(forecast(world, control=c), data_of(world)) for c in ("none", "permuted", "persistence")
    )
    assert torch.equal(plain.inputs, permuted.inputs)
    assert torch.equal(plain.inputs, residual.inputs)
    assert not any(torch.equal(one, other) for one, other in zip(plain.targets, permuted.targets, strict=True))
    assert sorted(permuted.targets.sum(dim=(1, 2)).tolist()) == pytest.approx(
        sorted(plain.targets.sum(dim=(1, 2)).tolist())
    )
    assert torch.allclose(residual.targets, plain.targets - plain.inputs)


def test_forecast_metrics_count_every_held_out_window_once(world: tuple[Root, str], tmp_path: Path) -> None:
    config = forecast(world)
    done = trained(config, data_of(world), tmp_path)
    task = Forecast(config, data_of(world))
    evidence = task.evidence(done.net, torch.device("cpu"))
    inputs, targets = task._held_out()
    with torch.no_grad():
        errors = (done.net(inputs) - targets).numpy()
    found = compute("forecast_test", evidence)
    assert found.values["test_mse"] == pytest.approx(float((errors**2).mean()), rel=1e-12)
    assert found.values["test_mae"] == pytest.approx(float(np.abs(errors).mean()), rel=1e-12)
    assert found.values["persistence_mse"] == pytest.approx(float(((inputs - targets) ** 2).mean()), rel=1e-12)
    assert found.n == targets.numel()
    train_mse = compute("forecast_train", evidence).values["train_mse"]
    assert train_mse == pytest.approx(2 * done.state.val_history[-1], rel=1e-12)


def test_a_trained_flow_follows_the_gradient_of_the_theory(tmp_path: Path) -> None:
    """Each step moves the heads by time x the conditional Wasserstein gradient."""
    config = flow()
    task = Flow(config, tmp_path)
    heads = task.start
    time = task.rate / (2 * 3)
    losses = []
    for _ in range(STEPS):
        risk, gradient = discrete_gradient(task.problem.measures, heads, task.problem.targets)
        losses.append(float(risk))
        heads = heads.moved(gradient, -time)
    done = trained(config, tmp_path, tmp_path)
    assert done.state.train_loss == pytest.approx(losses, rel=1e-9)
    assert isinstance(done.net, MeanFieldTransformer)
    assert np.allclose(done.net.numpy().value, heads.value, rtol=0, atol=1e-12)
    found = compute("flow_end", task.evidence(done.net, torch.device("cpu")))
    assert found.values["flow_risk_share"] < 1
    assert found.values["flow_rate_over_lambda"] >= 1 - 1e-9


@pytest.mark.parametrize("kind", ["forecast", "flow"])
def test_a_descent_that_is_stopped_goes_on_to_the_same_bits(world: tuple[Root, str], tmp_path: Path, kind: str) -> None:
    config, data = (forecast(world), data_of(world)) if kind == "forecast" else (flow(), tmp_path)
    whole = trained(config, data, tmp_path / "whole")
    job = {
        "id": "abcdef012345", "alias": "a/run", "full_sha256": HASH, "data": str(data), "micro_batch": None,
        "checkpoints": str(tmp_path / "ckpt"), "device": "cpu", "devices": 1,
    }  # fmt: skip
    stop: list[int] = []

    def report(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 3:
            stop.append(15)

    first = train(config, job, TrainState(), None, limits(stop), report)
    assert first.state.status == "stopped"
    state, found = recall(job, lambda _: None)
    assert state.step == 3
    done = train(config, job, state, found, limits(), lambda _: None)
    pairs = zip(whole.net.parameters(), done.net.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert done.state.train_loss == whole.state.train_loss
