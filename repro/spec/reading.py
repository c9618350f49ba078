"""One strict reader for YAML and JSON: sizes before parsing, lines for messages, no surprise types.

YAML is read as version 1.2 reads it where 1.1 and 1.2 differ and the answer is safe (`1e-4` is a number);
where 1.1 would have turned a word into something else (`off`, `010`, `1:30`) the line is refused instead,
so that no two tools can read one file differently.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from repro.spec.errors import BadDataError, ConfigError, Problem, ReproError, problem_error, shown
from repro.spec.explain import explain
from repro.spec.paths import refuse_link_out

MAX_YAML_BYTES = 1 << 20
MAX_JSON_BYTES = 4 << 20
MAX_DEPTH = 40

Path_ = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)

MAX_DIGITS = 40  # of a number as written

_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
_OTHER_NUMBER = re.compile(r"[-+]?(0[0-9_]+|0[xXoObB][0-9a-fA-F_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_BOOLEAN_WORD = re.compile(r"(y|yes|n|no|on|off)", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([Tt ].*)?")


@dataclass
class Document:
    """A parsed file, or several merged: the value, and the file and line of each key path."""

    file: str
    value: Any
    places: dict[Path_, tuple[str, int]] = field(default_factory=dict)

    def place(self, path: Path_) -> tuple[str, int | None]:
        """File and line of the nearest key at or above `path`."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, (self.file, None))


class _Refused(Exception):
    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line, self.message = line, message


def read_bytes(path: Path, limit: int, cls: type[ReproError] = ConfigError, file: str | None = None) -> bytes:
    """A regular file's bytes, at most `limit` of them; raises `cls` with the reason otherwise.

    `file` is what messages call it.
    """
    name = file or str(path)
    try:
        if not path.is_file():
            raise problem_error(cls, name, "", "is no regular file" if path.exists() else "no such file")
        if path.stat().st_size > limit:
            raise problem_error(cls, name, "", f"larger than {limit} bytes")
        return path.read_bytes()
    except OSError as error:
        raise problem_error(cls, name, "", f"cannot be read ({error.strerror})") from None


