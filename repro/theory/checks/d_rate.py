"""D-T1, D-T4: descent reaches zero loss along a straight log tail; its rate is ordered as the skip's beta."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from repro.nn.kernel import common_step
from repro.nn.single_layer import SingleLayerConfig
from repro.records.measured import Measured
from repro.theory.residual_rate import (
    Descent,
    Problem,
    descend,
    fit_tail,
    gaussian_problem,
    order_agreement,
    spectral_row,
)

INFO = {
    "title": "Linear convergence and the skip",
    "says": "log loss falls along a line, with rates .25 < .5 < 1 in beta, and at beta 1 at least 3 times that at 0",
    "ref": "paper_d",
    "rules": 1,
    "seconds": 20.0,
    "memory_gb": 2.0,
    "params": {
        "sequences": 4,
        "tokens": 3,
        "d": 14,
        "d_qk": 64,
        "hidden": 1024,
        "start": "inverse_d_qk",
        "skip": "both",
        "betas": [0.0, 0.25, 0.5, 0.75, 1.0],
        "steps": 5000,
        "step_seeds": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
        "watch": [50, 500],
    },
    "words": {"start": ["inverse_d_qk", "unit"], "skip": ["both", "attention"]},
    "may_be_empty": ["watch"],
    "values": {
        "d_rate_0": {"unit": "1/step", "better": "higher"},
        "d_rate_025": {"unit": "1/step", "better": "higher"},
        "d_rate_05": {"unit": "1/step", "better": "higher"},
        "d_rate_1": {"unit": "1/step", "better": "higher"},
        "d_rate_order": {"unit": "1", "better": "higher"},
        "d_rate_gain": {"unit": "1", "better": "higher"},
        "d_rate_zero": {"unit": "1", "better": "higher"},
        "d_rate_fall": {"unit": "decades", "better": "higher"},
        "d_rate_r2": {"unit": "1", "better": "higher"},
        "d_rate_tau_sigma": {"unit": "1", "better": "higher"},
        "d_rate_tau_kernel": {"unit": "1", "better": "higher"},
        "d_rate_over_kernel": {"unit": "1", "better": "higher"},
    },
}
POINTS = 120  # of each curve that are kept for the figure


def run(params: dict[str, Any], seed: int) -> Measured:
    """One draw: all betas descend with one step, 0.5 / the largest kernel eigenvalue over all betas and `step_seeds`.

    A `seed` outside `step_seeds` is added to them. `order` is the smaller of rate(.5)/rate(.25) and rate(1)/rate(.5),
    `gain` rate(1)/rate(0), `zero` rate(0)/rate(.25), which is reported and not judged. `fall` and `r2` are the least
    over beta >= .5. `tau_sigma` and `tau_kernel` compare the order of the rates with that of sigma_min(Z)^2 and of the
    kernel's least eigenvalue at start; `over_kernel` is the least rate over 2 step lambda_min at the end.
    """
    seeds = sorted({*params["step_seeds"], seed})
    step = common_step(
        (problem.weights, problem.x, problem.form) for other in seeds for problem in _problems(params, other)
    )
    problems = _problems(params, seed)
    found = descend(problems, step, params["steps"], params["watch"])
    rows, spectra, curves = [], [], []
    for beta, problem, descent in zip(params["betas"], problems, found, strict=True):
        place = {"seed": seed, "d_qk": params["d_qk"], "beta": beta}
        seen = [{**place, "step": at, **row} for at, row in _spectra(problem, descent)]
        rows.append({**place, **_row(descent, seen, step)})
        curves.append({**place, **_curve(descent)})
        spectra += seen
    details = {"rows": rows, "spectra": spectra, "curves": curves, "step": step, "step_seeds": seeds}
    return Measured(_values(rows), 1, details)


def _problems(params: dict[str, Any], seed: int) -> list[Problem]:
    sizes = {name: params[name] for name in ("d", "d_qk", "hidden", "skip", "start")}
    configs = (SingleLayerConfig(**sizes, beta=beta) for beta in params["betas"])
    return [gaussian_problem(config, seed, params["sequences"], params["tokens"]) for config in configs]


def _spectra(problem: Problem, descent: Descent) -> Iterator[tuple[int, dict[str, Any]]]:
    """(step, spectra there) wherever weights were kept and the loss was finite."""
    for at, weights in descent.kept.items():
        if np.isfinite(descent.losses[at]):
            yield at, spectral_row(problem, weights)


def _row(descent: Descent, seen: Sequence[dict[str, Any]], step: float) -> dict[str, Any]:
    """What one descent showed; a loss that is not finite leaves rate, R^2 and fall empty."""
    row: dict[str, Any] = {"steps": len(descent.losses) - 1, "sigma_min_squared": seen[0]["sigma_min"] ** 2}
    row |= {"kernel_min": seen[0]["kernel_min"], "kernel_max": seen[0]["kernel_max"]}
    if not math.isfinite(descent.fall):
        return row | {"rate": None, "r2": None, "fall": None, "kernel_rate": None}
    tail = fit_tail(descent.losses)
    end = 2 * step * seen[-1]["kernel_min"]
    return row | {"rate": tail.rate, "r2": tail.r2, "fall": descent.fall, "kernel_rate": end}


def _curve(descent: Descent) -> dict[str, Any]:
    last = len(descent.losses) - 1
    steps = sorted({round(last * place / POINTS) for place in range(POINTS + 1)})
    finite = [at for at in steps if np.isfinite(descent.losses[at])]
    return {"steps": finite, "losses": [float(descent.losses[at]) for at in finite]}


def _values(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The record's values; nan where a descent that they need has no rate."""
    numbers = {row["beta"]: {k: math.nan if v is None else v for k, v in row.items()} for row in rows}
    rate = {beta: row["rate"] for beta, row in numbers.items()}
    zero, quarter, half, full = (rate.get(beta, math.nan) for beta in (0.0, 0.25, 0.5, 1.0))
    strong = [row for beta, row in numbers.items() if beta >= 0.5]
    rates = list(rate.values())
    known = bool(np.isfinite(rates).all())
    return {
        "d_rate_0": zero,
        "d_rate_025": quarter,
        "d_rate_05": half,
        "d_rate_1": full,
        "d_rate_order": float(np.min([half / quarter, full / half])),
        "d_rate_gain": full / zero,
        "d_rate_zero": zero / quarter,
        "d_rate_fall": float(np.min([row["fall"] for row in strong])) if strong else math.nan,
        "d_rate_r2": float(np.min([row["r2"] for row in strong])) if strong else math.nan,
        "d_rate_tau_sigma": _agreement(rates, numbers, "sigma_min_squared") if known else math.nan,
        "d_rate_tau_kernel": _agreement(rates, numbers, "kernel_min") if known else math.nan,
        "d_rate_over_kernel": float(np.min([row["rate"] / row["kernel_rate"] for row in numbers.values()])),
    }


def _agreement(rates: Sequence[float], numbers: dict[float, dict[str, float]], name: str) -> float:
    return order_agreement(rates, [row[name] for row in numbers.values()])
