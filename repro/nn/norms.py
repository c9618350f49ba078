"""Normalisation layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPS = 1e-5


class _RMS(torch.autograd.Function):
    """gain * x / sqrt(mean(x^2) + eps) with a written-out derivative.

    torch has no fused RMSNorm on CPUs; its chain of operations takes up to three times as long, and SimpleNorm
    has six norms a block. The backward pass starts from x again, so it can be differentiated too
    (Hessian checks), and only x is kept for it.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, gain: Tensor, eps: float) -> Tensor:
        """[..., d], [d] -> [..., d]."""
        return (x * _scale(x, eps)).mul_(gain)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        """Keep the inputs only."""
        ctx.save_for_backward(*inputs[:2])
        ctx.eps = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """With s = 1/rms: d/dgain = sum over tokens of s grad x, d/dx = s grad gain - s^3 x mean(grad gain x)."""
        x, gain = ctx.saved_tensors
        d = x.shape[-1]
        scale = _scale(x, ctx.eps)
        product = grad * x
        mean = (product @ gain).unsqueeze(-1) / d
        grad_gain = scale.reshape(1, -1) @ product.reshape(-1, d)
        # In place on what was just made: fresh memory costs more here than the arithmetic.
        grad_x = torch.addcmul((grad * gain).mul_(scale), x, -mean * scale**3)
        return grad_x, grad_gain.reshape(d), None


def _scale(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last axis, which stays with length 1."""
    return torch.rsqrt(torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.shape[-1] + eps)


class RMSNorm(nn.Module):
    """y = gain * x / sqrt(mean(x^2) + eps) over the last axis (Zhang & Sennrich 2019, eq. 4).

    Computed in float32 whatever the input (in float64 for float64 input), cast back before the gain, as paper
    C's code does: in bfloat16 the mean of squares would keep only 8 bits.
    """

    def __init__(self, d: int, eps: float = EPS) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps = eps

    def reset_parameters(self) -> None:
        """Gain 1."""
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        if x.device.type == "cpu" and x.dtype == self.weight.dtype and x.dtype in (torch.float32, torch.float64):
            return _RMS.apply(x, self.weight, self.eps)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return F.rms_norm(wide, self.weight.shape, None, self.eps).to(x.dtype) * self.weight

    def extra_repr(self) -> str:
        """Width, as torch's own norms print it."""
        return str(self.weight.numel())
