"""The lock, and the files made of it: complete, pinned by hash, and without an address."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("environment_tool", ROOT / "tools" / "environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def requirements() -> list[str]:
    """Each requirement of the lock as one logical line, comments left out."""
    text = "\n".join(line for line in LOCK.splitlines() if not line.lstrip().startswith("#"))
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def test_every_line_of_the_lock_has_an_exact_version_and_a_hash() -> None:
    assert len(requirements()) > 100
    for line in requirements():
        assert re.match(r"^[a-z0-9][a-z0-9._-]*==\S+", line), line[:80]
        assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", line)) >= 1, line[:80]


def test_the_lock_holds_no_address() -> None:
    command_left_out = "\n".join(line for line in LOCK.splitlines() if "uv pip compile" not in line)
    assert not re.search(r"://|--index|--find-links|--extra-index|--trusted-host|@ file|git\+", command_left_out)
    assert "--no-emit-index-url" in LOCK


def test_the_lock_holds_every_direct_dependency(tool: ModuleType) -> None:
    locked = tool.locked()
    assert [name for name in tool.direct() if name not in locked] == []
    assert {"torch", "lightning", "snakemake", "pytest"} <= set(tool.direct())


def test_the_lock_answers_the_bounds_of_the_project(tool: ModuleType) -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    locked = tool.locked()
    for text in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]:
        wanted = Requirement(text)
        versions = [re.split(r"[ ;]", line.split("==")[1])[0] for line in locked[canonicalize_name(wanted.name)]]
        assert all(wanted.specifier.contains(version) for version in versions), text


def test_releases_of_snakemake_that_read_runtimes_as_seconds_cannot_be_installed() -> None:
    """Case W02."""
    from packaging.requirements import Requirement

    wanted = next(Requirement(text) for text in PROJECT["dependencies"] if re.match(r"snakemake[<>=]", text))
    assert not any(wanted.specifier.contains(version) for version in ("9.16.3", "9.17.0", "9.18.9", "10.0.0"))


def test_what_would_slow_every_import_is_not_locked(tool: ModuleType) -> None:
    """torchvision alone adds 1.5 s to an import of lightning."""
    assert {"torchvision", "litdata", "wandb", "hydra-core"} & set(tool.locked()) == set()


def test_the_conda_file_is_fresh(tool: ModuleType) -> None:
    text = (ROOT / "environment.yml").read_text("utf-8")
    assert text == tool.text(), "run python tools/environment.py"


def test_the_conda_file_pins_every_direct_dependency_to_the_lock(tool: ModuleType) -> None:
    content = yaml.safe_load((ROOT / "environment.yml").read_text("utf-8"))
    pinned = next(part["pip"] for part in content["dependencies"] if isinstance(part, dict))
    assert {line.split("==")[0] for line in pinned} == set(tool.direct())
    assert all(line in tool.locked()[line.split("==")[0]] for line in pinned)


def test_this_environment_is_the_locked_one(tool: ModuleType) -> None:
    for name in ("torch", "lightning", "snakemake", "pydantic", "numpy"):
        locked = {re.split(r"[ ;]", line.split("==")[1])[0] for line in tool.locked()[name]}
        assert metadata.version(name).split("+")[0] in locked
