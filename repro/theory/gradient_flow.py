"""Gradient flow of the finite mean-field Transformer: convergence at a linear rate, and a control (paper B, seed 002).

The flow d_t theta = -grad R(theta) moves every particle (s, theta) in theta alone. Its steps are those of an
exponential integrator: residuals r obey d_t r = -K r with the tangent kernel K, so r is replaced by phi(h K) r,
phi(z) = (1 - e^-z) / z, in an explicit Euler step. The step is exact where K is constant and has no limit of stability,
which stiff spectra (largest over smallest eigenvalue 1e3 and more) would otherwise set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from repro.theory.adjoint import Kernel, discrete_adjoint, residual_scale, risk, tangent_kernel
from repro.theory.mean_field import Heads, TokenMeasures, flow

Array = NDArray[np.float64]
EPSILON = 1e-12  # of a time that is a sum of steps
STEPS_OF_A_TIME = 20  # at least, where an end is set: near a floor the slope alone asks for endless steps


@dataclass(frozen=True, slots=True)
class Problem:
    """What is learned: the token measures and their `targets` (N, n, d)."""

    measures: TokenMeasures
    targets: Array


@dataclass(frozen=True, slots=True)
class Stop:
    """When a flow ends: at `share` of the risk at start, at `time`, or after `steps` steps, whichever comes first.

    A step is as long as the risk would take, at its present slope, to fall by the factor exp(-`fold`).
    """

    share: float
    time: float = math.inf
    steps: int = 200
    fold: float = 1.0


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The flow at each step: `times`, `risks`, smallest eigenvalues of the full kernel and of its V-part, all (K,)."""

    times: Array
    risks: Array
    smallest: Array
    smallest_v: Array
    heads: Heads


def phi(z: Array) -> Array:
    """(1 - e^-z) / z, one at zero."""
    small = np.abs(z) < 1e-12
    return np.asarray(np.where(small, 1.0, -np.expm1(-z) / np.where(small, 1.0, z)))


def exponential_step(problem: Problem, heads: Heads, path: Array, kernel: Kernel, time: float) -> Heads:
    """Heads after `time` of the gradient flow, to second order in it and exactly where the kernel stays the same."""
    scale = residual_scale(problem.measures)
    residual = path[-1] - problem.targets
    rates, modes = np.linalg.eigh(kernel.full)
    averaged = modes @ (phi(time * rates) * (modes.T @ (residual * scale).ravel()))
    _, gradient = discrete_adjoint(problem.measures, heads, path, averaged.reshape(residual.shape) / scale)
    return heads.moved(gradient, -time)


def converge(problem: Problem, heads: Heads, stop: Stop) -> Trajectory:
    """Runs the gradient flow from `heads` until `stop`, or until it stands still; the kernel is taken at every step."""
    scale = residual_scale(problem.measures)
    found: list[tuple[float, float, float, float]] = []
    time = 0.0
    while True:
        path = flow(problem.measures, heads)
        kernel = tangent_kernel(problem.measures, heads, path)
        now = risk(problem.measures, path[-1], problem.targets)
        found.append((time, now, *kernel.smallest))
        if now <= stop.share * found[0][1] or time >= stop.time * (1 - EPSILON) or len(found) > stop.steps:
            break
        residual = ((path[-1] - problem.targets) * scale).ravel()
        slope = float(residual @ kernel.full @ residual)  # -dR/dt
        if slope <= 0:
            break
        step = min(stop.fold * now / slope, stop.time / STEPS_OF_A_TIME, stop.time - time)
        heads = exponential_step(problem, heads, path, kernel, step)
        time += step
    times, risks, smallest, smallest_v = (np.array(column) for column in zip(*found, strict=True))
    return Trajectory(times, risks, smallest, smallest_v, heads)


def perturbed(rng: np.random.Generator, heads: Heads, size: float) -> Heads:
    """A teacher near `heads`: one random shift for all particles, so that every L and M has the same teacher law."""
    shift = [np.broadcast_to(rng.standard_normal(a.shape[2:]), a.shape) for a in (heads.query, heads.key, heads.value)]
    return heads.moved(Heads(*shift), size)


def conflict(
    problem: Problem, outputs: Array, share: float, rng: np.random.Generator
) -> tuple[Problem, Problem, float]:
    """Control and twin: the first sequence once more, in another order, with other targets or with its own.

    `outputs` (N, n, d) are the model's at start. The copies' targets differ from the first sequence's by opposite
    shifts, so that no model can fit both: the risk stays above a floor, returned third, which is `share` (below one) of
    the control's risk at start. The twin has the same measures, the same singular kernel, and targets that agree.
    Raises ValueError if there is no risk at start to take the share of.
    """
    order = rng.permutation(problem.targets.shape[1])
    measures = TokenMeasures(
        np.concatenate([problem.measures.points, problem.measures.points[:1, order]]),
        np.concatenate([problem.measures.weights, problem.measures.weights[:1, order]]),
    )
    twin = Problem(measures, np.concatenate([problem.targets, problem.targets[:1, order]]))
    start = risk(measures, np.concatenate([outputs, outputs[:1, order]]), twin.targets)
    if start <= 0:
        raise ValueError("the model fits its targets from the start")
    shift = rng.standard_normal(problem.targets.shape[1:])
    apart = np.zeros_like(twin.targets)
    apart[0], apart[-1] = shift, -shift[order]
    # Opposite shifts of equal laws add their own risk and no cross term, at every common output.
    floor = start * share / (1 - share)
    apart *= math.sqrt(floor / risk(measures, apart, np.zeros_like(apart)))
    return Problem(measures, twin.targets + apart), twin, floor
