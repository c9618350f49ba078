"""Injectivity of the tangent kernel of attention against independence of log-sum-exp functions (paper B, seed 002).

Three numbers of one list of measures mu_1..mu_N, each with the size below which round-off hides it:

* independence: {L_i} modulo affine functions, as smallest over largest singular value of sampled, projected functions;
* V-part: Gram of the features (K, Q) -> grad L_i(K^T Q x) over measures i and shared query tokens x;
* full kernel: the same with the derivatives by K and Q beside the one by V.

A Gram's smallest eigenvalue is taken twice: from the matrix itself (round-off at machine epsilon) and as the squared
smallest singular value of its features (round-off at epsilon squared), which tells ill-conditioned from singular.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from repro.theory.log_sum_exp import LogSumExp

Array = NDArray[np.float64]
EPSILON = float(np.finfo(np.float64).eps)
INSIDE = 0.8  # share of each finite domain (Laplace) in which arguments of L are drawn
FLOOR_FACTOR = 8.0  # round-off of a singular value, in units of epsilon times the matrix's Frobenius norm


@dataclass(frozen=True, slots=True)
class Smallest:
    """A smallest singular value or eigenvalue, and the size of its round-off."""

    value: float
    floor: float

    @property
    def resolved(self) -> bool:
        """Above its round-off."""
        return self.value > self.floor


@dataclass(frozen=True, slots=True)
class Gram:
    """Smallest eigenvalue of a Gram matrix with unit diagonal: `plain` from the matrix, `fine` from its features."""

    plain: Smallest
    fine: Smallest


@dataclass(frozen=True, slots=True)
class HeadLaw:
    """Draws of one head law: `query` and `key` (heads, k, d), `value` (heads, d, d)."""

    query: Array
    key: Array
    value: Array

    @property
    def bilinear(self) -> Array:
        """(heads, d, d): K^T Q."""
        return np.asarray(np.swapaxes(self.key, 1, 2) @ self.query)


def shrink_into_domain(measures: Sequence[LogSumExp], xi: Array, share: float = INSIDE) -> Array:
    """`xi` (points, d) with each row scaled down until `share` of it fits every measure's domain.

    A domain is star-shaped about zero (L is convex and L(0) = 0), so halving ends; rows that fit stay as they are.
    """
    scaled = xi.copy()
    while not (fits := np.all([m.inside(scaled / share) for m in measures], axis=0)).all():
        scaled[~fits] *= 0.9
    return scaled


def independence(measures: Sequence[LogSumExp], xi: Array) -> Smallest:
    """Smallest over largest singular value of {L_i(xi)} once {1, xi} is projected out (B-T1).

    `xi` (points, d) lies inside every domain. The projection is done twice, so that its own round-off does not count.
    """
    values = np.stack([m.value(xi) for m in measures], axis=1)
    affine, _ = np.linalg.qr(np.column_stack([np.ones(len(xi)), xi]))
    rest = values - affine @ (affine.T @ values)
    rest = rest - affine @ (affine.T @ rest)
    sizes = np.linalg.svd(rest, compute_uv=False)
    return Smallest(float(sizes[-1] / sizes[0]), FLOOR_FACTOR * EPSILON * float(np.linalg.norm(values) / sizes[0]))


def draw_heads(rng: np.random.Generator, heads: int, dim: int, head_dim: int, scale: float) -> HeadLaw:
    """Gaussian heads: entries of Q and K so that K^T Q x has about `scale` times the size of x, V of unit size."""
    size = math.sqrt(scale / math.sqrt(head_dim * dim))
    query, key = size * rng.standard_normal((2, heads, head_dim, dim))
    return HeadLaw(query, key, rng.standard_normal((heads, dim, dim)) / math.sqrt(dim))


def heads_in_domain(measures: Sequence[LogSumExp], heads: HeadLaw, queries: Array, share: float = INSIDE) -> HeadLaw:
    """The same heads with Q scaled down, head by head, until K^T Q x lies in every domain for all `queries` (q, d)."""
    query = heads.query.copy()
    while True:
        xi = np.einsum("mka,mkb,qb->mqa", heads.key, query, queries)
        fits = np.all([m.inside(xi / share).all(axis=1) for m in measures], axis=0)
        if fits.all():
            return HeadLaw(query, heads.key, heads.value)
        query[~fits] *= 0.9


def v_features(measures: Sequence[LogSumExp], heads: HeadLaw, queries: Array) -> Array:
    """(heads * d, N * q): columns are grad L_i(K^T Q x), measure by measure; their Gram is the V-part."""
    xi = np.einsum("mab,qb->mqa", heads.bilinear, queries)
    columns = np.stack([m.gradient(xi) for m in measures], axis=1)  # (heads, N, q, d)
    return columns.reshape(len(xi), -1, xi.shape[-1]).swapaxes(1, 2).reshape(-1, columns.shape[1] * len(queries))


def full_features(measures: Sequence[LogSumExp], heads: HeadLaw, queries: Array) -> Array:
    """(heads * parameters, N * q * d): columns are the derivatives of each component of Phi_i(x) by V, K and Q.

    With g = grad L(K^T Q x) and H = V hess L: d/dV_ob = g_b, d/dK_ab = (Qx)_a H_ob, d/dQ_ab = (H K^T)_oa x_b.
    """
    xi = np.einsum("mab,qb->mqa", heads.bilinear, queries)
    projected = np.einsum("mka,qa->mqk", heads.query, queries)
    count, dim = len(xi), queries.shape[1]
    parts = []
    for measure in measures:
        mean = measure.gradient(xi)
        turned = np.einsum("moa,mqab->mqob", heads.value, measure.hessian(xi))
        by_v = np.einsum("op,mqb->mqopb", np.eye(dim), mean).reshape(count, -1, dim, dim * dim)
        by_k = np.einsum("mqa,mqob->mqoab", projected, turned).reshape(count, len(queries), dim, -1)
        by_q = np.einsum("mqob,mab,qc->mqoac", turned, heads.key, queries).reshape(count, len(queries), dim, -1)
        parts.append(np.concatenate([by_v, by_k, by_q], axis=-1))  # (heads, q, d, parameters)
    stacked = np.stack(parts, axis=1)
    columns = len(measures) * len(queries) * dim
    return stacked.reshape(count, columns, -1).swapaxes(1, 2).reshape(-1, columns)


def triangular(features: Array) -> Array:
    """(columns, columns): triangular factor of `features` with columns scaled to unit length.

    Its columns have the Gram of the features, and any choice of them the Gram of that choice. Raises ValueError for
    fewer rows than columns, which would be singular whatever the measures are.
    """
    rows, columns = features.shape
    if rows < columns:
        raise ValueError(f"{rows} rows cannot show whether {columns} features are independent: draw more heads")
    return np.asarray(np.linalg.qr(features / np.linalg.norm(features, axis=0), mode="r"))


def gram(factor: Array) -> Gram:
    """Smallest eigenvalue of the Gram of `factor`'s columns, which are of unit length (`triangular`)."""
    columns = factor.shape[1]
    plain = float(np.linalg.eigvalsh(factor.T @ factor)[0])
    small = float(np.linalg.svd(factor, compute_uv=False)[-1])
    floor = FLOOR_FACTOR * EPSILON * math.sqrt(columns)
    return Gram(Smallest(plain, floor * math.sqrt(columns)), Smallest(small**2, floor**2))


def first_queries(factor: Array, measures: int, queries: int, keep: int) -> Array:
    """The columns of `factor` that belong to the first `keep` of `queries` query tokens, for all measures."""
    blocks = factor.reshape(len(factor), measures, queries, -1)
    return np.asarray(blocks[:, :, :keep].reshape(len(factor), -1))
