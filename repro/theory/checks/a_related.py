"""Other methods with a last norm: SimpleNorm keeps A-T1's bound (papers.md 5.5), Post-LN never leaves one norm's."""

from __future__ import annotations

from typing import Any

from repro.nn.method_api import load_method
from repro.records.measured import Measured
from repro.theory.battery import Passage, adversarial, network_walk, rows_of, slack_of, start_and_scaled, trained
from repro.theory.growth import Law, walk
from repro.theory.nets import Shape, numbers

INFO = {
    "title": "A-T1's bound for other methods whose branches end in a norm",
    "says": "SimpleNorm's state stays below RMS(x_0) + sum(max |gamma|), Post-LN's below max |gamma| + RMS(beta)",
    "ref": "papers.md 5.5",
    "rules": 1,
    "seconds": 18.0,
    "memory_gb": 2.0,
    "params": {
        "layers": 48,
        "width": 768,
        "draws": 1,
        "tokens": 8,
        "train_width": 64,
        "train_steps": 8,
        "ascent_layers": 24,
        "ascent_width": 32,
        "ascent_steps": 15,
    },
    "values": {
        "a_related_slack_simplenorm": {"unit": "1", "better": "lower"},
        "a_related_slack_simplenorm_adversarial": {"unit": "1", "better": "lower"},
        "a_related_slack_post": {"unit": "1", "better": "lower"},
        "a_related_simplenorm_start_ratio": {"unit": "1", "better": "none"},
    },
}
LAWS = {"simplenorm": Law("adds", 1.0), "post_ln": Law("replaces", 1.0)}


def _passages(params: dict[str, Any], seed: int) -> list[Passage]:
    found: list[Passage] = []
    for name, law in LAWS.items():
        for draw in range(params["draws"]):
            methods: dict[str, Any] = {name: (load_method(name), law)}
            found += start_and_scaled(methods, params["layers"], params["width"], params["tokens"], draw, seed)
        method, width, steps = load_method(name), params["train_width"], params["train_steps"]
        model, tokens, _ = trained(method, params["layers"], width, steps, numbers(seed, 2))
        found.append(Passage("trained", name, width, 0, network_walk(model, tokens, law)))
    shape = Shape(params["ascent_layers"], params["ascent_width"], 4)
    law = LAWS["simplenorm"]
    stack, x = adversarial(load_method("simplenorm"), law, shape, params["ascent_steps"], numbers(seed, 3))
    found.append(Passage("adversarial", "simplenorm", shape.width, 0, walk(stack, x, law)))
    return found


def run(params: dict[str, Any], seed: int) -> Measured:
    """Largest left side over right side of each method, and SimpleNorm's variance at start over 2 D."""
    found = _passages(params, seed)
    of = {name: [passage for passage in found if passage.label == name] for name in LAWS}
    starts = [passage.walk.rows[-1]["entry_variance"] for passage in of["simplenorm"] if passage.state == "start"]
    values = {
        "a_related_slack_simplenorm": slack_of(of["simplenorm"]).worst,
        "a_related_slack_simplenorm_adversarial": slack_of(of["simplenorm"], "adversarial").worst,
        "a_related_slack_post": slack_of(of["post_ln"]).worst,
        "a_related_simplenorm_start_ratio": sum(starts) / len(starts) / (2 * params["layers"]),
    }
    return Measured(values, len(found), {"rows": rows_of(found), "violations": slack_of(found).violations[:50]})
