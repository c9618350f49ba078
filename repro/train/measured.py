"""From numbers to the part of a record that holds them."""

from __future__ import annotations

from typing import Any

from repro.records.measured import Measured
from repro.records.schema import finite


def spent(wall: float) -> dict[str, Any]:
    """Times and starts of what is made in one go, in seconds."""
    return {
        "time": {"wall": wall, "train": 0.0, "eval": wall, "compile": 0.0, "wait": 0.0},
        "attempts": 1,
        "resumes": 0,
    }


def metric_fields(values: dict[str, dict[str, Any]], measured: Measured) -> dict[str, Any]:
    """Status, numbers and details of one eval or check record; a value that is no finite number is null, and said."""
    kept = {name: finite(measured.values[name]) for name in values}
    without = [name for name, value in kept.items() if value is None]
    reason = f"{', '.join(without)}: no finite number" if without else None
    return {
        "status": "complete",
        "status_detail": {"step": None, "reason": reason},
        "metrics": [{**values[name], "value": kept[name], "n": measured.n} for name in values],
        "probes": measured.details,
    }
