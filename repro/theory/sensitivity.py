"""Local sensitivity of a sub-layer, ||J - I||_2 with J = d(new stream)/d(stream) (paper A, A-T3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repro.theory.nets import Sublayer, twice_differentiable

ITERATIONS = 1000
START_SEED = 7_741_963
TOLERANCE = 1e-12  # relative change of the norm from one iteration to the next


def spectral_norm(
    f: Callable[[Tensor], Tensor], x: Tensor, *, less_identity: bool = False, iterations: int = ITERATIONS
) -> float:
    """Largest singular value of the Jacobian of `f` at `x` (of J - I), by power iteration with J v and J^T u.

    x and f(x) of any shapes, equal ones for J - I. J v is the derivative of J^T u in u, so functions with a
    backward pass of their own need no forward mode. From below, as any power iteration; 0 for J = 0.
    """
    with twice_differentiable(), torch.enable_grad():
        point = x.detach().requires_grad_()
        y = f(point)
        dual = torch.zeros_like(y, requires_grad=True)
        (pulled,) = torch.autograd.grad(y, point, dual, create_graph=True)
        # A seed that no input has: from v = x the iteration of a scale-invariant f would never leave 0.
        start = torch.Generator().manual_seed(START_SEED)
        v = torch.randn(x.shape, dtype=x.dtype, generator=start)
        norm = 0.0
        for _ in range(iterations):
            v = v / v.norm()
            (pushed,) = torch.autograd.grad(pulled, dual, v, retain_graph=True)
            u = pushed - v if less_identity else pushed
            before, norm = norm, float(u.norm())
            if norm == 0.0 or abs(norm - before) <= TOLERANCE * norm:
                break
            (back,) = torch.autograd.grad(y, point, u, retain_graph=True)
            v = back - u if less_identity else back
        return norm


def local_sensitivity(part: Sublayer, x: Tensor, carry: Any = None, *, iterations: int = ITERATIONS) -> float:
    """||J - I||_2 of one sub-layer at the stream x [batch, tokens, d], tokens coupled, the carry held fixed."""
    return spectral_norm(lambda z: part(z, carry)[0], x, less_identity=True, iterations=iterations)


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Slope of log(values) against log(sizes) by least squares; NaN where a value is not above 0."""
    if not min(values) > 0:
        return float("nan")
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
