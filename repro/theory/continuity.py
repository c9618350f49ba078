"""Weak form of the continuity equation along depth, and what moving mass must keep (paper B, seed 002).

d_s mu + div(mu Phi[mu]) = 0 means, for smooth f, d/ds int f dmu(s) = int <grad f, Phi[mu(s)]> dmu(s), tested here
integrated over depth: between the ends, and against test functions of depth that vanish at both ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import simpson

from repro.theory.mean_field import ByDepth, Heads, TokenMeasures, attend, flow, flow_map, velocity

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Waves:
    """Bounded smooth test functions f_k(x) = cos(<frequency_k, x> + phase_k), with `frequency` (F, d), `phase` (F,)."""

    frequency: Array
    phase: Array

    @classmethod
    def random(cls, rng: np.random.Generator, count: int, dim: int) -> Waves:
        """Gaussian frequencies of unit size, phases anywhere."""
        return cls(rng.standard_normal((count, dim)), rng.uniform(0, 2 * math.pi, size=count))

    def values(self, x: Array) -> Array:
        """(..., F): f_k at x (..., d)."""
        return np.asarray(np.cos(x @ self.frequency.T + self.phase))

    def along(self, x: Array, direction: Array) -> Array:
        """(..., F): <grad f_k(x), direction>."""
        return np.asarray(-np.sin(x @ self.frequency.T + self.phase) * (direction @ self.frequency.T))


@dataclass(frozen=True, slots=True)
class WeakForm:
    """Both sides of the equation at K depths: `content` int f dmu and `flux` int <grad f, Phi> dmu (K, N, F)."""

    content: Array
    flux: Array

    @property
    def scale(self) -> float:
        """Size of what flows: the root mean square of the flux."""
        return math.sqrt(float((self.flux**2).mean()))

    def between_ends(self) -> float:
        """Largest |content(1) - content(0) - int flux ds| over sequences and test functions, relative to the flux."""
        depths = np.linspace(0, 1, len(self.flux))
        gap = self.content[-1] - self.content[0] - simpson(self.flux, x=depths, axis=0)
        return float(np.abs(gap).max()) / self.scale

    def inside(self) -> float:
        """The same for int (psi' content + psi flux) ds, with psi = sin^2(pi s), which vanishes at both ends."""
        depths = np.linspace(0, 1, len(self.flux))[:, None, None]
        psi, slope = np.sin(math.pi * depths) ** 2, math.pi * np.sin(2 * math.pi * depths)
        gap = simpson(slope * self.content + psi * self.flux, x=depths[:, 0, 0], axis=0)
        return float(np.abs(gap).max()) / self.scale

    def by_layers(self) -> float:
        """As `between_ends` with each layer's flux held over its step, which is what the discrete model does."""
        gap = self.content[-1] - self.content[0] - self.flux[:-1].mean(axis=0)
        return float(np.abs(gap).max()) / self.scale


def weak_form(measures: TokenMeasures, heads: ByDepth, path: Array, waves: Waves) -> WeakForm:
    """Contents and fluxes along `path` (K, N, n, d), the tokens at K evenly spaced depths from 0 to 1."""
    content, flux = [], []
    for place, points in enumerate(path):
        here = measures.at(points)
        speed = velocity(here, heads.at(place / (len(path) - 1)), points)
        content.append(here.integral(waves.values(points)))
        flux.append(here.integral(waves.along(points, speed)))
    return WeakForm(np.stack(content), np.stack(flux))


def mass_error(measures: TokenMeasures, heads: Heads, rng: np.random.Generator) -> float:
    """What the discrete flow loses of the laws' mass: the largest of two gaps.

    The masses at the end against one; and the tokens' paths against those of the same laws written otherwise, each
    token as two of unequal mass in random order: a flow of measures cannot see which of them it is given.
    """
    sequences, tokens, _ = measures.points.shape
    cut = rng.uniform(0.2, 0.8, size=(sequences, tokens))
    order = rng.permutation(2 * tokens)
    twice = TokenMeasures(
        np.concatenate([measures.points] * 2, axis=1)[:, order],
        np.concatenate([cut * measures.weights, (1 - cut) * measures.weights], axis=1)[:, order],
    )
    single, double = flow(measures, heads)[-1], flow(twice, heads)[-1]
    paths = float(np.abs(double - np.concatenate([single] * 2, axis=1)[:, order]).max())
    return max(paths, float(np.abs(twice.at(double).integral(np.ones_like(twice.weights)) - 1).max()))


def volume_error(measures: TokenMeasures, heads: Heads, x: Array, difference: float = 1e-5) -> float:
    """Relative gap of two volumes of the image of small cells at `x` (N, q, d), which mass conservation rests on.

    One is the determinant of the flow map's central differences, the other the product over layers of
    det(I + D_x Phi / L), Liouville's formula for L steps. A map that folds has a negative determinant: infinite.
    """
    dim = x.shape[-1]
    sides = [
        (flow_map(measures, heads, x + difference * e)[-1] - flow_map(measures, heads, x - difference * e)[-1])
        / (2 * difference)
        for e in np.eye(dim)
    ]
    seen = np.linalg.det(np.stack(sides, axis=-1))
    tokens, places = flow(measures, heads), flow_map(measures, heads, x)
    expected = np.ones(x.shape[:-1])
    for layer in range(heads.layers):
        change = spatial_derivative(measures.at(tokens[layer]), heads, layer, places[layer])
        expected *= np.linalg.det(np.eye(dim) + change / heads.layers)
    if not ((seen > 0).all() and (expected > 0).all()):
        return math.inf
    return float(np.abs(seen / expected - 1).max())


def spatial_derivative(measures: TokenMeasures, heads: Heads, layer: int, x: Array) -> Array:
    """(N, q, d, d): D_x Phi = mean over heads of V C K^T Q, C the covariance of the softmax shares at x (N, q, d)."""
    attention = attend(measures, heads.bilinear[layer], x)
    second = np.einsum("iqmn,ina,inb->iqmab", attention.shares, measures.points, measures.points, optimize=True)
    spread = second - attention.means[..., :, None] * attention.means[..., None, :]
    return np.asarray((heads.value[layer] @ spread @ heads.bilinear[layer]).mean(axis=2))
