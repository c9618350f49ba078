"""A-T1: the hidden state of Peri-LN grows at most linearly, its variance at most quadratically."""

from __future__ import annotations

import math
from typing import Any

from repro.nn.method_api import Method, load_method
from repro.records.measured import Measured
from repro.theory.battery import (
    Passage,
    adversarial,
    network_walk,
    rows_of,
    slack_of,
    start_and_scaled,
    trained,
)
from repro.theory.growth import Exponent, Law, exponent, walk
from repro.theory.nets import Shape, numbers, step_size

INFO = {
    "title": "Growth of the hidden state under Peri-LN",
    "says": "RMS(x_D) is at most RMS(x_0) + dt * sum(max |gamma| + RMS(beta)) over all sub-layers, for any weights",
    "ref": "paper_a",
    "rules": 1,
    "seconds": 50.0,
    "memory_gb": 3.0,
    "params": {
        "layers": 48,
        "width": 1600,
        "draws": 1,
        "small_width": 256,
        "small_draws": 5,
        "tokens": 8,
        "train_width": 64,
        "train_steps": 10,
        "train_draws": 3,
        "ascent_width": 32,
        "ascent_steps": 20,
    },
    "values": {
        "a_growth_slack": {"unit": "1", "better": "lower"},
        "a_growth_slack_mean": {"unit": "1", "better": "lower"},
        "a_growth_slack_variance": {"unit": "1", "better": "lower"},
        "a_growth_slack_start": {"unit": "1", "better": "lower"},
        "a_growth_slack_scaled": {"unit": "1", "better": "lower"},
        "a_growth_slack_trained": {"unit": "1", "better": "lower"},
        "a_growth_slack_adversarial": {"unit": "1", "better": "lower"},
        "a_growth_start_mean_ratio": {"unit": "1", "better": "none"},
        "a_growth_start_variance_ratio": {"unit": "1", "better": "none"},
        "a_growth_exponent_mean_start": {"unit": "1", "better": "lower"},
        "a_growth_exponent_mean_start_high": {"unit": "1", "better": "lower"},
        "a_growth_exponent_variance_start": {"unit": "1", "better": "lower"},
        "a_growth_exponent_variance_start_high": {"unit": "1", "better": "lower"},
        "a_growth_exponent_mean_trained": {"unit": "1", "better": "lower"},
        "a_growth_exponent_mean_trained_low": {"unit": "1", "better": "lower"},
        "a_growth_exponent_variance_trained": {"unit": "1", "better": "lower"},
        "a_growth_exponent_variance_trained_low": {"unit": "1", "better": "lower"},
        "a_growth_exponent_mean_adversarial": {"unit": "1", "better": "lower"},
        "a_growth_exponent_variance_adversarial": {"unit": "1", "better": "lower"},
    },
}


def passages(params: dict[str, Any], seed: int) -> list[Passage]:
    """All walks of the check: two widths at start and scaled, small decoders after training, an adversary."""
    found: list[Passage] = []
    layers = params["layers"]
    for width, draws in ((params["width"], params["draws"]), (params["small_width"], params["small_draws"])):
        for draw in range(draws):
            methods: dict[str, tuple[Method, Law | None]] = {
                "peri_ln": (load_method("peri_ln"), Law("adds", 1.0)),
                "peri_ln dt=0.1": (load_method("peri_ln", {"dt": 0.1}), Law("adds", 0.1)),
                "pre_ln": (load_method("pre_ln"), None),
            }
            found += start_and_scaled(methods, layers, width, params["tokens"], draw, seed)
    for draw in range(params["train_draws"]):
        for name in ("peri_ln", "pre_ln"):
            method = load_method(name)
            width, key = params["train_width"], numbers(seed, draw, 2)
            model, tokens, _ = trained(method, layers, width, params["train_steps"], key)
            law = Law("adds", step_size(method)) if name == "peri_ln" else None
            found.append(Passage("trained", name, width, draw, network_walk(model, tokens, law)))
    for label, dt in (("peri_ln", 1.0), ("peri_ln dt=0.1", 0.1)):
        method, law = load_method("peri_ln", {"dt": dt}), Law("adds", dt)
        shape = Shape(layers, params["ascent_width"], 4)
        stack, x = adversarial(method, law, shape, params["ascent_steps"], numbers(seed, 3))
        found.append(Passage("adversarial", label, shape.width, 0, walk(stack, x, law)))
    return found


def run(params: dict[str, Any], seed: int) -> Measured:
    """Largest left side over right side in each state of the weights, and exponents of growth over depth."""
    found = passages(params, seed)
    total = slack_of(found)
    values = {
        "a_growth_slack": total.worst,
        "a_growth_slack_mean": total.mean,
        "a_growth_slack_variance": total.variance,
        **{f"a_growth_slack_{s}": slack_of(found, s).worst for s in ("start", "scaled", "trained", "adversarial")},
    }
    # At start sub-layers add independent vectors of RMS 1: variance 2 D, mean absolute value that of a normal law.
    last = [passage.walk.rows[-1] for passage in _peri(found, "start")]
    expected = 2.0 * params["layers"]
    values["a_growth_start_variance_ratio"] = _mean([row["entry_variance"] for row in last]) / expected
    normal = math.sqrt(2 / math.pi * expected)
    values["a_growth_start_mean_ratio"] = _mean([row["mean_abs"] for row in last]) / normal
    fits: list[dict[str, str | float]] = []
    for state in ("start", "trained", "adversarial"):
        for word, key in (("mean", "mean_abs"), ("variance", "entry_variance")):
            fit = exponent([passage.walk.curve(key) for passage in _peri(found, state)])
            values |= _named(f"a_growth_exponent_{word}_{state}", fit)
            fits.append({"state": state, "moment": word, "value": fit.value, "low": fit.low, "high": fit.high})
    asked: Any = INFO["values"]
    details = {"rows": rows_of(found), "exponents": fits, "violations": total.violations[:50]}
    return Measured({name: values[name] for name in asked}, len(found), details)


def _peri(found: list[Passage], state: str) -> list[Passage]:
    return [passage for passage in found if (passage.state, passage.label) == (state, "peri_ln")]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _named(name: str, fit: Exponent) -> dict[str, float]:
    return {name: fit.value, f"{name}_low": fit.low, f"{name}_high": fit.high}
