"""The plan: every run that the experiments ask for at one tier, with its identity, chunk and cost.

Torch-free and quick, since Snakemake reads it again in every job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from repro.cost import Cost, estimate
from repro.spec.catalogue import TierTask
from repro.spec.data import VOCABULARY, digest
from repro.spec.errors import ConfigError, Problem, problem_error, shown, suggest
from repro.spec.experiment import Experiment
from repro.spec.hashing import around, canonical, sha256_text, short
from repro.spec.identity import Choice, cell_config, chosen_methods, label_of, scaled
from repro.spec.load import Configuration, load_configuration
from repro.spec.paths import Root

TIERS = ("smoke", "desk", "proxy", "paper")


@dataclass(frozen=True, slots=True)
class Run:
    """One planned training. `config` is all that its id covers; the rest is for people and schedulers."""

    id: str
    full_sha256: str
    alias: str
    experiments: tuple[str, ...]
    paper: str | None
    chunk: str
    tracks: tuple[str, ...]
    tier: str
    method: str
    params: dict[str, Any]
    seed: int
    config: dict[str, Any]
    axes: dict[str, Any]
    data: str
    tokens: int
    metrics: tuple[str, ...]
    cost: Cost
    task: TierTask
    kind: str = "train"


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of an experiment: a method at one point of the grid, with its planned runs by seed."""

    experiment: str
    label: str
    method: str
    params: dict[str, Any]
    axes: dict[str, Any]
    run_ids: tuple[str, ...]
    seeds: tuple[int, ...]


@dataclass
class Plan:
    """Runs of one tier, and the cells of each experiment that they fill."""

    tier: str
    configuration: Configuration
    runs: dict[str, Run] = field(default_factory=dict)
    cells: dict[str, list[Cell]] = field(default_factory=dict)

    def by_alias(self) -> dict[str, Run]:
        """Runs by each of their names: a run that several experiments share has one in each."""
        return {
            f"{name}/{cell.label}/s{seed}@{self.tier}": self.runs[identity]
            for name, cells in self.cells.items()
            for cell in cells
            for identity, seed in zip(cell.run_ids, cell.seeds, strict=True)
        }

    def chunks(self) -> dict[str, list[Run]]:
        """Runs by chunk, in the order of their ids."""
        found: dict[str, list[Run]] = {}
        for run in self.runs.values():
            found.setdefault(run.chunk, []).append(run)
        return found


def build_plan(
    root: Root,
    tier: str | None = None,
    experiments: Iterable[str] | None = None,
    methods: Iterable[str] | None = None,
    configuration: Configuration | None = None,
) -> Plan:
    """The plan of `tier`, narrowed to `experiments` and `methods` after chunks are fixed over the whole tier.

    Raises ConfigError for unknown names and for cells that the tier makes equal.
    """
    configuration = configuration or load_configuration(root)
    tier = configuration.suite.tier if tier is None else tier
    _known("tier", tier, configuration.tiers)
    return _narrowed(_whole(configuration, tier), experiments, methods)


def _known(key: str, name: str, names: Collection[str]) -> None:
    if name not in names:
        raise problem_error(
            ConfigError, "command line", key, f"{shown(str(name))!r} is not known{suggest(name, names)}"
        )


def _whole(configuration: Configuration, tier: str) -> Plan:
    plan = Plan(tier, configuration)
    digests: dict[str, str] = {}
    chosen = configuration.suite.experiments or list(configuration.experiments)
    problems: list[Problem] = []
    for name in sorted(set(chosen)):
        problems += _add_experiment(plan, configuration.experiments[name], digests)
    if problems:
        raise ConfigError(problems)
    _fix_chunks(plan)
    return plan


def _add_experiment(plan: Plan, experiment: Experiment, digests: dict[str, str]) -> list[Problem]:
    """Adds the cells of one experiment; returns what is wrong with them."""
    configuration = plan.configuration
    task = configuration.tiers[plan.tier].lm
    source = task.stand_in(experiment.data)
    if source not in digests:
        digests[source] = digest(configuration.sources[source], configuration.root)
    points = list(product(experiment.model, experiment.optimizer.lr, experiment.optimizer.weight_decay))
    cells: dict[str, str] = {}
    faults = [f"{name} has no stand-in in config/tiers.yaml" for name in experiment.model if not _has_size(task, name)]
    for (model, lr, decay), (entry, params) in product(points, chosen_methods(configuration, experiment)):
        axes = {"model": model, "lr": scaled(lr, task.lr_scale), "weight_decay": decay}
        choice = Choice(entry, params, axes, source, digests[source])
        config = cell_config(configuration, task, experiment, choice)
        label = label_of(experiment, choice)
        faults += _unfit(config, VOCABULARY[configuration.sources[source].tokenizer])
        identity = canonical(config)
        if identity in cells:  # one run would count as two
            faults.append(f"the cells {cells[identity]} and {label} are one and the same")
        cells[identity] = label
        _add_cell(plan, experiment, choice, label, config)
    place = configuration.documents[experiment.name].place(("model",)) if faults else ("", None)
    return [Problem(*place, "model", f"at tier {plan.tier}: {fault}") for fault in faults]


