"""Checkouts to measure in: a copy of this one with a single experiment of a given size, and records as asked.

Nothing here trains. Records are made by the code that workers use (skeletons, schema, store), with losses
that are a formula, so that the index, the plan and Snakemake see what a real campaign would leave behind.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from repro.dag import final_tokens
from repro.plan import Plan, Run, build_plan
from repro.records.skeleton import eval_skeleton, train_skeleton
from repro.records.store import write_record
from repro.spec.errors import ConfigError, problem_error
from repro.spec.hashing import sha256_text
from repro.spec.paths import Root

SIZE = "smoke"  # the tier whose settings are taken
EXPERIMENT = "bench"
WEIGHTS = sha256_text("weights")
_PARTS = ("Snakefile", "workflow", "config", "repro", "pyproject.toml", "requirements.lock", "environment.yml")
_SEEDS = 10
_POINTS = 8  # of a made-up loss curve


def make_checkout(root: Root, folder: Path, runs: int, chunk: int) -> Root:
    """A copy of `root` in `folder` that plans exactly `runs` runs in chunks of `chunk`.

    Raises ConfigError if `runs` is not a multiple of the number of seeds.
    """
    if runs % _SEEDS:
        raise problem_error(ConfigError, "bench", "runs", f"{runs} is not a multiple of {_SEEDS}")
    folder.mkdir(parents=True)
    for part in _PARTS:
        source = root.path / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__", "local.yaml"))
        elif source.is_file():
            shutil.copy2(source, folder / part)
    config = folder / "config"
    _rewrite(config / "tiers.yaml", lambda tiers: _whole_grid(tiers[SIZE]["lm"], chunk))
    _rewrite(config / "suite.yaml", lambda suite: suite.update(experiments=[EXPERIMENT], tier=SIZE))
    (config / "experiments" / f"{EXPERIMENT}.yaml").write_text(yaml.safe_dump(_experiment(runs // _SEEDS)), "utf-8")
    return Root(folder)


def _whole_grid(task: dict[str, Any], chunk: int) -> None:
    """All seeds and all rates of the experiment below: the tier must not thin what is counted here."""
    task.update(chunk=chunk, seeds=_SEEDS)
    task.pop("lr_points", None)


def _rewrite(path: Path, change: Any) -> None:
    """Changes one file as YAML 1.2 data; what YAML 1.1 takes for text (`1e5`) is a number to the strict reader."""
    from repro.spec.reading import read_yaml

    value = read_yaml(path).value
    change(value)
    path.write_text(yaml.safe_dump(value), "utf-8")


def _experiment(rates: int) -> dict[str, Any]:
    """One method over a long grid of learning rates; a paper's experiment, so that most views depend on it."""
    return {
        "name": EXPERIMENT,
        "paper": "a",
        "task": "lm",
        "model": "gpt2_124m",
        "data": "openwebtext",
        "tokens": 14_745_600_000,
        "batch_tokens": 245_760,
        "optimizer": {"name": "adamw", "lr": [round(1e-5 * (i + 1), 12) for i in range(rates)], "weight_decay": 0.1},
        "methods": ["pre_ln"],
        "seeds": _SEEDS,
        "metrics": ["val_loss"],
    }


def plan_of(root: Root) -> Plan:
    """The plan of a made checkout."""
    return build_plan(root, SIZE)


def record(root: Root, plan: Plan, runs: Iterable[Run]) -> None:
    """Writes the training's and the metric's record of each run, checked by the schema like any other."""
    for run in runs:
        tokens = final_tokens(plan, run)
        base = train_skeleton(root, run, _data(run))
        write_record(root, base | _training(run))
        for name in run.metrics:
            item = eval_skeleton(base, WEIGHTS, name, tokens)
            write_record(root, item["base"] | _measurement(item["values"], tokens))


def _data(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "name": run.data,
            "split": split,
            "sha256": sha256_text(split),
            "tokens": 1_000_000,
            "tokenizer_sha256": sha256_text("bytes"),
        }
        for split in ("train", "val")
    ]


def _ended(wall: float) -> dict[str, Any]:
    return {
        "status": "complete",
        "status_detail": {"step": None, "reason": None},
        "time": {"wall": wall, "train": wall / 2, "eval": wall / 4, "compile": 0.0, "wait": 0.0},
        "attempts": 1,
        "resumes": 0,
        "weights_sha256": WEIGHTS,
        "created": "2026-01-01T00:00:00Z",
    }


def _training(run: Run) -> dict[str, Any]:
    """How a run went whose loss falls as one over its step."""
    steps, per_step = run.config["steps"], run.config["tokens_per_step"]
    losses = [5.5 / (1 + i) + run.seed * 1e-3 for i in range(_POINTS)]
    points = [steps * per_step * (i + 1) // _POINTS for i in range(_POINTS)]
    return _ended(4.0) | {
        "budget": {
            "tokens_planned": run.tokens,
            "tokens_seen": run.tokens,
            "steps": steps,
            "tokens_per_step": per_step,
        },
        "curve": {"tokens": points, "train_loss": losses, "val_loss": losses},
        "speed": {"tokens_per_second": run.tokens / 2.0, "mfu": None},
        "learned": True,
    }


def _measurement(values: dict[str, dict[str, Any]], tokens: int) -> dict[str, Any]:
    return _ended(0.2) | {"metrics": [{**value, "value": 2.5, "n": tokens} for value in values.values()]}


def twin(root: Root, folder: Path) -> Root:
    """A second checkout with the same files and times; nothing is copied, since no file is ever changed in place."""
    shutil.copytree(root.path, folder, copy_function=os.link, symlinks=True)
    return Root(folder)
