"""Finite counterpart of paper B's neural PDE: encoder attention acting on discrete token measures (seed 002).

Token laws mu_i move by d_s mu + div(mu Phi_rho(.|s)[mu]) = 0 over depth s in [0, 1], with the velocity
Phi[mu](x) = mean over heads of V grad L_mu(K^T Q x). Here mu_i is a weighted sum of points, rho(.|s) a mean over M
heads, and depth has L explicit steps of 1/L: x <- x + (1/(L M)) sum_m V_m grad L_mu(K_m^T Q_m x). Our reading
(papers.md 2.2): residual attention without temperature, causal mask, positions or feed-forward part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TokenMeasures:
    """N discrete laws of n tokens: `points` (N, n, d), and positive `weights` (N, n) whose rows sum to one."""

    points: Array
    weights: Array

    @classmethod
    def uniform(cls, points: Array) -> TokenMeasures:
        """Every token of a sequence with the same weight."""
        return cls(points, np.full(points.shape[:2], 1 / points.shape[1]))

    def at(self, points: Array) -> TokenMeasures:
        """The same masses at other places: the push-forward by a map that sends token j to points[:, j]."""
        return TokenMeasures(points, self.weights)

    def integral(self, values: Array) -> Array:
        """(N, ...): integrals of a function given by its `values` (N, n, ...) on the tokens."""
        return np.asarray(np.einsum("in,in...->i...", self.weights, values))


@dataclass(frozen=True, slots=True)
class Heads:
    """Parameters theta = (Q, K, V): `query`, `key` (L, M, k, d) and `value` (L, M, d, d); also gradients by them."""

    query: Array
    key: Array
    value: Array

    @property
    def layers(self) -> int:
        """Number of layers L."""
        return len(self.value)

    @property
    def heads(self) -> int:
        """Number of heads M of a layer."""
        return int(self.value.shape[1])

    @property
    def bilinear(self) -> Array:
        """(L, M, d, d): K^T Q, all of Q and K that the model sees."""
        return np.asarray(np.swapaxes(self.key, -1, -2) @ self.query)

    def moved(self, along: Heads, by: float) -> Heads:
        """theta + by * along: transport of every particle in theta, none in depth."""
        return Heads(self.query + by * along.query, self.key + by * along.key, self.value + by * along.value)

    def product(self, other: Heads) -> float:
        """(1/L) sum_l (1/M) sum_m <theta, theta'>: the inner product of the conditional-transport metric."""
        pairs = ((self.query, other.query), (self.key, other.key), (self.value, other.value))
        return sum(float(np.vdot(a, b)) for a, b in pairs) / (self.layers * self.heads)


class ByDepth(Protocol):
    """Heads as a function of depth, for the continuous model."""

    def at(self, depth: float) -> Heads:
        """The heads of one layer (L = 1) at `depth` in [0, 1]."""


@dataclass(frozen=True, slots=True)
class SmoothHeads:
    """theta_m(s) = cos(pi s / 2) start_m + sin(pi s / 2) end_m: smooth, and of one spread about its centre at all s."""

    start: Heads
    end: Heads

    def at(self, depth: float) -> Heads:
        """The heads at `depth`."""
        c, s = math.cos(math.pi * depth / 2), math.sin(math.pi * depth / 2)
        return Heads(
            c * self.start.query + s * self.end.query,
            c * self.start.key + s * self.end.key,
            c * self.start.value + s * self.end.value,
        )

    def layers(self, count: int) -> Heads:
        """The discrete model's heads: `count` layers, read at depths l / count."""
        slices = [self.at(layer / count) for layer in range(count)]
        return Heads(
            np.concatenate([part.query for part in slices]),
            np.concatenate([part.key for part in slices]),
            np.concatenate([part.value for part in slices]),
        )


@dataclass(frozen=True, slots=True)
class Sizes:
    """Shape and size of random heads; K^T Q x has about `attention` times, V x about `value` times the size of x."""

    dim: int
    head_dim: int
    attention: float = 1.0
    value: float = 1.0


def gaussian_heads(rng: np.random.Generator, layers: int, heads: int, sizes: Sizes) -> Heads:
    """Independent Gaussian heads for every layer."""
    size = math.sqrt(sizes.attention / math.sqrt(sizes.head_dim * sizes.dim))
    query, key = size * rng.standard_normal((2, layers, heads, sizes.head_dim, sizes.dim))
    value = sizes.value / math.sqrt(sizes.dim) * rng.standard_normal((layers, heads, sizes.dim, sizes.dim))
    return Heads(query, key, value)


