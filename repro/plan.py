"""The plan: every run that the experiments ask for at one tier, with its identity, chunk and cost.

Torch-free and quick, since Snakemake reads it again in every job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from repro.cells import Draft, drafts
from repro.cost import Cost
from repro.spec.catalogue import TierWork
from repro.spec.errors import ConfigError, Problem, problem_error, shown, suggest
from repro.spec.experiment import CheckExperiment, Experiment
from repro.spec.hashing import around, canonical, sha256_text, short
from repro.spec.load import Configuration, load_configuration
from repro.spec.paths import Root

TIERS = ("smoke", "desk", "proxy", "paper")


@dataclass(frozen=True, slots=True)
class Run:
    """One planned training or check. `config` is all that its id covers; the rest is for people and schedulers."""

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
    data: str | None
    tokens: int
    metrics: tuple[str, ...]
    cost: Cost
    task: TierWork
    kind: str = "train"


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of an experiment: a method or check at one point of the grid, with its planned runs by seed.

    `tuning_ids` are runs on which a rate is chosen; they enter no reported number.
    """

    experiment: str
    label: str
    method: str
    params: dict[str, Any]
    axes: dict[str, Any]
    run_ids: tuple[str, ...]
    seeds: tuple[int, ...]
    tuning_ids: tuple[str, ...] = ()
    tuning_seeds: tuple[int, ...] = ()

    @property
    def all_runs(self) -> list[tuple[str, int]]:
        """(id, seed) of every planned run."""
        return [*zip(self.run_ids, self.seeds, strict=True), *zip(self.tuning_ids, self.tuning_seeds, strict=True)]


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
            for identity, seed in cell.all_runs
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
    made = drafts(plan.configuration, plan.tier, experiment, digests)
    known: dict[str, Draft] = {}
    faults = list(made.faults)
    for draft in made.cells:
        identity = canonical(draft.config)
        if first := known.get(identity):  # one run would count as two
            key = "grid" if isinstance(experiment, CheckExperiment) else "model"
            key = "methods" if first.axes == draft.axes and key == "model" else key
            faults.append((key, f"the cells {first.label} and {draft.label} are one and the same"))
        known[identity] = draft
        _add_cell(plan, experiment, draft)
    where, documents = f"at tier {plan.tier}", plan.configuration.documents
    return [Problem(*documents[experiment.name].place((key,)), key, f"{where}: {fault}") for key, fault in faults]


def _add_cell(plan: Plan, experiment: Experiment, draft: Draft) -> None:
    ids = _add_runs(plan, experiment, draft, draft.reported)
    tuning = _add_runs(plan, experiment, draft, draft.tuned_on)
    cell = Cell(
        experiment.name,
        draft.label,
        draft.method,
        draft.params,
        draft.axes,
        ids,
        draft.reported,
        tuning,
        draft.tuned_on,
    )
    plan.cells.setdefault(experiment.name, []).append(cell)


def _add_runs(plan: Plan, experiment: Experiment, draft: Draft, seeds: tuple[int, ...]) -> tuple[str, ...]:
    """A run for each seed, or the one that another experiment has planned already; returns their ids."""
    head, tail = around(draft.config, "seed")
    ids = []
    for seed in seeds:
        sha256 = sha256_text(f"{head}{seed}{tail}")
        ids.append(short(sha256))
        known = plan.runs.get(ids[-1])
        if known is not None:
            _share(plan, known, experiment, draft, sha256)
            continue
        plan.runs[ids[-1]] = Run(
            id=ids[-1],
            full_sha256=sha256,
            alias=f"{experiment.name}/{draft.label}/s{seed}@{plan.tier}",
            experiments=(experiment.name,),
            paper=experiment.paper,
            chunk="",
            tracks=draft.tracks,
            tier=plan.tier,
            method=draft.method,
            params=draft.params,
            seed=seed,
            config=draft.config | {"seed": seed},
            axes=draft.axes,
            data=draft.source,
            tokens=draft.tokens,
            metrics=draft.metrics,
            cost=draft.cost,
            task=draft.work,
            kind=draft.config["kind"],
        )
    return tuple(ids)


def _share(plan: Plan, known: Run, experiment: Experiment, draft: Draft, sha256: str) -> None:
    """A cell that another experiment has already planned is trained once, and measured by all their metrics."""
    if known.full_sha256 != sha256:
        message = f"two configurations share the short id {known.id}"
        raise problem_error(ConfigError, f"config/experiments/{experiment.name}.yaml", "", message)
    plan.runs[known.id] = replace(
        known,
        experiments=(*known.experiments, experiment.name),
        metrics=tuple(dict.fromkeys((*known.metrics, *draft.metrics))),
    )


def _fix_chunks(plan: Plan) -> None:
    """A fixed partition of all planned runs, recorded or not, in order of ids: see `_group`."""
    groups: dict[str, list[str]] = {}
    for run in plan.runs.values():
        groups.setdefault(_group(run), []).append(run.id)
    for ids in groups.values():
        ids.sort()
        size = plan.runs[ids[0]].task.chunk
        for start in range(0, len(ids), size):
            part = ids[start : start + size]
            chunk = short(sha256_text("chunk " + " ".join(part)))
            for identity in part:
                plan.runs[identity] = replace(plan.runs[identity], chunk=chunk)


def _group(run: Run) -> str:
    """Trainings of one first experiment share chunks; so do all checks of a paper. A process costs seconds to start."""
    return f"checks of paper {run.paper}" if run.kind == "check" else run.experiments[0]


def _narrowed(plan: Plan, experiments: Iterable[str] | None, methods: Iterable[str] | None) -> Plan:
    """The part of `plan` that was asked for; chunks and ids stay those of the whole."""
    known = {*plan.configuration.methods, *(run.method for run in plan.runs.values())}
    names, kinds = set(experiments or plan.cells), set(methods or known)
    for name in names:
        _known("experiment", name, plan.cells)
    for kind in kinds:
        _known("method", kind, known)
    runs = {
        identity: run
        for identity, run in sorted(plan.runs.items(), key=lambda item: item[1].alias)
        if names & set(run.experiments) and run.method in kinds
    }
    cells = {name: [cell for cell in plan.cells[name] if cell.method in kinds] for name in sorted(names)}
    return Plan(plan.tier, plan.configuration, runs, cells)
