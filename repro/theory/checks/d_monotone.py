"""D-T3: the skip keeps the attention sub-layer's output well conditioned, the more so the larger beta."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from repro.records.measured import Measured
from repro.theory.attention_rank import rank_rows
from repro.theory.residual_rate import order_agreement

INFO = {
    "title": "Conditioning of Attn(X) + beta X grows with beta",
    "says": "sigma_min / sigma_max rises with beta, in the mean over draws, and sigma_min stays above 0 with a skip",
    "ref": "paper_d",
    "rules": 1,
    "seconds": 1.0,
    "memory_gb": 2.0,
    "params": {"tokens": 24, "d": 14, "d_qk": 512, "betas": [0.0, 0.25, 0.5, 0.75, 1.0], "start": "inverse_d_qk"},
    "words": {"start": ["inverse_d_qk", "unit"]},
    "values": {
        "d_monotone_0": {"unit": "1", "better": "higher"},
        "d_monotone_025": {"unit": "1", "better": "higher"},
        "d_monotone_05": {"unit": "1", "better": "higher"},
        "d_monotone_075": {"unit": "1", "better": "higher"},
        "d_monotone_1": {"unit": "1", "better": "higher"},
        "d_monotone_step": {"unit": "1", "better": "higher"},
        "d_monotone_tau": {"unit": "1", "better": "higher"},
        "d_monotone_sigma_min": {"unit": "1", "better": "higher"},
    },
}


def run(params: dict[str, Any], seed: int) -> Measured:
    """One draw. The numbered values are the ratios at these betas.

    `step` is the least rise from one beta to the next, `tau` Kendall's agreement of the ratios' order with that of
    beta, `sigma_min` the least singular value of Z over all betas above 0. A draw whose ratios do not all rise is
    kept as a violation: the claim is about the mean over draws.
    """
    betas = sorted(params["betas"])
    rows = rank_rows(params["tokens"], params["d"], params["d_qk"], params["start"], betas, seed)
    ratios = {row["beta"]: row["ratio"] for row in rows}
    rises = np.diff(list(ratios.values()))
    values = {
        "d_monotone_0": ratios.get(0.0, math.nan),
        "d_monotone_025": ratios.get(0.25, math.nan),
        "d_monotone_05": ratios.get(0.5, math.nan),
        "d_monotone_075": ratios.get(0.75, math.nan),
        "d_monotone_1": ratios.get(1.0, math.nan),
        "d_monotone_step": float(rises.min()),
        "d_monotone_tau": order_agreement(list(ratios.values()), betas),
        "d_monotone_sigma_min": min(row["sigma_min"] for row in rows if row["beta"] > 0),
    }
    falls = [
        {"seed": seed, "from": betas[place], "to": betas[place + 1], "rise": float(rise)}
        for place, rise in enumerate(rises)
        if rise <= 0
    ]
    return Measured(values, 1, {"rows": rows, "violations": falls})
