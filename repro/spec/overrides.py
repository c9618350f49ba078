"""Deep merge of configuration files: later files replace single values, never whole blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from repro.spec.reading import Document, Model, Path_, read_yaml, validate


def merge(base: Document, over: Document) -> Document:
    """`over` laid on `base`: mappings are merged key by key, everything else is replaced.

    Every key keeps the file and line that its value came from. A file with nothing in it changes nothing.
    """
    if over.value is None:
        return base
    places = dict(base.places)
    value = _merge(base.value, over.value, (), over.places, places)
    return Document(over.file, value, places)


def _merge(base: Any, over: Any, path: Path_, over_places: dict[Path_, Any], places: dict[Path_, Any]) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        result = dict(base)
        for key, value in over.items():
            result[key] = _merge(base.get(key), value, (*path, key), over_places, places)
        return result
    for known in [known for known in places if known[: len(path)] == path]:
        del places[known]
    places.update({known: place for known, place in over_places.items() if known[: len(path)] == path})
    return over


def load_merged(model: type[Model], paths: list[Path], names: list[str] | None = None) -> tuple[Model, Document]:
    """Files read in order, later over earlier, then validated as one; raises ConfigError."""
    documents = [read_yaml(path, name) for path, name in zip(paths, names or map(str, paths), strict=True)]
    merged = documents[0]
    for document in documents[1:]:
        merged = merge(merged, document)
    return validate(model, merged), merged
