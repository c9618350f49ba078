"""D-T2: without the skip, attention's output tends to rank one as d_QK grows, if its weights shrink with d_QK."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from repro.records.measured import Measured
from repro.theory.attention_rank import rank_rows

INFO = {
    "title": "Rank collapse of softmax attention",
    "says": "sigma_min / sigma_max of Attn(X) + beta X falls with d_QK only for beta 0 and entries of variance 1/d_QK",
    "ref": "paper_d",
    "rules": 1,
    "seconds": 1.0,
    "memory_gb": 2.0,
    "params": {
        "tokens": 24,
        "d": 14,
        "d_qks": [8, 64, 512, 4096],
        "betas": [0.0, 0.25, 0.5, 0.75, 1.0],
        "starts": ["inverse_d_qk", "unit"],
    },
    "words": {"starts": ["inverse_d_qk", "unit"]},
    "values": {
        "d_collapse_slope": {"unit": "decades/decade", "better": "lower"},
        "d_collapse_slope_unit": {"unit": "decades/decade", "better": "higher"},
        "d_collapse_slope_skip": {"unit": "decades/decade", "better": "higher"},
        "d_collapse_ratio": {"unit": "1", "better": "lower"},
        "d_collapse_ratio_unit": {"unit": "1", "better": "higher"},
        "d_collapse_ratio_skip": {"unit": "1", "better": "higher"},
        "d_collapse_second": {"unit": "1", "better": "lower"},
    },
}
CONDITION = "the collapse needs entries of variance 1/d_QK: logits then vanish, and attention becomes uniform"


def run(params: dict[str, Any], seed: int) -> Measured:
    """One draw: Gaussian tokens, every d_QK, both starts, every beta (0 and 1 among them).

    `slope` is that of log ratio against log d_QK at beta 0 (`_unit`: entries of variance 1; `_skip`: beta 1);
    `ratio` is sigma_min / sigma_max and `second` the second singular value over the largest, at the largest d_QK.
    """
    rows: list[dict[str, Any]] = []
    for start in params["starts"]:
        for d_qk in params["d_qks"]:
            rows += rank_rows(params["tokens"], params["d"], d_qk, start, params["betas"], seed)
    bare, skip = _column(rows, "inverse_d_qk", 0.0), _column(rows, "inverse_d_qk", 1.0)
    unit = _column(rows, "unit", 0.0)
    values = {
        "d_collapse_slope": _slope(bare),
        "d_collapse_slope_unit": _slope(unit),
        "d_collapse_slope_skip": _slope(skip),
        "d_collapse_ratio": bare[-1]["ratio"] if bare else math.nan,
        "d_collapse_ratio_unit": unit[-1]["ratio"] if unit else math.nan,
        "d_collapse_ratio_skip": skip[-1]["ratio"] if skip else math.nan,
        "d_collapse_second": bare[-1]["second"] if bare else math.nan,
    }
    return Measured(values, 1, {"rows": rows, "condition": CONDITION})


def _column(rows: Sequence[dict[str, Any]], start: str, beta: float) -> list[dict[str, Any]]:
    found = [row for row in rows if row["start"] == start and row["beta"] == beta]
    return sorted(found, key=lambda row: int(row["d_qk"]))


def _slope(column: Sequence[dict[str, Any]]) -> float:
    """Of log ratio against log d_QK; nan where there are fewer than two sizes or a ratio is exactly 0."""
    sizes, ratios = ([row[name] for row in column] for name in ("d_qk", "ratio"))
    if len(set(sizes)) < 2 or min(ratios) <= 0:
        return math.nan
    return float(np.polyfit(np.log(sizes), np.log(ratios), 1)[0])
