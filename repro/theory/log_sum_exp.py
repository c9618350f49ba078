"""Log-sum-exp functions L_mu(xi) = log E exp<xi, Y>, Y ~ mu, of the measures that paper B names.

They are the cumulant generating functions of token laws: one attention head with matrices (Q, K, V) moves a query x by
V grad L_mu(K^T Q x) (paper B, seed 002; closed forms derived under our reading, papers.md 2.4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SERIES_BELOW = (
    0.05  # where the closed forms of the cube lose digits by cancellation and a series of four terms is exact
)


class LogSumExp(Protocol):
    """A measure on R^d through its function L. Arguments `xi` have the shape (..., d)."""

    @property
    def dim(self) -> int:
        """Dimension d of the tokens."""

    def inside(self, xi: Array) -> NDArray[np.bool_]:
        """(...): whether L is finite there."""

    def value(self, xi: Array) -> Array:
        """(...): L(xi)."""

    def gradient(self, xi: Array) -> Array:
        """(..., d): grad L, the mean of the law tilted by exp<xi, y>."""

    def hessian(self, xi: Array) -> Array:
        """(..., d, d): second derivative of L, the covariance of the tilted law."""

    def sample(self, rng: np.random.Generator, count: int) -> Array:
        """(count, d): independent draws of the measure."""


def _everywhere(xi: Array) -> NDArray[np.bool_]:
    return np.ones(xi.shape[:-1], dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Discrete:
    """A sequence of n tokens: `points` (n, d) with `weights` (n,) that sum to one."""

    points: Array
    weights: Array

    @classmethod
    def uniform(cls, points: Array) -> Discrete:
        """Every token with the same weight."""
        return cls(points, np.full(len(points), 1 / len(points)))

    @property
    def dim(self) -> int:
        """Dimension d of the tokens."""
        return int(self.points.shape[1])

    def inside(self, xi: Array) -> NDArray[np.bool_]:
        """L is finite everywhere."""
        return _everywhere(xi)

    def _shares(self, xi: Array) -> tuple[Array, Array]:
        logits = xi @ self.points.T + np.log(self.weights)
        top = logits.max(axis=-1, keepdims=True)
        raised = np.exp(logits - top)
        total = raised.sum(axis=-1, keepdims=True)
        return raised / total, (top + np.log(total))[..., 0]

    def value(self, xi: Array) -> Array:
        """log sum_j w_j exp<xi, y_j>."""
        return self._shares(xi)[1]

    def gradient(self, xi: Array) -> Array:
        """Softmax-weighted mean of the tokens."""
        return self._shares(xi)[0] @ self.points

    def hessian(self, xi: Array) -> Array:
        """Softmax-weighted covariance of the tokens."""
        shares = self._shares(xi)[0]
        away = self.points - (shares @ self.points)[..., None, :]
        moved: Array = np.swapaxes(shares[..., None] * away, -1, -2) @ away
        return moved

    def sample(self, rng: np.random.Generator, count: int) -> Array:
        """Tokens drawn with their weights."""
        return self.points[rng.choice(len(self.points), size=count, p=self.weights)]


@dataclass(frozen=True, slots=True)
class Cube:
    """Uniform on [-radius, radius]^dim: L = sum_k log(sinh z_k / z_k), z = radius xi."""

    radius: float
    dim: int

    def inside(self, xi: Array) -> NDArray[np.bool_]:
        """L is finite everywhere."""
        return _everywhere(xi)

    def value(self, xi: Array) -> Array:
        """Sum over coordinates, with a series near zero and no overflow far away."""
        z = np.abs(self.radius * xi)
        far = np.maximum(z, SERIES_BELOW)
        closed = far + np.log1p(-np.exp(-2 * far)) - np.log(2 * far)
        series = z**2 / 6 - z**4 / 180 + z**6 / 2835 - z**8 / 37800
        total: Array = np.where(z < SERIES_BELOW, series, closed).sum(axis=-1)
        return total

    def gradient(self, xi: Array) -> Array:
        """Langevin's function coth z - 1/z, times the radius."""
        z = self.radius * xi
        far = np.where(np.abs(z) < SERIES_BELOW, SERIES_BELOW, z)
        series = z / 3 - z**3 / 45 + 2 * z**5 / 945 - z**7 / 4725
        return self.radius * np.where(np.abs(z) < SERIES_BELOW, series, 1 / np.tanh(far) - 1 / far)

    def hessian(self, xi: Array) -> Array:
        """Diagonal: 1/z^2 - 1/sinh^2 z, times the squared radius."""
        z = np.abs(self.radius * xi)
        far = np.maximum(z, SERIES_BELOW)
        decay = np.exp(-2 * far)
        closed = 1 / far**2 - 4 * decay / (1 - decay) ** 2
        series = 1 / 3 - z**2 / 15 + 2 * z**4 / 189 - z**6 / 675
        diagonal = self.radius**2 * np.where(z < SERIES_BELOW, series, closed)
        return np.asarray(diagonal[..., None] * np.eye(self.dim))

    def sample(self, rng: np.random.Generator, count: int) -> Array:
        """Independent uniform coordinates."""
        return rng.uniform(-self.radius, self.radius, size=(count, self.dim))


