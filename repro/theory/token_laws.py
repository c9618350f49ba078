"""The token laws of paper B's injectivity statements: four sufficient families, negative controls, an open question.

Which laws must be independent and which cannot be follows from the closed forms (papers.md 2.4 and 5.2, derived):
a translate adds an affine function; Gaussians of one covariance differ by affine functions; more than d(d+1)/2
quadratic forms are dependent; a sequence and its permutation are one measure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from repro.theory.log_sum_exp import Cube, Discrete, Gaussian, Laplace, LogSumExp, TwoGaussians

Array = NDArray[np.float64]
Role = Literal["family", "control", "open"]
RADII = (0.5, 2.0)  # of the smallest and the largest cube
SIZES = (0.6, 1.8)  # the same for separations along one direction


@dataclass(frozen=True, slots=True)
class Laws:
    """One list of measures: its name, what is expected of it, and from how many shared queries a control is singular.

    `role`: a `family` is independent, a `control` is not, and `open` is independent as a list of functions while its
    Gram is singular once there are more queries than dimensions.
    """

    name: str
    role: Role
    measures: tuple[LogSumExp, ...]
    singular_from: int = 1


def covariance(rng: np.random.Generator, dim: int) -> Array:
    """(dim, dim): a Wishart matrix of mean 1.1 I, kept away from singular."""
    root = rng.standard_normal((dim, dim))
    return np.asarray(root @ root.T / dim + 0.1 * np.eye(dim))


def sequences(rng: np.random.Generator, count: int, tokens: int, dim: int) -> tuple[Discrete, ...]:
    """`count` sequences of `tokens` independent standard Gaussian tokens."""
    return tuple(Discrete.uniform(rng.standard_normal((tokens, dim))) for _ in range(count))


def families(rng: np.random.Generator, dim: int, count: int, tokens: int) -> list[Laws]:
    """The paper's four families; two-component Gaussians twice, since one shared direction is the hardest case."""
    ones = np.full(dim, 1 / math.sqrt(dim))
    aligned = tuple(TwoGaussians(size * ones) for size in np.linspace(*SIZES, count))
    return [
        Laws("discrete", "family", sequences(rng, count, tokens, dim)),
        Laws("cubes", "family", tuple(Cube(float(r), dim) for r in np.linspace(*RADII, count))),
        Laws("laplace", "family", tuple(Laplace(covariance(rng, dim)) for _ in range(count))),
        Laws("two_gaussians", "family", tuple(TwoGaussians(a) for a in rng.standard_normal((count, dim)))),
        Laws("two_gaussians_aligned", "family", aligned),
    ]


def controls(rng: np.random.Generator, dim: int, count: int, tokens: int) -> list[Laws]:
    """Lists that no choice of heads can tell apart."""
    first, *others = sequences(rng, count - 1, tokens, dim)
    moved = Discrete.uniform(first.points + rng.standard_normal(dim))
    shuffled = Discrete.uniform(first.points[rng.permutation(tokens)])
    shared = covariance(rng, dim)
    many = range(dim * (dim + 1) // 2 + 1)
    return [
        Laws("translate", "control", (first, *others, moved), singular_from=2),
        Laws("duplicate", "control", (first, *others, shuffled)),
        Laws(
            "one_covariance",
            "control",
            tuple(Gaussian(m, shared) for m in rng.standard_normal((count, dim))),
            singular_from=2,
        ),
        Laws("many_gaussians", "control", tuple(Gaussian(np.zeros(dim), covariance(rng, dim)) for _ in many)),
    ]


def single_gaussians(rng: np.random.Generator, dim: int, count: int) -> list[Laws]:
    """Centred Gaussians with independent covariances, or no list where `count` of them are dependent already."""
    if count > dim * (dim + 1) // 2:
        return []
    return [Laws("gaussians", "open", tuple(Gaussian(np.zeros(dim), covariance(rng, dim)) for _ in range(count)))]


def all_laws(rng: np.random.Generator, dim: int, count: int, tokens: int) -> list[Laws]:
    """Families, controls and the open question for `count` measures in `dim` dimensions (count >= 2)."""
    return [
        *families(rng, dim, count, tokens),
        *controls(rng, dim, count, tokens),
        *single_gaussians(rng, dim, count),
    ]


def query_tokens(rng: np.random.Generator, dim: int, count: int) -> Array:
    """(count, dim): query tokens of length sqrt(dim) in general position.

    The first `dim` are a random orthonormal frame, so that no Gram is small only because two queries nearly agree; the
    next is the frame's diagonal, those after it are random.
    """
    frame, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
    diagonal = frame.sum(axis=0, keepdims=True)
    more = rng.standard_normal((max(count - dim - 1, 0), dim))
    found = np.concatenate([frame, diagonal, more])[:count]
    return np.asarray(math.sqrt(dim) * found / np.linalg.norm(found, axis=1, keepdims=True))
