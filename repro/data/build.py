"""Documents to two token files and a manifest, in one pass over the source and with bounded memory for text.

Training documents keep the order of the source. Validation documents are sorted by the hash of their text, so
val.bin is the same file whatever the order of the source, and its first N tokens are a random sample of it.
What grows with the source is some 200 bytes a document, for finding copies.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from repro.data.leakage import Overlap, document_hash, find_overlap, folded_hash, is_validation
from repro.data.manifest import MANIFEST, manifest_text, sealed
from repro.data.packed import Ids, TokenFile, TokenWriter, write_marker
from repro.data.sources import Document
from repro.data.tokenise import Tokenizer, tokenizer
from repro.spec.data import DataSource
from repro.spec.errors import BadDataError, Problem, problem_error


@dataclass(frozen=True, slots=True)
class _Held:
    """A validation document in the spool: its tokens there, and what it is compared by."""

    digest: bytes
    folded: bytes
    start: int
    stop: int
    text_bytes: int


class _Sorter:
    """Takes documents one by one into the training file, the spool for validation, or away; counts them."""

    def __init__(self, coder: Tokenizer, validation: float, train: TokenWriter, spool: TokenWriter) -> None:
        self.coder, self.validation = coder, validation
        self.train, self.spool = train, spool
        self.seen = self.duplicates = self.empty = self.train_bytes = 0
        self.train_hashes: list[bytes] = []
        self.held: list[_Held] = []
        self.problems: list[Problem] = []
        self._hashes: set[bytes] = set()
        self._train_folded: set[bytes] = set()

    def take(self, document: Document) -> None:
        """Sort one document in; a text that cannot be tokenised becomes a problem."""
        self.seen += 1
        digest = document_hash(document.text)
        if not document.text.strip():
            self.empty += 1
        elif digest in self._hashes:
            self.duplicates += 1
        else:
            self._hashes.add(digest)
            try:
                ids = self.coder.encode(document.text)
            except ValueError as error:
                key = f"document {self.seen}"
                self.problems.append(Problem(document.file, document.line, key, str(error)))
                return
            self._write(digest, document.text, ids)

    def _write(self, digest: bytes, text: str, ids: Any) -> None:
        """The document and its end into the file that its hash says."""
        held_out = is_validation(digest, self.validation)
        writer = self.spool if held_out else self.train
        start = writer.tokens_appended
        writer.append(ids)
        writer.append([self.coder.end_of_text])
        folded, text_bytes = folded_hash(text), len(text.encode("utf-8"))
        if held_out:
            self.held.append(_Held(digest, folded, start, writer.tokens_appended, text_bytes))
        else:
            self.train_hashes.append(digest)
            self._train_folded.add(folded)
            self.train_bytes += text_bytes

    def kept(self) -> list[_Held]:
        """Validation documents by hash; none that equals a training document but for case and blanks."""
        kept = [held for held in self.held if held.folded not in self._train_folded]
        return sorted(kept, key=lambda held: held.digest)


def entropy(counts: Ids) -> float:
    """Shannon entropy in nats of the distribution that `counts` [V] is a sample of (plug-in estimate)."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def fill(place: Path, name: str, source: DataSource, digest: str, documents: Iterable[Document]) -> None:
    """Write train.bin, val.bin, manifest.json and the marker into the folder `place`.

    Raises BadDataError for texts that cannot be tokenised, an empty split, or a validation document that also
    stands in the training file; OSError where the disk refuses.
    """
    coder = tokenizer(source.tokenizer)
    train = TokenWriter(place / "train.bin", coder.vocab)
    spool = TokenWriter(place / "val.spool", coder.vocab)
    sorter = _Sorter(coder, source.validation, train, spool)
    with train, spool:
        for document in documents:
            sorter.take(document)
        if sorter.problems:
            raise BadDataError(sorter.problems)
    kept = sorter.kept()
    _check_not_empty(name, sorter, kept)
    val = TokenWriter(place / "val.bin", coder.vocab)
    with val:
        _unspool(spool.path, kept, val)
    leakage = _check_written(place, name, coder)
    fields = {
        "schema": 1,
        "source": name,
        "digest": digest,
        "tokenizer": source.tokenizer,
        **_contents(coder, sorter, kept, val),
        "unigram_entropy": float(f"{entropy(train.counts):.12g}"),
        "leakage": {"exact": leakage.exact, "folded": leakage.folded},
    }
    _write_text(place / MANIFEST, manifest_text(sealed(fields)))
    write_marker(place, [(writer.path.name, writer.header.sha256) for writer in (train, val)])


def _unspool(spool: Path, kept: list[_Held], val: TokenWriter) -> None:
    """Copy the kept documents in their order; the spool goes away."""
    with TokenFile.open(spool) as tokens:
        for held in kept:
            val.append(tokens.read(held.start, held.stop))
    spool.unlink()


def _check_not_empty(name: str, sorter: _Sorter, kept: list[_Held]) -> None:
    counts = {"training": len(sorter.train_hashes), "validation": len(kept)}
    empty = [split for split, count in counts.items() if not count]
    if empty:
        message = f"no document for {' and '.join(empty)} among {sorter.seen}: more documents are needed"
        raise problem_error(BadDataError, f"source {name}", "validation", message)


def _texts(path: Path, coder: Tokenizer) -> Iterator[str]:
    """The documents of a written token file, as text again."""
    with TokenFile.open(path) as tokens:
        for ids in tokens.documents(coder.end_of_text):
            yield coder.decode(ids)


def _check_written(place: Path, name: str, coder: Tokenizer) -> Overlap:
    """Look for overlap in the files themselves, not in what was meant to be written; refuse any."""
    overlap = find_overlap(_texts(place / "train.bin", coder), _texts(place / "val.bin", coder))
    if overlap.hits:
        raise BadDataError(overlap.problems(f"source {name}"))
    return overlap


def _contents(coder: Tokenizer, sorter: _Sorter, kept: list[_Held], val: TokenWriter) -> dict[str, Any]:
    """The manifest's fields on what was read and what was written."""
    val_hashes, val_bytes = [held.digest for held in kept], sum(held.text_bytes for held in kept)
    return {
        "tokenizer_sha256": coder.fingerprint,
        "vocab": coder.vocab,
        "end_of_text": coder.end_of_text,
        "splits": {
            "train": _split_info(sorter.train, sorter.train_hashes, sorter.train_bytes),
            "val": _split_info(val, val_hashes, val_bytes),
        },
        "documents_seen": sorter.seen,
        "duplicates_removed": sorter.duplicates,
        "empty_removed": sorter.empty,
        "folded_removed": len(sorter.held) - len(kept),
    }


def _split_info(writer: TokenWriter, hashes: list[bytes], text_bytes: int) -> dict[str, Any]:
    return {
        "documents": len(hashes),
        "tokens": writer.header.count,
        "bytes": text_bytes,
        "sha256": writer.header.sha256,
        "documents_sha256": hashlib.sha256(b"".join(sorted(hashes))).hexdigest(),
    }


def _write_text(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
