"""Reads config/claims: the claims of each paper, the reported numbers that none of them uses, and their names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from repro.spec.catalogue import Tier
from repro.spec.checks import CHECKS
from repro.spec.claim_model import (
    SCALES,
    UNKNOWN,
    VIEWS,
    Arm,
    Claim,
    Decide,
    Found,
    Reported,
    Row,
    Selector,
    Setting,
    Some,
    misfits,
)
from repro.spec.errors import ConfigError, Problem, ReproError, shown, suggest
from repro.spec.experiment import ClassifyExperiment, Experiment, FlowExperiment, ForecastExperiment, LmExperiment
from repro.spec.hashing import sha256_json
from repro.spec.identity import chosen_methods
from repro.spec.load import Configuration
from repro.spec.metrics import METRICS, values_of
from repro.spec.model import Strict
from repro.spec.paths import Root
from repro.spec.reading import Document, load, read_yaml, validate

__all__ = [
    "PAPERS",
    "SCALES",
    "TITLES",
    "UNKNOWN",
    "VIEWS",
    "Arm",
    "Claim",
    "Decide",
    "Known",
    "Reported",
    "Selector",
    "Setting",
    "Unused",
    "UnusedFile",
    "check_claims",
    "claim_files",
    "family_sha256",
    "known_names",
    "load_claims",
    "load_unused",
]

TITLES = {
    "a": "Stability of Transformers under Layer Normalization",
    "b": "Training Infinitely Deep and Wide Transformers",
    "c": "SimpleGPT",
    "d": "On the Convergence of Gradient Descent on Learning Transformers with Residual Connections",
}
PAPERS = tuple(TITLES)
PAPER_FILES = tuple(f"paper_{letter}" for letter in PAPERS)
UNUSED, REGISTERED = "unused", "registered"  # files of config/claims that hold no claims


class Unused(Strict):
    """Reported numbers that no claim uses, and why."""

    paper: Literal["a", "b", "c", "d"]
    why: Some
    rows: Annotated[list[Row], Field(min_length=1)]


class UnusedFile(Strict):
    """The file unused.yaml."""

    unused: list[Unused]


@dataclass(frozen=True)
class Known:
    """What claims may refer to: values by experiment, parameters by method or check, base models.

    `axes` holds the points of an experiment's grid by axis, at any tier, `choices` its methods with all parameters;
    an experiment that is in neither is not looked at.
    """

    experiments: Mapping[str, Iterable[str]]
    methods: Mapping[str, Iterable[str]]
    models: Iterable[str]
    axes: Mapping[str, Mapping[str, Iterable[Any]]] = field(default_factory=dict)
    choices: Mapping[str, list[tuple[str, dict[str, Any]]]] = field(default_factory=dict)


def known_names(configuration: Configuration) -> Known:
    """The names of one checkout."""
    experiments = configuration.experiments
    return Known(
        {name: values_of(experiment.metrics) for name, experiment in experiments.items()},
        {name: entry.info.params for name, entry in configuration.methods.items()}
        | {name: check.info.params for name, check in CHECKS.items()},
        configuration.models,
        {name: _axes(experiment, configuration.tiers.values()) for name, experiment in experiments.items()},
        {
            name: [(entry.name, params) for entry, params in chosen_methods(configuration, experiment)]
            for name, experiment in experiments.items()
            if isinstance(experiment, LmExperiment)
        },
    )


def _axes(experiment: Experiment, tiers: Iterable[Tier]) -> dict[str, list[Any]]:
    """Points of the grid by axis; what a tier puts in their place is one too."""
    if isinstance(experiment, LmExperiment):
        return {"model": experiment.model, "weight_decay": list(experiment.optimizer.weight_decay)}
    if isinstance(experiment, ForecastExperiment):
        return {"control": list(experiment.controls)}
    if isinstance(experiment, FlowExperiment):
        layers = [*experiment.layers, *(count for tier in tiers for count in tier.flow.layers or ())]
        return {"layers": layers, "heads": [*experiment.heads, *(n for tier in tiers for n in tier.flow.heads or ())]}
    if isinstance(experiment, ClassifyExperiment):
        depths = [*experiment.depths, *(depth for tier in tiers for depth in tier.classify.depths or ())]
        return {"model": [experiment.pretrained.model], "layers": depths, "residual": list(experiment.residuals)}
    return {}


def family_sha256(claims: Iterable[Claim], family: str) -> str:
    """Hash over a family's claims: a claim added or dropped afterwards shows."""
    return sha256_json(sorted(claim.sha256 for claim in claims if claim.family == family))


def claim_files(root: Root) -> list[Path]:
    """Claim files in name order."""
    return [path for path in sorted((root.config / "claims").glob("*.yaml")) if path.stem not in (UNUSED, REGISTERED)]


def load_claims(root: Root, known: Known) -> list[Claim]:
    """All claims of config/claims; raises ConfigError with every problem of every file."""
    problems: list[Problem] = []
    claims: dict[str, Claim] = {}
    for path in claim_files(root):
        problems += _read_into(claims, path, root.shown(path), known)
    if problems:
        raise ConfigError(problems)
    return list(claims.values())


def load_unused(root: Root) -> list[Unused]:
    """Reported numbers that no claim uses; none where the file is not there. Raises ConfigError."""
    path = root.config / "claims" / f"{UNUSED}.yaml"
    return load(UnusedFile, path, root.shown(path)).unused if os.path.lexists(path) else []


