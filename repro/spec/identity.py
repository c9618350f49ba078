"""What a run's id covers: the resolved configuration of one cell, and its name for people."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from repro.spec.catalogue import TierClassify, TierFlow, TierForecast, TierTask, TierWork
from repro.spec.checks import Check
from repro.spec.experiment import (
    ClassifyExperiment,
    FlowExperiment,
    ForecastExperiment,
    LmExperiment,
    MethodChoice,
    Optimizer,
    Schedule,
)
from repro.spec.hashing import sha256_text, short
from repro.spec.load import Configuration
from repro.spec.methods import MethodEntry, resolve
from repro.spec.rules import RULES

FLOW = "mean_field"  # the one model of paper B: no method of the registry stands behind it
MAX_LABEL = 100  # characters; records bound the whole alias
PRETRAINING_SEED = 1  # one pretrained model serves all runs, as one GPT-2 does
CURVE_SENTENCES = 256  # training sentences that the loss is taken on while a classifier trains
AT_ONCE = 8  # sentences in one pass, alike in length; fewer pad less, more need fewer passes


@dataclass(frozen=True, slots=True)
class Choice:
    """One cell of a sweep: a method, its full parameters, the point of the grid, and the data."""

    entry: MethodEntry
    params: dict[str, Any]
    axes: dict[str, Any]
    source: str
    digest: str


def scaled(lr: float, scale: float) -> float:
    """A learning rate times a tier's factor, to 12 digits, so that 6e-4 * 5 is 3e-3."""
    return float(f"{lr * scale:.12g}")


def chosen_methods(configuration: Configuration, experiment: LmExperiment) -> list[tuple[MethodEntry, dict[str, Any]]]:
    """The experiment's own list, or every method of its track."""
    if experiment.methods is None:
        entries = [entry for entry in configuration.methods.values() if experiment.task in entry.info.tracks]
        choices = [MethodChoice(name=entry.name) for entry in sorted(entries, key=lambda entry: entry.name)]
    else:
        choices = experiment.methods
    return [resolve(choice.name, choice.params, configuration.methods) for choice in choices]


