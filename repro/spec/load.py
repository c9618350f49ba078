"""The whole configuration of one checkout, read and cross-checked at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from repro.spec.catalogue import Device, Hardware, Models, ModelSpec, Suite, Tier, Tiers
from repro.spec.data import DataSource, Sources
from repro.spec.errors import ConfigError, Problem, ReproError, shown, suggest
from repro.spec.experiment import Experiment
from repro.spec.methods import MethodEntry, registry, resolve
from repro.spec.metrics import METRICS
from repro.spec.overrides import load_merged
from repro.spec.paths import Root
from repro.spec.reading import Document, load, read_yaml, validate

Value = TypeVar("Value")


@dataclass(frozen=True)
class Configuration:
    """Everything that a plan is made of; the experiments keep their documents for file and line."""

    root: Root
    suite: Suite
    tiers: dict[str, Tier]
    models: dict[str, ModelSpec]
    sources: dict[str, DataSource]
    hardware: dict[str, Device]
    methods: dict[str, MethodEntry]
    experiments: dict[str, Experiment]
    documents: dict[str, Document]


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
    suite_files = [path for path in (root.config / "suite.yaml", root.config / "local.yaml") if path.is_file()]
    suite = take(lambda: load_merged(Suite, suite_files, [root.shown(path) for path in suite_files])[0])
    kinds: dict[str, Any] = {"tiers": Tiers, "models": Models, "data": Sources, "hardware": Hardware}
    files: dict[str, Any] = {name: take(partial(_catalogue, root, name, kind)) for name, kind in kinds.items()}
    methods = take(registry) or {}
    pairs = [take(partial(read_experiment, root, path)) for path in experiment_files(root)]
    documents = {experiment.name: document for pair in pairs if pair for experiment, document in [pair]}
    experiments = {experiment.name: experiment for pair in pairs if pair for experiment, _ in [pair]}
    if collect.problems or suite is None:
        raise ConfigError(collect.problems)
    configuration = Configuration(
        root, suite, files["tiers"], files["models"], files["data"], files["hardware"], methods, experiments, documents
    )
    problems = [problem for name in experiments for problem in reference_problems(configuration, name)]
    problems += _catalogue_problems(configuration)
    if problems:
        raise ConfigError(problems)
    return configuration


def _catalogue(root: Root, name: str, kind: Any) -> Any:
    return load(kind, root.config / f"{name}.yaml", f"config/{name}.yaml").root


def experiment_files(root: Root) -> list[Path]:
    """Experiment files in name order."""
    return sorted((root.config / "experiments").glob("*.yaml"))


def read_experiment(root: Root, path: Path) -> tuple[Experiment, Document]:
    """One experiment file; its name must be the file's, or two files could claim one name."""
    document = read_yaml(path, root.shown(path))
    experiment = validate(Experiment, document)
    if path.parent == root.config / "experiments" and experiment.name != path.stem:
        message = f"{experiment.name} must equal the file's name, {shown(path.stem)}"
        raise ConfigError([Problem(*document.place(("name",)), "name", message)])
    return experiment, document


def reference_problems(configuration: Configuration, name: str) -> list[Problem]:
    """Names in one experiment that nothing is known by."""
    experiment, document = configuration.experiments[name], configuration.documents[name]
    problems: list[Problem] = []

    def known(path: tuple[str | int, ...], value: str, names: Any) -> None:
        if value not in names:
            key = ".".join(str(part) for part in path)
            problems.append(Problem(*document.place(path), key, f"{shown(value)} is not known{suggest(value, names)}"))

    for index, model in enumerate(experiment.model):
        known(("model", index), model, configuration.models)
    known(("data",), experiment.data, configuration.sources)
    for index, metric in enumerate(experiment.metrics):
        known(("metrics", index), metric, METRICS)
    for index, choice in enumerate(experiment.methods or []):
        try:
            resolve(choice.name, choice.params, configuration.methods)
        except ValueError as error:
            problems.append(Problem(*document.place(("methods", index)), f"methods.{index}", str(error)))
    return problems


def _catalogue_problems(configuration: Configuration) -> list[Problem]:
    """Names in tiers.yaml and suite.yaml that nothing is known by."""
    problems = []
    for label, tier in configuration.tiers.items():
        task = tier.lm
        wanted: list[tuple[str, str, Any]] = [
            ("model", name, configuration.models) for pair in task.model.items() for name in pair
        ]
        wanted += [("data", task.data, configuration.sources)] if task.data else []
        problems += [
            Problem("config/tiers.yaml", None, f"{label}.lm.{key}", f"{value} is not known{suggest(value, known)}")
            for key, value, known in wanted
            if value not in known
        ]
    suite = configuration.suite
    if suite.planning_device not in configuration.hardware:
        text = f"{shown(suite.planning_device)} is not known{suggest(suite.planning_device, configuration.hardware)}"
        problems.append(Problem("config/suite.yaml", None, "planning_device", text))
    for name in suite.experiments or []:
        if name not in configuration.experiments:
            text = f"{name} is not known{suggest(name, configuration.experiments)}"
            problems.append(Problem("config/suite.yaml", None, "experiments", text))
    return problems


_STATED = re.compile(r"(?<![a-z])(lr|wd|dt)[ _=]*(\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.IGNORECASE)


def title_warnings(experiment: Experiment, document: Document) -> list[Problem]:
    """A hand-written title that states a value which the experiment does not have."""
    have = {
        "lr": experiment.optimizer.lr,
        "wd": experiment.optimizer.weight_decay,
        "dt": [choice.params["dt"] for choice in experiment.methods or [] if "dt" in choice.params],
    }
    return [
        Problem(*document.place(("title",)), "title", f"says {word} {text}, the experiment has {have[word.lower()]}")
        for word, text in _STATED.findall(experiment.title)
        if have[word.lower()] and float(text) not in have[word.lower()]
    ]
