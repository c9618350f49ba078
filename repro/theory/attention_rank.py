"""Singular values of the attention sub-layer's output Z = Attn(X) + beta X at start (paper D, claims D-T2 and D-T3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from repro.nn.kernel import spectra
from repro.nn.single_layer import Form, SingleLayerConfig, Start, draw_weights, forward_pass


def rank_rows(tokens: int, d: int, d_qk: int, start: Start, betas: Sequence[float], seed: int) -> list[dict[str, Any]]:
    """One row a beta for one draw: a sequence of `tokens` x `d` Gaussian numbers, weights as `start` says.

    `ratio` is smallest over largest singular value of Z, `second` the second over the largest: 0 means rank one.
    X is the same for all rows of a seed; W_Q, W_K and W_V are the same for all betas.
    """
    x = torch.from_numpy(np.random.default_rng([seed, 0]).standard_normal((1, tokens, d)))
    config = SingleLayerConfig(d, d_qk, 1, start=start)
    beta = torch.tensor(betas, dtype=torch.float64)
    form = Form(beta, beta, config.form().scale)
    found = spectra(forward_pass(draw_weights(config, seed), x, form).z)
    return [
        {
            "start": start,
            "d_qk": d_qk,
            "beta": float(value),
            "ratio": spectrum.ratio,
            "second": spectrum.second / spectrum.largest,
            "sigma_min": spectrum.smallest,
            "sigma_max": spectrum.largest,
            "rank": spectrum.rank,
        }
        for value, spectrum in zip(betas, found, strict=True)
    ]
