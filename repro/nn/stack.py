"""A stack of Transformer blocks around a method: attention, MLP, and the order in which the method is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from repro.nn.method_api import Method, Role, Site
from repro.nn.norms import RMSNorm


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(head size)) v over earlier positions; [batch, heads, tokens, head size] throughout."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(nn.Module):
    """Causal multi-head self-attention without dropout."""

    qkv: nn.Module
    q: nn.Module
    k: nn.Module
    v: nn.Module

    def __init__(self, method: Method, layer: int, depth: int, d_model: int, n_head: int, bias: bool) -> None:
        super().__init__()
        self.n_head = n_head
        self.roles: tuple[Role, ...] = ("q", "k", "v") if method.split_qkv else ("qkv",)
        width = d_model if method.split_qkv else 3 * d_model
        for role in self.roles:
            self.add_module(role, method.linear(d_model, width, role, layer, depth, bias))
        self.o = method.linear(d_model, d_model, "o", layer, depth, bias)
        # Whole vectors, before the split into heads: SimpleGPT's pre-norm + QK-norm baseline (paper C, 3.2).
        self.q_norm = RMSNorm(d_model, method.norm_eps) if method.qk_norm else None
        self.k_norm = RMSNorm(d_model, method.norm_eps) if method.qk_norm else None

    def maps(self) -> dict[Role, nn.Module]:
        """The method's linear maps by role."""
        return {role: self.get_submodule(role) for role in (*self.roles, "o")}

    def forward(self, x: Tensor, attend: Callable[[Tensor, Tensor, Tensor], Tensor] = causal_attention) -> Tensor:
        """[batch, tokens, d] -> [batch, tokens, d]; `attend` as causal_attention."""
        batch, length, d_model = x.shape
        if len(self.roles) == 1:
            q, k, v = self.qkv(x).split(d_model, dim=2)
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        heads = (batch, length, self.n_head, d_model // self.n_head)
        y = attend(q.view(heads).transpose(1, 2), k.view(heads).transpose(1, 2), v.view(heads).transpose(1, 2))
        return self.o(y.transpose(1, 2).reshape(batch, length, d_model))


class MLP(nn.Module):
    """down(gelu(up(x))) with GPT-2's tanh form of GELU."""

    def __init__(self, method: Method, layer: int, depth: int, d_model: int, hidden: int, bias: bool) -> None:
        super().__init__()
        self.up = method.linear(d_model, hidden, "up", layer, depth, bias)
        self.down = method.linear(hidden, d_model, "down", layer, depth, bias)

    def maps(self) -> dict[Role, nn.Module]:
        """The method's linear maps by role."""
        return {"up": self.up, "down": self.down}

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, d] -> [batch, tokens, d]."""
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """Attention sub-layer, then MLP sub-layer, each joined to the stream by the method."""

    def __init__(
        self, method: Method, layer: int, depth: int, d_model: int, n_head: int, hidden: int, bias: bool
    ) -> None:
        super().__init__()
        self.method = method
        self.attn = Attention(method, layer, depth, d_model, n_head, bias)
        self.attn_site = Site(method, layer, depth, "attn", d_model, bias)
        self.mlp = MLP(method, layer, depth, d_model, hidden, bias)
        self.mlp_site = Site(method, layer, depth, "mlp", d_model, bias)

    def maps(self) -> dict[Role, nn.Module]:
        """The method's linear maps by role."""
        return {**self.attn.maps(), **self.mlp.maps()}

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, d] -> [batch, tokens, d]."""
        x = self.method.step(x, self.attn, self.attn_site)
        return self.method.step(x, self.mlp, self.mlp_site)


class CarryBlock(Block):
    """A block of a method that carries state beside the stream."""

    def forward(self, x: Tensor, carry: Any) -> tuple[Tensor, Any]:  # type: ignore[override]
        """(stream, carry) -> (stream, carry)."""
        x, carry = self.method.step(x, self.attn, self.attn_site, carry)
        return self.method.step(x, self.mlp, self.mlp_site, carry)


class Stack(nn.Module):
    """Blocks and final norm: embedding [batch, tokens, d] -> what the head reads, same shape."""

    def __init__(self, method: Method, n_layer: int, d_model: int, n_head: int, hidden: int, bias: bool) -> None:
        super().__init__()
        self.method = method
        kind = CarryBlock if method.uses_carry else Block
        self.blocks = nn.ModuleList(
            kind(method, layer, n_layer, d_model, n_head, hidden, bias) for layer in range(n_layer)
        )
        self.final_norm = method.final_norm(d_model, bias)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, d] -> [batch, tokens, d]."""
        if not self.method.uses_carry:
            for block in self.blocks:
                x = block(x)
            return self.final_norm(x)
        carry = self.method.begin(x)
        for block in self.blocks:
            x, carry = block(x, carry)
        return self.method.end(x, carry, self.final_norm)
