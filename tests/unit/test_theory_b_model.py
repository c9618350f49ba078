"""Paper B's finite model: flows of measures, symmetries, limits of representation, adjoint against other witnesses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ortho_group

from repro.theory.adjoint import (
    continuous_adjoint,
    continuous_gradient,
    discrete_adjoint,
    discrete_gradient,
    relative_error,
    residual_scale,
    risk,
    tangent_kernel,
)
from repro.theory.checks.b_gradient import autograd_gradient, random_problem
from repro.theory.continuity import Waves, mass_error, spatial_derivative, volume_error, weak_form
from repro.theory.mean_field import (
    Heads,
    Sizes,
    TokenMeasures,
    continuous_flow,
    flow,
    flow_map,
    gaussian_heads,
    smooth_heads,
    velocity,
)
from repro.theory.mean_field_model import MeanFieldTransformer, flow_step, gradient_scale, risk_loss
from repro.theory.parameter_law import ParameterLaw

seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=25, deadline=None)


def problem(seed: int) -> tuple[TokenMeasures, Heads, np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(seed)
    return *random_problem(rng), rng


def outputs(measures: TokenMeasures, heads: Heads) -> np.ndarray:
    return flow(measures, heads)[-1]


def test_one_step_is_the_softmax_attention_written_out() -> None:
    measures, heads, _, _ = problem(1)
    x = measures.points[0]
    expected = np.zeros_like(x)
    for q, k, v in zip(heads.query[0], heads.key[0], heads.value[0], strict=True):
        for place, token in enumerate(x):
            scores = np.array([math.exp((q @ token) @ (k @ other)) for other in x]) * measures.weights[0]
            expected[place] += v @ (scores / scores.sum() @ x)
    step = (flow(measures, heads)[1, 0] - x) * heads.layers * heads.heads
    np.testing.assert_allclose(step, expected, rtol=1e-12)


def test_the_torch_model_and_the_numpy_model_are_one() -> None:
    measures, heads, _, _ = problem(2)
    model = MeanFieldTransformer(heads.layers, heads.heads, heads.value.shape[-1], heads.query.shape[2])
    model.load(heads)
    found = model(torch.from_numpy(measures.points), torch.from_numpy(measures.weights)).detach().numpy()
    np.testing.assert_allclose(found, outputs(measures, heads), rtol=1e-12, atol=1e-14)
    uniform = TokenMeasures.uniform(measures.points)
    found = model(torch.from_numpy(uniform.points)).detach().numpy()
    np.testing.assert_allclose(found, outputs(uniform, heads), rtol=1e-12, atol=1e-14)
    for part in ("query", "key", "value"):
        np.testing.assert_array_equal(getattr(model.numpy(), part), getattr(heads, part))


@few
@given(seeds)
def test_a_permutation_of_tokens_permutes_the_outputs(seed: int) -> None:
    measures, heads, _, rng = problem(seed)
    order = rng.permutation(measures.points.shape[1])
    moved = TokenMeasures(measures.points[:, order], measures.weights[:, order])
    np.testing.assert_allclose(outputs(moved, heads), outputs(measures, heads)[:, order], rtol=1e-10, atol=1e-12)


@few
@given(seeds)
def test_a_rotation_of_tokens_and_heads_rotates_the_outputs(seed: int) -> None:
    measures, heads, _, rng = problem(seed)
    turn = ortho_group.rvs(measures.points.shape[2], random_state=rng)
    turned = Heads(heads.query @ turn.T, heads.key @ turn.T, turn @ heads.value @ turn.T)
    found = outputs(measures.at(measures.points @ turn.T), turned)
    np.testing.assert_allclose(found, outputs(measures, heads) @ turn.T, rtol=1e-9, atol=1e-11)


@few
@given(seeds)
def test_tokens_in_another_unit_with_heads_to_match_give_outputs_in_that_unit(seed: int) -> None:
    measures, heads, _, rng = problem(seed)
    unit = float(rng.uniform(0.2, 5))
    found = outputs(measures.at(unit * measures.points), Heads(heads.query / unit, heads.key / unit, heads.value))
    np.testing.assert_allclose(found, unit * outputs(measures, heads), rtol=1e-9, atol=1e-11)


@few
@given(seeds)
def test_a_shift_of_all_tokens_seen_at_the_same_query_shifts_the_mean_that_a_head_reads(seed: int) -> None:
    """Only with the argument of L held: the model as a whole is not covariant, since queries move with the tokens."""
    measures, heads, _, rng = problem(seed)
    layer = Heads(heads.query[:1], heads.key[:1], heads.value[:1])
    shift = rng.standard_normal(measures.points.shape[2])
    found = velocity(measures.at(measures.points + shift), layer, measures.points)
    expected = velocity(measures, layer, measures.points) + layer.value[0].mean(axis=0) @ shift
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


@few
@given(seeds)
def test_no_mass_is_lost_and_the_volume_follows_liouville(seed: int) -> None:
    measures, heads, _, rng = problem(seed)
    assert mass_error(measures, heads, rng) < 1e-12
    slow = Heads(heads.query, heads.key, 0.3 * heads.value)  # steps this small cannot fold space
    assert volume_error(measures, slow, rng.standard_normal((len(measures.points), 2, measures.points.shape[2]))) < 1e-6


def test_a_fold_of_space_is_an_infinite_error_of_volume() -> None:
    measures = TokenMeasures.uniform(np.array([[[-1.0], [1.0]]]))
    one = np.ones((1, 1, 1, 1))
    assert volume_error(measures, Heads(one, one, -4 * one), np.zeros((1, 1, 1))) == math.inf


def test_the_flow_map_on_the_support_is_the_flow_and_its_derivative_is_the_formula() -> None:
    measures, heads, _, _ = problem(3)
    np.testing.assert_allclose(flow_map(measures, heads, measures.points), flow(measures, heads), rtol=1e-13)
    x = measures.points[:, :1]
    layer = Heads(heads.query[:1], heads.key[:1], heads.value[:1])
    h = 1e-6
    sides = [
        (velocity(measures, layer, x + h * e) - velocity(measures, layer, x - h * e)) / (2 * h)
        for e in np.eye(x.shape[-1])
    ]
    np.testing.assert_allclose(spatial_derivative(measures, heads, 0, x), np.stack(sides, axis=-1), atol=1e-8)


def test_the_continuous_model_is_the_limit_of_the_layers_and_moves_by_the_continuity_equation() -> None:
    rng = np.random.default_rng(4)
    measures = TokenMeasures.uniform(rng.standard_normal((2, 5, 3)))
    heads = smooth_heads(rng, 4, Sizes(3, 3), smooth_heads(rng, 1, Sizes(3, 3)))
    fine = continuous_flow(measures, heads, 64)
    np.testing.assert_allclose(fine[-1], continuous_flow(measures, heads, 128)[-1], atol=1e-6)
    gaps = [np.abs(outputs(measures, heads.layers(count)) - fine[-1]).max() for count in (64, 128)]
    assert gaps[0] / gaps[1] == pytest.approx(2, rel=0.1)
    waves = Waves.random(rng, 4, 3)
    weak = weak_form(measures, heads, fine, waves)
    assert max(weak.between_ends(), weak.inside()) < 1e-4
    wrong = weak_form(measures, smooth_heads(rng, 4, Sizes(3, 3)), fine, waves)
    assert min(wrong.between_ends(), wrong.inside()) > 0.05


@settings(max_examples=15, deadline=None)
@given(seeds)
def test_the_adjoint_gradient_is_what_automatic_differentiation_finds(seed: int) -> None:
    measures, heads, targets, _ = problem(seed)
    found, gradient = discrete_gradient(measures, heads, targets)
    assert found == pytest.approx(risk(measures, outputs(measures, heads), targets), rel=1e-14)
    assert relative_error(gradient, autograd_gradient(measures, heads, targets)) < 1e-10


def test_without_the_token_coupling_the_adjoint_at_depth_zero_would_be_wrong() -> None:
    """The adjoint at s = 0 is the derivative by the inputs, over the token's mass: by central differences."""
    measures, heads, targets, rng = problem(5)
    path = flow(measures, heads)
    adjoint, _ = discrete_adjoint(measures, heads, path, path[-1] - targets)
    along, h = rng.standard_normal(measures.points.shape), 1e-6
    ends = [risk(measures, outputs(measures.at(measures.points + s * h * along), heads), targets) for s in (1, -1)]
    expected = float(measures.integral((adjoint[0] * along).sum(axis=-1)).mean())
    assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(expected, rel=1e-6)


