"""From ids to work: which of the asked runs still need something, and the batch that a training child is given."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.cost import FLOPS_FORMULA, flops_per_token
from repro.dag import eval_ids, final_tokens, is_missing, refuse_damaged_data, refuse_unfetched, unmeasured
from repro.plan import TIERS, Plan, Run, build_plan
from repro.records.index import Index
from repro.records.skeleton import check_skeleton, train_skeleton
from repro.records.store import replace_text
from repro.spec.catalogue import ModelSpec
from repro.spec.errors import ConfigError, MissingError, Problem, problem_error, shown
from repro.spec.hashing import short
from repro.spec.load import load_configuration
from repro.spec.paths import Root
from repro.spec.reading import read_json

NO_WEIGHTS = (
    "the run is recorded but its final weights are not here, and a new metric is made of them;"
    " copy the file from where the run was trained"
)


@dataclass(frozen=True, slots=True)
class Options:
    """What the `run` verb was asked for beyond the ids; the deadline in seconds since 1970."""

    deadline: float | None = None
    steps: int | None = None
    no_record: bool = False


def find_runs(root: Root, names: Iterable[str], tier: str | None) -> tuple[Plan, list[Run]]:
    """Runs of `names` (ids, chunks or aliases), all of one tier; raises ConfigError naming every unknown one."""
    configuration = load_configuration(root)
    wanted = list(dict.fromkeys(names))
    first = tier or configuration.suite.tier
    tiers = [first, *(t for t in TIERS if tier is None and t != first and t in configuration.tiers)]
    for candidate in tiers:
        plan = build_plan(root, candidate, configuration=configuration)
        chunks, aliases = plan.chunks(), plan.by_alias()
        found = {
            name: chunks.get(name) or [run for run in (plan.runs.get(name), aliases.get(name)) if run]
            for name in wanted
        }
        if all(found.values()):
            return plan, list({run.id: run for runs in found.values() for run in runs}.values())
        if any(found.values()) or candidate == tiers[-1]:
            message = "is no id, chunk or alias of a planned run; `repro plan` lists them"
            raise ConfigError(
                [Problem("command line", None, shown(n), message) for n, runs in found.items() if not runs]
            )
    raise AssertionError("a configuration has at least one tier")


def todo(plan: Plan, runs: list[Run], index: Index) -> list[Run]:
    """The runs that lack a record or a metric."""
    return [run for run in runs if is_missing(plan, run, index)]


def make_batch(root: Root, plan: Plan, runs: list[Run], index: Index, options: Options) -> dict[str, Any]:
    """The job list of one child as plain JSON; raises MissingError where the data are not prepared."""
    suite = plan.configuration.suite
    refuse_unfetched(root, runs)
    refuse_damaged_data(root, runs)
    jobs = [_job(root, plan, run, index, options) for run in runs]
    return {
        "root": str(root.path),
        "log": str(root.scratch / "logs" / f"{runs[0].chunk}.log"),
        "jobs": jobs,
        "threads": runs[0].config["threads"],
        "deadline": options.deadline,
        "checkpoint_share": suite.checkpoint_overhead,
        "checkpoint_longest": suite.checkpoint_seconds,
        "no_record": options.no_record,
        "keep_failed": suite.keep_failed_checkpoints,
    }


def _job(root: Root, plan: Plan, run: Run, index: Index, options: Options) -> dict[str, Any]:
    """One job as plain JSON: what any kind of run needs, and what its own kind does."""
    record = None if options.no_record else index.settled(run.id)
    folder = "trial" if options.no_record else "ckpt"
    job = {
        "id": run.id,
        "kind": run.kind,
        "alias": run.alias,
        "full_sha256": run.full_sha256,
        "record": record.raw if record else None,
        "superseded": _superseded(plan, run, index),
        "checkpoints": str(root.scratch / folder / run.id),
        "log": str(root.scratch / "logs" / f"{run.chunk}.log"),
        "device": run.cost.device,
        "devices": run.cost.devices,
        "memory_gb": run.cost.memory_gb,
        "wall_limit": None if run.task.wall_minutes is None else run.task.wall_minutes * 60.0,
    }
    if run.kind == "check":
        return job | {"base": check_skeleton(root, run), "evals": []}
    return job | _training(root, plan, run, index, options)


def _superseded(plan: Plan, run: Run, index: Index) -> dict[str, int]:
    """Attempts that do not count any more, by id: of the run itself and of the metrics of its recorded weights."""
    record = index.latest(run.id)
    ids = [run.id, *(eval_ids(plan, run, record.entry.weights).values() if record else ())]
    return {identity: count for identity in ids if (count := index.superseded(identity))}


def _training(root: Root, plan: Plan, run: Run, index: Index, options: Options) -> dict[str, Any]:
    """What only a training needs: weights, data, metrics, and the figures behind its speed."""
    weights = root.scratch / ("trial" if options.no_record else "final") / f"{run.id}.safetensors"
    if not options.no_record and index.settled(run.id) and not weights.is_file():
        raise problem_error(MissingError, root.shown(weights), run.alias, NO_WEIGHTS)
    base = train_skeleton(root, run, data_used(root, run) if run.data else [])
    if options.steps is not None:
        base = base | {"config": base["config"] | {"steps": min(options.steps, base["config"]["steps"])}}
    return {
        "base": base,
        "evals": list(run.metrics) if options.no_record else unmeasured(plan, run, index),
        "eval_tokens": final_tokens(plan, run),
        "data": str(root.scratch / "data" / short(run.config.get("data", ""))),
        "weights": str(weights),
        "keep_weights": _keeps_weights(plan, run),
        "metrics": list(run.metrics),
        "micro_batch": run.config["micro_batch"],
        "flops_per_token": flops_per_token(ModelSpec(**run.config["model"])) if run.config["task"] == "lm" else None,
        "flops_formula": FLOPS_FORMULA,
        "peaks": {name: device.peak for name, device in plan.configuration.hardware.items()},
    }


def _keeps_weights(plan: Plan, run: Run) -> bool:
    """The rule of config/suite.yaml for one run."""
    rule = plan.configuration.suite.keep_weights
    return rule == "all" or (rule == "first_seed" and run.seed == 1)


def data_used(root: Root, run: Run) -> list[dict[str, Any]]:
    """Fingerprints of all splits out of the manifest; MissingError names the command that makes the data."""
    path = root.scratch / "data" / short(run.config["data"]) / "manifest.json"
    if not path.is_file():
        message = f"the data are not prepared; run `repro data prepare {run.data}`"
        raise problem_error(MissingError, root.shown(path), str(run.data), message)
    manifest = read_json(path, file=root.shown(path))
    return [
        {
            "name": run.data,
            "split": split,
            "sha256": part["sha256"],
            "tokens": part.get("tokens", part.get("rows", part.get("sentences"))),
            "tokenizer_sha256": manifest.get("tokenizer_sha256"),
        }
        for split, part in sorted(manifest["splits"].items())
    ]


def write_stamp(path: Path, runs: list[Run]) -> None:
    """Snakemake's output of a chunk: written last, when every run of the chunk has a record."""
    replace_text(path, json.dumps({"runs": [run.id for run in runs]}, indent=1) + "\n")