def cell_config(
    configuration: Configuration, task: TierTask, experiment: LmExperiment, choice: Choice
) -> dict[str, Any]:
    """All that determines the numbers of one cell but the seed; with it, exactly what the id covers.

    Not in it, since they change no number: experiment, alias, tier, claims, metrics, number of seeds, devices.
    """
    model = configuration.models[task.sized(choice.axes["model"])]
    per_step = task.batch_tokens or experiment.batch_tokens
    tokens = task.tokens or experiment.tokens
    optimizer = experiment.optimizer.model_dump()
    # The usual order is left out, so that the option moved no id.
    unusual = {} if experiment.order == "epochs" else {"order": experiment.order}
    return unusual | {
        "kind": "train",
        "task": experiment.task,
        "model": model.model_dump(),
        "method": {"name": choice.entry.name, "params": choice.params, "sha256": choice.entry.sha256},
        "data": choice.digest,
        "validation": {
            "times": task.validations or experiment.validations,
            "tokens": configuration.text(choice.source).curve_tokens,
        },
        "optimizer": optimizer | {"lr": choice.axes["lr"], "weight_decay": choice.axes["weight_decay"]},
        "schedule": experiment.schedule.model_dump(),
        "steps": max(1, round(tokens / per_step)),
        "tokens_per_step": per_step,
        "micro_batch": task.sequences_at_once(max(1, per_step // model.context)),
        "precision": task.precision or experiment.precision,
        "threads": task.threads,
        "rules": {"train": RULES["train"], "data": RULES["data"]},
    }


def forecast_config(
    entry: MethodEntry, work: TierForecast, experiment: ForecastExperiment, beta: float, control: str, digest: str
) -> dict[str, Any]:
    """All that determines the numbers of one forecast but the seed: what the id covers."""
    count = work.windows or experiment.windows
    seeds = fewer(experiment.seeds, work.seeds)
    return {
        "kind": "train",
        "task": "forecast",
        "model": {
            "d_qk": experiment.d_qk,
            "hidden": experiment.hidden,
            "skip": experiment.skip,
            "start": experiment.start,
        },
        "method": {"name": entry.name, "params": {**entry.info.params, "beta": beta}, "sha256": entry.sha256},
        "data": digest,
        "windows": {"length": experiment.length, "count": count},
        "control": control,
        "validation": {"times": experiment.validations, "tokens": count * experiment.length},
        "optimizer": {"name": "gd", "lr": {"betas": experiment.betas, "seeds": list(range(1, seeds + 1))}},
        "schedule": {"shape": "constant", "warmup": 0.0, "final": 1.0},
        "steps": work.steps or experiment.steps,
        "tokens_per_step": count * experiment.length,
        "micro_batch": count,
        "precision": "fp64",
        "threads": work.threads,
        "rules": {"train": RULES["train"], "data": RULES["data"]},
    }


def flow_config(work: TierFlow, experiment: FlowExperiment, layers: int, heads: int) -> dict[str, Any]:
    """All that determines the numbers of one mean-field flow but the seed: what the id covers."""
    model = {"layers": layers, "heads": heads}
    model |= {key: getattr(experiment, key) for key in ("sequences", "tokens", "dim", "attention", "perturbation")}
    numbers = experiment.sequences * experiment.tokens
    return {
        "kind": "train",
        "task": "flow",
        "model": model,
        "method": {"name": FLOW, "params": {}, "sha256": sha256_text(FLOW)},
        "validation": {"times": experiment.validations, "tokens": numbers},
        "optimizer": {"name": "gd", "lr": {"step_share": experiment.step_share}},
        "schedule": {"shape": "constant", "warmup": 0.0, "final": 1.0},
        "steps": work.steps or experiment.steps,
        "tokens_per_step": numbers,
        "micro_batch": experiment.sequences,
        "precision": "fp64",
        "threads": work.threads,
        "rules": {"train": RULES["train"]},
    }


def pretrained_config(
    configuration: Configuration, entry: MethodEntry, work: TierClassify, experiment: ClassifyExperiment, digest: str
) -> dict[str, Any]:
    """What a classifier starts from: a folder by its content, or the whole configuration of our own pretraining.

    `digest` is that of the text which our own is trained on.
    """
    given = experiment.pretrained
    if given.folder is not None:
        return {"origin": "folder", "folder": given.folder, "sha256": given.sha256}
    model = configuration.models[work.sized(given.model)]
    per_step = given.batch_tokens or 0
    optimizer = Optimizer.model_validate({"name": "adamw", "lr": given.lr, "weight_decay": 0.1}).model_dump()
    run = {
        "task": "lm",
        "model": model.model_dump(),
        "method": {"name": entry.name, "params": entry.info.params, "sha256": entry.sha256},
        "data": digest,
        "validation": {"times": 4, "tokens": configuration.text(_text_of(work, experiment)).curve_tokens},
        "optimizer": optimizer | {"lr": given.lr, "weight_decay": 0.1},
        "schedule": Schedule().model_dump(),
        "steps": work.pretrain_steps or given.steps,
        "tokens_per_step": per_step,
        "micro_batch": max(1, per_step // model.context),
        "precision": "fp32",
        "threads": work.threads,
        "rules": {"train": RULES["train"], "data": RULES["data"]},
        "seed": PRETRAINING_SEED,
    }
    return {"origin": "own", "run": run}


def _text_of(work: TierClassify, experiment: ClassifyExperiment) -> str:
    """Source of the text that our own pretraining takes."""
    name = str(experiment.pretrained.data)
    return work.data.get(name, name)


def classify_config(
    entry: MethodEntry,
    work: TierClassify,
    experiment: ClassifyExperiment,
    point: dict[str, Any],
    digest: str,
    pretrained: dict[str, Any],
) -> dict[str, Any]:
    """All that determines the numbers of one classification but the seed: what the id covers.

    `point` holds layers and residual. What counts as a token elsewhere is a sentence here.
    """
    sentences, epochs = work.sentences or experiment.sentences, work.epochs or experiment.epochs
    optimizer = experiment.optimizer.model_dump()
    return {
        "kind": "train",
        "task": "classify",
        "model": {**point, "context": experiment.context},
        "method": {"name": entry.name, "params": entry.info.params, "sha256": entry.sha256},
        "pretrained": pretrained,
        "data": digest,
        "sentences": sentences,
        "validation": {"times": experiment.validations, "tokens": min(sentences, CURVE_SENTENCES)},
        "optimizer": optimizer | {"lr": optimizer["lr"][0], "weight_decay": optimizer["weight_decay"][0]},
        "schedule": experiment.schedule.model_dump(),
        "steps": max(1, round(epochs * sentences / experiment.batch)),
        "tokens_per_step": experiment.batch,
        "micro_batch": min(AT_ONCE, experiment.batch),
        "precision": "fp32",
        "threads": work.threads,
        "rules": {"train": RULES["train"], "data": RULES["data"]},
    }


def fewer(seeds: int, most: int | None) -> int:
    """Seeds of an experiment at a tier, which can only allow fewer than it asks for."""
    return seeds if most is None else min(seeds, most)


def check_config(check: Check, params: dict[str, Any], work: TierWork) -> dict[str, Any]:
    """All that determines the numbers of one cell of a check but the seed: what the id covers."""
    return {
        "kind": "check",
        "check": {"name": check.name, "params": params},
        "threads": work.threads,
        "rules": {check.name: check.info.rules},
    }


def check_label(check: Check, params: dict[str, Any], point: dict[str, Any]) -> str:
    """`a_growth-layers48`: the check and the point of its grid."""
    return _bounded(check.name + "".join(f"-{key}{_text(params[key])}" for key in point))


def label_of(experiment: LmExperiment, choice: Choice, rates: int) -> str:
    """`peri_ln-dt0.1/gpt2_124m/lr0.003/wd0`: method, changed parameters, and the axes that really vary."""
    entry, axes, usual = choice.entry, choice.axes, choice.entry.info.params
    changed = "".join(f"-{key}{_text(value)}" for key, value in choice.params.items() if value != usual[key])
    parts = [entry.name + changed]
    parts += [axes["model"]] if len(experiment.model) > 1 else []
    parts += [f"lr{_text(axes['lr'])}"] if rates > 1 else []
    parts += [f"wd{_text(axes['weight_decay'])}"] if len(experiment.optimizer.weight_decay) > 1 else []
    return _bounded("/".join(parts))


def _bounded(label: str) -> str:
    """A label short enough for a record's alias, and still its own."""
    return label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 13]}-{short(sha256_text(label))}"


def _text(value: object) -> str:
    """A value as it may stand in a name; numbers to all digits that the specification keeps."""
    return f"{value:.12g}" if isinstance(value, float) else re.sub(r"[^A-Za-z0-9_.+-]", "_", str(value))
