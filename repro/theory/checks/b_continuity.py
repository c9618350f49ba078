"""Token laws move by the continuity equation along depth, and no mass is lost."""

from __future__ import annotations

from typing import Any

import numpy as np

from repro.records.measured import Measured
from repro.theory.continuity import Waves, mass_error, volume_error, weak_form
from repro.theory.mean_field import Sizes, SmoothHeads, TokenMeasures, continuous_flow, flow, smooth_heads
from repro.theory.rates import power_law

INFO = {
    "title": "Continuity equation along depth",
    "says": "token laws satisfy the weak continuity equation, the layers up to order 1/L, and keep their mass",
    "ref": "paper_b",
    "rules": 1,
    "seconds": 5.0,
    "memory_gb": 2.0,
    "params": {
        "draws": 5,
        "steps": 256,
        "layers": [32, 64, 128, 256],
        "heads": 32,
        "sequences": 3,
        "tokens": 8,
        "dim": 3,
        "functions": 8,
        "cells": 4,
    },
    "values": {
        "b_continuity_residual": {"unit": "1", "better": "lower"},
        "b_continuity_slope": {"unit": "1", "better": "lower"},
        "b_continuity_slope_error": {"unit": "1", "better": "lower"},
        "b_mass_error": {"unit": "1", "better": "lower"},
        "b_volume_error": {"unit": "1", "better": "lower"},
    },
}
SHOWN_LAYERS = 32  # of the token paths that the figure draws


def run(params: dict[str, Any], seed: int) -> Measured:
    """Weak-form residuals of the continuous model and of its layers, for each draw of tokens, heads and functions."""
    rows, weak, kept, slopes, paths = [], [], [], [], []
    for draw in range(params["draws"]):
        rng = np.random.default_rng([seed, draw])
        measures = TokenMeasures.uniform(rng.standard_normal((params["sequences"], params["tokens"], params["dim"])))
        sizes = Sizes(params["dim"], params["dim"])
        heads = smooth_heads(rng, params["heads"], sizes, smooth_heads(rng, 1, sizes))
        waves = Waves.random(rng, params["functions"], params["dim"])
        fine = weak_form(measures, heads, continuous_flow(measures, heads, params["steps"]), waves)
        weak.append({"draw": draw, "between_ends": fine.between_ends(), "inside": fine.inside()})
        errors = [
            weak_form(measures, heads, flow(measures, heads.layers(layers)), waves).by_layers()
            for layers in params["layers"]
        ]
        slopes.append(power_law(params["layers"], errors).slope)
        rows += [
            {"draw": draw, "layers": layers, "error": error}
            for layers, error in zip(params["layers"], errors, strict=True)
        ]
        shown = heads.layers(SHOWN_LAYERS)
        places = rng.standard_normal((params["sequences"], params["cells"], params["dim"]))
        kept.append((mass_error(measures, shown, rng), volume_error(measures, shown, places)))
        if draw == 0:
            paths = _paths(measures, heads)
    values = {
        "b_continuity_residual": max(max(row["between_ends"], row["inside"]) for row in weak),
        "b_continuity_slope": float(np.mean(slopes)),
        "b_continuity_slope_error": max(abs(slope + 1) for slope in slopes),
        "b_mass_error": max(mass for mass, _ in kept),
        "b_volume_error": max(volume for _, volume in kept),
    }
    return Measured(values, params["draws"], {"rows": rows, "weak_form": weak, "slopes": slopes, "paths": paths})


def _paths(measures: TokenMeasures, heads: SmoothHeads) -> list[dict[str, Any]]:
    """Rows of token places along depth, their first two coordinates, for the figure of trajectories."""
    path = flow(measures, heads.layers(SHOWN_LAYERS))
    return [
        {
            "sequence": sequence,
            "token": token,
            "depth": depth / SHOWN_LAYERS,
            "x": float(path[depth, sequence, token, 0]),
            "y": float(path[depth, sequence, token, 1]),
        }
        for sequence in range(path.shape[1])
        for token in range(path.shape[2])
        for depth in range(0, len(path), 2)
    ]
