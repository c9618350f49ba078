"""The registry of methods: one file each, known without running any of them.

A method's file is parsed, never imported, so the planner and the command line know every method, its default
parameters and its identity without torch, and a broken or hostile file is refused before it can do anything.
"""

from __future__ import annotations

import ast
import io
import re
import token
import tokenize
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PlainValidator, StringConstraints, model_validator

from repro.spec.errors import ConfigError, Problem, shown, suggest
from repro.spec.hashing import sha256_json
from repro.spec.literal import read_info
from repro.spec.model import NAME_PATTERN, Name, Strict
from repro.spec.reach import beyond
from repro.spec.reading import read_bytes

MAX_METHOD_BYTES = 64 << 10
MAX_TEXT_PARAM = 200  # characters
FOLDER = Path(__file__).resolve().parents[1] / "methods"
# Attributes of repro.nn.method_api.Method; a parameter of such a name would replace the hook itself.
SETTINGS = frozenset({"norms", "norm_kind", "norm_eps", "qk_norm", "split_qkv", "uses_carry", "no_decay"})
RESERVED = (
    SETTINGS
    | {"params", "step", "linear"}
    | {"extra", "norm", "final_norm", "weight_std", "begin", "end", "before_training", "after_step"}
)

Scalar = bool | int | float | str


