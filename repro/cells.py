"""The cells of one experiment at one tier: what each kind of experiment asks for, before its seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from repro.cost import Cost, check_cost, classify_cost, estimate, flow_cost, forecast_cost
from repro.spec.catalogue import ModelSpec, TierChecks, TierClassify, TierFlow, TierForecast, TierTask, TierWork
from repro.spec.checks import CHECKS, with_params
from repro.spec.data import digest
from repro.spec.experiment import (
    CheckExperiment,
    ClassifyExperiment,
    Experiment,
    FlowExperiment,
    ForecastExperiment,
    LmExperiment,
)
from repro.spec.identity import (
    Choice,
    cell_config,
    check_config,
    check_label,
    chosen_methods,
    classify_config,
    fewer,
    flow_config,
    forecast_config,
    label_of,
    pretrained_config,
    scaled,
)
from repro.spec.load import Configuration

OF_TIER = " (in config/tiers.yaml)"
TUNING_FROM = 1001  # tuning seeds are 1001, 1002 ...: never those that are reported, in no experiment


@dataclass(frozen=True, slots=True)
class Draft:
    """One cell before its seeds. `config` is all that the ids of its runs cover but the seed."""

    label: str
    method: str
    params: dict[str, Any]
    axes: dict[str, Any]
    config: dict[str, Any]
    cost: Cost
    work: TierWork
    seeds: int
    tokens: int = 0
    tuning: int = 0
    tracks: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    source: str | None = None

    @property
    def reported(self) -> tuple[int, ...]:
        """Seeds whose numbers are reported."""
        return tuple(range(1, self.seeds + 1))

    @property
    def tuned_on(self) -> tuple[int, ...]:
        """Seeds on which a rate is chosen, and nothing else."""
        return tuple(range(TUNING_FROM, TUNING_FROM + self.tuning))


@dataclass
class Drafts:
    """The cells of one experiment, and what is wrong with them as (key, message)."""

    cells: list[Draft] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)


def drafts(configuration: Configuration, tier: str, experiment: Experiment, digests: dict[str, str]) -> Drafts:
    """All cells of `experiment` in the plan's order; `digests` remembers those of data sources."""
    scale = configuration.tiers[tier]
    if isinstance(experiment, LmExperiment):
        return _lm_drafts(configuration, scale.lm, experiment, digests)
    if isinstance(experiment, ForecastExperiment):
        return _forecast_drafts(configuration, scale.forecast, experiment, digests)
    if isinstance(experiment, FlowExperiment):
        return _flow_drafts(scale.flow, experiment)
    if isinstance(experiment, ClassifyExperiment):
        return _classify_drafts(configuration, scale.classify, experiment, digests)
    return _check_drafts(scale.check, experiment)


def _lm_drafts(
    configuration: Configuration, task: TierTask, experiment: LmExperiment, digests: dict[str, str]
) -> Drafts:
    source = task.stand_in(experiment.data)
    sha256 = _digest(configuration, source, digests)
    grid = rates(task, experiment)
    sizes = [name for name in experiment.model if name not in task.without]
    points = list(product(sizes, grid, experiment.optimizer.weight_decay))
    made = Drafts()
    for name in sizes:
        if not _has_size(task, name):
            made.faults.append(("model", f"{name} has no stand-in in config/tiers.yaml"))
    for (model, lr, decay), (entry, params) in product(points, chosen_methods(configuration, experiment)):
        choice = Choice(entry, params, {"model": model, "lr": lr, "weight_decay": decay}, source, sha256)
        config = cell_config(configuration, task, experiment, choice)
        made.faults += _unfit(config, configuration.text(source).vocabulary)
        made.faults += [("batch_tokens", fault) for fault in _undivided(config, task.devices)]
        made.faults += _stepless(task.tokens or experiment.tokens, config["tokens_per_step"])
        cost = _lm_cost(configuration, task, config, model)
        made.faults += [("model", f"{model} {fault}") for fault in _beyond_device(configuration, cost)]
        made.cells.append(
            Draft(
                label=label_of(experiment, choice, len(grid)),
                method=entry.name,
                params=params,
                axes=choice.axes,
                config=config,
                cost=cost,
                work=task,
                seeds=fewer(experiment.seeds, task.seeds),
                tokens=config["steps"] * config["tokens_per_step"],
                tuning=tuning_seeds(task, experiment),
                tracks=tuple(entry.info.tracks),
                metrics=tuple(experiment.metrics),
                source=source,
            )
        )
    return made