def test_the_continuous_gradient_is_the_limit_and_needs_depths_on_its_grid() -> None:
    rng = np.random.default_rng(6)
    measures = TokenMeasures.uniform(rng.standard_normal((1, 4, 3)))
    heads, targets = smooth_heads(rng, 4, Sizes(3, 2)), rng.standard_normal((1, 4, 3))
    solved = continuous_adjoint(measures, heads, targets, 64)
    errors = [
        relative_error(
            discrete_gradient(measures, heads.layers(count), targets)[1],
            continuous_gradient(measures, heads, solved, count),
        )
        for count in (32, 64)
    ]
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.1)
    with pytest.raises(ValueError, match="5 layers do not divide the grid of 64"):
        continuous_gradient(measures, heads, solved, 5)


def test_the_kernel_is_that_of_automatic_differentiation() -> None:
    measures, heads, _, _ = problem(7)
    model = MeanFieldTransformer(heads.layers, heads.heads, heads.value.shape[-1], heads.query.shape[2])
    model.load(heads)
    scaled = model(torch.from_numpy(measures.points), torch.from_numpy(measures.weights)) * torch.from_numpy(
        residual_scale(measures)
    )
    parameters = [model.query, model.key, model.value]
    rows = [torch.autograd.grad(one, parameters, retain_graph=True) for one in scaled.flatten()]
    parts = [torch.stack([row[place].flatten() for row in rows]) for place in range(3)]
    found = tangent_kernel(measures, heads, flow(measures, heads))
    scale = heads.layers * heads.heads
    np.testing.assert_allclose(found.v_part, scale * (parts[2] @ parts[2].T).numpy(), atol=1e-12)
    np.testing.assert_allclose(found.full, scale * sum(p @ p.T for p in parts).numpy(), atol=1e-12)
    smallest, smallest_v = found.smallest
    assert smallest >= smallest_v - 1e-12  # the other parts only add


