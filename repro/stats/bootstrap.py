"""The bootstrap of a mean, for values far from normal; refused for few runs, where it covers less than it says."""

from __future__ import annotations

import math
from collections.abc import Sequence

from repro.stats.intervals import Interval, mean, sample_sd

MIN_RUNS = 20  # at 5 runs the percentile interval covers 84 % instead of 95 %
RESAMPLES = 4999  # (resamples + 1) * 2.5 % is a whole number, so both quantiles are order statistics


def bootstrap_interval(values: Sequence[float], seed: int, level: float = 0.95, resamples: int = RESAMPLES) -> Interval:
    """Studentised bootstrap interval of the mean (Efron & Tibshirani 1993, 12.5), the same for the same `seed`.

    Each resample's mean is measured in its own standard error; that keeps the coverage near `level` at 20 runs,
    where percentile and BCa intervals stay about two points below it. Raises ValueError for fewer than 20 values,
    for one that is not finite, and where so few values differ that a resample can lack any spread too often.
    """
    import numpy as np

    if len(values) < MIN_RUNS:
        raise ValueError(f"the bootstrap needs {MIN_RUNS} independent runs, not {len(values)}: use the t interval")
    centre, spread = mean(values), sample_sd(values) or 0.0
    if spread == 0:
        return centre, centre
    n = len(values)
    sample = np.asarray(values, dtype=np.float64)
    drawn = sample[np.random.default_rng(seed).integers(0, n, (resamples, n))]
    errors = drawn.std(axis=1, ddof=1) / math.sqrt(n)
    distances = drawn.mean(axis=1) - centre
    with np.errstate(divide="ignore", invalid="ignore"):
        pivots = np.where(distances == 0, 0.0, distances / errors)
    tail = (1 - level) / 2
    low, high = np.quantile(pivots, [tail, 1 - tail], method="inverted_cdf")
    if not np.isfinite([low, high]).all():
        raise ValueError("too few of the values differ for a bootstrap")
    error = spread / math.sqrt(n)
    return centre - float(high) * error, centre - float(low) * error
