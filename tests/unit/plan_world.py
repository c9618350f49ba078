"""Plans of made-up experiments on the real models, tiers and methods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from repro.plan import Plan, Run, build_plan
from repro.spec.experiment import LmExperiment
from repro.spec.load import Configuration, load_configuration
from repro.spec.paths import find_root
from repro.spec.reading import Document

FIELDS: dict[str, Any] = {
    "task": "lm",
    "model": "gpt_d64_l4",
    "data": "embedded_lm",
    "tokens": 102400,
    "batch_tokens": 1024,
    "optimizer": {"name": "adamw", "lr": 3e-4, "weight_decay": 0.1},
    "methods": ["pre_ln"],
    "seeds": 2,
    "metrics": ["val_loss"],
}


def experiment(name: str, **changes: Any) -> LmExperiment:
    """An experiment that is like FIELDS but for `changes`; an optimizer's changes are merged."""
    fields = FIELDS | changes
    fields["optimizer"] = FIELDS["optimizer"] | changes.get("optimizer", {})
    return LmExperiment.model_validate({"name": name, **fields})


def configuration(*experiments: LmExperiment, **task: Any) -> Configuration:
    """The real configuration with these experiments; the paper's own scale changed by `task`."""
    real = load_configuration(find_root())
    tier = real.tiers["paper"].model_copy(update={"lm": real.tiers["paper"].lm.model_copy(update=task)})
    return replace(
        real,
        experiments={one.name: one for one in experiments},
        documents={one.name: Document(f"config/experiments/{one.name}.yaml", {}) for one in experiments},
        tiers={**real.tiers, "paper": tier},
    )


def plan_of(*experiments: LmExperiment, task: dict[str, Any] | None = None, **narrowed: Any) -> Plan:
    """The plan of these experiments as they are written, without a tier's replacements."""
    known = configuration(*experiments, **(task or {}))
    return build_plan(known.root, "paper", configuration=known, **narrowed)


def ids(plan: Plan) -> set[str]:
    """All planned ids."""
    return set(plan.runs)


def only(plan: Plan) -> Run:
    """The one run of a plan of one."""
    (run,) = plan.runs.values()
    return run
