"""The finite mean-field Transformer as a torch module, with the pieces of its training by gradient flow (paper B)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from repro.theory.mean_field import Heads, Sizes, gaussian_heads


class MeanFieldTransformer(nn.Module):
    """L layers of M averaged heads: x <- x + (1/(L M)) sum_m V_m softmax(<Q_m x, K_m y>) y; float64.

    Parameters `query`, `key` (L, M, k, d) and `value` (L, M, d, d) start at zero; `load` or `initialise` sets them.
    """

    def __init__(self, layers: int, heads: int, dim: int, head_dim: int | None = None) -> None:
        super().__init__()
        inner = (layers, heads, head_dim or dim, dim)
        self.query = nn.Parameter(torch.zeros(inner, dtype=torch.float64))
        self.key = nn.Parameter(torch.zeros(inner, dtype=torch.float64))
        self.value = nn.Parameter(torch.zeros((layers, heads, dim, dim), dtype=torch.float64))

    @property
    def particles(self) -> int:
        """L M: the number of particles that carry the parameters' law."""
        return self.value.shape[0] * self.value.shape[1]

    @torch.no_grad()
    def load(self, heads: Heads) -> None:
        """Takes over the parameters of the numpy model, of the same shapes."""
        for parameter, given in ((self.query, heads.query), (self.key, heads.key), (self.value, heads.value)):
            parameter.copy_(torch.from_numpy(given))

    def initialise(self, rng: np.random.Generator, attention: float = 1.0, value: float = 1.0) -> None:
        """Independent Gaussian heads of the sizes that `Sizes` explains."""
        layers, heads, head_dim, dim = self.query.shape
        self.load(gaussian_heads(rng, layers, heads, Sizes(dim, head_dim, attention, value)))

    def numpy(self) -> Heads:
        """The parameters as the numpy model's heads (copies)."""
        return Heads(*(p.detach().cpu().numpy().copy() for p in (self.query, self.key, self.value)))

    def forward(self, tokens: Tensor, weights: Tensor | None = None) -> Tensor:
        """(N, n, d): outputs for `tokens` (N, n, d) with masses `weights` (N, n), uniform where none are given."""
        layers, heads = self.value.shape[:2]
        bias = 0.0 if weights is None else weights.log()[:, None, None, :]
        x = tokens
        for query, key, value in zip(self.query, self.key, self.value, strict=True):
            asked = torch.einsum("mka,iqa->imqk", query, x)
            offered = torch.einsum("mka,ina->imnk", key, x)
            shares = torch.softmax(asked @ offered.transpose(-1, -2) + bias, dim=-1)
            x = x + torch.einsum("mab,imqb->iqa", value, shares @ x[:, None]) / (layers * heads)
        return x


def risk_loss(outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """R = mean over sequences of int |z - y|^2 / 2 dmu, a scalar."""
    squares = ((outputs - targets) ** 2).sum(dim=-1) / 2
    return squares.mean() if weights is None else (weights * squares).sum(dim=1).mean()


def gradient_scale(model: MeanFieldTransformer) -> float:
    """L M, by which a gradient step is multiplied: then it is the Riemannian gradient and no limit freezes it."""
    return float(model.particles)


@torch.no_grad()
def flow_step(model: MeanFieldTransformer, time: float) -> None:
    """One explicit Euler step of the gradient flow over `time`, from the gradients that `backward` has left."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.sub_(time * gradient_scale(model) * parameter.grad)
