"""A source to two token files and a manifest: units to shards by several processes, then one merge.

Training documents keep the order of the source. Validation documents are sorted by the hash of their text, so
val.bin is the same file whatever the order of the source, and its first N tokens are a random sample of it. The
number of processes and the calls that it took change no byte.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repro.data.formats import MAX_PROBLEMS, Problems
from repro.data.manifest import MANIFEST, manifest_text, sealed
from repro.data.merge import Selection, select, write_splits
from repro.data.overlap import written_overlap
from repro.data.packed import Ids, TokenFile, TokenWriter, write_marker
from repro.data.progress import Bar
from repro.data.shards import Done, finished, tokenise_unit
from repro.data.sources import Unit, check_count, read_units, text_bytes
from repro.data.tokenise import COPIED, TOKENIZER_COPY, TokenizerSpec
from repro.data.workers import Job, Maker, run
from repro.spec.data import DataSource
from repro.spec.errors import BadDataError, Problem, problem_error
from repro.spec.paths import Root


@dataclass(frozen=True, slots=True)
class Work:
    """One source to prepare: `shards` is the folder that outlives a call, `workers` how many processes to use."""

    root: Root
    name: str
    source: DataSource
    digest: str
    tokenizer: TokenizerSpec
    shards: Path
    workers: int


def entropy(counts: Ids) -> float:
    """Shannon entropy in nats of the distribution that `counts` [V] is a sample of (plug-in estimate)."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def tokenise(work: Work) -> list[Done]:
    """Every unit of the source as a shard, those of an earlier call included; in order.

    Raises BadDataError with the first 100 problems, after which the shards without a problem stay; MissingError;
    OSError where the disk refuses; StoppedError if a worker was killed.
    """
    unread: Problems = []
    done: dict[int, Done] = {}
    with Bar(f"{work.name}: tokenising", text_bytes(work.root, work.name, work.source)) as bar:
        maker = Maker(_tokeniser, (work.shards, work.tokenizer, work.source.validation))
        for result in run(maker, _todo(work, unread, done, bar), work.workers, f"source {work.name}"):
            done[result.number] = result
            bar.advance(result.size)
            if sum(len(unit.problems) + len(unit.faults) for unit in done.values()) >= MAX_PROBLEMS:
                break
    units = [done[number] for number in sorted(done)]
    problems = [*unread, *_problems(units)]
    if problems:
        raise BadDataError(problems)
    check_count(work.root, work.name, work.source, sum(unit.documents for unit in units))
    return units


def _todo(work: Work, unread: Problems, done: dict[int, Done], bar: Bar) -> Iterator[Unit]:
    """Units that no earlier call finished; those that one did are noted."""
    for unit in read_units(work.root, work.name, work.source, unread):
        before = finished(work.shards, unit.number)
        if before is None:
            yield unit
        else:
            done[unit.number] = before
            bar.advance(before.size)


def _tokeniser(shards: Path, spec: TokenizerSpec, validation: float) -> Job:
    coder = spec.make()
    return lambda unit: tokenise_unit(shards, unit, coder, validation)


def _problems(units: list[Done]) -> Iterator[Problem]:
    """All problems, documents counted over the whole source from 1."""
    before = 0
    for unit in units:
        yield from unit.problems
        for fault in unit.faults:
            yield Problem(fault.file, fault.line, f"document {before + fault.place + 1}", fault.message)
        before += unit.documents


def fill(place: Path, work: Work, units: list[Done]) -> None:
    """Write train.bin, val.bin, manifest.json and the marker into the folder `place`, out of the shards.

    Raises BadDataError for an empty split, or a validation document that also stands in the training file; OSError
    where the disk refuses.
    """
    coder = work.tokenizer.make()
    chosen = select(work.shards, units)
    _check_not_empty(work, chosen)
    train = TokenWriter(place / "train.bin", coder.vocab)
    spool = TokenWriter(place / "val.spool", coder.vocab)
    with train, spool:
        starts = write_splits(work.shards, units, chosen, train, spool)
    val = _unspool(spool, chosen, starts, place)
    _copy_tokenizer(work, place)
    overlap = written_overlap(place, work.tokenizer, coder.end_of_text, work.workers)
    if overlap.hits:  # copies but for case and blanks: out of the validation file, which is then looked at again
        chosen.drop({hit.val for hit in overlap.hits if hit.kind == "folded"})
        _check_not_empty(work, chosen)
        val = _unspool(spool, chosen, starts, place)
        overlap = written_overlap(place, work.tokenizer, coder.end_of_text, work.workers)
    if overlap.hits:
        raise BadDataError(overlap.problems(f"source {work.name}"))
    spool.path.unlink()
    fields = {
        "schema": 1,
        "source": work.name,
        "digest": work.digest,
        "tokenizer": work.tokenizer.kind,
        "tokenizer_sha256": coder.fingerprint,
        "vocab": coder.vocab,
        "end_of_text": coder.end_of_text,
        "splits": {"train": _split_info(train, chosen.train), "val": _split_info(val, chosen.val)},
        "documents_seen": len(chosen.keep),
        "duplicates_removed": chosen.duplicates,
        "empty_removed": chosen.empty,
        "folded_removed": chosen.folded,
        "unigram_entropy": float(f"{entropy(train.counts):.12g}"),
        "leakage": {"exact": overlap.exact, "folded": overlap.folded, "near": len(overlap.near)},
    }
    _write_text(place / MANIFEST, manifest_text(sealed(fields)))
    write_marker(place, [(writer.path.name, writer.header.sha256) for writer in (train, val)])


def _unspool(spool: TokenWriter, chosen: Selection, starts: NDArray[np.int64], place: Path) -> TokenWriter:
    """val.bin: the validation documents in the order of their hashes."""
    val = TokenWriter(place / "val.bin", spool.vocab)
    with val, TokenFile.open(spool.path, verify=False) as tokens:
        sizes = chosen.held["tokens"].tolist()
        for start, size in zip(starts[chosen.held_at].tolist(), sizes, strict=True):
            val.append(tokens.read(start, start + size))
    return val


def _check_not_empty(work: Work, chosen: Selection) -> None:
    counts = {"training": chosen.train[0], "validation": len(chosen.held)}
    empty = [split for split, count in counts.items() if not count]
    if empty:
        message = f"no document for {' and '.join(empty)} among {len(chosen.keep)}: more documents are needed"
        raise problem_error(BadDataError, f"source {work.name}", "validation", message)


def _split_info(writer: TokenWriter, documents: tuple[int, int, str]) -> dict[str, Any]:
    number, text_size, sha256 = documents
    header = writer.header
    sizes = {"documents": number, "tokens": header.count, "bytes": text_size}
    return {**sizes, "sha256": header.sha256, "documents_sha256": sha256}


def _copy_tokenizer(work: Work, place: Path) -> None:
    """A tokenizer that no package carries goes with the tokens, so that they can be read wherever they are."""
    if work.tokenizer.kind in COPIED and work.tokenizer.path:
        with open(place / TOKENIZER_COPY, "wb") as stream:
            stream.write(work.tokenizer.path.read_bytes())
            stream.flush()
            os.fsync(stream.fileno())


def _write_text(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
