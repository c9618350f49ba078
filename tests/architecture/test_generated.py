"""Schemas: fresh, valid, and in agreement with the reader on the suite's own files and on broken ones."""

from __future__ import annotations

import importlib.util
import json
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "config"
FILES = [(path, "experiment") for path in sorted((CONFIG / "experiments").glob("*.yaml"))]
OTHER_CLAIM_FILES = {"unused": "claims_unused", "registered": "claims_registered"}
FILES += [(path, OTHER_CLAIM_FILES.get(path.stem, "claims")) for path in sorted((CONFIG / "claims").glob("*.yaml"))]
FILES += [(CONFIG / f"{name}.yaml", name) for name in ("tiers", "models", "data", "suite", "hardware", "encoders")]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("schemas_tool", ROOT / "tools" / "schemas.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def validator(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from jsonschema import Draft202012Validator
    schema = json.loads((ROOT / "workflow" / "schemas" / f"{name}.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_the_schemas_are_what_the_models_say(tool: ModuleType) -> None:
    folder = ROOT / "workflow" / "schemas"
    assert {path.name: path.read_text("utf-8") for path in folder.glob("*.json")} == tool.texts(), (
        "run python tools/schemas.py"
    )


@pytest.mark.parametrize(("path", "kind"), FILES, ids=lambda value: getattr(value, "stem", value))
def test_the_suites_own_files_pass_their_schema(path: Path, kind: str) -> None:
    value = json.loads(json.dumps(_plain(path)))
    assert [error.message for error in validator(kind).iter_errors(value)] == []


def _plain(path: Path) -> Any:
    from repro.spec.reading import read_yaml

    return read_yaml(path).value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenz", 1),
        ("seeds", 0),
        ("seeds", "5"),
        ("name", "Not A Name"),
        ("tokens", -1),
        ("task", "image"),
        ("methods", []),
        ("methods", [{"dt": 1.0}]),
        ("optimizer", {"name": "adamw", "lr": [], "weight_decay": 0.1}),
        ("optimizer", {"name": "adamw", "lr": 0, "weight_decay": 0.1}),
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(key: str, value: object) -> None:
    from pydantic import ValidationError

    from repro.spec.experiment import LmExperiment

    good = yaml.safe_load((CONFIG / "experiments" / "a_quality.yaml").read_text("utf-8"))
    good["tokens"], good["optimizer"] = 1e9, {"name": "adamw", "lr": 6e-4, "weight_decay": 0.1}
    assert validator("experiment").is_valid(good)
    LmExperiment.model_validate(good)
    bad = good | {key: value}
    assert not validator("experiment").is_valid(bad)
    with pytest.raises(ValidationError):
        LmExperiment.model_validate(bad)
