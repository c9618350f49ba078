"""A small recorded world for the tests of statistics and reports: the real plan, made-up records, no training."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

from repro.plan import Plan, Run, build_plan
from repro.records.index import Index, Record, entry_of, eval_config
from repro.records.schema import sealed
from repro.spec.claims import Claim, known_names, load_claims
from repro.spec.experiment import MethodChoice
from repro.spec.hashing import sha256_json, short
from repro.spec.load import Configuration, load_configuration
from repro.spec.metrics import METRICS, PROTOCOLS
from repro.spec.paths import Root, find_root
from repro.spec.rules import RULES

CREATED = "2026-12-31T12:00:00Z"  # after the claims were registered
TRAINING = {"steps": 1, "tokens_per_step": 1, "method": {"sha256": "0" * 64}}  # what a check's config lacks
HASH = hashlib.sha256(b"made up").hexdigest()


def curve(run: Run, final: float, diverged: bool) -> dict[str, Any]:
    """A made-up training: from ln(256) down to `final`, or up at the end."""
    points = 9
    tokens = [max(1, run.tokens * place // (points - 1)) for place in range(points)]
    start = math.log(256)
    losses = [final + (start - final) * math.exp(-5 * place / (points - 1)) for place in range(points)]
    if diverged:
        losses[-2:] = [losses[-3] * 2, losses[-3] * 4]
    rounded = [float(f"{loss:.6g}") for loss in losses]
    return {"tokens": tokens, "train_loss": rounded, "train_min": rounded, "train_max": rounded, "val_loss": rounded}


def train_record(run: Run, status: str = "complete", final: float = 2.3, **changes: Any) -> dict[str, Any]:
    """A record of `run` that passes the schema."""
    seen = run.config["steps"] if status == "complete" else run.config["steps"] // 2
    per_step = run.config["tokens_per_step"]
    record = {
        "schema": 1,
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
        "rules_version": dict(RULES),
        "status": status,
        "status_detail": {"step": seen, "reason": None if status == "complete" else f"{status} on purpose"},
        "metrics": [],
        "curve": None if status in ("failed", "oom") else curve(run, final, status == "diverged"),
        "probes": {},
        "budget": {
            "tokens_planned": run.tokens,
            "tokens_seen": seen * per_step,
            "steps": seen,
            "tokens_per_step": per_step,
        },
        "speed": {"tokens_per_second": 20000.0, "mfu": None, "flops_formula": None, "peak_entry": None},
        "time": {"wall": run.tokens / 20000.0 + 1, "train": run.tokens / 20000.0},
        "attempts": 1,
        "resumes": 0,
        "data": [],
        "weights_sha256": HASH if status == "complete" else None,
        "learned": None if status != "complete" else True,
        "code": {"git_commit": None, "dirty": False, "source_sha256": HASH},
        "environment": {
            "python": "3.11.2",
            "packages": {},
            "lock_sha256": None,
            "device": "cpu",
            "device_count": 1,
            "precision": "fp32",
            "compiled": False,
            "threads": 1,
            "deterministic": True,
        },
        "created": CREATED,
    }
    return sealed(record | changes)


def eval_record(run: Run, metric: str, value: float | None) -> dict[str, Any]:
    """The evaluation of a complete run by one protocol."""
    config = eval_config(run.full_sha256, HASH, metric, 16384)
    full = sha256_json(config)
    base = train_record(run)
    numbers = [
        {
            "name": name,
            # A good world is good by every measure: what is better when higher runs the other way.
            "value": value if value is None or found.better == "lower" else 1 - value / 100,
            "unit": found.unit,
            "n": 16384,
            "protocol": found.protocol,
        }
        for name, found in METRICS.items()
        if found.family == metric
    ]
    changes = {
        "id": short(full),
        "full_sha256": full,
        "alias": f"{run.alias}.{metric}",
        "kind": "eval",
        "of": run.id,
        "config": config,
        "config_sha256": full,
        "metrics": numbers,
        "curve": None,
        "budget": None,
        "speed": None,
        "time": {"wall": 1.0},
        "status": "complete",
        "status_detail": {"step": None, "reason": None if value is not None else "not finite"},
    }
    return sealed(base | changes)


def check_record(run: Run, value: float | None, status: str = "complete") -> dict[str, Any]:
    """A recorded theory check all of whose values are `value`."""
    base = train_record(replace(run, config=TRAINING | run.config), status)
    numbers = [
        {"name": name, "value": value, "unit": found.unit, "n": 1, "protocol": found.protocol}
        for name, found in METRICS.items()
        if found.family == run.method and found.checked
    ]
    changes = {
        "kind": "check",
        "config": run.config,
        "method_sha256": None,
        "rules_version": run.config["rules"],
        "metrics": numbers if status == "complete" else [],
        "curve": None,
        "budget": None,
        "speed": None,
        "time": {"wall": 1.0},
        "weights_sha256": None,
        "learned": None,
    }
    return sealed(base | changes)


def index_of(root: Root, raws: Iterable[dict[str, Any]]) -> Index:
    """An index in memory over records as given."""
    index = Index(root)
    for raw in raws:
        attempts = index.records.setdefault(raw["id"], [])
        path = f"scratch/records/{raw['id'][:2]}/{raw['id']}.json"
        record = Record(root.path, entry_of(path, raw, len(attempts)))
        record.__dict__["raw"] = raw
        attempts.append(record)
    return index


Outcome = float | str | None  # a final loss, a status, or nothing recorded


def recorded(run: Run, outcome: Outcome) -> list[dict[str, Any]]:
    """Records of one run: a number is a complete training with all its metrics."""
    if outcome is None:
        return []
    if run.kind == "check":
        bad = isinstance(outcome, str)
        return [check_record(run, None if bad else outcome, str(outcome) if bad else "complete")]
    if isinstance(outcome, str):
        return [train_record(run, outcome)]
    values = dict.fromkeys(PROTOCOLS, outcome)
    values |= {"ppl_exp_mean": math.exp(outcome), "ppl_seq_mean": math.exp(outcome) * 1.02}
    return [
        train_record(run, "complete", outcome),
        *(eval_record(run, metric, float(f"{values[metric]:.8g}")) for metric in run.metrics),
    ]


def world(plan: Plan, outcome: Callable[[Run], Outcome]) -> Index:
    """The index of a world in which every planned run ends as `outcome` says."""
    raws = [raw for run in plan.runs.values() for raw in recorded(run, outcome(run))]
    return index_of(plan.configuration.root, raws)


def plausible(run: Run) -> Outcome:
    """Losses with a method effect, a learning-rate effect and seed noise; large rates diverge for some."""
    if run.kind == "check":
        return 0.5
    draw = random.Random(f"{run.method} {sorted(run.params.items())} {run.axes} {run.seed}")
    stands = {"simplenorm": 0.2, "peri_ln": 0.1}.get(run.method, 0.02)
    rate = float(run.axes.get("lr", 3e-3))
    if rate > stands or (run.method == "post_ln" and run.seed % 3 == 0):
        return "diverged"
    base = {"pre_ln": 2.31, "post_ln": 2.60, "peri_ln": 2.29, "simplenorm": 2.27, "pre_qk": 2.30}.get(run.method, 2.35)
    base -= 0.03 if run.params.get("dt") == 0.1 else 0.0
    base -= 0.08 if "355m" in str(run.axes.get("model")) else 0.0
    common = random.Random(run.seed).gauss(0, 0.02)
    return float(f"{base + 0.05 * abs(math.log10(rate / 3e-3)) + common + draw.gauss(0, 0.006):.6g}")


@cache
def configuration() -> Configuration:
    """The checkout's own configuration, read once."""
    return load_configuration(find_root())


