"""Finished work of one unit: its tokens in a token file, and an index of its documents beside them.

The index is written after the tokens, so a unit is done exactly if its index is there and says what the token
file is. Both appear under their names whole, whoever is killed.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from repro.data.formats import Problems
from repro.data.leakage import document_hash, is_validation
from repro.data.packed import TokenWriter, check_payload, fsync_folder, read_header
from repro.data.sources import Unit
from repro.data.tokenise import Tokenizer
from repro.spec.errors import Problem, ReproError

TRAIN, HELD_OUT, EMPTY = 0, 1, 2
# One document: sha256 of its text, place in the unit, tokens with the mark behind them, bytes of text, and where it
# goes. Rows are sorted by the first.
ROW = np.dtype([("digest", "S32"), ("place", "<u4"), ("tokens", "<u4"), ("bytes", "<u4"), ("kind", "u1")])
Rows = NDArray[Any]


class Fault(NamedTuple):
    """A document (counted in its unit from 0) that cannot be tokenised."""

    place: int
    file: str
    line: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one unit: documents seen, lines that are none, and documents that cannot be tokenised."""

    number: int
    documents: int
    size: int
    problems: tuple[Problem, ...] = ()
    faults: tuple[Fault, ...] = ()


def token_shard(folder: Path, number: int) -> Path:
    """Token file of one unit."""
    return folder / f"{number:06d}.bin"


def index_shard(folder: Path, number: int) -> Path:
    """Index of one unit."""
    return folder / f"{number:06d}.idx"


def tokenise_unit(folder: Path, unit: Unit, coder: Tokenizer, validation: float) -> Done:
    """Tokenise the documents of `unit` and write its two files; nothing is written if anything is wrong with it.

    Raises OSError where the disk refuses.
    """
    problems: Problems = []
    faults: list[Fault] = []
    rows: list[tuple[bytes, int, int, int, int]] = []
    end = np.array([coder.end_of_text], np.uint32)
    writer = TokenWriter(token_shard(folder, unit.number), coder.vocab)
    with writer:
        for place, document in enumerate(unit.documents(problems)):
            data = document.text.encode("utf-8")
            digest, size, kind = document_hash(data), 0, EMPTY
            if data and not document.text.isspace():
                try:
                    ids = coder.encode(document.text)
                except ValueError as error:
                    faults.append(Fault(place, document.file, document.line, str(error)))
                    continue
                writer.append(ids)
                writer.append(end)
                size = len(ids) + 1
                held = is_validation(digest, validation) if document.split is None else document.split == "val"
                kind = HELD_OUT if held else TRAIN
            rows.append((digest, place, size, len(data), kind))
    done = Done(unit.number, len(rows) + len(faults), unit.size, tuple(problems), tuple(faults))
    if problems or faults:
        token_shard(folder, unit.number).unlink()
    else:
        _write_index(folder, done, rows, writer.header.sha256)
    return done


def _write_index(folder: Path, done: Done, rows: list[Any], tokens_sha256: str) -> None:
    table = np.array(rows, ROW)
    payload = table[np.argsort(table["digest"], kind="stable")].tobytes()
    sha256 = hashlib.sha256(payload).hexdigest()
    head = {"documents": done.documents, "size": done.size, "sha256": sha256, "tokens_sha256": tokens_sha256}
    path = index_shard(folder, done.number)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as stream:
            stream.write(json.dumps(head).encode("ascii") + b"\n" + payload)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
        fsync_folder(folder)
    finally:
        partial.unlink(missing_ok=True)


def finished(folder: Path, number: int) -> Done | None:
    """A unit that an earlier call finished, both files read and compared with their hashes; None if it is to do."""
    path = index_shard(folder, number)
    try:
        with open(path, "rb") as stream:
            head, payload = json.loads(stream.readline(1000)), stream.read()
        header = read_header(token_shard(folder, number))
        if hashlib.sha256(payload).hexdigest() != head["sha256"] or header.sha256 != head["tokens_sha256"]:
            return None
        check_payload(token_shard(folder, number), header)
        return Done(number, head["documents"], head["size"])
    except (OSError, ValueError, KeyError, TypeError, ReproError):
        return None  # absent or damaged: the unit is done again


def read_rows(folder: Path, number: int, start: int = 0, stop: int | None = None) -> Rows:
    """Rows start ... stop of a unit's index, by digest."""
    with open(index_shard(folder, number), "rb") as stream:
        stream.readline()
        stream.seek(start * ROW.itemsize, os.SEEK_CUR)
        data = stream.read() if stop is None else stream.read((stop - start) * ROW.itemsize)
    return np.frombuffer(data, ROW)
