"""`repro check-config`: any file of the suite, judged by what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from repro.records.index import MAX_RECORD_BYTES
from repro.records.schema import record_problems
from repro.spec.catalogue import Hardware, Models, Suite, Tiers
from repro.spec.claims import check_claims, known_names
from repro.spec.data import Sources
from repro.spec.errors import BadDataError, ConfigError, Problem, ReproError, problem_error
from repro.spec.fetching import Encoders
from repro.spec.load import Configuration, load_configuration, read_experiment, reference_problems
from repro.spec.methods import read_method
from repro.spec.overrides import load_merged
from repro.spec.paths import Root, find_root, refuse_link_out
from repro.spec.reading import load, read_json, read_yaml
from repro.spec.stated import title_warnings
from repro.verbs.output import say
from repro.verbs.profile import check_profile, is_profile

CATALOGUES: dict[str, Any] = {
    "suite": Suite,
    "tiers": Tiers,
    "models": Models,
    "data": Sources,
    "hardware": Hardware,
    "encoders": Encoders,
}


def check(paths: list[Path]) -> None:
    """Checks each path (folders: all files in them); raises one error that holds every problem."""
    root = find_root()
    configuration = load_configuration(root)
    problems: list[Problem] = []
    code: type[ReproError] = ConfigError
    files = [file for path in paths for file in _expand(path)]
    for path in files:
        try:
            check_file(path, root, configuration)
        except ReproError as error:
            problems += error.problems
            code = code if isinstance(error, ConfigError) else BadDataError
    if problems:
        raise code(problems)
    say(f"{len(files)} file(s) checked")


def _expand(path: Path) -> list[Path]:
    if path.is_dir() and not path.is_symlink():
        return sorted(
            p for p in path.rglob("*") if p.suffix in (".yaml", ".yml", ".json", ".py") and p.name != "__init__.py"
        )
    return [path]


def check_file(path: Path, root: Root, configuration: Configuration) -> None:
    """Checks one file; the kind follows from suffix, folder and name."""
    name = root.named(path)
    refuse_link_out(path, name)
    if path.suffix == ".json":
        problems = record_problems(read_json(path, MAX_RECORD_BYTES, name), name)
        if problems:
            raise BadDataError(problems)
    elif path.suffix == ".py":
        read_method(path)
    elif path.suffix == ".bin":
        _check_tokens(path, name)
    elif path.suffix not in (".yaml", ".yml"):
        raise problem_error(ConfigError, name, "", "is neither .yaml, .json, a method's .py nor a token file's .bin")
    elif path.parent.name == "slurm":
        check_profile(read_yaml(path, name))
    elif path.parent.name == "claims":
        check_claims(path, name, known_names(configuration))
    elif path.stem == "local":
        load_merged(Suite, [root.config / "suite.yaml", path], ["config/suite.yaml", name])
    elif path.stem in CATALOGUES:
        load(CATALOGUES[path.stem], path, name)
    elif is_profile((document := read_yaml(path, name)).value):
        check_profile(document)
    else:
        _check_experiment(path, root, configuration)


def _check_tokens(path: Path, name: str) -> None:
    from repro.data.packed import file_problems

    _, problems = file_problems(path, full=True)
    if problems:
        raise BadDataError([Problem(name, None, problem.key, problem.message) for problem in problems])


def _check_experiment(path: Path, root: Root, configuration: Configuration) -> None:
    experiment, document = read_experiment(root, path)
    for warning in title_warnings(experiment, document):
        say(f"warning: {warning}")
    changed = Configuration(
        **{
            **vars(configuration),
            "experiments": configuration.experiments | {experiment.name: experiment},
            "documents": configuration.documents | {experiment.name: document},
        }
    )
    problems = reference_problems(changed, experiment.name)
    if problems:
        raise ConfigError(problems)
