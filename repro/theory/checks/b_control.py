"""B-T5: a sequence that stands twice with different targets cannot be fitted; the same data without conflict can."""

from __future__ import annotations

from typing import Any

import numpy as np

from repro.records.measured import Measured
from repro.theory.gradient_flow import Problem, Stop, Trajectory, conflict, converge, perturbed
from repro.theory.mean_field import Sizes, TokenMeasures, flow, gaussian_heads

INFO = {
    "title": "Control: one sequence with two targets",
    "says": "where the kernel is singular and targets disagree, the flow stays above a floor known beforehand",
    "ref": "paper_b",
    "rules": 1,
    "seconds": 4.0,
    "memory_gb": 2.0,
    "params": {
        "draws": 3,
        "layers": 16,
        "heads": 32,
        "sequences": 3,
        "tokens": 3,
        "dim": 3,
        "attention": 2.0,
        "perturbation": 0.1,
        "floor": 0.25,
        "share": 1e-8,
    },
    "values": {
        "b_floor_share": {"unit": "1", "better": "higher"},
        "b_floor_ratio": {"unit": "1", "better": "lower"},
        "b_twin_share": {"unit": "1", "better": "lower"},
        "b_control_lambda": {"unit": "1", "better": "lower"},
    },
}


def run(params: dict[str, Any], seed: int) -> Measured:
    """For each draw the twin, which falls, and the control over the same time of the flow."""
    rows, ends = [], []
    for draw in range(params["draws"]):
        twin, control, floor = _pair(params, np.random.default_rng([seed, draw]))
        for arm, found in (("twin", twin), ("control", control)):
            rows += [
                {"draw": draw, "arm": arm, "time": float(t), "risk": float(r), "floor": floor}
                for t, r in zip(found.times, found.risks, strict=True)
            ]
        ends.append(
            {
                "draw": draw,
                "floor_share": float(control.risks.min() / control.risks[0]),
                "floor_ratio": float(control.risks[-1] / floor),
                "twin_share": float(twin.risks[-1] / twin.risks[0]),
                "lambda": float(np.abs(control.smallest).max()),
            }
        )
    values = {
        "b_floor_share": min(end["floor_share"] for end in ends),
        "b_floor_ratio": max(end["floor_ratio"] for end in ends),
        "b_twin_share": max(end["twin_share"] for end in ends),
        "b_control_lambda": max(end["lambda"] for end in ends),
    }
    return Measured(values, len(ends), {"rows": rows, "ends": ends})


def _pair(params: dict[str, Any], rng: np.random.Generator) -> tuple[Trajectory, Trajectory, float]:
    dim = params["dim"]
    measures = TokenMeasures.uniform(rng.standard_normal((params["sequences"], params["tokens"], dim)))
    start = gaussian_heads(rng, params["layers"], params["heads"], Sizes(dim, dim, attention=params["attention"]))
    teacher = perturbed(rng, start, params["perturbation"])
    problem = Problem(measures, flow(measures, teacher)[-1])
    control, twin, floor = conflict(problem, flow(measures, start)[-1], params["floor"], rng)
    free = converge(twin, start, Stop(share=params["share"]))
    return free, converge(control, start, Stop(share=params["share"], time=float(free.times[-1]))), floor
