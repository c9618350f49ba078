"""What metrics of mean-field flows are made of: the trained net, the problem it was to solve, and where it started."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from repro.theory.adjoint import discrete_gradient, tangent_kernel
from repro.theory.gradient_flow import Problem
from repro.theory.mean_field import Heads, flow
from repro.theory.mean_field_model import MeanFieldTransformer


@dataclass(frozen=True, slots=True)
class FlowEvidence:
    """A trained net with its problem; all numbers in float64."""

    net: MeanFieldTransformer
    problem: Problem
    start: Heads

    def at(self, heads: Heads) -> tuple[float, float, float]:
        """(risk, squared norm of the gradient in the flow's metric, smallest kernel eigenvalue) at some heads."""
        measures = self.problem.measures
        risk, gradient = discrete_gradient(measures, heads, self.problem.targets)
        kernel = tangent_kernel(measures, heads, flow(measures, heads))
        return float(risk), float(gradient.product(gradient)), float(np.linalg.eigvalsh(kernel.full)[0])
