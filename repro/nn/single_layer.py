"""Paper D's model: single-head softmax attention and a ReLU feed-forward layer, each joined to its input by beta x.

No norm, no bias, no mask. For one sequence X [tokens, d]:

    Z = softmax(X W_Q W_K^T X^T / sqrt(d_QK)) X W_V + beta X
    F = relu(Z W_1) W_2 + beta Z        (+ 0 where the skip is on attention only)
    loss = 1/2 sum over sequences of ||F - Y||_F^2, a sum and no mean

The papers' text gives neither this explicit form nor the variances at start (papers.md 4.2): both are our reading.
Passes are written out by hand as pure functions, for many problems at a time, because full-batch descent on layers
as small as the paper's spends its time in autograd's bookkeeping otherwise. Autograd agrees with them (tested).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from repro.nn.initial import initialise

Skip = Literal["both", "attention"]
Start = Literal["inverse_d_qk", "unit"]


class Weights(NamedTuple):
    """The five matrices, each with the same leading axes [...], one entry a problem."""

    q: Tensor  # [..., d, d_QK]
    k: Tensor  # [..., d, d_QK]
    v: Tensor  # [..., d, d]
    up: Tensor  # [..., d, hidden]
    down: Tensor  # [..., hidden, d]


class Form(NamedTuple):
    """What of a layer is no weight: beta of either skip, a number or [...] of one a problem; 1/sqrt(d_QK)."""

    beta_attention: Tensor
    beta_feed_forward: Tensor
    scale: float


class Pass(NamedTuple):
    """What a forward pass leaves for the passes that follow; T = sequences x tokens."""

    attention: Tensor  # [..., sequences, tokens, tokens], rows sum to 1
    values: Tensor  # [..., sequences, tokens, d]
    z: Tensor  # [..., T, d]: output of the attention sub-layer
    active: Tensor  # [..., T, hidden], after ReLU
    output: Tensor  # [..., T, d]


@dataclass(frozen=True, slots=True)
class SingleLayerConfig:
    """Sizes, skip and start of one layer; input and output of a token have `d` numbers.

    `start` is the variance of the entries of W_Q and W_K: "inverse_d_qk" = 1/d_QK (with it logits vanish, and
    attention becomes uniform, as d_QK grows) or "unit" = 1 (logits keep a spread of order d). The other entries
    have variance 1/d (W_V, W_1) and 1/hidden (W_2). All are Gaussian.
    """

    d: int
    d_qk: int
    hidden: int
    beta: float = 1.0
    skip: Skip = "both"
    start: Start = "inverse_d_qk"

    def __post_init__(self) -> None:
        """Raises ValueError for sizes below 1, for a beta that is no finite number and for unknown options."""
        if min(self.d, self.d_qk, self.hidden) < 1:
            raise ValueError(f"every size must be at least 1: {self}")
        if not math.isfinite(self.beta):
            raise ValueError(f"beta must be a finite number, not {self.beta}")
        if self.skip not in get_args(Skip) or self.start not in get_args(Start):
            raise ValueError(f"skip is one of {get_args(Skip)}, start one of {get_args(Start)}: {self}")

    def form(self) -> Form:
        """The layer's betas and the scale of its logits."""
        beta = torch.tensor(self.beta, dtype=torch.float64)
        return Form(beta, beta if self.skip == "both" else torch.zeros_like(beta), self.d_qk**-0.5)


class Matrix(nn.Module):
    """One weight matrix in float64. `initialise` keys its draw by (seed, name), so that all betas start alike."""

    def __init__(self, rows: int, columns: int, std: float) -> None:
        super().__init__()
        self.std = std
        self.weight = nn.Parameter(torch.zeros(rows, columns, dtype=torch.float64))

    def reset_parameters(self) -> None:
        """Entries N(0, std)."""
        nn.init.normal_(self.weight, 0.0, self.std)


