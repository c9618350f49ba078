"""Linear convergence of gradient descent on the single layer (paper D, claims D-T1 and D-T4) and what sets its rate.

Problems are four short sequences of Gaussian tokens with Gaussian targets, few numbers beside many weights, so that
descent can reach a loss of zero. One draw is one seed: all its betas share tokens, targets and weights at start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import kendalltau
from torch import Tensor

from repro.nn.kernel import kernel_eigenvalues, spectra
from repro.nn.single_layer import (
    Form,
    SingleLayerConfig,
    Weights,
    draw_weights,
    forward_pass,
    gradient_step,
    losses,
    narrow,
    stack_problems,
)
from repro.theory.rates import fit_line

FLOOR = 1e-10  # of the loss at start; further down round-off would bend the tail
TAIL_DECADES = 4.0


class Problem(NamedTuple):
    """One layer with what it is to learn: x and y [sequences, tokens, d]."""

    weights: Weights
    x: Tensor
    y: Tensor
    form: Form


@dataclass(frozen=True, slots=True)
class Tail:
    """The straight part of a log loss: natural logs a step, R^2 of the line, and the steps it was fitted on."""

    rate: float
    r2: float
    first: int
    last: int


@dataclass(frozen=True)
class Descent:
    """Losses before each step, the last one after all steps; and weights at the steps that were asked for."""

    losses: NDArray[np.float64]
    kept: dict[int, Weights]

    @property
    def fall(self) -> float:
        """Decades from the loss at start to the last one; infinite at zero, nan where the loss is not finite."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.log10(self.losses[0]) - np.log10(self.losses[-1]))


def gaussian_problem(config: SingleLayerConfig, seed: int, sequences: int, tokens: int) -> Problem:
    """Tokens and targets i.i.d. N(0, 1), weights of `config`'s start; all from `seed`, none from beta."""
    rng = np.random.default_rng([seed, 0])  # the weights have streams of their own
    x, y = (torch.from_numpy(rng.standard_normal((sequences, tokens, config.d))) for _ in range(2))
    return Problem(narrow(draw_weights(config, seed)), x, y, config.form())


def descend(problems: Sequence[Problem], rate: float, steps: int, keep: Iterable[int] = ()) -> list[Descent]:
    """Full-batch descent with one step size on problems of equal sizes that share x and y.

    A problem ends early once its loss is below 1e-10 of the first one, or not finite; its weights there are kept, as
    they are at each step of `keep` that it reaches.
    """
    weights, form = stack_problems((problem.weights, problem.form) for problem in problems)
    weights = weights._replace(down=weights.down.mT.contiguous().mT)  # the layout in which its gradient comes
    x, y = problems[0].x, problems[0].y
    places = list(range(len(problems)))
    found: list[list[float]] = [[] for _ in problems]
    kept: list[dict[int, Weights]] = [{} for _ in problems]
    wanted = {*keep, 0}
    for step in range(steps + 1):
        moved, values = gradient_step(weights, x, y, form, rate)
        for place, loss in zip(places, values.tolist(), strict=True):
            found[place].append(loss)
        done = [not FLOOR * found[place][0] < found[place][-1] < np.inf or step == steps for place in places]
        for row, place in enumerate(places):
            if done[row] or step in wanted:
                kept[place][step] = Weights(*(part[row].clone() for part in weights))
        if any(done):
            going = [row for row, ended in enumerate(done) if not ended]
            places = [places[row] for row in going]
            moved = Weights(*(part[going] for part in moved))
            form = Form(form.beta_attention[going], form.beta_feed_forward[going], form.scale)
        if not places:
            break
        weights = moved
    return [Descent(np.array(values), parts) for values, parts in zip(found, kept, strict=True)]


def fit_tail(values: NDArray[np.float64], decades: float = TAIL_DECADES) -> Tail:
    """Least-squares line through log loss over the last `decades` decades before the end, or over what there is.

    Raises ValueError for fewer than three losses there, or for losses that are not finite and above 0.
    """
    if len(values) < 3 or not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError("a tail needs three or more losses, all finite and above 0")
    logs = np.log(values)
    above = np.flatnonzero(logs > logs[-1] + decades * np.log(10.0))
    first = min(int(above[-1]) + 1 if len(above) else 0, len(logs) - 3)
    line = fit_line(np.arange(first, len(logs), dtype=np.float64), logs[first:])
    return Tail(-line.slope, line.r2, first, len(logs) - 1)


def spectral_row(problem: Problem, weights: Weights) -> dict[str, Any]:
    """Singular values of Z, stacked and for the worst sequence, and the kernel's eigenvalues, at given weights."""
    passed = forward_pass(weights, problem.x, problem.form)
    stacked = spectra(passed.z)[0]
    each = spectra(passed.z.unflatten(0, problem.x.shape[:2]))
    worst = min(each, key=lambda spectrum: spectrum.smallest)
    kernel = kernel_eigenvalues(weights, problem.x, problem.form)
    return {
        "loss": float(losses(passed, problem.y)),
        "sigma_min": stacked.smallest,
        "sigma_max": stacked.largest,
        "rank": stacked.rank,
        "sequence_sigma_min": worst.smallest,
        "sequence_sigma_max": max(spectrum.largest for spectrum in each),
        "sequence_rank": min(spectrum.rank for spectrum in each),
        "kernel_min": float(kernel[0]),
        "kernel_max": float(kernel[-1]),
    }


def order_agreement(rates: Sequence[float], predictor: Sequence[float]) -> float:
    """Kendall's tau of two lists: 1 = same order, -1 = opposite; 0 where one of them is all ties."""
    tau = float(kendalltau(rates, predictor).statistic)
    return tau if np.isfinite(tau) else 0.0
