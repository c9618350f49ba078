"""What many tests share: the checkout itself, and copies of it that a test may spoil."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, settings

from tests.shared import SHARED, shared

# A slow machine is no fault, and a test that fails must fail again.
settings.register_profile("repro", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repro")

REPOSITORY = Path(__file__).resolve().parents[1]
PARTS = (
    "Snakefile",
    "workflow",
    "config",
    "repro",
    "slurm",
    "tools",
    "pyproject.toml",
    "requirements.lock",
    "environment.yml",
)


def pytest_configure(config: pytest.Config) -> None:
    """In CI no test may be skipped for want of the files beside the checkout."""
    if os.environ.get("CI") and not SHARED.is_dir():
        raise pytest.UsageError("CI needs the folder ../shared beside the checkout")


def shared_case(name: str) -> Path:
    """A file of the cases that lie beside the checkout."""
    return shared(f"cases/{name}")


@dataclass(frozen=True)
class Checkout:
    """A copy of the working files, without records, scratch and environment."""

    path: Path

    def repro(self, *words: object, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
        """`python -m repro WORDS` on the copy's own package."""
        return subprocess.run(
            [sys.executable, "-m", "repro", *map(str, words)],
            cwd=self.path,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def file(self, name: str) -> Path:
        """A file of the copy."""
        return self.path / name

    def edit(self, name: str, change: Callable[[Any], object]) -> None:
        """Reads a YAML file, lets `change` work on its value in place, and writes it."""
        path = self.file(name)
        value = yaml.safe_load(path.read_text("utf-8"))
        change(value)
        path.write_text(yaml.safe_dump(value, sort_keys=False), "utf-8")

    def replace(self, name: str, pattern: str, new: str) -> int:
        """Replaces the first match of a pattern, which must be there; returns the line on which it ended."""
        path = self.file(name)
        text = path.read_text("utf-8")
        match = re.search(pattern, text, re.MULTILINE)
        assert match, f"{pattern!r} is not in {name}"
        path.write_text(text[: match.start()] + match.expand(new) + text[match.end() :], "utf-8")
        return text[: match.end()].count("\n") + 1

    def write(self, name: str, text: str) -> Path:
        """Writes a file; its folders are made."""
        path = self.file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path


def copy_checkout(target: Path) -> Checkout:
    """The working files of this repository under `target`."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for part in PARTS:
        source = REPOSITORY / part
        place = target / part
        shutil.copytree(source, place, ignore=ignore) if source.is_dir() else shutil.copy(source, place)
    return Checkout(target)


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """Top of the repository."""
    return REPOSITORY


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A copy to spoil."""
    target = tmp_path / "checkout"
    target.mkdir()
    return copy_checkout(target)


@pytest.fixture
def repro_main(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`repro WORDS` within this process on a checkout: exit code, standard output, standard error.

    Quicker than a process of its own; a traceback would come out as the exception itself.
    """
    from repro.cli import main

    def call(where: Checkout | Path, *words: object) -> tuple[int, str, str]:
        monkeypatch.chdir(where.path if isinstance(where, Checkout) else where)
        monkeypatch.delenv("REPRO_ROOT", raising=False)
        monkeypatch.setattr(sys, "argv", ["repro", *map(str, words)])
        capsys.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        return int(code or 0), out, err

    return call
