"""How soon one descent is where another one ends, read of the training losses that their records keep."""

from __future__ import annotations

import math
from typing import Any

from repro.stats.cells import RecordLike


def steps_share_of(first: RecordLike | None, second: RecordLike | None) -> float:
    """Share of `first`'s steps after which its training loss is at most the last one of `second`; infinite if never.

    Curves have at most 200 points, each the mean since the one before, so the share is known to half a percent.
    """
    own, other = _losses(first), _losses(second)
    if not own or not other or other[-1][1] is None:
        return math.inf
    goal = other[-1][1]
    reached = [tokens for tokens, loss in own if loss is not None and loss <= goal]
    return reached[0] / own[-1][0] if reached else math.inf


def _losses(record: RecordLike | None) -> list[tuple[int, float | None]]:
    raw: dict[str, Any] = getattr(record, "raw", {})
    curve = raw.get("curve") or {}
    return list(zip(curve.get("tokens", []), curve.get("train_loss", []), strict=True))
