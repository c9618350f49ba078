"""The Hamiltonian of paper A, sup over what a sub-layer can add of <p, f>: closed forms, and maxima found by search.

Lemma 1 (eps = 0): every LN output z lies on the ellipsoid E = {z : sum(((z - beta) / gamma)^2) = d}. The closed
forms follow from it by Cauchy-Schwarz; they are not read from the paper (papers.md, 1.2).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize
from torch import Tensor, nn

from repro.nn.stack import Block
from repro.theory.nets import Sublayer, ascend, block_sublayers, scale_linear, step_size

Vector = NDArray[np.float64]
ITERATIONS = 500


def ellipsoid_error(z: Tensor, gain: Tensor, shift: Tensor) -> float:
    """Largest |sum(((z - beta) / gamma)^2) / d - 1| over the rows of z [.., d]; 0 on the ellipsoid."""
    unit = (z.detach() - shift) / gain
    return float((unit.square().mean(-1) - 1).abs().max())


def supremum(p: Tensor, gain: Tensor, shift: Tensor, *, centred: bool = False) -> float:
    """sup over E of <p, z> = <p, beta> + sqrt(d) ||Gamma p||; `centred` for outputs of LayerNorm.

    Those also have sum((z - beta) / gamma) = 0, which leaves of Gamma p only its part of mean zero.
    """
    pulled = gain * p
    if centred:
        pulled = pulled - pulled.mean()
    return float(p @ shift + len(p) ** 0.5 * pulled.norm())


def highest(f: Callable[[Tensor], Tensor], start: Tensor) -> float:
    """Largest value of a smooth f that L-BFGS finds from `start`."""

    def falling(values: Vector) -> tuple[float, Vector]:
        x = torch.tensor(values, requires_grad=True)
        y = f(x)
        (gradient,) = torch.autograd.grad(y, x)
        return -float(y.detach()), -gradient.numpy()

    options = {"maxiter": ITERATIONS, "ftol": 1e-15, "gtol": 1e-12}
    return -float(optimize.minimize(falling, start.numpy(), jac=True, method="L-BFGS-B", options=options).fun)


def highest_on_ellipsoid(p: Tensor, gain: Tensor, shift: Tensor, start: Tensor) -> float:
    """sup of <p, z> over E, found by search over z = beta + sqrt(d) Gamma u / ||u||."""
    d = len(p)
    return highest(lambda u: p @ (shift + d**0.5 * gain * u / u.norm()), start)


def highest_of_norm(p: Tensor, norm: nn.Module, start: Tensor) -> float:
    """sup over x of <p, norm(x)>, found by search through the real layer."""
    return highest(lambda x: p @ norm(x), start)


def velocity(part: Sublayer, x: Tensor) -> Tensor:
    """f(x) = (new stream - stream) / dt."""
    added: Tensor = (part(x)[0] - x) / step_size(part.method)
    return added


def highest_over_weights(block: Block, p: Tensor, x: Tensor, steps: int) -> float:
    """Largest <p, f(x)> that ascent over the weights of the MLP branch meets; its norms stay as they are."""
    part = block_sublayers(block)[1]
    weights = [value for value in part.branch.parameters() if value.ndim > 1]

    def gained() -> Tensor:
        return (velocity(part, x) @ p).sum()

    return max(ascend(gained, weights, steps, rate=0.1))


@torch.no_grad()
def along_ray(block: Block, p: Tensor, x: Tensor, sizes: list[float]) -> list[float]:
    """|<p, f(x)>| with the last linear map of the MLP branch times each of `sizes`; the block is left unscaled."""
    part = block_sublayers(block)[1]
    last, found = part.last_linear(), []
    for size in sizes:
        scale_linear(last, size)
        found.append(float((velocity(part, x) @ p).abs().sum()))
        scale_linear(last, 1 / size)
    return found
