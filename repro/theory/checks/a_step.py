"""A-T4: a residual step dt scales what the blocks add by dt at start, its variance by dt^2."""

from __future__ import annotations

from typing import Any

import torch

from repro.nn.method_api import load_method
from repro.records.measured import Measured
from repro.theory.nets import Shape, block_sublayers, embedding, layer_by_layer, numbers

INFO = {
    "title": "Residual step",
    "says": "At start the mean absolute value and the spread of x_D - x_0 scale with dt, its variance with dt^2",
    "ref": "paper_a",
    "rules": 1,
    "seconds": 4.0,
    "memory_gb": 2.0,
    "params": {"depths": [6, 12, 48], "width": 256, "tokens": 16, "draws": 4, "dt": 0.1},
    "values": {
        "a_step_ratio_mean": {"unit": "1", "better": "none"},
        "a_step_ratio_std": {"unit": "1", "better": "none"},
        "a_step_ratio_variance": {"unit": "1", "better": "none"},
        "a_step_off_mean": {"unit": "1", "better": "lower"},
        "a_step_off_variance": {"unit": "1", "better": "lower"},
        "a_step_state_off": {"unit": "1", "better": "lower"},
    },
}


@torch.no_grad()
def _row(params: dict[str, Any], depth: int, draw: int, key: int) -> dict[str, float]:
    """Ratios of dt to 1 in one draw of weights, with an embedding of RMS 1; eps = 0."""
    shape = Shape(depth, params["width"], 4)
    x = embedding(shape, params["tokens"], key)
    methods = {dt: load_method("peri_ln", {"dt": dt}) for dt in (1.0, params["dt"])}
    ends = dict.fromkeys(methods, x)
    for block in layer_by_layer(methods[1.0], shape, key, eps=0.0):
        for dt, method in methods.items():
            for part in block_sublayers(block, method):
                ends[dt], _ = part(ends[dt])
    small, whole = ends[params["dt"]] - x, ends[1.0] - x
    variance = float(small.var(correction=0) / whole.var(correction=0))
    return {
        "depth": depth,
        "draw": draw,
        "mean": float(small.abs().mean() / whole.abs().mean()),
        "std": variance**0.5,
        "variance": variance,
        "state": float(ends[params["dt"]].abs().mean() / ends[1.0].abs().mean()),
        # 2 D independent vectors of RMS dt upon an embedding of RMS 1
        "state_expected": ((1 + 2 * depth * params["dt"] ** 2) / (1 + 2 * depth)) ** 0.5,
    }


def run(params: dict[str, Any], seed: int) -> Measured:
    """Ratios over all depths and draws, and how far the mean over draws is off at the worst depth."""
    dt = params["dt"]
    rows = [
        _row(params, depth, draw, numbers(seed, depth, draw))
        for depth in params["depths"]
        for draw in range(params["draws"])
    ]
    by_depth = [[row for row in rows if row["depth"] == depth] for depth in params["depths"]]
    means = [{key: sum(row[key] for row in group) / len(group) for key in group[0]} for group in by_depth]
    values = {
        **{f"a_step_ratio_{key}": sum(row[key] for row in rows) / len(rows) for key in ("mean", "std", "variance")},
        "a_step_off_mean": max(abs(mean[key] / dt - 1) for mean in means for key in ("mean", "std")),
        "a_step_off_variance": max(abs(mean["variance"] / dt**2 - 1) for mean in means),
        "a_step_state_off": max(abs(mean["state"] / mean["state_expected"] - 1) for mean in means),
    }
    return Measured(values, len(rows), {"rows": rows, "by_depth": means})
