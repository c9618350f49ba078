"""Paper D's layer: its passes against autograd and a plain transcription, its start, and its tangent kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from repro.nn.initial import initialise
from repro.nn.kernel import common_step, jacobian, kernel_eigenvalues, largest_eigenvalue, spectra
from repro.nn.single_layer import (
    SingleLayer,
    SingleLayerConfig,
    Weights,
    draw_weights,
    forward_pass,
    gradient_step,
    losses,
    narrow,
    pull_back,
    push_forward,
    stack_problems,
)

SMALL: dict[str, Any] = {"d": 4, "d_qk": 3, "hidden": 7}
BETAS = (0.0, 0.25, 1.0)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def transcription(weights: Weights, x: Tensor, beta: float, skip: str, d_qk: int) -> Tensor:
    """The formulas of the module's docstring for one sequence [tokens, d]."""
    logits = x @ weights.q @ weights.k.T @ x.T / math.sqrt(d_qk)
    z = torch.softmax(logits, dim=1) @ x @ weights.v + beta * x
    return torch.relu(z @ weights.up) @ weights.down + (beta * z if skip == "both" else 0.0)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("skip", ["both", "attention"])
def test_the_forward_pass_is_the_formula(beta: float, skip: Any) -> None:
    config = SingleLayerConfig(**SMALL, beta=beta, skip=skip)
    weights, x = draw_weights(config, 1), normal(2, 5, 4)
    expected = torch.stack([transcription(weights, one, beta, skip, 3) for one in x])
    layer = SingleLayer(config)
    initialise(layer, 1)
    torch.testing.assert_close(layer(x), expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(forward_pass(weights, x, config.form()).output, expected.flatten(0, 1))


def test_the_loss_is_half_the_summed_square_and_counts_numbers() -> None:
    config = SingleLayerConfig(**SMALL)
    layer = SingleLayer(config)
    initialise(layer, 0)
    x, y = normal(2, 5, 4), normal(2, 5, 4, seed=1)
    total, count = layer.loss_sums(x.float(), y.float())
    assert total.dtype == torch.float64
    assert count == 40
    expected = sum(0.5 * torch.linalg.matrix_norm(layer(x.float())[i].detach() - y[i].float()) ** 2 for i in range(2))
    assert float(total.detach()) == pytest.approx(float(expected), rel=1e-12)
    passed = forward_pass(layer.weights(), x, config.form())
    assert float(losses(passed, y).detach()) == pytest.approx(float(layer.loss_sums(x, y)[0].detach()), rel=1e-12)


@settings(max_examples=25)
@given(
    sizes=st.tuples(*(st.integers(1, 5) for _ in range(5))),
    skip=st.sampled_from(["both", "attention"]),
    beta=st.floats(-1, 2),
    seed=st.integers(0, 99),
)
def test_the_written_out_gradient_is_autograds(sizes: Any, skip: Any, beta: float, seed: int) -> None:
    d, d_qk, hidden, sequences, tokens = sizes
    config = SingleLayerConfig(d, d_qk, hidden, beta, skip)
    layer = SingleLayer(config)
    initialise(layer, seed)
    x, y = normal(sequences, tokens, d, seed=seed), normal(sequences, tokens, d, seed=seed + 1)
    layer.loss_sums(x, y)[0].backward()  # type: ignore[no-untyped-call]
    weights = draw_weights(config, seed)
    passed = forward_pass(weights, x, config.form())
    written = pull_back(weights, x, config.form(), passed, passed.output - y.flatten(0, 1))
    for slope, parameter in zip(written, layer.weights(), strict=True):
        torch.testing.assert_close(slope, parameter.grad, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("skip", ["both", "attention"])
def test_the_written_out_tangent_is_autograds(skip: Any) -> None:
    config = SingleLayerConfig(**SMALL, beta=0.5, skip=skip)
    weights, x, form = draw_weights(config, 0), normal(2, 5, 4), config.form()
    direction = Weights(*(normal(*weight.shape, seed=7) for weight in weights))
    _, expected = torch.autograd.functional.jvp(
        lambda *parts: forward_pass(Weights(*parts), x, form).output, tuple(weights), tuple(direction)
    )
    found = push_forward(weights, x, form, forward_pass(weights, x, form), direction)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_a_batch_of_problems_steps_as_each_of_them_alone() -> None:
    configs = [SingleLayerConfig(**SMALL, beta=beta) for beta in BETAS]
    x, y = normal(2, 5, 4), normal(2, 5, 4, seed=1)
    parts = [(draw_weights(config, 3), config.form()) for config in configs]
    weights, form = stack_problems(parts)
    moved, values = gradient_step(weights, x, y, form, 0.01)
    for place, (own, own_form) in enumerate(parts):
        alone, value = gradient_step(own, x, y, own_form, 0.01)
        assert float(values[place]) == pytest.approx(float(value), rel=1e-12)
        for one, batch in zip(alone, moved, strict=True):
            torch.testing.assert_close(one, batch[place], rtol=1e-12, atol=1e-13)


def test_a_step_is_that_of_torchs_own_descent_and_leaves_its_input_alone() -> None:
    config = SingleLayerConfig(**SMALL, beta=0.5)
    layer = SingleLayer(config)
    initialise(layer, 5)
    x, y = normal(3, 2, 4), normal(3, 2, 4, seed=1)
    weights = draw_weights(config, 5)
    before = Weights(*(weight.clone() for weight in weights))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.02)
    for _ in range(4):
        optimizer.zero_grad()
        layer.loss_sums(x, y)[0].backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    stepped = weights
    for _ in range(4):
        stepped, _ = gradient_step(stepped, x, y, config.form(), 0.02)
    for own, parameter, old, first in zip(stepped, layer.weights(), weights, before, strict=True):
        torch.testing.assert_close(own, parameter.detach(), rtol=1e-10, atol=1e-12)
        assert torch.equal(old, first)


def test_problems_of_different_key_widths_are_no_batch() -> None:
    parts = [(draw_weights(c, 0), c.form()) for c in (SingleLayerConfig(4, 3, 7), SingleLayerConfig(4, 5, 7))]
    with pytest.raises(ValueError, match="one d_QK"):
        stack_problems(parts)


@pytest.mark.parametrize(
    "wrong", [{"d": 0}, {"hidden": -1}, {"beta": math.nan}, {"skip": "none"}, {"start": "xavier"}, {"d_qk": 0}]
)
def test_a_config_that_makes_no_layer_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|finite|is one of"):
        SingleLayerConfig(**{**SMALL, **wrong})


def test_weights_at_start_depend_on_the_seed_and_the_name_only() -> None:
    first = draw_weights(SingleLayerConfig(**SMALL, beta=0.0), 3)
    again = draw_weights(SingleLayerConfig(**SMALL, beta=1.0, skip="attention"), 3)
    wider = draw_weights(SingleLayerConfig(d=4, d_qk=9, hidden=7), 3)
    other = draw_weights(SingleLayerConfig(**SMALL), 4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(first.v, wider.v)
    assert torch.equal(first.down, wider.down)
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert not torch.equal(first.q, first.k)


@pytest.mark.parametrize(("start", "variance"), [("inverse_d_qk", 1 / 400), ("unit", 1.0)])
def test_variances_at_start(start: Any, variance: float) -> None:
    weights = draw_weights(SingleLayerConfig(d=50, d_qk=400, hidden=300, start=start), 0)
    for weight, expected in zip(weights, (variance, variance, 1 / 50, 1 / 50, 1 / 300), strict=True):
        assert weight.dtype == torch.float64
        assert float(weight.var()) == pytest.approx(expected, rel=0.1)
        assert abs(float(weight.mean())) < 5 * math.sqrt(expected / weight.numel())


@pytest.mark.parametrize("d_qk", [3, 8, 9, 200])
def test_fewer_key_dimensions_change_neither_outputs_nor_descent_nor_kernel(d_qk: int) -> None:
    config = SingleLayerConfig(d=4, d_qk=d_qk, hidden=6, beta=0.25)
    x, y, form = normal(2, 3, 4), normal(2, 3, 4, seed=1), config.form()
    wide = draw_weights(config, 0)
    slim = narrow(wide)
    assert slim.q.shape == (4, min(d_qk, 8))
    np.testing.assert_allclose(
        kernel_eigenvalues(slim, x, form), kernel_eigenvalues(wide, x, form), rtol=1e-9, atol=1e-11
    )
    for _ in range(20):
        wide, one = gradient_step(wide, x, y, form, 0.01)
        slim, other = gradient_step(slim, x, y, form, 0.01)
        assert float(other) == pytest.approx(float(one), rel=1e-11)


@pytest.mark.parametrize("tokens", [2, 9])  # written out, and iterated
def test_the_largest_eigenvalue_is_the_dense_one(tokens: int) -> None:
    for beta in BETAS:
        config = SingleLayerConfig(**SMALL, beta=beta)
        weights, x = draw_weights(config, 2), normal(2, tokens, 4)
        dense = kernel_eigenvalues(weights, x, config.form())
        assert largest_eigenvalue(weights, x, config.form()) == pytest.approx(dense[-1], rel=1e-7)


def test_the_jacobian_is_autograds() -> None:
    config = SingleLayerConfig(**SMALL, beta=0.5)
    weights, x = draw_weights(config, 0), normal(2, 2, 4)
    parts = torch.autograd.functional.jacobian(
        lambda *w: forward_pass(Weights(*w), x, config.form()).output.flatten(), tuple(weights)
    )
    expected = torch.cat([part.flatten(1) for part in parts], 1)
    torch.testing.assert_close(jacobian(weights, x, config.form()), expected, rtol=1e-9, atol=1e-12)


def test_one_step_for_all_follows_the_stiffest_problem() -> None:
    problems = []
    for seed in range(3):
        for beta in BETAS:
            config = SingleLayerConfig(**SMALL, beta=beta)
            problems.append((draw_weights(config, seed), normal(2, 5, 4, seed=seed), config.form()))
    tops = [kernel_eigenvalues(*problem)[-1] for problem in problems]
    assert common_step(problems) == pytest.approx(0.5 / max(tops), rel=1e-7)


def test_a_kernel_of_numbers_that_are_not_finite_has_no_eigenvalue() -> None:
    config = SingleLayerConfig(**SMALL)
    weights = draw_weights(config, 0)
    with pytest.raises(ArithmeticError, match="not finite"):
        largest_eigenvalue(weights._replace(v=weights.v * math.inf), normal(2, 5, 4), config.form())


def test_singular_values_are_numpys() -> None:
    matrices = normal(3, 6, 4)
    matrices[1, :, 3] = matrices[1, :, 0]
    for found, matrix in zip(spectra(matrices), matrices.numpy(), strict=True):
        values = np.linalg.svd(matrix, compute_uv=False)
        assert found.largest == pytest.approx(values[0])
        assert found.second == pytest.approx(values[1])
        assert found.smallest == pytest.approx(values[-1], abs=1e-14)
        assert found.rank == np.linalg.matrix_rank(matrix)
        assert found.ratio == pytest.approx(values[-1] / values[0], abs=1e-14)
    zero, column = spectra(torch.zeros(3, 2))[0], spectra(normal(5, 1))[0]
    assert (zero.rank, zero.ratio) == (0, 0.0)
    assert (column.rank, column.ratio) == (1, 1.0)
