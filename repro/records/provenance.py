"""Where a number came from: code, packages, machine class. Names no host, no user, no path."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from repro.spec.hashing import sha256_file, sha256_json
from repro.spec.paths import Root

PACKAGES = (
    "torch", "lightning", "numpy", "scipy", "transformers", "tokenizers", "tiktoken", "datasets",
    "rouge-score", "bert-score", "safetensors", "snakemake",
)  # fmt: skip


def _git(root: Root, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root.path), *words], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


@cache
def code(root: Root) -> dict[str, Any]:
    """Commit, whether anything outside results/ and scratch/ differs from it, and a hash of the package's source.

    Without git (a download) commit and dirty are null; the source hash is always there.
    """
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=all", "--", ".", ":!results", ":!scratch")
    return {
        "git_commit": commit.strip() if commit else None,
        "dirty": bool(changes.strip()) if changes is not None and commit else None,
        "source_sha256": source_sha256(),
    }


@cache
def source_sha256() -> str:
    """Hash over all Python files of the package."""
    package = Path(__file__).resolve().parents[1]
    files = sorted(package.rglob("*.py"))
    return sha256_json({p.relative_to(package).as_posix(): sha256_file(p) for p in files})


@cache
def environment(root: Root, device: str, devices: int, precision: str, threads: int) -> dict[str, Any]:
    """Versions as installed, and what the run asked for."""
    lock = root.path / "requirements.lock"
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "packages": versions,
        "lock_sha256": sha256_file(lock) if lock.is_file() else None,
        "device": device,
        "device_count": devices,
        "precision": precision,
        "compiled": False,
        "threads": threads,
        "deterministic": True,
    }


def cpu_name() -> str:
    """The processor's model name, or its architecture where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    kept = names[0] if names else platform.machine()
    return "".join(ch for ch in kept if (ch.isascii() and ch.isalnum()) or ch in " _.,:+/()-")[:200]
