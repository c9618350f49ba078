"""What a method's file may reach: its id covers that file, so code and data of others must not enter through it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from repro.spec.errors import Problem, shown

# Submodules included; the rules version and the lock cover these. Any other file could change what a run computes and
# leave its id as it is.
IMPORTS = ("__future__", "collections", "dataclasses", "functools", "itertools", "math", "repro.nn", "torch", "typing")
# Of the suite itself: the models and their parts, not what loads other methods or reads weights from disk.
OF_NN = {
    **dict.fromkeys(("anatomy", "gpt", "initial", "norms", "stack")),
    "method_api": ("Branch", "EPS", "Method", "RMSNorm", "Role", "Site", "TO_STREAM", "Tensor", "WEIGHT_STD", "nn"),
}
# Builtins that read files or run text, and ways round to them: never, in any place.
NEVER = frozenset({"__builtins__", "__globals__", "__import__", "__loader__", "__spec__", "__subclasses__"}) | {
    "breakpoint",
    "globals",
    "import_module",
    "importlib",
    "load_class",
    "load_method",
    "load_module",
    "run_file",
}
BY_NAME = frozenset({"compile", "eval", "exec", "input", "open"})  # as attributes they are others: `model.eval()`
# Of a module that was imported: what it knows of other modules, and what reads files.
OF_MODULES = frozenset({"builtins", "ctypes", "from_file", "hub", "inspect", "io", "load", "load_library"}) | {
    "_os",
    "_sys",
    "open",
    "os",
    "pickle",
    "registry",
    "resolve",
    "runpy",
    "subprocess",
    "sys",
}
DEEPEST = 12  # dots of a name that is looked at, so that a hostile file costs no time
WHY = "what it reads or runs is no part of a run's id"


def beyond(tree: ast.Module, file: str) -> Iterator[Problem]:
    """A problem for each import and each use of a name that reaches beyond the file."""
    names: dict[str, str] = {}  # what a name in the file stands for: `api` for `repro.nn.method_api`
    starred = False
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imported = list(_imported(node))
            yield from _foreign(node, [dotted for dotted, _ in imported], file)
            names |= {bound: dotted for dotted, bound in imported}
            starred = starred or "*" in names
    own = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    own |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    known = NEVER | BY_NAME | (OF_MODULES - own if starred else frozenset())
    for node in ast.walk(tree):
        used = _by_text(node) if isinstance(node, ast.Call) else node
        found = None
        if isinstance(used, ast.Name):
            found = used.id if used.id in known else None
        elif isinstance(used, ast.Attribute):
            found = used.attr if used.attr in NEVER else _of_module(used, names)
        if found and isinstance(used, ast.expr):
            yield Problem(file, used.lineno, "", f"uses {shown(found)}; {WHY}")


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """(dotted name, name that it gets in the file) of each thing that a line imports."""
    for alias in node.names:
        if isinstance(node, ast.Import):
            first = alias.name.partition(".")[0]
            yield alias.name, alias.asname or first
        else:
            module = "." * node.level + (node.module or "")
            dotted = f"{module}.{alias.name}" if node.module else f"{module}{alias.name}"
            yield dotted, alias.asname or alias.name


def _foreign(node: ast.Import | ast.ImportFrom, names: list[str], file: str) -> Iterator[Problem]:
    outside = [name for name in names if not any(f"{name}.".startswith(f"{known}.") for known in IMPORTS)]
    if outside:
        message = f"imports {', '.join(map(shown, outside))}, whose code is no part of a run's id"
        yield Problem(file, node.lineno, "", f"{message}; allowed: {', '.join(IMPORTS)}")
    for name in names:
        if name not in outside and (found := _reaches(name)):
            yield Problem(file, node.lineno, "", f"imports {shown(name)}, and {found}")


def _reaches(dotted: str) -> str | None:
    """What is wrong with a dotted name of something imported; None if nothing is."""
    parts = dotted.split(".")
    if parts[:2] == ["repro", "nn"] and len(parts) > 2 and parts[2] != "*":
        if parts[2] not in OF_NN:
            return f"of repro.nn a method may use {', '.join(sorted(OF_NN))}"
        public = OF_NN[parts[2]]
        if public and len(parts) > 3 and parts[3] not in (*public, "*"):
            return f"of repro.nn.{parts[2]} a method may use {', '.join(sorted(public))}"
    wrong = next((part for part in parts if part in NEVER or part in OF_MODULES), None)
    return f"{wrong} is not allowed: {WHY}" if wrong else None


def _of_module(node: ast.Attribute, names: dict[str, str]) -> str | None:
    """`torch.load` where `torch` was imported; the same attribute of anything else is somebody's own."""
    parts: list[str] = []
    place: ast.expr = node
    while isinstance(place, ast.Attribute) and len(parts) < DEEPEST:
        parts.append(place.attr)
        place = place.value
    if not isinstance(place, ast.Name) or place.id not in names:
        return None
    whole = [*_stands_for(place.id, names).split("."), *reversed(parts)]
    # An inner part is looked at where it stands, as the attribute that it is.
    return ".".join(parts[::-1]) if _reaches(".".join(whole)) and not _reaches(".".join(whole[:-1])) else None


def _stands_for(name: str, names: dict[str, str]) -> str:
    """`import torch.nn.functional` binds `torch` alone."""
    dotted = names[name]
    return name if dotted.startswith(f"{name}.") else dotted


def _by_text(node: ast.Call) -> ast.Attribute | None:
    """getattr(thing, "load") as thing.load; a name that is put together when the file runs cannot be seen here."""
    if not (isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) > 1):
        return None
    thing, name = node.args[:2]
    if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
        return None
    return ast.copy_location(ast.Attribute(thing, name.value, ast.Load()), node)
