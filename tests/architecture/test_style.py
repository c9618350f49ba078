"""The bars on size, types and words that keep the code readable, and nothing in it of the machine it was made on."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "repro").rglob("*.py"))
RULES = sorted((ROOT / "workflow" / "rules").glob("*.smk"))
LINES = {
    "repro/plan.py": 250,
    "repro/cli.py": 200,
    "Snakefile": 60,
    "Makefile": 60,
    "README.md": 150,
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def functions() -> Iterator[tuple[str, Function]]:
    """(place, node) of every function of the package, nested ones too."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def length(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def tracked() -> list[Path]:
    """Files that are or could be committed."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:  # a copy without its history
        parts = [path for path in ROOT.iterdir() if not path.name.startswith(".") and path.name != "scratch"]
        names = [file for part in parts for file in (part.rglob("*") if part.is_dir() else [part])]
        return [file for file in names if file.is_file() and "__pycache__" not in file.parts]
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize(("name", "bar"), LINES.items())
def test_a_file_with_a_bar_of_its_own_keeps_it(name: str, bar: int) -> None:
    assert lines(ROOT / name) <= bar


def test_modules_and_rule_files_are_short() -> None:
    assert [(p.name, lines(p)) for p in MODULES if lines(p) > 400] == []
    assert [(p.name, lines(p)) for p in RULES if lines(p) > 80] == []


def test_functions_are_short() -> None:
    sizes = {place: length(node) for place, node in functions()}
    ordered = sorted(sizes.values())
    assert [place for place, size in sizes.items() if size > 80] == []
    assert median(ordered) <= 12
    assert ordered[int(0.95 * len(ordered))] <= 45


def test_a_method_is_one_small_file() -> None:
    files = [path for path in (ROOT / "repro" / "methods").glob("*.py") if path.name != "__init__.py"]
    assert median(map(lines, files)) <= 25
    assert [path.name for path in files if lines(path) > 80] == []


def test_every_argument_and_result_has_a_type() -> None:
    wrong = []
    for place, node in functions():
        spec = node.args
        given = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *filter(None, (spec.vararg, spec.kwarg))]
        bare = [a.arg for a in given if a.annotation is None and a.arg not in ("self", "cls")]
        if bare or node.returns is None:
            wrong.append(f"{place}: {', '.join(bare) or 'result'}")
    assert wrong == []


def test_every_public_thing_says_what_it_is() -> None:
    wrong = []
    for path in MODULES:
        tree = ast.parse(path.read_text("utf-8"))
        public: list[ast.AST] = [tree]
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                public.append(node)
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                public += [n for n in node.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
        wrong += [
            f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}"
            for node in public
            if not (ast.get_docstring(node) or "").strip()  # type: ignore[arg-type]
        ]
    assert wrong == []


def test_rules_are_shell_calls_of_the_packages_verbs() -> None:
    for path in [ROOT / "Snakefile", *RULES]:
        text = path.read_text("utf-8")
        assert not re.search(r"^\s*(script|run|notebook|wrapper)\s*:", text, re.MULTILINE), path.name
        calls = re.findall(r"^\s*shell\s*:\s*\n?\s*(.+)$", text, re.MULTILINE)
        assert all(call.strip().strip('f"').startswith("python -m repro ") for call in calls), (path.name, calls)
        for call in calls:  # every value from outside is quoted for the shell
            values = set(re.findall(r"(?<!\{)\{([^{}]+)\}", call)) - {"threads"}  # a number of Snakemake's own
            assert all(value.endswith(":q") for value in values), call


def test_no_file_names_a_machine_or_a_place_on_it() -> None:
    # In this code and its configuration no absolute path is needed; in tests only this machine's own count.
    places = re.compile(r"""(?<![\w.})*\]-])/(?:home|Users|root|mnt|work|tmp|var)/\w""")
    own = [place for place in map(str, (ROOT, ROOT.parent / "shared", Path.home())) if len(place) > 6]
    wrong = []
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        text = path.read_bytes().decode("utf-8", "replace")
        wrong += [f"{name}: {place}" for place in own if re.search(re.escape(place) + r"(?!\w)", text)]
        if not name.startswith(("tests/", "docs/", "CHANGELOG")):
            wrong += [f"{name}: {found.group()}" for found in places.finditer(text)]
    assert wrong == []


def test_no_file_names_a_package_registry() -> None:
    hosts = [r"p[y]pi\.org", r"python[h]osted\.org", r"conda\.anaconda", r"anaconda\.org", r"download\.pytorch\.org"]
    for variable in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX"):
        host = urlsplit(os.environ.get(variable, "")).hostname
        hosts += [re.escape(host)] if host else []
    pattern = re.compile("|".join(hosts))
    here = Path(__file__)
    found = {p.name: pattern.findall(p.read_bytes().decode("utf-8", "replace")) for p in tracked() if p != here}
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_nothing_is_left_to_do_or_out_of_use() -> None:
    pattern = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError\(\)|^\s*pass\s*# *later", re.MULTILINE)
    found = {p.name: hits for p in MODULES if (hits := pattern.findall(p.read_text("utf-8")))}
    assert found == {}
