"""The overlap check on the token files themselves, not on what was meant to be written; several processes share it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from repro.data.leakage import Overlap, Watch, combined
from repro.data.packed import TokenFile
from repro.data.tokenise import Tokenizer, TokenizerSpec
from repro.data.workers import Job, Maker, run

PART_TOKENS = 1 << 22  # of the training file, given to a worker at a time


class Part(NamedTuple):
    """Tokens start ... stop of the training file: whole documents, the first of which is number `first`."""

    start: int
    stop: int
    first: int


def parts(tokens: TokenFile, end_of_text: int) -> Iterator[Part]:
    """The file cut at ends of documents, into parts of about PART_TOKENS."""
    begin = first = documents = 0
    last = 0  # one behind the last end of a document that was seen
    for start in range(0, tokens.header.count, PART_TOKENS):
        piece = tokens.read(start, min(start + PART_TOKENS, tokens.header.count))
        ends = np.flatnonzero(piece == end_of_text)
        if ends.size:
            documents += int(ends.size)
            last = start + int(ends[-1]) + 1
        if last - begin >= PART_TOKENS // 2:
            yield Part(begin, last, first)
            begin, first = last, documents
    if last > begin:
        yield Part(begin, last, first)


def _documents(tokens: TokenFile, coder: Tokenizer, part: Part) -> list[bytes]:
    ids = tokens.read(part.start, part.stop)
    ends = np.flatnonzero(ids == coder.end_of_text).tolist()
    return [coder.raw(ids[a:b]) for a, b in zip([0, *(end + 1 for end in ends[:-1])], ends, strict=True)]


def _looker(folder: Path, spec: TokenizerSpec) -> Job:
    """Reads all of the validation file, and gives the function that looks at one part of the training file."""
    coder = spec.make()
    with TokenFile.open(folder / "val.bin", verify=False) as held:
        watch = Watch(coder.raw(ids) for ids in held.documents(coder.end_of_text))
    train = TokenFile.open(folder / "train.bin", verify=False)
    return lambda part: watch.look(_documents(train, coder, part), part.first)


def written_overlap(folder: Path, spec: TokenizerSpec, end_of_text: int, workers: int) -> Overlap:
    """Overlap of train.bin and val.bin in `folder`."""
    with TokenFile.open(folder / "train.bin", verify=False) as train:
        found = list(parts(train, end_of_text))
    maker = Maker(_looker, (folder, spec))
    processes = min(workers, len(found) // 2)  # starting one costs what it does with half a part
    return combined(run(maker, found, processes, "scratch/data"))
