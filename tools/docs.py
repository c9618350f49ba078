"""Writes the generated parts of docs/*.md out of the code: modules and layers, methods and metrics, the command line.

A generated part stands between two comment lines with its name; everything around it is written by hand and kept.
`python tools/docs.py` writes, `python tools/docs.py --check` tells what is stale and ends with 1.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from repro.cli import app
from repro.spec.checks import CHECKS
from repro.spec.load import load_configuration
from repro.spec.methods import registry
from repro.spec.metrics import METRICS, PROTOCOLS
from repro.spec.paths import Root

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "repro"
LARGE = ("torch", "lightning", "transformers", "safetensors", "tiktoken", "scipy", "pandas", "matplotlib", "jinja2")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: str) -> str:
    """`text` as code."""
    return f"`{text}`"


# Modules and layers


def modules() -> list[Path]:
    """Modules of the package; methods are listed in a table of their own."""
    found = sorted(PACKAGE.rglob("*.py"))
    return [path for path in found if path.parent.name != "methods" or path.name == "__init__.py"]


def part_of(path: Path) -> str:
    """First folder below the package, or the module itself."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def says(path: Path) -> str:
    """First sentence or paragraph of a module's docstring, in one line."""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(text.split("\n\n", maxsplit=1)[0].split())


def imported(path: Path, *, at_top: bool = False) -> Iterator[str]:
    """Full dotted names that a module imports anywhere, or at its top only."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in tree.body if at_top else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "repro":
            yield from (f"repro.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def layers() -> str:
    """Each part of the package, the parts that it imports, and the large libraries that it touches."""
    parts: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts.setdefault(part_of(path), []).append(path)
    rows = []
    for part, paths in sorted(parts.items()):
        if part.startswith("__"):
            continue
        names = {name for path in paths for name in imported(path)}
        top = {name.split(".")[0] for path in paths for name in imported(path, at_top=True)}
        below = sorted({name.split(".")[1] for name in names if name.startswith("repro.")} - {part})
        roots = {name.split(".")[0] for name in names}
        libraries = [name if name in top else f"{name} (late)" for name in LARGE if name in roots]
        rows.append((code(part), ", ".join(below) or "nothing", ", ".join(libraries) or "none"))
    return table(("part", "imports of this package", "large libraries"), rows)


def module_table() -> str:
    """Every module with what its docstring says."""
    rows = []
    for path in modules():
        name = path.relative_to(PACKAGE.parent).as_posix()
        if path.name not in ("__main__.py",) and says(path):
            rows.append((code(name.removesuffix("__init__.py")), says(path)))
    return table(("module", "what it is"), rows)


# Methods and metrics


def methods(only: set[str] | None = None) -> str:
    """The registry as it is read by the planner, or a part of it; the rule is the first line of each file."""
    rows = []
    for entry in registry(PACKAGE / "methods").values():
        if only is not None and entry.name not in only:
            continue
        info = entry.info
        params = ", ".join(f"{key} = {value}" for key, value in info.params.items()) or "none"
        grid = "; ".join(f"{key}: {', '.join(map(str, values))}" for key, values in info.grid.items()) or "none"
        rows.append((code(entry.name), info.title, says(entry.path), info.ref, params, grid, info.dt_zero))
    return table(("name", "title", "rule and whose form it is", "reference", "parameters", "grid", "dt = 0"), rows)


def needed_methods(text: str) -> set[str]:
    """Methods that a page must list: those it lists already, and those that a paper's experiment names."""
    experiments = load_configuration(Root(ROOT)).experiments.values()
    named = {
        choice.name.casefold() for one in experiments if one.paper for choice in getattr(one, "methods", None) or []
    }
    return named | set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))


def metrics() -> str:
    """Every value that tables and claims can speak of, and the protocol that makes it."""
    rows = []
    for metric in METRICS.values():
        if metric.checked:
            continue
        info = PROTOCOLS[metric.family].info
        options = ", ".join(f"{key} = {value}" for key, value in info.options.items()) or "none"
        rows.append((code(metric.name), code(metric.protocol), metric.unit, metric.better, info.says, options))
    return table(("value", "protocol", "unit", "better is", "how it is worked out", "options"), rows)


def checks() -> str:
    """Every theory check: what it says, its values, its settings at full size."""
    rows = []
    for check in CHECKS.values():
        values = ", ".join(code(name) for name in check.info.values)
        params = ", ".join(f"{key} = {value}" for key, value in check.info.params.items())
        rows.append((code(check.id), check.info.ref.removeprefix("paper_").upper(), check.info.says, values, params))
    return table(("check", "paper", "what it says", "values", "full size"), rows)


# Command line


def leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(words, command) of every verb that is shown."""
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from leaves(inner, (*words, name))
    if not hasattr(command, "commands"):
        yield words, command


def _usage(words: tuple[str, ...], command: Any) -> str:
    arguments = []
    for param in command.params:
        if param.param_type_name == "argument":
            name = (param.metavar or param.name).strip("[]").upper().removesuffix("...")
            shown = f"{name}..." if param.nargs == -1 else name
            arguments.append(shown if param.required else f"[{shown}]")
    return " ".join([*words, *arguments])


def verb(words: tuple[str, ...], command: Any) -> str:
    """One verb: usage, what it does, its options."""
    lines = [f"**{code(_usage(words, command))}**: {' '.join((command.help or '').split())}", ""]
    for param in command.params:
        if param.param_type_name == "option" and not param.hidden and param.name != "help":
            value = "" if param.is_flag else f" {param.name.upper()}"
            lines.append(f"- {code(param.opts[0] + value)}: {param.help or 'default: ' + str(param.default)}")
    return "\n".join(lines).rstrip() + "\n"


def command_line() -> str:
    """All verbs in the order of the help."""
    found = leaves(typer.main.get_command(app), ("repro",))
    return "\n".join(verb(words, command) for words, command in found).rstrip()


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/architecture.md": {"layers": layers, "modules": module_table},
    "docs/methods.md": {"methods": methods},
    "docs/metrics.md": {"metrics": metrics},
    "docs/theory.md": {"checks": checks},
    "docs/cli.md": {"verbs": command_line},
}


def filled(text: str, name: str, content: str) -> str:
    """`text` with the part between the two comments of `name` replaced; raises ValueError where they are not there."""
    begin, end = f"<!-- generated: {name}, by tools/docs.py -->", f"<!-- end of {name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"no single part {name!r} between {begin} and {end}")
    return pattern.sub(lambda _: f"{begin}\n{content}\n{end}", text)


def texts(root: Path = ROOT, whole: bool = True) -> dict[str, str]:
    """{file: its whole content as it should be}; hand-written parts are those of `root`.

    Not `whole`: without methods that were only dropped in, which need no second file.
    """
    found = {}
    for file, parts in PARTS.items():
        old = text = (root / file).read_text("utf-8")
        for name, make in parts.items():
            content = make() if whole or make is not methods else methods(needed_methods(old))
            text = filled(text, name, content)
        found[file] = text
    return found


def stale(root: Path = ROOT, whole: bool = True) -> list[str]:
    """Files whose generated parts are not what the code says now."""
    return [file for file, text in texts(root, whole).items() if (root / file).read_text("utf-8") != text]


def main(words: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Writes, or with --check only tells; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something is stale")
    check = parser.parse_args(words).check
    found = stale(root, whole=not check)
    for file in found:
        print(f"{file}: {'stale, run: python tools/docs.py' if check else 'written'}", file=sys.stderr)
        if not check:
            (root / file).write_text(texts(root)[file], "utf-8")
    return int(check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