def _digest(configuration: Configuration, source: str, digests: dict[str, str]) -> str:
    if source not in digests:
        digests[source] = digest(configuration.sources[source], configuration.root)
    return digests[source]


def rates(task: TierTask, experiment: LmExperiment) -> list[float]:
    """Learning rates of the grid at this tier."""
    if experiment.tuning_seeds and task.lr_grid:
        return task.lr_grid
    return [scaled(lr, task.lr_scale) for lr in _thinned(experiment.optimizer.lr, task.lr_points)]


def _thinned(grid: list[float], points: int | None) -> list[float]:
    """At most `points` rates, evenly spaced over the grid with both ends; its first one where one is asked for."""
    if points is None or points >= len(grid):
        return grid
    places = [round(place * (len(grid) - 1) / max(1, points - 1)) for place in range(points)]
    return [grid[place] for place in places]


def tuning_seeds(task: TierTask, experiment: LmExperiment) -> int:
    """Number of tuning seeds; none where there is one rate only, since nothing is chosen then."""
    if not experiment.tuning_seeds or len(rates(task, experiment)) < 2:
        return 0
    return experiment.tuning_seeds if task.tuning_seeds is None else task.tuning_seeds


def _lm_cost(configuration: Configuration, task: TierTask, config: dict[str, Any], base: str) -> Cost:
    planning = configuration.hardware[configuration.suite.planning_device]
    per_step = config["tokens_per_step"]
    model = configuration.models[task.sized(base)]
    return estimate(model, config["steps"] * per_step, per_step, task, config["precision"], planning)


def _beyond_device(configuration: Configuration, cost: Cost) -> Iterator[str]:
    """Found before submission, not by an out-of-memory error after a night in the queue."""
    name = configuration.suite.planning_device
    there = configuration.hardware[name].memory_gb
    if cost.device == "gpu" and cost.memory_gb > there:
        less = "a smaller micro_batch in config/tiers.yaml helps"
        yield f"needs about {cost.memory_gb:.0f} GB, {name} has {there:g}; {less}"


def _has_size(task: TierTask, model: str) -> bool:
    """A tier that makes models small makes all of them small: one that it does not know would run at full size."""
    return not task.model or model in task.model or model in task.model.values()


def _unfit(config: dict[str, Any], vocab: int) -> Iterator[tuple[str, str]]:
    """A vocabulary too small for the tokens; steps that are no whole number of sequences."""
    model, tokens = config["model"], config["tokens_per_step"]
    if model["vocab"] < vocab:
        yield "model", f"the vocabulary of {model['vocab']} is smaller than the tokenizer's, {vocab}"
    if tokens % model["context"]:
        yield "batch_tokens", f"{tokens} tokens a step are no multiple of the context, {model['context']}"


def _stepless(tokens: float, per_step: int) -> Iterator[tuple[str, str]]:
    if tokens < per_step:
        yield "tokens", f"{tokens:g} tokens are less than one step of {per_step}"


def _undivided(config: dict[str, Any], devices: int) -> Iterator[str]:
    """Tokens a step are fixed by the protocol: each device takes an even share, in whole micro-batches.

    Devices and micro-batch are the tier's, in config/tiers.yaml.
    """
    sequences, micro_batch = config["tokens_per_step"] // config["model"]["context"], config["micro_batch"]
    share, rest = divmod(sequences, devices)
    if rest or not share:
        yield f"{sequences} sequences a step are no multiple of {devices} devices{OF_TIER}"
    elif sequences % micro_batch:
        yield f"{sequences} sequences a step are no multiple of the micro-batch, {micro_batch}{OF_TIER}"
    elif share % min(share, micro_batch):
        yield f"{share} sequences a step and device are no multiple of the micro-batch, {micro_batch}{OF_TIER}"


