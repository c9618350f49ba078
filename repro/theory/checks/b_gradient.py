"""B-T3: adjoint gradient against automatic differentiation, central differences and the continuous equations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from repro.records.measured import Measured
from repro.theory.adjoint import (
    continuous_adjoint,
    continuous_gradient,
    discrete_gradient,
    relative_error,
    risk,
)
from repro.theory.mean_field import Array, Heads, Sizes, TokenMeasures, flow, gaussian_heads, smooth_heads
from repro.theory.mean_field_model import MeanFieldTransformer, risk_loss
from repro.theory.parameter_law import ParameterLaw
from repro.theory.rates import power_law

INFO = {
    "title": "Conditional Wasserstein gradient by the adjoint",
    "says": "the adjoint formula is the gradient of the discrete model, and of the continuous one up to order 1/L",
    "ref": "paper_b",
    "rules": 1,
    "seconds": 3.0,
    "memory_gb": 2.0,
    "params": {
        "problems": 20,
        "directions": 4,
        "continuous_draws": 4,
        "layers": [16, 32, 64, 128],
        "heads": 32,
        "tokens": 8,
        "dim": 3,
    },
    "values": {
        "b_gradient_error": {"unit": "1", "better": "lower"},
        "b_gradient_fd_error": {"unit": "1", "better": "lower"},
        "b_gradient_slope": {"unit": "1", "better": "lower"},
        "b_gradient_slope_error": {"unit": "1", "better": "lower"},
        "b_depth_marginal_error": {"unit": "1", "better": "lower"},
        "b_dissipation_error": {"unit": "1", "better": "lower"},
    },
}
DIFFERENCE = 1e-5  # of central differences: truncation and round-off are both near 1e-10 there
STEP = 1e-6  # time of a single step of the flow, over which the risk's fall is compared with the gradient's norm


def run(params: dict[str, Any], seed: int) -> Measured:
    """Random small problems in discrete form, then larger ones in continuous form at growing depth."""
    small = [_small(np.random.default_rng([seed, 0, draw]), params["directions"]) for draw in range(params["problems"])]
    deep, slopes = [], []
    for draw in range(params["continuous_draws"]):
        errors = _continuous(np.random.default_rng([seed, 1, draw]), params)
        slopes.append(power_law(params["layers"], errors).slope)
        deep += [
            {"form": "continuous", "draw": draw, "layers": layers, "error": error}
            for layers, error in zip(params["layers"], errors, strict=True)
        ]
    values = {
        "b_gradient_error": max(row["error"] for row in small),
        "b_gradient_fd_error": max(row["fd_error"] for row in small),
        "b_gradient_slope": float(np.mean(slopes)),
        "b_gradient_slope_error": max(abs(slope + 1) for slope in slopes),
        "b_depth_marginal_error": max(row["depth_marginal_error"] for row in small),
        "b_dissipation_error": max(row["dissipation_error"] for row in small),
    }
    rows = [{"form": "discrete", "draw": draw, **row} for draw, row in enumerate(small)] + deep
    return Measured(values, len(small) + len(slopes), {"rows": rows, "slopes": slopes})


def random_problem(rng: np.random.Generator) -> tuple[TokenMeasures, Heads, Array]:
    """A small problem of random shape, with uneven masses: measures, heads, targets."""
    layers, heads, dim, sequences = (int(rng.integers(2, top)) for top in (7, 6, 5, 4))
    tokens, head_dim = int(rng.integers(2, 6)), int(rng.integers(1, dim + 1))
    weights = rng.uniform(0.5, 1.5, size=(sequences, tokens))
    measures = TokenMeasures(
        rng.standard_normal((sequences, tokens, dim)), weights / weights.sum(axis=1, keepdims=True)
    )
    given = gaussian_heads(rng, layers, heads, Sizes(dim, head_dim, attention=1.5, value=1.5))
    return measures, given, rng.standard_normal(measures.points.shape)


def autograd_gradient(measures: TokenMeasures, heads: Heads, targets: Array) -> Heads:
    """L M times the derivative that torch finds."""
    model = MeanFieldTransformer(heads.layers, heads.heads, heads.value.shape[-1], heads.query.shape[2])
    model.load(heads)
    points, weights, wanted = (torch.from_numpy(a) for a in (measures.points, measures.weights, targets))
    loss = risk_loss(model(points, weights), wanted, weights)
    query, key, value = torch.autograd.grad(loss, [model.query, model.key, model.value])
    return Heads(*((model.particles * part).numpy() for part in (query, key, value)))


def _small(rng: np.random.Generator, directions: int) -> dict[str, float]:
    """Errors of one small problem, and what one step of the flow does to the depth marginal and to the risk."""
    measures, heads, targets = random_problem(rng)
    _, gradient = discrete_gradient(measures, heads, targets)

    def risk_at(changed: Heads) -> float:
        return risk(measures, flow(measures, changed)[-1], targets)

    differences = []
    for _ in range(directions):
        along = Heads(*(rng.standard_normal(part.shape) for part in (heads.query, heads.key, heads.value)))
        along = Heads(*(part / math.sqrt(along.product(along)) for part in (along.query, along.key, along.value)))
        slope = (risk_at(heads.moved(along, DIFFERENCE)) - risk_at(heads.moved(along, -DIFFERENCE))) / (2 * DIFFERENCE)
        differences.append(abs(slope - gradient.product(along)))
    size = math.sqrt(gradient.product(gradient))
    law = ParameterLaw.of(heads)
    after, earlier = law.transported(gradient, STEP), law.transported(gradient, -STEP)
    fall = risk_at(earlier.heads) - risk_at(after.heads)
    return {
        "error": relative_error(gradient, autograd_gradient(measures, heads, targets)),
        "fd_error": max(differences) / size,
        "depth_marginal_error": law.depth_marginal_distance(after),
        "dissipation_error": abs(fall / (2 * STEP * size**2) - 1),
    }


def _continuous(rng: np.random.Generator, params: dict[str, Any]) -> list[float]:
    """Relative distance of the L-layer model's gradient from the continuous one, for each L."""
    dim, depths = params["dim"], params["layers"]
    measures = TokenMeasures.uniform(rng.standard_normal((1, params["tokens"], dim)))
    heads = smooth_heads(rng, params["heads"], Sizes(dim, dim), smooth_heads(rng, 1, Sizes(dim, dim)))
    targets = rng.standard_normal(measures.points.shape)
    solved = continuous_adjoint(measures, heads, targets, math.lcm(*depths))
    return [
        relative_error(
            discrete_gradient(measures, heads.layers(depth), targets)[1],
            continuous_gradient(measures, heads, solved, depth),
        )
        for depth in depths
    ]
