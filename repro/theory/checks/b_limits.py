"""Limits of depth and width, apart: error like 1/L for given heads, like 1/sqrt(M) for given depth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from repro.records.measured import Measured
from repro.theory.mean_field import Array, Sizes, TokenMeasures, continuous_flow, distance, flow, smooth_heads
from repro.theory.rates import power_law

INFO = {
    "title": "Limits of infinite depth and infinite width",
    "says": "the finite model's error against a fine reference falls like 1/L in depth and like 1/sqrt(M) in width",
    "ref": "paper_b",
    "rules": 1,
    "seconds": 4.0,
    "memory_gb": 2.0,
    "params": {
        "draws": 4,
        "layers": [8, 16, 32, 64, 128],
        "heads": [8, 16, 32, 64, 128, 256],
        "repeats": 24,
        "fixed_layers": 8,
        "fixed_heads": 32,
        "reference_heads": 8192,
        "reference_steps": 128,
        "sequences": 2,
        "tokens": 6,
        "dim": 3,
    },
    "values": {
        "b_depth_slope": {"unit": "1", "better": "lower"},
        "b_depth_slope_error": {"unit": "1", "better": "lower"},
        "b_width_slope": {"unit": "1", "better": "lower"},
        "b_width_slope_error": {"unit": "1", "better": "lower"},
    },
}


def run(params: dict[str, Any], seed: int) -> Measured:
    """Errors and fitted exponents for each draw of tokens and heads."""
    rows: list[dict[str, Any]] = []
    slopes: list[dict[str, Any]] = []
    for draw in range(params["draws"]):
        rng = np.random.default_rng([seed, draw])
        measures = TokenMeasures.uniform(rng.standard_normal((params["sequences"], params["tokens"], params["dim"])))
        found = {"depth": _depth(measures, params, rng), "width": _width(measures, params, rng)}
        sizes = {"depth": params["layers"], "width": params["heads"]}
        for limit, errors in found.items():
            slopes.append({"limit": limit, "draw": draw, "slope": power_law(sizes[limit], errors).slope})
            rows += [
                {"limit": limit, "draw": draw, "size": size, "error": error}
                for size, error in zip(sizes[limit], errors, strict=True)
            ]
    values = {}
    for limit, expected in (("depth", -1.0), ("width", -0.5)):
        own = [row["slope"] for row in slopes if row["limit"] == limit]
        values[f"b_{limit}_slope"] = float(np.mean(own))
        values[f"b_{limit}_slope_error"] = max(abs(slope - expected) for slope in own)
    return Measured(values, params["draws"], {"rows": rows, "slopes": slopes})


def _depth(measures: TokenMeasures, params: dict[str, Any], rng: np.random.Generator) -> list[float]:
    """Distance at depth 1 from the continuous model with the same heads."""
    sizes = Sizes(params["dim"], params["dim"])
    heads = smooth_heads(rng, params["fixed_heads"], sizes, smooth_heads(rng, 1, sizes))
    reference = continuous_flow(measures, heads, params["reference_steps"])[-1]
    return [distance(measures, flow(measures, heads.layers(count))[-1], reference) for count in params["layers"]]


def _width(measures: TokenMeasures, params: dict[str, Any], rng: np.random.Generator) -> list[float]:
    """Root mean square distance, over repeats of M heads, from many heads of the same law."""
    sizes = Sizes(params["dim"], params["dim"])
    center = smooth_heads(rng, 1, sizes)

    def outputs(heads: int) -> Array:
        drawn = smooth_heads(rng, heads, sizes, center)
        return flow(measures, drawn.layers(params["fixed_layers"]))[-1]

    reference = outputs(params["reference_heads"])
    return [
        math.sqrt(np.mean([distance(measures, outputs(heads), reference) ** 2 for _ in range(params["repeats"])]))
        for heads in params["heads"]
    ]
