"""The part of a record that is known before its run starts."""

from __future__ import annotations

from typing import Any

from repro.plan import Run
from repro.records.index import eval_config
from repro.records.provenance import code, cpu_name, environment
from repro.records.schema import SCHEMA
from repro.spec.checks import CHECKS
from repro.spec.hashing import sha256_json, short
from repro.spec.metrics import PROTOCOLS
from repro.spec.paths import Root


def _skeleton(root: Root, run: Run, device: str, precision: str) -> dict[str, Any]:
    """Identity and provenance of any planned run."""
    return {
        "schema": SCHEMA,
        "id": run.id,
        "full_sha256": run.full_sha256,
        "alias": run.alias,
        "origin": "self",
        "kind": run.kind,
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
        "method_sha256": None,
        "rules_version": run.config["rules"],
        "metrics": [],
        "probes": {},
        "curve": None,
        "budget": None,
        "speed": None,
        "structure": [],
        "learned": None,
        "data": [],
        "weights_sha256": None,
        "code": code(root),
        "environment": environment(root, device, run.cost.devices, precision, run.config["threads"]),
    }


def train_skeleton(root: Root, run: Run, data: list[dict[str, Any]]) -> dict[str, Any]:
    """Identity, provenance and data fingerprints of a training; the worker adds how it went."""
    device = cpu_name() if run.cost.device == "cpu" else "gpu"
    whole = _skeleton(root, run, device, run.config["precision"])
    return whole | {"method_sha256": run.config["method"]["sha256"], "data": data}


def check_skeleton(root: Root, run: Run) -> dict[str, Any]:
    """Identity and provenance of a theory check; the worker adds its numbers."""
    return _skeleton(root, run, cpu_name(), "fp64")


def declared(metric: str) -> dict[str, dict[str, Any]]:
    """{value name: name, unit and protocol} of one protocol or check, as records say them."""
    maker = PROTOCOLS.get(metric) or CHECKS[metric]
    return {name: {"name": name, "unit": value.unit, "protocol": maker.id} for name, value in maker.info.values.items()}


def eval_skeleton(train: dict[str, Any], weights_sha256: str, metric: str, tokens: int) -> dict[str, Any]:
    """`{protocol, values, base}` of one eval record of the run whose skeleton is `train`."""
    config = eval_config(train["full_sha256"], weights_sha256, metric, tokens)
    # Losses are never taken in half precision, however the weights were trained.
    precision = "fp32" if train["environment"]["precision"] == "bf16" else train["environment"]["precision"]
    sha256 = sha256_json(config)
    base = train | {
        "id": short(sha256),
        "full_sha256": sha256,
        "alias": f"{train['alias']}+{metric}",
        "kind": "eval",
        "weights_sha256": weights_sha256,
        "of": train["id"],
        "config": config,
        "config_sha256": sha256,
        "rules_version": {metric: config["rules"]},
        "environment": train["environment"] | {"precision": precision},
    }
    return {"protocol": metric, "values": declared(metric), "base": base}
