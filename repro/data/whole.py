"""Whether prepared data are what their manifest says, whatever their form."""

from __future__ import annotations

from repro.data.arrays import set_problems
from repro.data.manifest import verify
from repro.spec.errors import Problem
from repro.spec.paths import Root


def prepared_problems(root: Root, digest: str, text: bool) -> list[Problem]:
    """All that is wrong with the prepared data of `digest`, token files (`text`) or arrays; [] means whole.

    A token file with the stamp of its last full reading is believed; arrays are small, and read.
    """
    return verify(root, digest, full=False) if text else set_problems(root, digest)