@dataclass(frozen=True, slots=True)
class Laplace:
    """Symmetric multivariate Laplace with `covariance` (d, d): L = -log(1 - xi^T covariance xi / 2) where positive."""

    covariance: Array

    @property
    def dim(self) -> int:
        """Dimension d of the tokens."""
        return len(self.covariance)

    def _room(self, xi: Array) -> Array:
        room: Array = 1 - ((xi @ self.covariance) * xi).sum(axis=-1) / 2
        return room

    def inside(self, xi: Array) -> NDArray[np.bool_]:
        """L is finite in an ellipsoid only."""
        return self._room(xi) > 0

    def value(self, xi: Array) -> Array:
        """-log(1 - xi^T C xi / 2)."""
        return -np.log(self._room(xi))

    def gradient(self, xi: Array) -> Array:
        """C xi / (1 - xi^T C xi / 2)."""
        return np.asarray(xi @ self.covariance / self._room(xi)[..., None])

    def hessian(self, xi: Array) -> Array:
        """C / room + grad grad^T."""
        slope = self.gradient(xi)
        return np.asarray(self.covariance / self._room(xi)[..., None, None] + slope[..., :, None] * slope[..., None, :])

    def sample(self, rng: np.random.Generator, count: int) -> Array:
        """A Gaussian vector times the root of an independent unit exponential variable."""
        normal = rng.standard_normal((count, self.dim)) @ np.linalg.cholesky(self.covariance).T
        return np.asarray(np.sqrt(rng.exponential(size=(count, 1))) * normal)


@dataclass(frozen=True, slots=True)
class TwoGaussians:
    """Half N(a, I) and half N(-a, I), `separation` a of shape (d,): L = |xi|^2 / 2 + log cosh<a, xi>."""

    separation: Array

    @property
    def dim(self) -> int:
        """Dimension d of the tokens."""
        return len(self.separation)

    def inside(self, xi: Array) -> NDArray[np.bool_]:
        """L is finite everywhere."""
        return _everywhere(xi)

    def value(self, xi: Array) -> Array:
        """The quadratic part of one component and log cosh without overflow."""
        along = np.abs(xi @ self.separation)
        return np.asarray((xi**2).sum(axis=-1) / 2 + along + np.log1p(np.exp(-2 * along)) - math.log(2))

    def gradient(self, xi: Array) -> Array:
        """xi + a tanh<a, xi>."""
        return np.asarray(xi + np.tanh(xi @ self.separation)[..., None] * self.separation)

    def hessian(self, xi: Array) -> Array:
        """I + a a^T / cosh^2<a, xi>."""
        squared = np.outer(self.separation, self.separation)
        return np.asarray(np.eye(self.dim) + (1 - np.tanh(xi @ self.separation) ** 2)[..., None, None] * squared)

    def sample(self, rng: np.random.Generator, count: int) -> Array:
        """A fair sign times a, plus standard Gaussian noise."""
        signs = rng.choice((-1.0, 1.0), size=(count, 1))
        return np.asarray(signs * self.separation + rng.standard_normal((count, self.dim)))


@dataclass(frozen=True, slots=True)
class Gaussian:
    """N(mean, covariance): L = <mean, xi> + xi^T covariance xi / 2, whose gradient is affine in xi."""

    mean: Array
    covariance: Array

    @property
    def dim(self) -> int:
        """Dimension d of the tokens."""
        return len(self.mean)

    def inside(self, xi: Array) -> NDArray[np.bool_]:
        """L is finite everywhere."""
        return _everywhere(xi)

    def value(self, xi: Array) -> Array:
        """<m, xi> + xi^T C xi / 2."""
        return np.asarray(xi @ self.mean + ((xi @ self.covariance) * xi).sum(axis=-1) / 2)

    def gradient(self, xi: Array) -> Array:
        """m + C xi."""
        return np.asarray(self.mean + xi @ self.covariance)

    def hessian(self, xi: Array) -> Array:
        """C, wherever xi is."""
        return np.broadcast_to(self.covariance, (*xi.shape, self.dim)).copy()

    def sample(self, rng: np.random.Generator, count: int) -> Array:
        """Gaussian vectors."""
        return np.asarray(self.mean + rng.standard_normal((count, self.dim)) @ np.linalg.cholesky(self.covariance).T)


@dataclass(frozen=True, slots=True)
class MonteCarlo:
    """L by sampling at each row of xi: `value`, its standard error, and how many errors away the closed form lies."""

    value: Array
    error: Array
    z: Array


def monte_carlo(measure: LogSumExp, xi: Array, rng: np.random.Generator, count: int) -> MonteCarlo:
    """L of `measure` at `xi` (points, d) from `count` draws; the error by the delta method.

    The variance is finite only where L(2 xi) is; the caller keeps a Laplace law's arguments within half its ellipsoid.
    """
    logits = measure.sample(rng, count) @ xi.T
    top = logits.max(axis=0)
    raised = np.exp(logits - top)
    mean = raised.mean(axis=0)
    error = raised.std(axis=0, ddof=1) / (mean * math.sqrt(count))
    value = np.asarray(top + np.log(mean))
    return MonteCarlo(value, np.asarray(error), np.asarray((value - measure.value(xi)) / error))
