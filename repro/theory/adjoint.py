"""Adjoint of the mean-field Transformer and the conditional Wasserstein gradient (paper B, seed 002; papers.md 2.3).

Risk R = mean_i int ell(Lambda_i(1, x)) dmu_i(x), ell(z) = |z - y|^2 / 2. Adjoint variables: p_i(1, x) = grad ell and

    -d_s p(s, x) = (D_x Phi)^T p(s, x) + int (D_y dPhi/dmu (x', y) at y = x)^T p(s, x') dmu(x'),

where the integral is the coupling of tokens through the softmax; gradient by the particle theta at depth s

    grad R(s, theta) = mean_i int (D_theta Phi_theta)^T p_i(s, x) dmu_i(x).

One head, with xi = A x, A = K^T Q, softmax shares P, mean g, covariance C of the shares and v = V^T p:
(D_x)^T p = A^T C v, density (D_y dPhi/dmu)^T p = (P_y / w_y) (v + <y - g, v> xi), and the derivatives by V, K and Q
are p g^T, (Q x) (C v)^T and (K C v) x^T. `discrete_*` are exact for L layers, `continuous_*` integrate the equations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from repro.theory.mean_field import Attention, ByDepth, Heads, TokenMeasures, attend, continuous_flow, flow

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pulled:
    """What one layer does to adjoint variables p (N, C, n, d), for C functionals of each sequence at once.

    `drift` (N, C, n, d) is -d_s p; `turned` (N, C, n, M, d) is C V^T p, from which the derivatives by Q and K follow.
    """

    drift: Array
    turned: Array


def pull_back(measures: TokenMeasures, attention: Attention, layer: tuple[Array, Array], p: Array) -> Pulled:
    """Right-hand side of the backward equation for one layer's (K^T Q, V), each (M, d, d), at the tokens' places."""
    bilinear, value = layer
    sequences, functionals, tokens, dim = p.shape
    heads = len(value)
    size = (sequences, functionals, tokens * heads, dim)
    shares = attention.shares.reshape(sequences, 1, tokens * heads, -1)
    points = measures.points[:, None]
    v = (p.reshape(-1, dim) @ value.transpose(1, 0, 2).reshape(dim, -1)).reshape(size)
    along = v @ points.swapaxes(-1, -2)
    tilted = shares * (along - (shares * along).sum(axis=-1, keepdims=True))
    turned = tilted @ points
    own = turned.reshape(-1, heads * dim) @ bilinear.reshape(heads * dim, dim)
    # Token coupling: what every query x', weighted by its mass, feels of the token y.
    mass = np.repeat(measures.weights, heads, axis=1)[:, None, :, None]
    coupled = shares.swapaxes(-1, -2) @ (mass * v)
    coupled = coupled + tilted.swapaxes(-1, -2) @ (mass * attention.xi.reshape(sequences, 1, -1, dim))
    drift = own.reshape(p.shape) + coupled / measures.weights[:, None, :, None]
    return Pulled(drift / heads, turned.reshape(sequences, functionals, tokens, heads, dim))


def by_parameters(measures: TokenMeasures, attention: Attention, layer: Heads, p: Array, turned: Array) -> Heads:
    """int (D_theta Phi_theta)^T p dmu for each sequence and functional: arrays (N, C, M, ...) in place of (L, M, ...).

    `layer` holds the heads of one layer (L = 1); factors 1/L, 1/M and the mean over sequences are the caller's.
    """
    sequences, functionals, tokens, dim = p.shape
    heads = layer.heads
    weighted = p * measures.weights[:, None, :, None]
    means = attention.means.reshape(sequences, 1, tokens, heads * dim)
    by_value = (weighted.swapaxes(-1, -2) @ means).reshape(sequences, functionals, dim, heads, dim).swapaxes(2, 3)
    x = (measures.points * measures.weights[..., None])[:, None]
    by_bilinear = turned.reshape(sequences, functionals, tokens, heads * dim).swapaxes(-1, -2) @ x
    by_bilinear = by_bilinear.reshape(sequences, functionals, heads, dim, dim)
    return Heads(layer.key[0] @ by_bilinear, layer.query[0] @ by_bilinear.swapaxes(-1, -2), by_value)


def risk(measures: TokenMeasures, outputs: Array, targets: Array) -> float:
    """R = mean over sequences of int |z - y|^2 / 2 dmu for `outputs` and `targets` (N, n, d)."""
    return float(measures.integral(((outputs - targets) ** 2).sum(axis=-1) / 2).mean())


def _layer(heads: Heads, index: int) -> Heads:
    return Heads(heads.query[index : index + 1], heads.key[index : index + 1], heads.value[index : index + 1])


def discrete_adjoint(measures: TokenMeasures, heads: Heads, path: Array, terminal: Array) -> tuple[Array, Heads]:
    """Adjoint variables (L + 1, N, n, d) and gradient, exact for the discrete model.

    `path` is `flow(measures, heads)`, `terminal` (N, n, d) the adjoint at depth 1. The gradient is the conditional
    Wasserstein gradient at the particles: L M times the derivative by each layer's heads.
    """
    bilinear = heads.bilinear
    p = terminal[:, None]
    found, gradients = [p[:, 0]], []
    for index in reversed(range(heads.layers)):
        here = measures.at(path[index])
        attention = attend(here, bilinear[index], here.points)
        pulled = pull_back(here, attention, (bilinear[index], heads.value[index]), p)
        gradients.append(by_parameters(here, attention, _layer(heads, index), p, pulled.turned))
        p = p + pulled.drift / heads.layers
        found.append(p[:, 0])
    gradients.reverse()
    mean = Heads(
        np.stack([part.query[:, 0].mean(axis=0) for part in gradients]),
        np.stack([part.key[:, 0].mean(axis=0) for part in gradients]),
        np.stack([part.value[:, 0].mean(axis=0) for part in gradients]),
    )
    return np.stack(found[::-1]), mean


def discrete_gradient(measures: TokenMeasures, heads: Heads, targets: Array) -> tuple[float, Heads]:
    """Risk and its conditional Wasserstein gradient at every particle of the discrete model."""
    path = flow(measures, heads)
    _, gradient = discrete_adjoint(measures, heads, path, path[-1] - targets)
    return risk(measures, path[-1], targets), gradient


@dataclass(frozen=True, slots=True)
class ContinuousAdjoint:
    """Solution of the forward and backward equations on a grid of `steps` intervals: (steps + 1, N, n, d) each."""

    points: Array
    adjoint: Array

    @property
    def steps(self) -> int:
        """Intervals of the grid over depth."""
        return len(self.points) - 1


def continuous_adjoint(measures: TokenMeasures, heads: ByDepth, targets: Array, steps: int) -> ContinuousAdjoint:
    """Tokens and adjoint of the continuous model by Runge-Kutta of fourth order, forwards and then backwards."""
    fine = continuous_flow(measures, heads, 2 * steps)  # the backward rule reads the tokens at half steps too

    def drift(half: int, p: Array) -> Array:
        layer = heads.at(half / (2 * steps))
        here = measures.at(fine[half])
        bilinear = layer.bilinear[0]
        return pull_back(here, attend(here, bilinear, here.points), (bilinear, layer.value[0]), p).drift

    h = 1 / steps
    path = [(fine[-1] - targets)[:, None]]
    for half in range(2 * steps, 0, -2):
        p = path[-1]
        first = drift(half, p)
        second = drift(half - 1, p + h / 2 * first)
        third = drift(half - 1, p + h / 2 * second)
        fourth = drift(half - 2, p + h * third)
        path.append(p + h / 6 * (first + 2 * second + 2 * third + fourth))
    return ContinuousAdjoint(fine[::2], np.stack([p[:, 0] for p in reversed(path)]))


def continuous_gradient(measures: TokenMeasures, heads: ByDepth, solved: ContinuousAdjoint, layers: int) -> Heads:
    """Conditional Wasserstein gradient of the continuous model at depths l / `layers`, which divides the grid.

    Raises ValueError if the grid of `solved` has no point there.
    """
    if solved.steps % layers:
        raise ValueError(f"{layers} layers do not divide the grid of {solved.steps} intervals")
    parts = []
    for index in range(layers):
        place = index * (solved.steps // layers)
        layer = heads.at(index / layers)
        here = measures.at(solved.points[place])
        p = solved.adjoint[place][:, None]
        attention = attend(here, layer.bilinear[0], here.points)
        turned = pull_back(here, attention, (layer.bilinear[0], layer.value[0]), p).turned
        parts.append(by_parameters(here, attention, layer, p, turned))
    return Heads(
        np.stack([part.query[:, 0].mean(axis=0) for part in parts]),
        np.stack([part.key[:, 0].mean(axis=0) for part in parts]),
        np.stack([part.value[:, 0].mean(axis=0) for part in parts]),
    )


@dataclass(frozen=True, slots=True)
class Kernel:
    """Tangent kernels of the tokens' outputs, scaled so that d_t r = -K r for R = |r|^2 / 2: (N n d, N n d) each."""

    full: Array
    v_part: Array

    @property
    def smallest(self) -> tuple[float, float]:
        """Smallest eigenvalues of the full kernel and of the V-part; dR/dt <= -2 smallest R under gradient flow."""
        return float(np.linalg.eigvalsh(self.full)[0]), float(np.linalg.eigvalsh(self.v_part)[0])


