"""A-T3: the local sensitivity of a Pre-LN sub-layer grows with its last linear map, that of Peri-LN does not."""

from __future__ import annotations

from typing import Any

from repro.nn.method_api import load_method
from repro.records.measured import Measured
from repro.theory.nets import Shape, Sublayer, build, embedding, linears, make_loud, numbers, scale_linear, sublayers
from repro.theory.sensitivity import local_sensitivity, slope

INFO = {
    "title": "Local sensitivity ||J - I|| of a sub-layer",
    "says": "With the last linear map times c, ||J - I|| is proportional to c for Pre-LN, independent of c for Peri-LN",
    "ref": "paper_a",
    "rules": 1,
    "seconds": 12.0,
    "memory_gb": 2.0,
    "params": {"width": 32, "tokens": 8, "draws": 6, "factors": [1.0, 4.0, 16.0], "dt": 0.1, "iterations": 100},
    "values": {
        "a_sensitivity_slope_pre": {"unit": "1", "better": "none"},
        "a_sensitivity_slope_peri": {"unit": "1", "better": "none"},
        "a_sensitivity_off_pre": {"unit": "1", "better": "lower"},
        "a_sensitivity_off_peri": {"unit": "1", "better": "lower"},
        "a_sensitivity_norm_pre": {"unit": "1", "better": "none"},
        "a_sensitivity_norm_peri": {"unit": "1", "better": "none"},
        "a_sensitivity_state_slope_pre": {"unit": "1", "better": "none"},
        "a_sensitivity_state_slope_peri": {"unit": "1", "better": "none"},
        "a_sensitivity_every_map_slope_pre": {"unit": "1", "better": "none"},
        "a_sensitivity_every_map_slope_peri": {"unit": "1", "better": "none"},
        "a_sensitivity_dt_off": {"unit": "1", "better": "lower"},
    },
}
NAMES = {"pre": "pre_ln", "peri": "peri_ln"}


def _part(name: str, params: dict[str, Any], draw: int, kind: int, **given: object) -> Sublayer:
    """One sub-layer (0 attention, 1 MLP) with weights N(0, 1/fan-in) and eps = 0."""
    stack = build(load_method(NAMES[name], given), Shape(1, params["width"], 4), draw, eps=0.0)
    return sublayers(make_loud(stack, draw))[kind]


def _sizes(name: str, params: dict[str, Any], draw: int, kind: int, what: str) -> list[float]:
    """||J - I|| with the last map, every map, or the state times each of the factors."""
    shape = Shape(1, params["width"], 4)
    # An MLP sees one token at a time: more of them would only make more equal singular values.
    x = embedding(shape, 1 if kind else params["tokens"], draw)
    found = []
    for factor in params["factors"]:
        part = _part(name, params, draw, kind)
        for linear in {"last map": [part.last_linear()], "every map": linears(part.branch)}.get(what, []):
            scale_linear(linear, factor)
        found.append(local_sensitivity(part, factor * x if what == "state" else x, iterations=params["iterations"]))
    return found


def run(params: dict[str, Any], seed: int) -> Measured:
    """Slopes of log ||J - I|| against log c over draws and both kinds of sub-layer; ||J - I|| of the MLP at c = 1."""
    rows: list[dict[str, Any]] = [
        {"method": NAMES[name], "draw": draw, "sub_layer": ("attn", "mlp")[kind], "scaled": what,
         "sensitivities": sizes, "slope": slope(params["factors"], sizes)}
        for name in NAMES
        for draw in range(params["draws"])
        for kind in (0, 1)
        for what in ("last map", "state", *(["every map"] if kind else []))
        for sizes in [_sizes(name, params, numbers(seed, draw), kind, what)]
    ]  # fmt: skip
    slopes = {
        (name, what): [row["slope"] for row in rows if (row["method"], row["scaled"]) == (NAMES[name], what)]
        for name in NAMES
        for what in ("last map", "state", "every map")
    }
    mean = {key: sum(found) / len(found) for key, found in slopes.items()}
    values = {
        **{f"a_sensitivity_slope_{name}": mean[name, "last map"] for name in NAMES},
        "a_sensitivity_off_pre": max(abs(found - 1) for found in slopes["pre", "last map"]),
        "a_sensitivity_off_peri": max(abs(found) for found in slopes["peri", "last map"]),
        **{f"a_sensitivity_norm_{name}": _mlp_norm(rows, NAMES[name]) for name in NAMES},
        **{f"a_sensitivity_state_slope_{name}": mean[name, "state"] for name in NAMES},
        **{f"a_sensitivity_every_map_slope_{name}": mean[name, "every map"] for name in NAMES},
        "a_sensitivity_dt_off": max(_dt_off(params, numbers(seed, draw), kind) for draw in (0, 1) for kind in (0, 1)),
    }
    return Measured(values, params["draws"], {"rows": rows})


def _mlp_norm(rows: list[dict[str, Any]], method: str) -> float:
    found = [
        row["sensitivities"][0]
        for row in rows
        if (row["method"], row["sub_layer"], row["scaled"]) == (method, "mlp", "last map")
    ]
    return float(sum(found) / len(found))


def _dt_off(params: dict[str, Any], draw: int, kind: int) -> float:
    """Largest relative distance of ||J - I|| from dt times that of dt = 1, at the same stream."""
    x = embedding(Shape(1, params["width"], 4), 1 if kind else params["tokens"], draw)
    found = []
    for name in NAMES:
        parts = [_part(name, params, draw, kind, dt=dt) for dt in (1.0, params["dt"])]
        whole, small = (local_sensitivity(part, x, iterations=params["iterations"]) for part in parts)
        found.append(abs(small / (params["dt"] * whole) - 1))
    return max(found)
