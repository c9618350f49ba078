"""What is wrong with resources that a profile or a rule asks for: Snakemake takes any key, Slurm's executor a few."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.cluster import faults
from repro.spec.errors import ConfigError, Problem, ReproError, shown
from repro.spec.paths import Root
from repro.spec.reading import Document, Path_, read_text, read_yaml

# Keys of a profile that may hold a mapping; Snakemake passes over a mapping under any other, without a word.
PAIRED = frozenset(
    (
        *("batch", "config", "consider-ancient", "default-resources", "group-components", "groups", "resources"),
        *("set-resource-scopes", "set-resources", "set-scatter", "set-threads"),
    )
)
MAX_RULE_BYTES = 1 << 20
_BLOCK = re.compile(r"^([ \t]+)resources:(.*\n(?:[ \t]*(?:#.*)?\n|\1[ \t]+.*\n)*)", re.MULTILINE)


@dataclass
class Request:
    """What one rule asks for, or all that say nothing else (`default`), and where each key stands."""

    asked: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Path_] = field(default_factory=dict)


class Profile:
    """A profile's requests by rule, and what is wrong with its shape."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self.requests: dict[str, Request] = {}
        value = document.value if document.value is not None else {}
        if not isinstance(value, dict):
            self.refuse((), "is no mapping of options")
            return
        for key in value:
            self._option(str(key), value[key])
        for key, part, place in self._pairs(value.get("default-resources"), ("default-resources",)):
            self._ask("default", key, part, place)
        self._rules(value.get("set-resources"), ("set-resources",))

    def refuse(self, path: Path_, message: str) -> None:
        """Notes a problem with what stands at `path`."""
        key = shown(".".join(str(part) for part in path))
        self.problems.append(Problem(*self.document.place(path), key, message))

    def _option(self, key: str, value: Any) -> None:
        if key.startswith("__"):  # words of the template language that Snakemake reads a profile with
            return
        if "_" in key:
            self.refuse((key,), f"no option of Snakemake; write {shown(key.replace('_', '-'))}")
        elif isinstance(value, dict) and key not in PAIRED:
            self.refuse((key,), "Snakemake ignores a mapping here")

    def _rules(self, rules: Any, path: Path_) -> None:
        if not isinstance(rules, dict):
            for key, part, place in self._pairs(rules, path):
                rule, _, name = key.partition(":")
                self._ask(rule, name, part, place)
            return
        for rule, asked in rules.items():
            if not isinstance(asked, dict):
                self.refuse((*path, str(rule)), f"{shown(asked)} is no mapping of resources")
                continue
            for key, part, place in self._pairs(asked, (*path, str(rule))):
                self._ask(str(rule), key, part, place)

    def _ask(self, rule: str, key: str, value: Any, place: Path_) -> None:
        request = self.requests.setdefault(rule, Request())
        request.asked[key], request.places[key] = value, place

    def _pairs(self, value: Any, path: Path_) -> Iterator[tuple[str, Any, Path_]]:
        """(key, value, place); Snakemake takes a mapping, or KEY=VALUE once or in a list."""
        if isinstance(value, dict):
            yield from ((str(key), part, (*path, str(key))) for key, part in value.items())
            return
        for number, part in enumerate(value if isinstance(value, list) else [] if value is None else [value]):
            form = r"[^=:]+:([^=:]+)=(.*)" if path == ("set-resources",) else r"([^=:]+)=(.*)"
            place = (*path, number) if isinstance(value, list) else path
            if not isinstance(part, str) or not re.fullmatch(form, part, re.DOTALL):
                word = "RULE:KEY=VALUE" if path == ("set-resources",) else "KEY=VALUE"
                self.refuse(place, f"{shown(part)}: neither a mapping nor {word}")
                continue
            key, _, text = part.partition("=")
            quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
            yield key, text[1:-1] if quoted else text, place

    def all_problems(self) -> list[Problem]:
        """Those of its shape and those of its requests."""
        found = list(self.problems)
        for rule, request in self.requests.items():
            where = "default-resources" if rule == "default" else f"set-resources.{rule}"
            for key, message in faults(request.asked):
                place = self.document.place(request.places[key.split(" and ")[0]])
                found.append(Problem(*place, shown(f"{where}.{key}"), message))
        return found


def is_profile(value: Any) -> bool:
    """Whether a file's content is that of a profile, wherever it lies."""
    return isinstance(value, dict) and bool({"executor", "default-resources", "set-resources"} & set(value))


def profile_problems(document: Document) -> list[Problem]:
    """All problems of a profile, each with its line."""
    return Profile(document).all_problems()


def check_profile(document: Document) -> None:
    """Raises ConfigError with all problems of a profile."""
    if problems := profile_problems(document):
        raise ConfigError(problems)


def rule_problems(text: str, file: str) -> list[Problem]:
    """Problems of what the rules of one file ask for, as far as it can be told without running them."""
    problems = []
    for block in _BLOCK.finditer(text + "\n"):
        first = text.count("\n", 0, block.start()) + 1
        try:
            call = ast.parse(f"f({block.group(2)})", mode="eval").body
        except SyntaxError:
            problems.append(Problem(file, first, "resources", "cannot be read"))
            continue
        assert isinstance(call, ast.Call)
        lines = {word.arg: first + word.lineno - 1 for word in call.keywords if word.arg}
        asked = {word.arg: _literal(word.value) for word in call.keywords if word.arg}
        for key, message in faults(asked):
            problems.append(Problem(file, lines[key.split(" and ")[0]], key, message))
    return problems


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def lint(root: Root) -> list[Problem]:
    """Problems of this checkout's profile and of its rules."""
    problems: list[Problem] = []
    rules = [root.path / "Snakefile", *sorted((root.path / "workflow" / "rules").glob("*.smk"))]
    for path in [*sorted((root.path / "slurm").glob("*.yaml")), *rules]:
        try:
            problems += _file_problems(path, root.shown(path)) if path.exists() else []
        except ReproError as error:
            problems += error.problems
    return problems


def _file_problems(path: Path, name: str) -> list[Problem]:
    if path.suffix == ".yaml":
        return profile_problems(read_yaml(path, name))
    return rule_problems(read_text(path, MAX_RULE_BYTES, file=name), name)