def residual_scale(measures: TokenMeasures) -> Array:
    """(N, n, 1): root of each token's weight in R; residual times scale has half its squared norm equal to R."""
    return np.asarray(np.sqrt(measures.weights / len(measures.weights))[..., None])


def tangent_kernel(measures: TokenMeasures, heads: Heads, path: Array) -> Kernel:
    """Full kernel and V-part of the whole discrete model along `path` = flow(measures, heads).

    One backward sweep with n d functionals a sequence: the scaled outputs themselves, so that risk and kernel agree.
    """
    sequences, tokens, dim = measures.points.shape
    bilinear = heads.bilinear
    unit = np.broadcast_to(np.eye(tokens * dim).reshape(1, -1, tokens, dim), (sequences, tokens * dim, tokens, dim))
    p = unit / residual_scale(measures)[:, None]
    size = sequences * tokens * dim
    full, v_part = np.zeros((size, size)), np.zeros((size, size))
    for index in reversed(range(heads.layers)):
        here = measures.at(path[index])
        attention = attend(here, bilinear[index], here.points)
        pulled = pull_back(here, attention, (bilinear[index], heads.value[index]), p)
        found = by_parameters(here, attention, _layer(heads, index), p, pulled.turned)
        flat = [part.reshape(size, -1) for part in (found.query, found.key, found.value)]
        query, key, value = (part @ part.T for part in flat)
        v_part += value
        full += query + key + value
        p = p + pulled.drift / heads.layers
    # Each functional sees one sequence of N, and the metric weighs each particle by 1 / (L M).
    factor = 1 / (sequences**2 * heads.layers * heads.heads)
    return Kernel(factor * full, factor * v_part)


def relative_error(found: Heads, reference: Heads) -> float:
    """Distance of two gradients over the size of the second, in the metric's norm."""
    away = found.moved(reference, -1.0)
    return math.sqrt(away.product(away) / reference.product(reference))
