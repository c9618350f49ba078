"""Which part may import which: read out of every module's imports, and seen at run time."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "repro"
MODULES = sorted(PACKAGE.rglob("*.py"))
ANY = frozenset({"*"})
# For each part of the package, the other parts that it may import. A part that is not here has no place yet.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "spec": frozenset(),
    "cost": frozenset({"spec"}),
    "cells": frozenset({"spec", "cost"}),
    "plan": frozenset({"spec", "cost", "cells"}),
    "price": frozenset({"spec", "plan"}),
    "records": frozenset({"spec", "plan"}),
    "stats": frozenset({"spec", "plan", "records"}),
    "cluster": frozenset({"spec", "records"}),
    # data: only to check token files that are there
    "dag": frozenset({"spec", "plan", "price", "records", "cluster", "data"}),
    "report": frozenset({"spec", "plan", "cost", "records", "stats", "dag"}),
    "dispatch": frozenset({"spec", "plan", "cost", "records", "dag"}),
    "methods": frozenset({"nn"}),
    "nn": frozenset({"spec"}),
    "data": frozenset({"spec"}),
    "train": frozenset({"spec", "records", "nn", "data", "evaluate", "theory"}),
    "evaluate": frozenset({"spec", "records", "stats", "nn", "data", "train", "theory"}),
    "theory": frozenset({"spec", "records", "nn", "data"}),
    "verbs": ANY,
    "cli": frozenset({"spec", "verbs", "bench"}),
    "bench": ANY,
    "__main__": frozenset({"cli", "verbs"}),
    "__init__": frozenset(),
}
TORCH_FREE = {
    "spec",
    "cost",
    "cells",
    "plan",
    "price",
    "records",
    "stats",
    "cluster",
    "dag",
    "report",
    "dispatch",
    "verbs",
    "cli",
    "__main__",
    "__init__",
}
HEAVY = {"torch", "lightning", "pytorch_lightning", "datasets", "transformers", "evaluate", "tokenizers", "safetensors"}
SLOW = {"scipy", "pandas", "matplotlib", "jinja2"}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name_of(path: Path) -> str:
    return ".".join(["repro", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")


def runs_at_import(node: ast.AST) -> bool:
    """False for what importing a module does not run: functions, and what is there for a type checker only."""
    for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    return not (for_types or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))


def imports(path: Path, *, top_only: bool = False) -> Iterator[tuple[int, str]]:
    """(line, full dotted name) of each import; `top_only` leaves out those that importing the module does not run."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes: list[ast.AST] = list(ast.walk(tree))
    if top_only:
        inside = {id(inner) for node in nodes if not runs_at_import(node) for inner in ast.walk(node)}
        nodes = [node for node in nodes if id(node) not in inside]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            if node.module == "repro":
                yield from ((node.lineno, f"repro.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, str(node.module)


def test_every_part_has_a_place_in_the_layers() -> None:
    assert {part_of(path) for path in MODULES} <= MAY_IMPORT.keys()


def test_parts_import_only_what_lies_below_them() -> None:
    wrong = []
    for path in MODULES:
        part = part_of(path)
        for line, name in imports(path):
            other = name.split(".")[1] if name.startswith("repro.") else None
            if other and other != part and MAY_IMPORT[part] != ANY and other not in MAY_IMPORT[part]:
                wrong.append(f"{path.relative_to(PACKAGE)}:{line}: {part} imports {other}")
    assert wrong == []


def test_the_layers_have_no_circle_but_train_and_evaluate() -> None:
    """Those two stand side by side: evaluation reads tasks, the training child measures what it has trained."""
    below = {part: set(others) - {"train", "evaluate"} for part, others in MAY_IMPORT.items() if others != ANY}
    while ready := [part for part, others in below.items() if not others & below.keys() - {part}]:
        for part in ready:
            del below[part]
    assert below == {}


def test_no_part_of_the_first_row_imports_a_heavy_library_even_inside_a_function() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path in MODULES
        if part_of(path) in TORCH_FREE
        for line, name in imports(path)
        if name.split(".")[0] in HEAVY
    ]
    assert wrong == []


def test_slow_libraries_are_imported_inside_functions_only() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path in MODULES
        if part_of(path) in TORCH_FREE
        for line, name in imports(path, top_only=True)
        if name.split(".")[0] in SLOW
    ]
    assert wrong == []


@pytest.mark.parametrize("part", ["nn", "train", "data", "evaluate", "stats", "methods", "theory"])
@pytest.mark.parametrize("word", ["tier", "smoke"])
def test_code_that_makes_numbers_cannot_know_its_scale(part: str, word: str) -> None:
    whole = re.compile(rf"\b{word}s?\b", re.IGNORECASE)
    found = [path.name for path in sorted((PACKAGE / part).rglob("*.py")) if whole.search(path.read_text("utf-8"))]
    assert found == []


def test_planning_leaves_no_heavy_module_behind(repo_root: Path) -> None:
    """A plan is printed, then every module of the first row is imported, in one fresh interpreter."""
    names = [name_of(path) for path in MODULES if part_of(path) in TORCH_FREE and path.stem != "__main__"]
    code = f"""
import importlib, sys
def loaded(*more):
    return sorted(name for name in {{*{HEAVY | SLOW!r}, *more}} - {{"evaluate"}} if name in sys.modules)
sys.argv = ["repro", "plan", "--tier", "smoke", "--cost"]
from repro.cli import main
import repro.dag
try:
    main()
except SystemExit as end:
    assert not end.code
print("PLAN", loaded("numpy"))
for name in {names!r}:
    importlib.import_module(name)
print("ALL", loaded())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=repo_root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith(("PLAN", "ALL"))] == ["PLAN []", "ALL []"]


def test_only_fetching_may_open_a_connection() -> None:
    """Nothing else imports what could reach another machine; `world` asks for a free port of this one."""
    network = {"socket", "urllib", "http", "requests", "httpx", "aiohttp", "ftplib", "smtplib", "huggingface_hub"}
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path in MODULES
        if path.stem not in ("fetch", "world")
        for line, name in imports(path)
        if name.split(".")[0] in network
    ]
    assert wrong == []