def check_claims(path: Path, file: str, known: Known) -> list[Claim]:
    """The claims of one file, wherever it lies; raises ConfigError with every problem, `file` in the messages.

    The two files beside the claims are checked for what they are.
    """
    if path.stem == UNUSED:
        load(UnusedFile, path, file)
        return []
    if path.stem == REGISTERED:
        from repro.spec.claim_ledger import read_ledger

        read_ledger(path, file)
        return []
    claims: dict[str, Claim] = {}
    if problems := _read_into(claims, path, file, known):
        raise ConfigError(problems)
    return list(claims.values())


def _read_into(claims: dict[str, Claim], path: Path, file: str, known: Known) -> list[Problem]:
    """Adds a file's good claims to `claims` by id; returns its problems."""
    problems: list[Problem] = []
    for entry in _entries(path, file, problems):
        try:
            claim = validate(Claim, entry)
        except ReproError as error:
            problems += error.problems
            continue
        problems += _entry_problems(claim, entry, path, claims, known)
        claims.setdefault(claim.id, claim)
    return problems


def _entries(path: Path, file: str, problems: list[Problem]) -> Iterator[Document]:
    """Each entry of one file with the lines of its keys; a file that is no list adds a problem instead."""
    try:
        document = read_yaml(path, file)
    except ReproError as error:
        problems += error.problems
        return
    if not isinstance(document.value, list):
        problems.append(Problem(document.file, 1, "", "a list of claims is expected"))
        return
    for index, value in enumerate(document.value):
        places = {keys[1:]: place for keys, place in document.places.items() if keys[:1] == (index,)}
        yield Document(document.file, value, places)


def _entry_problems(claim: Claim, entry: Document, path: Path, taken: Iterable[str], known: Known) -> Iterator[Problem]:
    """An id that stands twice or in another paper's file, parts that do not fit, and names that nothing is known by."""
    found: list[tuple[tuple[str, ...], str]] = []
    if claim.id in taken:
        found.append((("id",), f"{claim.id} stands twice"))
    if path.stem in PAPER_FILES and path.stem != f"paper_{claim.paper}":
        found.append((("id",), f"{claim.id} belongs in paper_{claim.paper}.yaml"))
    for keys, message in [*found, *misfits(claim), *_unknown_names(claim, known)]:
        yield Problem(*entry.place(keys), ".".join(keys), message)


def _unknown_names(claim: Claim, known: Known) -> Found:
    """Names that nothing is known by; what is not planned yet may name what is to come."""
    if claim.not_planned is not None:
        return
    if claim.metric not in (*VIEWS, *METRICS):
        yield ("metric",), f"{shown(claim.metric)} is not known{suggest(claim.metric, (*VIEWS, *METRICS))}"
    if claim.cells is None:
        return
    experiment = claim.cells.experiment
    if experiment not in known.experiments:
        yield ("cells", "experiment"), f"{experiment} is not known{suggest(experiment, known.experiments)}"
    elif claim.metric in METRICS and claim.metric not in known.experiments[experiment]:
        names = suggest(claim.metric, known.experiments[experiment])
        yield ("metric",), f"{claim.metric} is not measured by {experiment}{names}"
    yield from _unknown_cells(claim.cells, known)


def _unknown_cells(cells: Selector, known: Known) -> Found:
    """Models, methods, parameters and points of the grid that the experiment does not have: nothing would be found."""
    if cells.model is not None and cells.model not in known.models:
        yield ("cells", "model"), f"{cells.model} is not known{suggest(cells.model, known.models)}"
    else:
        yield from _off_grid(cells, cells.axes, None, known)
    for role, arm in cells.arms.items():
        key = role if role in ("a", "b") else "others"
        yield from _off_grid(cells, arm.axes, key, known)
        if arm.method not in known.methods:
            yield ("cells", key), f"{arm.method} is not known{suggest(arm.method, known.methods)}"
            continue
        strange = [param for param in arm.params if param not in known.methods[arm.method]]
        for param in strange:
            names = suggest(param, known.methods[arm.method])
            yield ("cells", key), f"{arm.method} has no parameter {param}{names}"
        choices = known.choices.get(cells.experiment)
        if choices is not None and not strange and not any(_is_choice(arm, *choice) for choice in choices):
            listed = ", ".join(Arm(method=name, params=params).label for name, params in choices)
            yield ("cells", key), f"{shown(arm.label)} is no method of {cells.experiment}; known: {listed}"


def _is_choice(arm: Arm, method: str, params: Mapping[str, Any]) -> bool:
    return arm.method == method and all(params[key] == value for key, value in arm.params.items())


def _off_grid(cells: Selector, asked: Mapping[Any, Any], role: str | None, known: Known) -> Found:
    """Points on axes of the experiment's grid at which it has no cell; `role` is that of the arm that names them."""
    axes = known.axes.get(cells.experiment)
    if axes is None:
        return
    for key, value in asked.items():
        place = ("cells", role or key)
        if key not in axes:
            yield place, f"{cells.experiment} has no {key} to choose"
        elif value not in axes[key]:
            listed = ", ".join(map(str, dict.fromkeys(axes[key])))
            yield place, f"{key} {shown(value)} is not in {cells.experiment}; known: {listed}"