def _scalar(value: object) -> Scalar:
    """A parameter's value: floats to 12 significant digits as everywhere in the suite, nothing non-finite."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) <= 2**53:
        return value
    if isinstance(value, float) and abs(value) <= 1e300:
        return float(f"{value:.12g}")
    if isinstance(value, str) and len(value) <= MAX_TEXT_PARAM and value.isprintable():
        return value
    raise ValueError("a finite number, true, false or a short text is expected")


Param = Annotated[Scalar, PlainValidator(_scalar)]


def _plain(text: str) -> str:
    """One line in the order in which it is written: no other line ends, no marks that turn its direction."""
    if not text.isprintable():
        raise ValueError("one line of plain text is expected")
    return text


# Titles reach tables and pages: one line, no markup.
Title = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f<>|`]{1,120}$", strict=True), AfterValidator(_plain)]
Track = Literal["lm"]


class MethodInfo(Strict):
    """The literal `INFO` of a method's file.

    `dt_zero` says what a sub-layer does when its branch is silent: returns its input (identity), a norm of it
    (norm), or neither (none). `zero_grad_ok` names parameters (patterns) that have no gradient before a step.
    """

    title: Title
    ref: Title
    tracks: Annotated[list[Track], Field(min_length=1)]
    params: dict[Name, Param] = {}
    grid: dict[Name, Annotated[list[Param], Field(min_length=1)]] = {}
    dt_zero: Literal["identity", "norm", "none"]
    zero_grad_ok: list[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.*]{1,80}$", strict=True)]] = []

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.tracks)) < len(self.tracks):
            raise ValueError("tracks names a track twice")
        taken = RESERVED.intersection(self.params)
        if taken:
            raise ValueError(f"params may not be called {', '.join(sorted(taken))}: part of the interface")
        for key, values in self.grid.items():
            if key not in self.params:
                raise ValueError(f"grid.{key} is no parameter{suggest(key, self.params)}")
            typed = [_typed(key, value, self.params[key]) for value in values]
            if len(set(typed)) < len(typed):
                raise ValueError(f"grid.{key} names a value twice")
        return self


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """A method as the planner knows it; `sha256` is the identity of its code, without comments and docstrings."""

    name: str
    path: Path
    info: MethodInfo
    sha256: str


def registry(folder: Path | None = None) -> dict[str, MethodEntry]:
    """All methods of a folder (the package's own by default), by name.

    Raises ConfigError with the problems of all files at once: unsafe name, link, size, syntax, INFO that is
    missing, not literal or not as MethodInfo says, no class Method, imports or calls that reach beyond its id.
    """
    folder = FOLDER if folder is None else folder
    entries: dict[str, MethodEntry] = {}
    problems: list[Problem] = []
    for path in sorted(folder.glob("*.py")):
        if path.name == "__init__.py":
            continue
        try:
            entries[path.stem] = read_method(path)
        except ConfigError as error:
            problems.extend(error.problems)
    if problems:
        raise ConfigError(problems)
    return entries


def read_method(path: Path) -> MethodEntry:
    """One method's file, parsed but not run; raises ConfigError with everything wrong with it."""
    folders = [part for part in path.parent.parts[-2:] if part != path.anchor]
    file = "/".join([*folders, shown(path.name)])
    if not re.fullmatch(NAME_PATTERN, path.stem):
        raise ConfigError([Problem(file, None, "", f"a method's file name must match {NAME_PATTERN} before .py")])
    if path.is_symlink():
        raise ConfigError([Problem(file, None, "", "is a link; a method's file must lie in the folder itself")])
    text, tree = _parsed(path, file)
    problems = [*beyond(tree, file), *_class_problems(tree, file)]
    try:
        info = read_info(tree, file, MethodInfo)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return MethodEntry(path.stem, path, info, source_hash(text))


def _parsed(path: Path, file: str) -> tuple[str, ast.Module]:
    try:
        raw = read_bytes(path, MAX_METHOD_BYTES)
        # A coding line would let Python run another text than the one that is hashed here.
        if tokenize.detect_encoding(io.BytesIO(raw).readline)[0] not in ("utf-8", "utf-8-sig"):
            raise SyntaxError("only UTF-8 is allowed")
        text = raw.decode("utf-8-sig")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return text, ast.parse(text)
    except ConfigError as error:
        raise ConfigError([Problem(file, None, "", p.message) for p in error.problems]) from None
    except SyntaxError as error:
        raise ConfigError([Problem(file, error.lineno, "", f"not Python: {shown(error.msg)}")]) from None
    except (ValueError, RecursionError, MemoryError) as error:
        reason = shown(str(error)) or "nested too deeply"  # Python's compiler says nothing then
        raise ConfigError([Problem(file, None, "", f"not Python: {reason}")]) from None


def _class_problems(tree: ast.Module, file: str) -> Iterator[Problem]:
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Method"]
    if not classes:
        yield Problem(file, None, "Method", "no class Method at the top of the file")
    for again in classes[1:]:
        yield Problem(file, again.lineno, "Method", "stands twice")
    yield from _idle_settings(tree, file)


def _idle_settings(tree: ast.Module, file: str) -> Iterator[Problem]:
    """Values on the class that neither the suite nor the file reads: what they ask for would not be built."""
    nodes = list(ast.walk(tree))
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    read |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    read |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for found in _bases_of_method(tree):
        for node in found.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            for name in names if getattr(node, "value", None) else []:
                if not (name.startswith("_") or name.isupper() or name in read or name in RESERVED):
                    message = f"is no setting of a method, and nothing reads it{suggest(name, SETTINGS)}"
                    yield Problem(file, node.lineno, shown(name), message)


def _bases_of_method(tree: ast.Module) -> Iterator[ast.ClassDef]:
    """Class Method and those of the file that it is made of."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    wanted, done = ["Method"], set[str]()
    while wanted:
        name = wanted.pop()
        if name in classes and name not in done:
            done.add(name)
            yield classes[name]
            wanted += [base.id for base in classes[name].bases if isinstance(base, ast.Name)]


def source_hash(text: str) -> str:
    """sha256 of a Python source's tokens without comments, docstrings and blank lines.

    Layout changes nothing: line breaks inside brackets and the width of indents are left out. String literals
    with values inside are taken as written, because Python versions split them into tokens differently.
    """
    spans = _docstring_spans(text)
    lines = text.splitlines(keepends=True)
    kept: list[list[str]] = []
    formatted: list[tuple[int, int]] = []
    for item in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = token.tok_name[item.type]
        docstring = kind == "STRING" and any(start <= item.start and item.end <= end for start, end in spans)
        if kind.endswith("STRING_START"):
            formatted.append(item.start)
        elif kind.endswith("STRING_END"):
            start = formatted.pop()
            if not formatted:
                kept.append(["STRING", _between(lines, start, item.end)])
        elif formatted or docstring or kind in ("COMMENT", "NL"):
            continue
        elif kind in ("NEWLINE", "INDENT", "DEDENT", "ENDMARKER"):
            # A line that held only a docstring leaves its line end behind.
            if kind != "NEWLINE" or (kept and kept[-1][0] not in ("NEWLINE", "INDENT", "DEDENT")):
                kept.append([kind, ""])
        else:
            kept.append([kind, item.string])
    return sha256_json(kept)


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    piece = lines[start[0] - 1 : end[0]]
    piece[-1] = piece[-1][: end[1]]
    piece[0] = piece[0][start[1] :]
    return "".join(piece)


def _docstring_spans(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """(line, column) of the start and end of every docstring, columns in characters as tokenize counts them."""
    lines = text.splitlines(keepends=True)

    def characters(line: int, column: int) -> tuple[int, int]:
        return line, len(lines[line - 1].encode("utf-8")[:column].decode("utf-8", "ignore"))

    spans = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                end = characters(first.end_lineno or first.lineno, first.end_col_offset or 0)
                spans.append((characters(first.lineno, first.col_offset), end))
    return spans


def resolve(
    name: object, params: Mapping[str, object], entries: Mapping[str, MethodEntry]
) -> tuple[MethodEntry, dict[str, Any]]:
    """The method called `name` (case does not matter) and its parameters, defaults filled in.

    A closed list: an unknown name or parameter, or a value of another type than the default's, raises
    ValueError with what is known. A whole number may stand for a float and becomes one, `1e3` for a whole number.
    """
    entry = entries.get(name.casefold()) if isinstance(name, str) else None
    if entry is None:
        raise ValueError(f"{shown(name)} is no method{suggest(name, entries)}")
    defaults = entry.info.params
    unknown = [key for key in params if key not in defaults]
    if unknown:
        known = suggest(unknown[0], defaults) if defaults else "; it has none"
        raise ValueError(f"{shown(unknown[0])} is no parameter of {entry.name}{known}")
    return entry, {key: _typed(key, params[key], value) if key in params else value for key, value in defaults.items()}


def _typed(key: str, value: object, default: Scalar) -> Scalar:
    """`value` as the type of `default`; raises ValueError."""
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) <= 2**53 else value
    if type(default) is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not type(default):
        raise ValueError(
            f"{key}: {shown(value)} is not of type {type(default).__name__}, as its default {default!r} is"
        )
    try:
        return _scalar(value)
    except ValueError as error:
        raise ValueError(f"{key}: {shown(value)}: {error}") from None


_TEMPLATE = '''"""x + dt f(N x), N = RMSNorm: a start. Put your formula here, and say whose form it is."""

from torch import Tensor, add

from repro.nn import method_api as api

INFO = {
    "title": "@NAME@",
    "ref": "community",
    "tracks": ["lm"],
    "params": {"dt": 0.5},
    "dt_zero": "identity",
}


class Method(api.Method):
    """norms: where a sub-layer has a norm; step: how the stream and a branch become the new stream."""

    norms = ("in",)
    norm_kind = "rms"

    def step(self, x: Tensor, branch: api.Branch, site: api.Site) -> Tensor:
        """x [batch, tokens, d] -> the same shape."""
        return add(x, branch(site.norm_in(x)), alpha=self.dt)
'''


def method_template(name: str) -> str:
    """A complete method's file to start from; it passes `repro method check`. Raises ValueError for a bad name."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError(f"{shown(name)}: a method's name must match {NAME_PATTERN}")
    return _TEMPLATE.replace("@NAME@", name)
