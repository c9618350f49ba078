"""Reads the literal dict `INFO` of a plug-in file without running the file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from repro.spec.errors import ConfigError, Problem, shown
from repro.spec.explain import explain

Model = TypeVar("Model", bound=BaseModel)


def read_info(tree: ast.Module, file: str, model: type[Model]) -> Model:
    """The literal INFO of a parsed file as `model`; raises ConfigError with file, line and key of every problem."""
    value = _info_node(tree, file)
    if doubled := list(_doubled(value, (), file)):
        raise ConfigError(doubled)
    lines = {str(key.value): key.lineno for key in value.keys if isinstance(key, ast.Constant)}
    try:
        literal = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        message = "must be a literal: plain values only, nothing to compute"
        raise ConfigError([Problem(file, value.lineno, "INFO", message)]) from None
    try:
        return model.model_validate(literal)
    except ValidationError as error:
        raise ConfigError(
            [
                Problem(file, lines.get(str(path[0] if path else ""), value.lineno), _key(path), message)
                for path, message in explain(model, error, literal)
            ]
        ) from None


def _doubled(node: ast.expr, path: tuple[str, ...], file: str) -> Iterator[Problem]:
    """Keys that stand twice in a dict, however deep: Python would take the last one in silence."""
    if isinstance(node, ast.Dict):
        lines: dict[str, int] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            name = str(key.value) if isinstance(key, ast.Constant) else "?"
            if isinstance(key, ast.Constant) and name in lines:
                message = f"stands twice, also in line {lines[name]}" if lines[name] != key.lineno else "stands twice"
                yield Problem(file, key.lineno, _key((*path, name)), message)
            lines.setdefault(name, node.lineno if key is None else key.lineno)
            yield from _doubled(value, (*path, name), file)
    elif isinstance(node, (ast.List, ast.Tuple)):
        for place, item in enumerate(node.elts):
            yield from _doubled(item, (*path, str(place)), file)


def _key(path: tuple[str | int, ...]) -> str:
    return shown(".".join(["INFO", *(str(part) for part in path)]))


def _info_node(tree: ast.Module, file: str) -> ast.Dict:
    found: list[ast.Assign | ast.AnnAssign] = []
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and any(
            isinstance(target, ast.Name) and target.id == "INFO" for target in targets
        ):
            found.append(node)
    if len(found) != 1:
        message = "stands twice" if found else "is missing: a literal dict of that name describes what the file adds"
        raise ConfigError([Problem(file, found[-1].lineno if found else None, "INFO", message)])
    if not isinstance(found[0].value, ast.Dict):
        raise ConfigError([Problem(file, found[0].lineno, "INFO", "must be a literal dict")])
    return found[0].value
