"""Rules versions: what makes old and new numbers comparable.

A version is raised when a change of code changes numbers (a golden loss moves, a protocol is mended), with
the evidence in CHANGELOG.md. Each part has its own, so that mending one orphans no other; a metric's version
stands in its own file.
"""

from __future__ import annotations

RULES: dict[str, int] = {
    "train": 1,  # models, optimiser, order of data, divergence
    "data": 1,  # preparation of token files
}
