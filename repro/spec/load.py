"""The whole configuration of one checkout, read and cross-checked at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from repro.spec.catalogue import Device, Hardware, Models, ModelSpec, Suite, Tier, Tiers
from repro.spec.checks import CHECKS, with_params
from repro.spec.data import DataSource, Sources
from repro.spec.errors import ConfigError, Problem, ReproError, shown, suggest
from repro.spec.experiment import (
    KINDS,
    CheckExperiment,
    ClassifyExperiment,
    Experiment,
    FlowExperiment,
    ForecastExperiment,
    LmExperiment,
)
from repro.spec.fetching import Encoder, Encoders
from repro.spec.folders import stray_problems
from repro.spec.methods import MethodEntry, registry, resolve
from repro.spec.metrics import PROTOCOLS
from repro.spec.overrides import load_merged
from repro.spec.paths import Root
from repro.spec.reading import Document, read_yaml, validate
from repro.spec.sets import LabelledSource, SeriesSource

Value = TypeVar("Value")


@dataclass(frozen=True)
class Configuration:
    """Everything that a plan is made of.

    `documents` of experiments (by name) and `files` (suite, tiers, models, data, hardware, encoders) know their lines.
    """

    root: Root
    suite: Suite
    tiers: dict[str, Tier]
    models: dict[str, ModelSpec]
    sources: dict[str, DataSource | SeriesSource | LabelledSource]
    hardware: dict[str, Device]
    encoders: dict[str, Encoder]
    methods: dict[str, MethodEntry]
    experiments: dict[str, Experiment]
    documents: dict[str, Document]
    files: dict[str, Document]

    def text(self, name: str) -> DataSource:
        """The source of running text called `name`; raises TypeError for one of another form."""
        source = self.sources[name]
        if not isinstance(source, DataSource):
            raise TypeError(f"{name} is no running text")
        return source


class _Collector:
    """Goes on after a bad file, so that all problems are told in one go."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def take(self, make: Callable[[], Value]) -> Value | None:
        try:
            return make()
        except ReproError as error:
            self.problems += error.problems
            return None


def load_configuration(root: Root) -> Configuration:
    """Reads config/ and the method registry; raises ConfigError with every problem of every file."""
    collect = _Collector()
    take = collect.take
    local = root.config / "local.yaml"
    suite_files = [root.config / "suite.yaml", *([local] if os.path.lexists(local) else [])]
    files: dict[str, Any] = {
        "suite": take(lambda: load_merged(Suite, suite_files, [root.shown(path) for path in suite_files]))
    }
    kinds: dict[str, Any] = {"tiers": Tiers, "models": Models, "data": Sources, "hardware": Hardware}
    kinds["encoders"] = Encoders
    files |= {name: take(partial(_catalogue, root, name, kind)) for name, kind in kinds.items()}
    methods = take(registry) or {}
    collect.problems += stray_problems(root)
    pairs = [take(partial(read_experiment, root, path)) for path in experiment_files(root)]
    documents = {experiment.name: document for pair in pairs if pair for experiment, document in [pair]}
    experiments = {experiment.name: experiment for pair in pairs if pair for experiment, _ in [pair]}
    if collect.problems:
        raise ConfigError(collect.problems)
    suite, tiers, models, sources, hardware, encoders = (files[name][0] for name in ("suite", *kinds))
    places = {name: document for name, (_, document) in files.items()}
    configuration = Configuration(
        root, suite, tiers, models, sources, hardware, encoders, methods, experiments, documents, places
    )
    problems = [problem for name in experiments for problem in reference_problems(configuration, name)]
    problems += [*_catalogue_problems(configuration), *_tier_check_problems(configuration)]
    if problems:
        raise ConfigError(problems)
    return configuration


def _catalogue(root: Root, name: str, kind: Any) -> tuple[Any, Document]:
    document = read_yaml(root.config / f"{name}.yaml", f"config/{name}.yaml")
    return validate(kind, document).root, document


def experiment_files(root: Root) -> list[Path]:
    """Experiment files in name order."""
    return sorted((root.config / "experiments").glob("*.yaml"))


def read_experiment(root: Root, path: Path) -> tuple[Experiment, Document]:
    """One experiment file; its name must be the file's, or two files could claim one name."""
    document = read_yaml(path, root.shown(path))
    experiment: Experiment = validate(_kind_of(document), document)
    if path.parent == root.config / "experiments" and experiment.name != path.stem:
        message = f"{experiment.name} must equal the file's name, {shown(path.stem)}"
        raise ConfigError([Problem(*document.place(("name",)), "name", message)])
    return experiment, document


def _kind_of(document: Document) -> Any:
    """The model of one experiment file, told by its `task`; raises ConfigError for one that is not known."""
    task = document.value.get("task") if isinstance(document.value, dict) else None
    if not isinstance(task, str):  # the model's own message says what is missing
        return LmExperiment
    if task not in KINDS:
        raise ConfigError(
            [Problem(*document.place(("task",)), "task", f"{shown(task)} is not known{suggest(task, KINDS)}")]
        )
    return KINDS[task]


def texts(configuration: Configuration) -> list[str]:
    """Names of the sources that a language model can be trained on: running text, no series or labelled sentences."""
    return [name for name, source in configuration.sources.items() if isinstance(source, DataSource)]