def read_text(path: Path, limit: int, cls: type[ReproError] = ConfigError, file: str | None = None) -> str:
    """As `read_bytes`, decoded as UTF-8."""
    try:
        return read_bytes(path, limit, cls, file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise problem_error(cls, file or str(path), "", f"not UTF-8 text at byte {error.start}") from None


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _refuse_tricks(event: Any) -> None:
    """No aliases (they can grow without end), no tags (they can run code)."""
    line = _line(event)
    if isinstance(event, yaml.AliasEvent) or event.anchor:
        raise _Refused(line, "anchors and aliases are not allowed")
    if event.tag and not (isinstance(event, yaml.ScalarEvent) and event.tag == "!"):
        raise _Refused(line, f"the tag {shown(event.tag)} is not allowed")


class _Builder:
    """Builds plain values out of YAML events; iterative parsing, so depth is bounded by us."""

    def __init__(self, text: str, file: str) -> None:
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self.events: Iterator[Any] = yaml.parse(text, Loader=loader)
        self.places: dict[Path_, tuple[str, int]] = {}
        self.problems: list[Problem] = []
        self.file = file

    def document(self) -> Any:
        value: Any = None
        documents = 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _Refused(_line(event), "one document a file is allowed")
                value = self.node(next(self.events), (), 0)
        return value

    def refuse(self, event: Any, path: Path_, message: str) -> None:
        key = ".".join(str(part) for part in path)
        self.problems.append(Problem(self.file, _line(event), shown(key), message))

    def node(self, event: Any, path: Path_, depth: int) -> Any:
        line = _line(event)
        self.places.setdefault(path, (self.file, line))
        if depth > MAX_DEPTH:
            raise _Refused(line, f"nested deeper than {MAX_DEPTH} levels")
        _refuse_tricks(event)
        if isinstance(event, yaml.ScalarEvent):
            return self.scalar(event, path)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(path, depth)
        return self.mapping(path, depth)

    def sequence(self, path: Path_, depth: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.node(event, (*path, len(items)), depth + 1))
        return items

    def mapping(self, path: Path_, depth: int) -> dict[Any, Any]:
        items: dict[Any, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise _Refused(_line(event), "a key must be a plain word")
            _refuse_tricks(event)
            key = event.value
            if key in items:
                self.refuse(event, (*path, key), "stands twice")
            self.places[(*path, key)] = (self.file, _line(event))
            items[key] = self.node(next(self.events), (*path, key), depth + 1)
        return items

    def scalar(self, event: Any, path: Path_) -> Any:
        text: str = event.value
        if event.style or event.tag == "!":
            return text
        if text in ("", "~", "null", "Null", "NULL"):
            return None
        if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
            return text.lower() == "true"
        if _INT.fullmatch(text) or (_FLOAT.fullmatch(text) and not _OTHER_NUMBER.fullmatch(text)):
            return self.number(event, path, text)
        for pattern, meaning in (
            (_OTHER_NUMBER, "an octal, hexadecimal or base-60 number to some readers: write it in decimal or quote it"),
            (_NOT_FINITE, "not a finite number"),
            (_BOOLEAN_WORD, f'true or false to some readers: quote it ("{text}") or write true or false'),
            (_DATE, "a date to some readers: quote it"),
        ):
            if pattern.fullmatch(text):
                self.refuse(event, path, f"{shown(text)} is {meaning}")
                return text
        return text

    def number(self, event: Any, path: Path_, text: str) -> int | float:
        """What `text` stands for; stray underscores, endless digits and what no float can hold are refused."""
        try:
            value = int(text) if _INT.fullmatch(text) else float(text)
            if len(text) <= MAX_DIGITS and math.isfinite(value):
                return value
        except ValueError:
            pass
        self.refuse(event, path, f"{shown(text)} is not a number that can be read")
        return 0


def read_yaml(path: Path, file: str | None = None) -> Document:
    """The strict reading of one YAML file; raises ConfigError with every problem and its line.

    A link out of the file's folder is not followed: a message may repeat what stands behind it.
    """
    name = file or str(path)
    refuse_link_out(path, name)
    builder = _Builder(read_text(path, MAX_YAML_BYTES, file=name), name)
    try:
        value = builder.document()
    except _Refused as error:
        raise ConfigError([*builder.problems, Problem(name, error.line, "", error.message)]) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = shown(str(getattr(error, "problem", None) or "not YAML").replace("\n", " "))
        raise problem_error(ConfigError, name, "", what, mark.line + 1 if mark else None) from None
    if builder.problems:
        raise ConfigError(builder.problems)
    return Document(name, value, builder.places)


def _depth(text: str) -> int:
    """Deepest bracket nesting of a JSON text, brackets inside strings left out."""
    deepest = level = 0
    # A string that never ends is still one match, or every quote in it would start a search of its own.
    for match in re.finditer(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', text, re.DOTALL):
        sign = match.group()
        level += (sign in "[{") - (sign in "]}")
        deepest = max(deepest, level)
    return deepest


def _reject_constant(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large for a number")
    return value


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"{counts.most_common(1)[0][0]} stands twice in one object")
    return result


def parse_json(text: str, file: str) -> Any:
    """Strict JSON: bounded depth, finite numbers, no doubled keys, whole characters; raises BadDataError."""
    if _depth(text) > MAX_DEPTH:
        raise problem_error(BadDataError, file, "", f"nested deeper than {MAX_DEPTH} levels")
    try:
        value = json.loads(text, parse_constant=_reject_constant, parse_float=_finite, object_pairs_hook=_no_doubles)
        if "\\ud" in text.lower():  # half a character, which nothing could print
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise problem_error(BadDataError, file, "", f"not JSON: {error.msg}", error.lineno) from None
    except (ValueError, RecursionError) as error:
        raise problem_error(BadDataError, file, "", shown(str(error))) from None
    return value


def read_json(path: Path, limit: int = MAX_JSON_BYTES, file: str | None = None) -> Any:
    """The strict reading of one JSON file; raises BadDataError."""
    return parse_json(read_text(path, limit, BadDataError, file), file or str(path))


def validate(model: type[Model], document: Document) -> Model:
    """`document` as a `model`; raises ConfigError with file, line, key and a suggestion for every problem."""
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        raise ConfigError(
            [
                Problem(*document.place(path), shown(".".join(str(part) for part in path)), message)
                for path, message in explain(model, error, document.value)
            ]
        ) from None


def load(model: type[Model], path: Path, file: str | None = None) -> Model:
    """Read and validate one YAML file."""
    return validate(model, read_yaml(path, file))
