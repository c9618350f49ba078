"""The cluster that all tests of this folder share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cluster.slurm import PACKAGES, Cluster, absent


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A real Slurm. In CI it must be installed; elsewhere the test says what it needs and is skipped."""
    if missing := absent():
        end = pytest.fail if os.environ.get("CI") else pytest.skip
        end(f"needs {', '.join(missing)}: apt-get install {PACKAGES}")
    running = Cluster.start()
    try:
        yield running
    finally:
        running.stop()