def reference_problems(configuration: Configuration, name: str) -> list[Problem]:
    """Names in one experiment that nothing is known by."""
    experiment, document = configuration.experiments[name], configuration.documents[name]
    problems: list[Problem] = []

    def known(path: tuple[str | int, ...], value: str, names: Any) -> None:
        if value not in names:
            key = ".".join(str(part) for part in path)
            problems.append(Problem(*document.place(path), key, f"{shown(value)} is not known{suggest(value, names)}"))

    if isinstance(experiment, CheckExperiment):
        known(("check",), experiment.check, CHECKS)
        return problems or list(_check_problems(experiment, document))
    if isinstance(experiment, FlowExperiment):
        _metrics_known(experiment.metrics, "flow", known)
        return problems
    if isinstance(experiment, ForecastExperiment):
        known(("data",), experiment.data, series(configuration))
        _metrics_known(experiment.metrics, "forecast", known)
        return problems
    if isinstance(experiment, ClassifyExperiment):
        known(("data",), experiment.data, labelled(configuration))
        known(("pretrained", "model"), experiment.pretrained.model, configuration.models)
        if experiment.pretrained.data is not None:
            known(("pretrained", "data"), experiment.pretrained.data, texts(configuration))
        _metrics_known(experiment.metrics, "classify", known)
        return problems
    for index, model in enumerate(experiment.model):
        known(("model", index), model, configuration.models)
    known(("data",), experiment.data, texts(configuration))
    _metrics_known(experiment.metrics, "lm", known)
    for index, choice in enumerate(experiment.methods or []):
        try:
            resolve(choice.name, choice.params, configuration.methods)
        except ValueError as error:
            problems.append(Problem(*document.place(("methods", index)), f"methods.{index}", str(error)))
    return problems


def series(configuration: Configuration) -> list[str]:
    """Names of the sources that a forecaster can be trained on."""
    return [name for name, source in configuration.sources.items() if isinstance(source, SeriesSource)]


def labelled(configuration: Configuration) -> list[str]:
    """Names of the sources that a classifier can be trained on."""
    return [name for name, source in configuration.sources.items() if isinstance(source, LabelledSource)]


def _metrics_known(metrics: list[str], task: str, known: Callable[..., None]) -> None:
    """A metric measures one kind of run."""
    names = [name for name, protocol in PROTOCOLS.items() if protocol.info.task == task]
    for index, metric in enumerate(metrics):
        known(("metrics", index), metric, names)


def _check_problems(experiment: CheckExperiment, document: Document) -> Iterator[Problem]:
    """Parameters that the check does not have, or of another type."""
    check = CHECKS[experiment.check]
    given = [(("params", key), {key: value}) for key, value in experiment.params.items()]
    given += [(("grid", key), {key: value}) for key, values in experiment.grid.items() for value in values]
    for path, change in given:
        try:
            with_params(check, change)
        except ValueError as error:
            yield Problem(*document.place(path), ".".join(path), str(error))


def _tier_check_problems(configuration: Configuration) -> Iterator[Problem]:
    """Checks and parameters in tiers.yaml that nothing is known by."""
    for label, tier in configuration.tiers.items():
        for name, change in tier.check.params.items():
            place: tuple[str, ...] = (label, "check", "params", name)
            if name not in CHECKS:
                message = f"{shown(name)} is not known{suggest(name, CHECKS)}"
                yield Problem(*configuration.files["tiers"].place(place), ".".join(place), message)
                continue
            for key, value in change.items():
                try:
                    with_params(CHECKS[name], {key: value})
                except ValueError as error:
                    yield Problem(*configuration.files["tiers"].place((*place, key)), ".".join(place), str(error))


def _catalogue_problems(configuration: Configuration) -> list[Problem]:
    """Names in tiers.yaml and suite.yaml that nothing is known by."""
    wanted: list[tuple[str, tuple[str | int, ...], str, Any]] = []
    for label, tier in configuration.tiers.items():
        for base, size in tier.lm.model.items():
            place = (label, "lm", "model", base)
            wanted += [("tiers", place, name, configuration.models) for name in (base, size)]
        for index, name in enumerate(tier.lm.without):
            wanted.append(("tiers", (label, "lm", "without", index), name, configuration.models))
        if isinstance(tier.lm.data, str):
            wanted.append(("tiers", (label, "lm", "data"), tier.lm.data, texts(configuration)))
        else:
            for base, source in tier.lm.data.items():
                place = (label, "lm", "data", base)
                wanted += [("tiers", place, name, texts(configuration)) for name in (base, source)]
        for base, size in tier.classify.model.items():
            wanted += [("tiers", (label, "classify", "model", base), n, configuration.models) for n in (base, size)]
        for base, source in tier.classify.data.items():
            same = labelled(configuration) if base in labelled(configuration) else texts(configuration)
            wanted += [("tiers", (label, "classify", "data", base), name, same) for name in (base, source)]
    suite = configuration.suite
    wanted.append(("suite", ("tier",), suite.tier, configuration.tiers))
    wanted.append(("suite", ("planning_device",), suite.planning_device, configuration.hardware))
    for index, name in enumerate(suite.experiments or []):
        wanted.append(("suite", ("experiments", index), name, configuration.experiments))
    return [
        Problem(
            *configuration.files[file].place(place),
            ".".join(map(str, place)),
            f"{shown(value)} is not known{suggest(value, known)}",
        )
        for file, place, value, known in wanted
        if value not in known
    ]