def _has_size(task: TierTask, model: str) -> bool:
    """A tier that makes models small makes all of them small: one that it does not know would run at full size."""
    return not task.model or model in task.model or model in task.model.values()


def _unfit(config: dict[str, Any], vocab: int) -> Iterator[str]:
    """A vocabulary too small for the tokens; steps that are no whole number of sequences or micro-batches."""
    model, tokens = config["model"], config["tokens_per_step"]
    if model["vocab"] < vocab:
        yield f"the vocabulary of {model['vocab']} is smaller than the tokenizer's, {vocab}"
    sequences, rest = divmod(tokens, model["context"])
    if rest:
        yield f"{tokens} tokens a step are no multiple of the context, {model['context']}"
    elif sequences % config["micro_batch"]:
        yield f"{sequences} sequences a step are no multiple of the micro-batch, {config['micro_batch']}"


def _add_cell(plan: Plan, experiment: Experiment, choice: Choice, label: str, config: dict[str, Any]) -> None:
    configuration = plan.configuration
    task = configuration.tiers[plan.tier].lm
    tokens = config["steps"] * config["tokens_per_step"]
    model = configuration.models[task.model.get(choice.axes["model"], choice.axes["model"])]
    planning = configuration.hardware[configuration.suite.planning_device]
    cost = estimate(model, tokens, config["tokens_per_step"], task, config["precision"], planning)
    seeds = tuple(range(1, (task.seeds or experiment.seeds) + 1))
    ids = []
    head, tail = around(config, "seed")
    for seed in seeds:
        sha256 = sha256_text(f"{head}{seed}{tail}")
        ids.append(short(sha256))
        known = plan.runs.get(ids[-1])
        if known is not None:
            _share(plan, known, experiment, sha256)
            continue
        plan.runs[ids[-1]] = Run(
            id=ids[-1],
            full_sha256=sha256,
            alias=f"{experiment.name}/{label}/s{seed}@{plan.tier}",
            experiments=(experiment.name,),
            paper=experiment.paper,
            chunk="",
            tracks=tuple(choice.entry.info.tracks),
            tier=plan.tier,
            method=choice.entry.name,
            params=choice.params,
            seed=seed,
            config=config | {"seed": seed},
            axes=choice.axes,
            data=choice.source,
            tokens=tokens,
            metrics=tuple(experiment.metrics),
            cost=cost,
            task=task,
        )
    cell = Cell(experiment.name, label, choice.entry.name, choice.params, choice.axes, tuple(ids), seeds)
    plan.cells.setdefault(experiment.name, []).append(cell)


def _share(plan: Plan, known: Run, experiment: Experiment, sha256: str) -> None:
    """A cell that another experiment has already planned is trained once, and measured by all their metrics."""
    if known.full_sha256 != sha256:
        message = f"two configurations share the short id {known.id}"
        raise problem_error(ConfigError, f"config/experiments/{experiment.name}.yaml", "", message)
    plan.runs[known.id] = replace(
        known,
        experiments=(*known.experiments, experiment.name),
        metrics=tuple(dict.fromkeys((*known.metrics, *experiment.metrics))),
    )


def _fix_chunks(plan: Plan) -> None:
    """A fixed partition of all planned runs by (first experiment, method), recorded or not, in order of ids."""
    groups: dict[tuple[str, str], list[str]] = {}
    for run in plan.runs.values():
        groups.setdefault((run.experiments[0], run.method), []).append(run.id)
    size = plan.configuration.tiers[plan.tier].lm.chunk
    for ids in groups.values():
        ids.sort()
        for start in range(0, len(ids), size):
            part = ids[start : start + size]
            chunk = short(sha256_text("chunk " + " ".join(part)))
            for identity in part:
                plan.runs[identity] = replace(plan.runs[identity], chunk=chunk)


def _narrowed(plan: Plan, experiments: Iterable[str] | None, methods: Iterable[str] | None) -> Plan:
    """The part of `plan` that was asked for; chunks and ids stay those of the whole."""
    names, kinds = set(experiments or plan.cells), set(methods or plan.configuration.methods)
    for name in names:
        _known("experiment", name, plan.cells)
    for kind in kinds:
        _known("method", kind, plan.configuration.methods)
    runs = {
        identity: run
        for identity, run in sorted(plan.runs.items(), key=lambda item: item[1].alias)
        if names & set(run.experiments) and run.method in kinds
    }
    cells = {name: [cell for cell in plan.cells[name] if cell.method in kinds] for name in sorted(names)}
    return Plan(plan.tier, plan.configuration, runs, cells)
