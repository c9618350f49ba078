"""Reads the literal dict `INFO` of a plug-in file without running the file."""

from __future__ import annotations

import ast
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from repro.spec.errors import ConfigError, Problem, shown
from repro.spec.explain import explain

Model = TypeVar("Model", bound=BaseModel)


def read_info(tree: ast.Module, file: str, model: type[Model]) -> Model:
    """The literal INFO of a parsed file as `model`; raises ConfigError with file, line and key of every problem."""
    value = _info_node(tree, file)
    keys = [key.value for key in value.keys if isinstance(key, ast.Constant)]
    lines = {str(key.value): key.lineno for key in value.keys if isinstance(key, ast.Constant)}
    doubled = [key for key in lines if [str(k) for k in keys].count(key) > 1]
    if doubled:
        raise ConfigError([Problem(file, lines[key], f"INFO.{shown(key)}", "stands twice") for key in doubled])
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
