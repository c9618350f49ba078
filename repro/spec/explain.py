"""Turns pydantic's errors into sentences with the allowed values and a near name."""

from __future__ import annotations

import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, RootModel, ValidationError

from repro.spec.errors import shown, suggest

MAX_EXPLAINED = 200  # problems of one file; a hostile one can hold 100,000
Path_ = tuple[str | int, ...]


def explain(model: type[BaseModel], error: ValidationError, value: Any) -> list[tuple[Path_, str]]:
    """(key path, message) for each error of `value`; the path holds keys only, no names of union members."""
    found: dict[tuple[Path_, str], None] = {}
    errors = error.errors(include_url=False)
    for item in errors[:MAX_EXPLAINED]:
        path = _keys(item["loc"], value, item["type"] == "missing")
        found[(path, _message(model, item, path))] = None
    if len(errors) > MAX_EXPLAINED:
        found[((), f"and {len(errors) - MAX_EXPLAINED} more problems")] = None
    return list(found)


def _keys(loc: tuple[int | str, ...], value: Any, missing: bool) -> Path_:
    """The parts of a location that stand in `value`: pydantic adds names of union members, functions and such."""
    path: list[str | int] = []
    for part in loc:
        inside = part in value if isinstance(value, dict) else isinstance(value, list) and part in range(len(value))
        if inside:
            value = value[part]
            path.append(part)
    return (*path, loc[-1]) if missing else tuple(path)


def _message(model: type[BaseModel], item: Any, path: Path_) -> str:
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key{suggest(path[-1], _fields(model, path[:-1]))}"
    if kind == "missing":
        return "is missing"
    if kind == "literal_error":
        known = [word.strip().strip("'") for word in str(context["expected"]).replace(" or ", ", ").split(",")]
        return f"{shown(item['input'])} is not known{suggest(item['input'], known)}"
    if kind == "value_error":
        why = str(context.get("error", item["msg"]))
        return why if isinstance(item["input"], (dict, list)) else f"{shown(item['input'])}: {why}"
    return f"{shown(item['input'])}: {item['msg'][0].lower()}{item['msg'][1:]}"


def _fields(model: type[BaseModel], path: Path_) -> list[str]:
    """Names of the keys allowed at `path`, over all models that may stand there."""
    here: set[Any] = set(_flat(model))
    for part in path:
        here = {step for kind in here for step in _step(kind, part)}
    fields = [item for kind in here if _is_model(kind) for item in kind.model_fields.items()]
    return sorted({field.alias or name for name, field in fields})


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _step(kind: Any, part: str | int) -> list[Any]:
    """Types that may stand one key below `kind`."""
    if _is_model(kind) and part in kind.model_fields:
        return _flat(kind.model_fields[part].annotation)
    arguments = get_args(kind)
    if isinstance(part, int) or get_origin(kind) is dict:
        return [inner for argument in arguments[-1:] + arguments[:1] for inner in _flat(argument)]
    return []


def _flat(kind: Any) -> list[Any]:
    """The members of a union, what a root model or an annotation stands for, or the type itself."""
    if _is_model(kind) and issubclass(kind, RootModel):
        return _flat(kind.model_fields["root"].annotation)
    if get_origin(kind) is Annotated:
        return _flat(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        return [inner for argument in get_args(kind) for inner in _flat(argument)]
    if get_origin(kind) is Literal:
        return []
    return [kind]
