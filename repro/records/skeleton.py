"""The part of a record that is known before its run starts."""

from __future__ import annotations

from typing import Any

from repro.plan import Run
from repro.records.index import eval_config
from repro.records.provenance import code, cpu_name, environment
from repro.records.schema import SCHEMA
from repro.spec.hashing import sha256_json, short
from repro.spec.metrics import PROTOCOLS
from repro.spec.paths import Root


def train_skeleton(root: Root, run: Run, data: list[dict[str, Any]]) -> dict[str, Any]:
    """Identity, provenance and data fingerprints of a training; the worker adds how it went."""
    device = cpu_name() if run.cost.device == "cpu" else "gpu"
    return {
        "schema": SCHEMA,
        "id": run.id,
        "full_sha256": run.full_sha256,
        "alias": run.alias,
        "origin": "self",
        "kind": "train",
        "of": None,
        "supersedes": None,
        "paper": run.paper,
        "experiments": list(run.experiments),
        "tracks": list(run.tracks),
        "tier": run.tier,
        "method": run.method,
        "params": run.params,
        "seed": run.seed,
        "config": run.config,
        "config_sha256": run.full_sha256,
        "method_sha256": run.config["method"]["sha256"],
        "rules_version": run.config["rules"],
        "metrics": [],
        "probes": {},
        "curve": None,
        "budget": None,
        "speed": None,
        "structure": [],
        "learned": None,
        "data": data,
        "weights_sha256": None,
        "code": code(root),
        "environment": environment(root, device, run.cost.devices, run.config["precision"], run.config["threads"]),
    }


def eval_skeleton(train: dict[str, Any], weights_sha256: str, metric: str, tokens: int) -> dict[str, Any]:
    """`{protocol, values, base}` of one eval record of the run whose skeleton is `train`."""
    config = eval_config(train["full_sha256"], weights_sha256, metric, tokens)
    sha256, protocol = sha256_json(config), PROTOCOLS[metric]
    base = train | {
        "id": short(sha256),
        "full_sha256": sha256,
        "alias": f"{train['alias']}+{metric}",
        "kind": "eval",
        "weights_sha256": weights_sha256,
        "of": train["id"],
        "config": config,
        "config_sha256": sha256,
        "rules_version": {metric: protocol.info.rules},
    }
    values = {
        name: {"name": name, "unit": value.unit, "protocol": protocol.id}
        for name, value in protocol.info.values.items()
    }
    return {"protocol": metric, "values": values, "base": base}
