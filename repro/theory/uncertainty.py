"""How a stack passes on a difference of inputs: two inputs, and two laws of inputs (paper A, A-T5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from repro.nn.stack import Stack
from repro.theory.nets import Sublayer, final_state, scale_linear, step_size, sublayers


def wasserstein(a: Tensor, b: Tensor, order: int = 1) -> float:
    """W_1 or W_2 between two sets of equally many points, [points, ...], by the best assignment; exact.

    Distance of two points: Euclidean norm over all their entries. ValueError for sets of unequal size.
    """
    if a.shape != b.shape:
        raise ValueError(f"both sets must have one shape, not {tuple(a.shape)} and {tuple(b.shape)}")
    cost = torch.cdist(a.flatten(1), b.flatten(1), compute_mode="donot_use_mm_for_euclid_dist") ** order
    rows, columns = linear_sum_assignment(cost.numpy())
    return float(cost[rows, columns].mean() ** (1 / order))


def reach_of_differences(parts: list[Sublayer], d: int, factors: list[float] | None = None) -> float:
    """Largest norm that the sub-layers can add to the difference of two tokens: 2 sqrt(d) sum of |a| max |gamma|.

    For methods that add a times their last norm's output, a = dt unless `factors` are given; beta is the same for
    both inputs and cancels.
    """
    total = 0.0
    for part, factor in zip(parts, factors or [step_size(part.method) for part in parts], strict=True):
        norm = part.closing_norm()
        if norm is None:
            raise ValueError(f"the {part.site.kind} branch of the method does not end in a norm")
        gain = getattr(norm, "weight", None)
        total += abs(factor) * (1.0 if gain is None else float(gain.detach().abs().max()))
    return float(2 * d**0.5 * total)


@dataclass(frozen=True, slots=True)
class Passed:
    """What a stack makes of a difference of inputs: both inequalities' left over right side, and W_1 over W_1."""

    pairs: float
    laws: float
    amplification: float


@torch.no_grad()
def passed_on(stack: Stack, x: Tensor, y: Tensor) -> Passed:
    """Two sets of inputs, [samples, tokens, d], on their way through one stack.

    `pairs`: largest over tokens of ||x_D - y_D|| over its bound ||x_0 - y_0|| + 2 sqrt(d) sum of dt max |gamma|.
    `laws`: W_1 between the laws of terminal states over its bound, which couples the inputs optimally: W_1(0) +
    sqrt(tokens) times what the sub-layers add to a token. `amplification`: W_1 at the end over W_1 at the input.
    """
    ends = final_state(stack, x), final_state(stack, y)
    reach = reach_of_differences(sublayers(stack), x.shape[-1])
    pairs = float(((ends[0] - ends[1]).norm(dim=-1) / ((x - y).norm(dim=-1) + reach)).max())
    first, last = wasserstein(x, y), wasserstein(*ends)
    return Passed(pairs, last / (first + x.shape[1] ** 0.5 * reach), last / first)


@torch.no_grad()
def amplification(stack: Stack, x: Tensor, y: Tensor, sizes: list[float]) -> list[float]:
    """W_1 at the end over W_1 at the input, with the last map of every branch times each of `sizes`."""
    first, found = wasserstein(x, y), []
    for size in sizes:
        for part in sublayers(stack):
            scale_linear(part.last_linear(), size)
        found.append(wasserstein(final_state(stack, x), final_state(stack, y)) / first)
        for part in sublayers(stack):
            scale_linear(part.last_linear(), 1 / size)
    return found


def log_distance(stack: Stack, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    """Objective of an adversary: mean over tokens of log ||x_D - y_D||."""
    return lambda: (final_state(stack, x) - final_state(stack, y)).norm(dim=-1).clamp_min(1e-300).log().mean()
