"""Writes workflow/schemas/*.json, JSON Schemas of every file that a person writes or reads, out of the models.

Editors complete and check configuration by them. The suite itself reads by the models, which know more: names
that must exist, files that must fit together.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from repro.records.schema import RecordModel
from repro.spec.catalogue import Hardware, Models, Suite, Tiers
from repro.spec.claim_ledger import Ledger
from repro.spec.claims import Claim, UnusedFile
from repro.spec.data import Sources
from repro.spec.experiment import Experiment
from repro.spec.fetching import Encoders

FOLDER = Path(__file__).resolve().parents[1] / "workflow" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
MODELS: dict[str, Any] = {
    "experiment": Experiment,
    "tiers": Tiers,
    "models": Models,
    "data": Sources,
    "suite": Suite,
    "hardware": Hardware,
    "encoders": Encoders,
    "claims": list[Claim],
    "claims_unused": UnusedFile,
    "claims_registered": Ledger,
    "record": RecordModel,
}
# Short ways of writing that a model turns into its own form before it checks: schema, place in it, what else may stand.
SHORT = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
ALSO: tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...] = (
    ("experiment", ("$defs", "MethodChoice"), SHORT),
    ("experiment", ("$defs", "MethodChoice"), {"type": "string"}),
    ("claims", ("$defs", "Arm"), {"type": "string"}),
    ("claims", ("$defs", "Claim", "properties", "margin"), {"const": "none"}),
    ("claims", ("$defs", "Claim", "properties", "reported"), {"const": "not_reported"}),
    ("claims", ("$defs", "Setting", "properties", "tokens"), {"const": "unknown"}),
    ("claims", ("$defs", "Setting", "properties", "eval_tokens"), {"const": "unknown"}),
    ("claims", ("$defs", "Claim", "properties", "setting"), {"const": "theory"}),
)
# Pydantic leaves a bound under its own name where a validator of ours stands between it and the number.
BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def _standard(node: Any) -> Any:
    """`node` in the standard's words."""
    if isinstance(node, list):
        return [_standard(item) for item in node]
    if not isinstance(node, dict):
        return node
    number = node.get("type") in ("number", "integer")
    return {BOUNDS.get(key, key) if number else key: _standard(value) for key, value in node.items()}


def schema(name: str) -> dict[str, Any]:
    """The schema of one kind of file."""
    found: dict[str, Any] = _standard(TypeAdapter(MODELS[name]).json_schema(by_alias=True))
    for _, place, other in (also for also in ALSO if also[0] == name):
        parent = found
        for key in place[:-1]:
            parent = parent[key]
        parent[place[-1]] = {"anyOf": [other, parent[place[-1]]]}
    return {"$schema": DIALECT} | found


def texts() -> dict[str, str]:
    """{file name: content} of every schema."""
    return {f"{name}.json": json.dumps(schema(name), indent=1, sort_keys=True) + "\n" for name in MODELS}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file, text in texts().items():
        (FOLDER / file).write_text(text, "utf-8")