def _trained(
    label: str,
    axes: dict[str, Any],
    config: dict[str, Any],
    cost: Cost,
    work: TierWork,
    experiment: ForecastExperiment | FlowExperiment | ClassifyExperiment,
    source: str | None = None,
) -> Draft:
    """A cell of a training that is no language model's: its configuration says method and tokens."""
    method = config["method"]
    return Draft(
        label=label,
        method=method["name"],
        params=method["params"],
        axes=axes,
        config=config,
        cost=cost,
        work=work,
        seeds=fewer(experiment.seeds, work.seeds),
        tokens=config["steps"] * config["tokens_per_step"],
        tracks=(experiment.task,),
        metrics=tuple(experiment.metrics),
        source=source,
    )


def _forecast_drafts(
    configuration: Configuration, work: TierForecast, experiment: ForecastExperiment, digests: dict[str, str]
) -> Drafts:
    """Betas by controls; the method that gives the coefficient its name is the suite's scaled skip."""
    entry, source = configuration.methods["beta_skip"], work.data.get(experiment.data, experiment.data)
    sha256 = _digest(configuration, source, digests)
    made = Drafts()
    for control, beta in product(experiment.controls, experiment.betas):
        config = forecast_config(entry, work, experiment, beta, control, sha256)
        label = f"beta{beta:g}" + (f"/{control}" if len(experiment.controls) > 1 else "")
        made.cells.append(
            _trained(label, {"control": control}, config, forecast_cost(config), work, experiment, source)
        )
    return made


def _flow_drafts(work: TierFlow, experiment: FlowExperiment) -> Drafts:
    """Depths by widths."""
    made = Drafts()
    for layers, heads in product(work.layers or experiment.layers, work.heads or experiment.heads):
        config = flow_config(work, experiment, layers, heads)
        label = f"L{layers}-M{heads}"
        made.cells.append(
            _trained(label, {"layers": layers, "heads": heads}, config, flow_cost(config), work, experiment)
        )
    return made


def _classify_drafts(
    configuration: Configuration, work: TierClassify, experiment: ClassifyExperiment, digests: dict[str, str]
) -> Drafts:
    """Depths by residuals on or off; the blocks are Pre-LN's, as GPT-2's are."""
    entry, source = configuration.methods["pre_ln"], work.data.get(experiment.data, experiment.data)
    sha256, given = _digest(configuration, source, digests), experiment.pretrained
    text = None if given.data is None else work.data.get(given.data, given.data)
    of_text = _digest(configuration, text, digests) if text else ""
    pretrained = pretrained_config(configuration, entry, work, experiment, of_text)
    whole = configuration.models[work.sized(given.model)]
    made = Drafts()
    if text:
        faults = _unfit(pretrained["run"], configuration.text(text).vocabulary)
        made.faults += [("pretrained", fault) for _, fault in faults]
    made.faults += _too_large(whole, work.depths or experiment.depths, experiment.context)
    for layers, residual in product(work.depths or experiment.depths, experiment.residuals):
        point = {"layers": layers, "residual": residual}
        config = classify_config(entry, work, experiment, point, sha256, pretrained)
        label = f"L{layers}/{'residual' if residual else 'none'}"
        made.cells.append(
            _trained(
                label, {"model": given.model, **point}, config, classify_cost(config, whole), work, experiment, source
            )
        )
    return made


def _too_large(whole: ModelSpec, depths: list[int], context: int) -> Iterator[tuple[str, str]]:
    """Blocks and tokens that the pretrained model does not have."""
    if max(depths) > whole.n_layer:
        yield "depths", f"the pretrained model has {whole.n_layer} layers, {max(depths)} are asked for"
    if context > whole.context:
        yield "context", f"the pretrained model has a context of {whole.context}, {context} is asked for"


def _check_drafts(work: TierChecks, experiment: CheckExperiment) -> Drafts:
    check = CHECKS[experiment.check]
    made = Drafts()
    for values in product(*experiment.grid.values()):
        point = dict(zip(experiment.grid, values, strict=True))
        params = with_params(check, experiment.params, point, work.params.get(check.name, {}))
        made.cells.append(
            Draft(
                label=check_label(check, params, point),
                method=check.name,
                params=params,
                axes={},
                config=check_config(check, params, work),
                cost=check_cost(check.info.seconds, check.info.memory_gb),
                work=work,
                seeds=fewer(experiment.seeds, work.seeds),
            )
        )
    return made