def smooth_heads(rng: np.random.Generator, heads: int, sizes: Sizes, around: SmoothHeads | None = None) -> SmoothHeads:
    """Independent Gaussian heads, each a smooth function of depth, centred at the one head `around` if it is given.

    Without a centre the law is symmetric in V, and the velocity vanishes as M grows.
    """
    start, end = gaussian_heads(rng, 1, heads, sizes), gaussian_heads(rng, 1, heads, sizes)
    if around is not None:
        start, end = start.moved(around.start, 1.0), end.moved(around.end, 1.0)
    return SmoothHeads(start, end)


@dataclass(frozen=True, slots=True)
class Attention:
    """All heads of a layer at query points x (N, q, d): arguments, softmax shares and means.

    `xi` (N, q, M, d) is K^T Q x, `shares` (N, q, M, n) the softmax over the tokens, `means` (N, q, M, d) = grad L(xi).
    """

    xi: Array
    shares: Array
    means: Array


def attend(measures: TokenMeasures, bilinear: Array, x: Array) -> Attention:
    """Attention of `x` (N, q, d) over the measures' tokens with one layer's K^T Q (M, d, d)."""
    sequences, queries, dim = x.shape
    heads = len(bilinear)
    xi = x.reshape(-1, dim) @ bilinear.transpose(2, 0, 1).reshape(dim, -1)
    flat = xi.reshape(sequences, queries * heads, dim)
    logits = flat @ measures.points.swapaxes(1, 2) + np.log(measures.weights)[:, None]
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    shape = (sequences, queries, heads, -1)
    return Attention(flat.reshape(shape), shares.reshape(shape), (shares @ measures.points).reshape(shape))


def average(attention: Attention, value: Array) -> Array:
    """(N, q, d): the velocity Phi, the mean over heads of V grad L, for one layer's `value` (M, d, d)."""
    sequences, queries, heads, dim = attention.means.shape
    stacked = value.transpose(0, 2, 1).reshape(heads * dim, dim)
    return np.asarray((attention.means.reshape(-1, heads * dim) @ stacked / heads).reshape(sequences, queries, dim))


def velocity(measures: TokenMeasures, layer: Heads, x: Array) -> Array:
    """(N, q, d): Phi[mu_i](x) of a single layer of heads (L = 1) at points x (N, q, d), on the support or off it."""
    return average(attend(measures, layer.bilinear[0], x), layer.value[0])


def flow(measures: TokenMeasures, heads: Heads) -> Array:
    """(L + 1, N, n, d): the tokens before the first layer and after each one, in the discrete model."""
    bilinear = heads.bilinear
    path = [measures.points]
    for layer in range(heads.layers):
        here = measures.at(path[-1])
        step = average(attend(here, bilinear[layer], here.points), heads.value[layer]) / heads.layers
        path.append(here.points + step)
    return np.stack(path)


def flow_map(measures: TokenMeasures, heads: Heads, x: Array) -> Array:
    """(L + 1, N, q, d): flow maps Lambda_i(s, x) at depths l / L for any points `x` (N, q, d), which carry no mass."""
    tokens = flow(measures, heads)
    bilinear = heads.bilinear
    path = [x]
    for layer in range(heads.layers):
        attention = attend(measures.at(tokens[layer]), bilinear[layer], path[-1])
        path.append(path[-1] + average(attention, heads.value[layer]) / heads.layers)
    return np.stack(path)


def continuous_flow(measures: TokenMeasures, heads: ByDepth, steps: int) -> Array:
    """(steps + 1, N, n, d): tokens of the continuous model at depths k / steps, by Runge-Kutta of fourth order."""

    def rate(depth: float, points: Array) -> Array:
        return velocity(measures.at(points), heads.at(depth), points)

    h = 1 / steps
    path = [measures.points]
    for step in range(steps):
        x, s = path[-1], step * h
        first = rate(s, x)
        second = rate(s + h / 2, x + h / 2 * first)
        third = rate(s + h / 2, x + h / 2 * second)
        fourth = rate(s + h, x + h * third)
        path.append(x + h / 6 * (first + 2 * second + 2 * third + fourth))
    return np.stack(path)


def distance(measures: TokenMeasures, first: Array, second: Array) -> float:
    """Root of the mean squared distance of matched tokens, over sequences: an upper bound of Wasserstein-2."""
    return math.sqrt(float(measures.integral(((first - second) ** 2).sum(axis=-1)).mean()))