class SingleLayer(nn.Module):
    """The layer as a module for the suite's training; `initialise(layer, seed)` gives it the weights of a run."""

    def __init__(self, config: SingleLayerConfig) -> None:
        super().__init__()
        self.config = config
        d, d_qk, hidden = config.d, config.d_qk, config.hidden
        qk_std = d_qk**-0.5 if config.start == "inverse_d_qk" else 1.0
        self.q, self.k = Matrix(d, d_qk, qk_std), Matrix(d, d_qk, qk_std)
        self.v, self.up = Matrix(d, d, d**-0.5), Matrix(d, hidden, d**-0.5)
        self.down = Matrix(hidden, d, hidden**-0.5)

    def weights(self) -> Weights:
        """The parameters as they are, by name."""
        return Weights(self.q.weight, self.k.weight, self.v.weight, self.up.weight, self.down.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """[sequences, tokens, d] -> the same shape, in float64."""
        x = inputs.double()
        return forward_pass(self.weights(), x, self.config.form()).output.view(x.shape)

    def loss_sums(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        """1/2 of the summed squared errors, and the number of target numbers (sequences x tokens x d).

        Divided by each other they are half the mean squared error. A step of size r on that mean is a step of
        size r / count on the paper's sum.
        """
        return 0.5 * (self(inputs) - targets.double()).square().sum(), targets.numel()


def draw_weights(config: SingleLayerConfig, seed: int) -> Weights:
    """The weights of `seed` at start, without gradients; q, k, v ... do not depend on beta or skip."""
    layer = SingleLayer(config)
    initialise(layer, seed)
    return Weights(*(weight.detach() for weight in layer.weights()))


def stack_problems(parts: Iterable[tuple[Weights, Form]]) -> tuple[Weights, Form]:
    """Several layers of equal sizes as one batch of problems: a leading axis in front of everything."""
    weights, forms = zip(*parts, strict=True)
    if len({form.scale for form in forms}) > 1:
        raise ValueError("problems of one batch have one d_QK")
    attention = torch.stack([form.beta_attention for form in forms])
    feed_forward = torch.stack([form.beta_feed_forward for form in forms])
    stacked = Weights(*(torch.stack(group) for group in zip(*weights, strict=True)))
    return stacked, Form(attention, feed_forward, forms[0].scale)


def narrow(weights: Weights) -> Weights:
    """The same layer with at most 2 d key dimensions, for any d_QK: W_Q and W_K turned into the span of their rows.

    Outputs, gradient descent and tangent kernel depend on W_Q and W_K through the inner products of their rows alone,
    so all stay the same up to round-off, as long as the form keeps its scale. Saves time where d_QK is large.
    """
    rows = torch.cat([weights.q, weights.k], -2)
    if rows.shape[-1] <= rows.shape[-2]:
        return weights
    q, k = torch.linalg.qr(rows.mT).R.mT.split(weights.q.shape[-2], -2)
    return weights._replace(q=q, k=k)


def _beta(value: Tensor, axes: int) -> Tensor:
    """A coefficient a problem, ready to be multiplied with tensors that have `axes` more axes."""
    return value[(..., *(None,) * axes)]


def forward_pass(weights: Weights, x: Tensor, form: Form) -> Pass:
    """x [..., sequences, tokens, d] through the layer; the leading axes of weights, x and betas broadcast."""
    logits = x @ ((weights.q @ weights.k.mT) * form.scale).unsqueeze(-3) @ x.mT
    attention = torch.softmax(logits, -1)
    values = x @ weights.v.unsqueeze(-3)
    z = (attention @ values + _beta(form.beta_attention, 3) * x).flatten(-3, -2)
    active = (z @ weights.up).relu()
    return Pass(attention, values, z, active, active @ weights.down + _beta(form.beta_feed_forward, 2) * z)


def pull_back(weights: Weights, x: Tensor, form: Form, passed: Pass, cotangent: Tensor) -> Weights:
    """J^T c: the gradient of <c, F> with respect to each weight; c [..., T, d] like `Pass.output`.

    With c = F - Y it is the gradient of the loss. A ReLU at exactly 0 passes nothing on, as in torch.
    """
    back = torch.ops.aten.threshold_backward(cotangent @ weights.down.mT, passed.active, 0)
    d_z = back @ weights.up.mT + _beta(form.beta_feed_forward, 2) * cotangent
    d_z = d_z.unflatten(-2, passed.values.shape[-3:-1])
    d_attention = d_z @ passed.values.mT
    d_logits = passed.attention * (d_attention - (d_attention * passed.attention).sum(-1, keepdim=True))
    d_qk = (x.mT @ (d_logits @ x)).sum(-3) * form.scale  # with respect to W_Q W_K^T
    return Weights(
        d_qk @ weights.k,
        d_qk.mT @ weights.q,
        (x.mT @ (passed.attention.mT @ d_z)).sum(-3),
        passed.z.mT @ back,
        (cotangent.mT @ passed.active).mT,  # twice as quick as the product that is written out
    )


def push_forward(weights: Weights, x: Tensor, form: Form, passed: Pass, direction: Weights) -> Tensor:
    """J w: the change of F, [..., T, d], for a small change w of the weights."""
    d_qk = (direction.q @ weights.k.mT + weights.q @ direction.k.mT) * form.scale
    d_logits = x @ d_qk.unsqueeze(-3) @ x.mT
    d_attention = passed.attention * (d_logits - (d_logits * passed.attention).sum(-1, keepdim=True))
    d_values = x @ direction.v.unsqueeze(-3)
    d_z = (d_attention @ passed.values + passed.attention @ d_values).flatten(-3, -2)
    d_active = torch.ops.aten.threshold_backward(d_z @ weights.up + passed.z @ direction.up, passed.active, 0)
    d_output = d_active @ weights.down + passed.active @ direction.down
    return d_output + _beta(form.beta_feed_forward, 2) * d_z


def losses(passed: Pass, y: Tensor) -> Tensor:
    """1/2 ||F - Y||_F^2 summed over the sequences, [...]; y [..., sequences, tokens, d]."""
    return 0.5 * (passed.output - y.flatten(-3, -2)).square().sum((-2, -1))


def gradient_step(weights: Weights, x: Tensor, y: Tensor, form: Form, rate: float) -> tuple[Weights, Tensor]:
    """One step of full-batch gradient descent on the summed loss: new weights, and the losses [...] before it."""
    passed = forward_pass(weights, x, form)
    gradients = pull_back(weights, x, form, passed, passed.output - y.flatten(-3, -2))
    moved = (torch.sub(weight, slope, alpha=rate) for weight, slope in zip(weights, gradients, strict=True))
    return Weights(*moved), losses(passed, y)
