"""No number of a method that breaks the contract: it is checked once for each method and code, before training."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from repro.records.store import replace_text
from repro.spec.errors import CannotWriteError, shown
from repro.spec.methods import registry
from repro.spec.paths import Root


def broken_contract(root: Root, base: dict[str, Any]) -> str | None:
    """What the method of a language model's record skeleton breaks, in words; None if it keeps the contract.

    Takes a second or two for a method that was not checked yet, with this very code, in this checkout.
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
    from repro.nn.contract import check_method

    broken = [result for result in check_method(registry()[name]) if not result.ok]
    more = f" (and {len(broken) - 1} more: repro method check {name})" if len(broken) > 1 else ""
    fault = f"breaks the contract of methods: {broken[0].name}: {shown(broken[0].detail)}{more}" if broken else None
    with suppress(CannotWriteError):  # it is checked again next time
        replace_text(known, json.dumps({"fault": fault}) + "\n")
    return fault
