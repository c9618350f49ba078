"""The law of parameters over depth, rho(ds, dtheta), and its transport conditional on depth (paper B, seed 002)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import wasserstein_distance

from repro.theory.mean_field import Heads

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ParameterLaw:
    """L M particles (s, theta): `depths` and masses `weights` (L, M) beside the `heads` of every particle."""

    depths: Array
    weights: Array
    heads: Heads

    @classmethod
    def of(cls, heads: Heads) -> ParameterLaw:
        """The law of a discrete model: layer l sits in the middle of its interval of depth, all particles alike."""
        shape = (heads.layers, heads.heads)
        middle = (np.arange(heads.layers) + 0.5) / heads.layers
        return cls(np.broadcast_to(middle[:, None], shape).copy(), np.full(shape, 1 / (shape[0] * shape[1])), heads)

    def transported(self, gradient: Heads, time: float) -> ParameterLaw:
        """The law after an explicit step of d_t rho = div_theta(rho grad): particles move in theta at their depth."""
        return ParameterLaw(self.depths, self.weights, self.heads.moved(gradient, -time))

    def depth_marginal_distance(self, other: ParameterLaw) -> float:
        """Wasserstein-1 distance of the two laws' depth marginals, zero for conditional transport.

        Both must also be the marginal that the metric demands, uniform over the L intervals of depth; the larger
        deviation of a layer's mass from 1/L counts too.
        """
        moved = float(
            wasserstein_distance(self.depths.ravel(), other.depths.ravel(), self.weights.ravel(), other.weights.ravel())
        )
        layers = other.heads.layers
        cells = np.clip((other.depths * layers).astype(np.int64), 0, layers - 1)
        masses = np.bincount(cells.ravel(), weights=other.weights.ravel(), minlength=layers)
        return max(moved, float(np.abs(masses - 1 / layers).max()))