@cache
def plan_of(tier: str, seeds: int | None = None) -> Plan:
    """The real plan of `tier`, with another number of seeds where one is given."""
    known = configuration()
    if seeds is not None:
        task = known.tiers[tier].lm.model_copy(update={"seeds": seeds})
        asked = {n: e.model_copy(update={"seeds": seeds}) for n, e in known.experiments.items()}
        tiers = {**known.tiers, tier: known.tiers[tier].model_copy(update={"lm": task})}
        known = replace(known, tiers=tiers, experiments=asked)
    return build_plan(known.root, tier, configuration=known)


def plan_only(experiment: str, methods: list[str], seeds: int, leaderboard: bool = False) -> Plan:
    """A plan of one experiment with one cell a method, at the smallest scale."""
    known = configuration()
    base = known.experiments["lm_leaderboard" if leaderboard else "a_quality"]
    changes: dict[str, Any] = {"name": experiment, "model": ["gpt2_124m"]}
    changes["methods"] = None if leaderboard else [MethodChoice(name=name) for name in methods]
    task = known.tiers["smoke"].lm.model_copy(update={"seeds": seeds})
    changes["seeds"] = seeds
    only = replace(
        known,
        tiers={**known.tiers, "smoke": known.tiers["smoke"].model_copy(update={"lm": task})},
        experiments={experiment: base.model_copy(update=changes)},
        methods={name: known.methods[name] for name in methods} if leaderboard else known.methods,
    )
    return build_plan(known.root, "smoke", configuration=only)


def with_seed(run: Run, seed: int) -> Run:
    """The run of another seed, which the plan does not hold."""
    config = run.config | {"seed": seed}
    full = sha256_json(config)
    alias = run.alias.replace(f"/s{run.seed}@", f"/s{seed}@")
    return replace(run, id=short(full), full_sha256=full, seed=seed, config=config, alias=alias)


@cache
def claims() -> tuple[Claim, ...]:
    """The checkout's own claims."""
    return tuple(load_claims(find_root(), known_names(configuration())))
