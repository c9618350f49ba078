"""The single layer's neural tangent kernel J J^T, the step that follows from it, and singular values of its Z.

J holds the derivatives of all output numbers (sequences x tokens x d) with respect to all weights. Full-batch
descent on 1/2 ||F - Y||^2 with a step below 2 / (largest eigenvalue) is stable as long as J hardly moves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from repro.nn.single_layer import Form, Weights, forward_pass, pull_back, push_forward

DENSE = 32  # output numbers up to which the kernel is written out rather than iterated
SHARE = 0.5  # of 1 / (largest eigenvalue): papers.md 5.4


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Smallest and largest of the min(rows, columns) singular values of a matrix, and its numerical rank."""

    smallest: float
    largest: float
    second: float
    rank: int

    @property
    def ratio(self) -> float:
        """Smallest over largest; 0 for the zero matrix."""
        return self.smallest / self.largest if self.largest else 0.0


def spectra(matrices: Tensor) -> list[Spectrum]:
    """One `Spectrum` for each matrix of [..., rows, columns], in order.

    Rank = number of singular values above max(rows, columns) x machine epsilon x largest, numpy's rule.
    """
    values = torch.linalg.svdvals(matrices.double()).reshape(-1, min(matrices.shape[-2:])).numpy()
    least = max(matrices.shape[-2:]) * np.finfo(np.float64).eps
    return [
        Spectrum(float(row[-1]), float(row[0]), float(row[min(1, len(row) - 1)]), int((row > least * row[0]).sum()))
        for row in values
    ]


def jacobian(weights: Weights, x: Tensor, form: Form) -> Tensor:
    """J [output numbers, weights] of one problem (no leading axes), written out: for small problems only."""
    passed = forward_pass(weights, x, form)
    size = passed.output.numel()
    directions = torch.eye(size, dtype=x.dtype).view(size, *passed.output.shape)
    return torch.cat([part.flatten(1) for part in pull_back(weights, x, form, passed, directions)], 1)


def kernel_eigenvalues(weights: Weights, x: Tensor, form: Form) -> NDArray[np.float64]:
    """All eigenvalues of J J^T of one small problem, ascending; round-off may leave the least slightly below 0."""
    rows = jacobian(weights, x, form)
    found: NDArray[np.float64] = torch.linalg.eigvalsh(rows @ rows.T).numpy()
    return found


def largest_eigenvalue(weights: Weights, x: Tensor, form: Form, tolerance: float = 1e-8) -> float:
    """Largest eigenvalue of J J^T of one problem by Lanczos iteration; J itself is never formed.

    `tolerance` is relative. The start vector is fixed, so that the same problem gives the same number. Raises
    ArithmeticError where the iteration finds none, as with weights that are not finite.
    """
    passed = forward_pass(weights, x, form)
    if not bool(passed.output.isfinite().all()):
        raise ArithmeticError("the layer's output is not finite: its kernel has no eigenvalues")
    if passed.output.numel() <= DENSE:
        return float(kernel_eigenvalues(weights, x, form)[-1])

    def apply(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        cotangent = torch.from_numpy(vector).view(passed.output.shape)
        slopes = pull_back(weights, x, form, passed, cotangent)
        changed: NDArray[np.float64] = push_forward(weights, x, form, passed, slopes).flatten().numpy()
        return changed

    size = passed.output.numel()
    start = np.random.default_rng(0).standard_normal(size)
    operator = LinearOperator((size, size), matvec=apply, dtype=np.float64)
    try:
        found = eigsh(operator, k=1, which="LA", v0=start, tol=tolerance, return_eigenvectors=False)
    except ArpackNoConvergence as error:
        raise ArithmeticError(f"the largest eigenvalue was not found: {error}") from error
    return float(found[0])


def common_step(problems: Iterable[tuple[Weights, Tensor, Form]], tolerance: float = 1e-8) -> float:
    """One step size for all problems (weights, x, form): 0.5 / the largest of their kernels' eigenvalues.

    For the loss 1/2 sum ||F - Y||^2. A step found on one seed alone diverged on another (papers.md 5.4).
    """
    return SHARE / max(largest_eigenvalue(*problem, tolerance) for problem in problems)
