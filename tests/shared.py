"""Inputs that lie beside the checkout, not in it: cases, papers' figures, real data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


def shared(path: str) -> Path:
    """A file or folder of `../shared`. In CI it must be there; elsewhere the test says what it needs and is skipped."""
    found = SHARED / path
    if not found.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs ../shared/{path} beside the checkout")
    return found