@few
@given(seeds)
def test_the_conditional_flow_keeps_the_depth_marginal_and_lowers_the_risk(seed: int) -> None:
    measures, heads, targets, _ = problem(seed)
    before, gradient = discrete_gradient(measures, heads, targets)
    law = ParameterLaw.of(heads)
    after = law.transported(gradient, 1e-4)
    assert law.depth_marginal_distance(after) < 1e-14
    assert risk(measures, outputs(measures, after.heads), targets) < before
    moved = ParameterLaw(law.depths + 0.25 / heads.layers, law.weights, law.heads)
    assert law.depth_marginal_distance(moved) == pytest.approx(0.25 / heads.layers)
    uneven = law.weights.copy()
    uneven[0] *= 1.5
    assert law.depth_marginal_distance(ParameterLaw(law.depths, uneven, law.heads)) > 0.1 / heads.layers


def test_a_step_of_training_is_a_step_of_the_flow() -> None:
    measures, heads, targets, _ = problem(8)
    model = MeanFieldTransformer(heads.layers, heads.heads, heads.value.shape[-1], heads.query.shape[2])
    model.load(heads)
    weights = torch.from_numpy(measures.weights)
    risk_loss(model(torch.from_numpy(measures.points), weights), torch.from_numpy(targets), weights).backward()
    flow_step(model, 0.01)
    assert gradient_scale(model) == heads.layers * heads.heads
    expected = heads.moved(discrete_gradient(measures, heads, targets)[1], -0.01)
    np.testing.assert_allclose(model.value.detach().numpy(), expected.value, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(model.key.detach().numpy(), expected.key, rtol=1e-12, atol=1e-14)


def test_heads_of_a_given_size_move_arguments_and_values_by_that_size() -> None:
    rng = np.random.default_rng(9)
    heads = gaussian_heads(rng, 2, 4000, Sizes(4, 2, attention=3.0, value=0.5))
    x = rng.standard_normal(4)
    for maps, size in ((heads.bilinear, 3.0), (heads.value, 0.5)):
        assert np.sqrt((((maps @ x) ** 2).sum(axis=-1)).mean()) == pytest.approx(size * np.linalg.norm(x), rel=0.1)
    model = MeanFieldTransformer(2, 3, 4)
    model.initialise(np.random.default_rng(0), attention=1.0)
    np.testing.assert_array_equal(
        model.numpy().query, gaussian_heads(np.random.default_rng(0), 2, 3, Sizes(4, 4)).query
    )
