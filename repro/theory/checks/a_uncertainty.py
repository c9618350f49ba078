"""A-T5: Peri-LN passes a difference of inputs on within a bound, Pre-LN may amplify it without one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from repro.nn.method_api import load_method
from repro.nn.stack import Stack
from repro.records.measured import Measured
from repro.theory.growth import disturb_block
from repro.theory.nets import Shape, ascend, build, embedding, make_loud, numbers, twice_differentiable
from repro.theory.sensitivity import slope
from repro.theory.uncertainty import amplification, log_distance, passed_on

INFO = {
    "title": "Propagation of input uncertainty",
    "says": "Two inputs end at most ||x_0 - x'_0|| + 2 sqrt(d) sum(dt max |gamma|) apart, and so do two laws in W_1",
    "ref": "paper_a",
    "rules": 1,
    "seconds": 12.0,
    "memory_gb": 2.0,
    "params": {
        "layers": 48,
        "width": 64,
        "tokens": 4,
        "samples": 48,
        "draws": 3,
        "shift": 0.1,
        "factors": [10.0, 100.0, 1000.0],
        "ascent_width": 32,
        "ascent_steps": 15,
    },
    "values": {
        "a_uncertainty_slack": {"unit": "1", "better": "lower"},
        "a_uncertainty_slack_pairs": {"unit": "1", "better": "lower"},
        "a_uncertainty_slack_laws": {"unit": "1", "better": "lower"},
        "a_uncertainty_slack_adversarial": {"unit": "1", "better": "lower"},
        "a_uncertainty_amplification_peri": {"unit": "1", "better": "lower"},
        "a_uncertainty_amplification_pre": {"unit": "1", "better": "lower"},
        "a_uncertainty_slope_peri": {"unit": "1", "better": "lower"},
        "a_uncertainty_slope_pre": {"unit": "1", "better": "lower"},
    },
}


def _laws(params: dict[str, Any], key: int) -> tuple[Tensor, Tensor]:
    """Samples of two input laws, N(0, 1) and N(shift, 1) in every entry, drawn independently."""
    shape = Shape(params["layers"], params["width"], 4)
    first, second = (embedding(shape, params["tokens"], key + n, batch=params["samples"]) for n in (0, 1))
    return first, second + params["shift"]


def _stack(name: str, params: dict[str, Any], key: int, **given: object) -> Stack:
    shape = Shape(params["layers"], params["width"], 4)
    return make_loud(build(load_method(name, given), shape, key, bias=True, eps=0.0), key)


def _bounded(params: dict[str, Any], draw: int, key: int) -> list[dict[str, Any]]:
    """Slack of both inequalities for Peri-LN, at start and with scaled weights and drawn gains, at two steps."""
    x, y = _laws(params, key)
    rows = []
    for dt in (1.0, 0.1):
        for weights in ("start", "scaled"):
            stack = _stack("peri_ln", params, key, dt=dt)
            if weights == "scaled":
                disturb_block(stack.blocks, torch.Generator().manual_seed(key))
            rows.append({"draw": draw, "dt": dt, "weights": weights} | asdict(passed_on(stack, x, y)))
    return rows


def _adversarial(params: dict[str, Any], key: int) -> float:
    """Slack of the pair inequality with weights that ascent has found to drive two inputs apart."""
    shape = Shape(params["layers"], params["ascent_width"], 4)
    stack = make_loud(build(load_method("peri_ln"), shape, key, eps=0.0), key)
    x, y = embedding(shape, 2, key), embedding(shape, 2, key + 1)
    weights = [value for value in stack.blocks.parameters() if value.ndim > 1]
    with twice_differentiable():
        for _ in ascend(log_distance(stack, x, y), weights, params["ascent_steps"], 0.1):
            continue
    return passed_on(stack, x, y).pairs


def run(params: dict[str, Any], seed: int) -> Measured:
    """Largest slack over draws; W_1 at the end over W_1 at the input against the size of the last maps."""
    keys = [numbers(seed, draw) >> 1 for draw in range(params["draws"])]
    bounded = [row for draw, key in enumerate(keys) for row in _bounded(params, draw, key)]
    sizes = {
        name: amplification(_stack(name, params, keys[0]), *_laws(params, keys[0]), params["factors"])
        for name in ("peri_ln", "pre_ln")
    }
    worst = _adversarial(params, keys[0])
    pairs, laws = (max(row[kind] for row in bounded) for kind in ("pairs", "laws"))
    values = {
        "a_uncertainty_slack": max(pairs, laws, worst),
        "a_uncertainty_slack_pairs": pairs,
        "a_uncertainty_slack_laws": laws,
        "a_uncertainty_slack_adversarial": worst,
        "a_uncertainty_amplification_peri": sizes["peri_ln"][-1],
        "a_uncertainty_amplification_pre": sizes["pre_ln"][-1],
        "a_uncertainty_slope_peri": slope(params["factors"], sizes["peri_ln"]),
        "a_uncertainty_slope_pre": slope(params["factors"], sizes["pre_ln"]),
    }
    rows = [
        {"method": name, "factor": factor, "amplification": found}
        for name, all_found in sizes.items()
        for factor, found in zip(params["factors"], all_found, strict=True)
    ]
    violations = [row for row in bounded if max(row["pairs"], row["laws"]) > 1 + 1e-9]
    return Measured(values, len(bounded), {"rows": rows, "bounded": bounded, "violations": violations})
