"""Folders of text, and what is made of them, for the tests of repro.data."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from repro.data.packed import MARKER, TokenFile
from repro.data.prepare import prepare
from repro.spec.data import DataSource, digest
from repro.spec.paths import Root

CHECKOUT = Path(__file__).resolve().parents[2]


def source_of(**more: Any) -> DataSource:
    fields = {
        "kind": "folder",
        "title": "t",
        "licence": "none",
        "path": "texts",
        "tokenizer": "bytes",
        "validation": 0.3,
        "curve_tokens": 2,
        "final_tokens": 4,
    }
    return DataSource.model_validate(fields | more)


def put(root: Root, texts: list[str], file: str = "texts/docs.jsonl") -> None:
    path = root.path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")


def made(root: Root, source: DataSource | None = None, name: str = "mine") -> tuple[str, Path]:
    source = source or source_of()
    key = digest(source, root)
    return key, prepare(root, name, source, key)


def texts_of(folder: Path, split: str) -> list[str]:
    with TokenFile.open(folder / f"{split}.bin") as tokens:
        return [ids.tobytes().decode("utf-8") for ids in tokens.documents(0)]


def contents(folder: Path) -> dict[str, bytes]:
    """Bytes of every file but the marker, which holds times."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != MARKER}


def entries(root: Root) -> list[str]:
    """What lies in scratch/data, locks left out."""
    return sorted(path.name for path in (root.scratch / "data").iterdir() if ".lock-" not in path.name)


TWENTY = [f"document number {number}" for number in range(20)]
HELD = {f"document number {number}" for number in (2, 3, 6, 7, 13, 17, 19)}  # by hash, fraction 0.3


def fraction_of(text: str) -> float:
    """Where a text lies in the split, by its definition."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:16], 16) / 2**64
