"""No number of a method that sees the future or loses its state: checked once for each method and code."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from repro.records.store import replace_text
from repro.spec.errors import CannotWriteError, shown
from repro.spec.paths import Root

LONGEST = 600  # seconds for what takes five
# Without these a loss is not what it says; what else the contract asks for is told by `repro method check`.
NEEDED = ("loads", "state", "causality")


def broken_contract(root: Root, base: dict[str, Any]) -> str | None:
    """What makes losses of the method of a language model's record skeleton worthless; None if they can be trusted.

    Takes some seconds for a method that was not checked yet, with this very code, in this checkout.
    """
    if base["config"]["task"] != "lm":
        return None  # other tasks read a coefficient of the method and never build it
    seal = f"{base['method_sha256']}-{base['code']['source_sha256']}"
    known = root.scratch / "cache" / "contract" / f"{seal}.json"
    try:
        fault = json.loads(known.read_text("utf-8"))["fault"]
        return None if fault is None else str(fault)
    except (OSError, ValueError, TypeError, KeyError):
        return _checked(known, str(base["method"]))


def _checked(known: Path, name: str) -> str | None:
    """In a process of its own: the contract compares methods, and no other one's file may act on this training."""
    command = [sys.executable, "-m", "repro", "method", "check", name, "--json"]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LONGEST)
        results = [json.loads(line) for line in done.stdout.splitlines()]
        faults = [result for result in results if result["check"] in NEEDED and not result["ok"]]
        broken = [f"{result['check']}: {result['detail']}" for result in faults]
        if not results:
            broken = [f"the check itself ended with code {done.returncode}"]
    except subprocess.TimeoutExpired:
        broken = [f"the check took more than {LONGEST} s"]
    more = f" (and {len(broken) - 1} more: repro method check {name})" if len(broken) > 1 else ""
    fault = f"breaks the contract of methods: {shown(broken[0])}{more}" if broken else None
    with suppress(CannotWriteError):  # it is checked again next time
        replace_text(known, json.dumps({"fault": fault}) + "\n")
    return fault
