"""SentencePiece models by their file, without the package sentencepiece.

The file is one protocol buffer (sentencepiece_model.proto); what encoding needs of it is a list of pieces with
scores and a few switches. The package tokenizers does the encoding: byte pair or unigram, as the model says.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repro.data.tokenise import TokenBytes
from repro.spec.errors import BadDataError, problem_error

_SPACE = "\u2581"  # how SentencePiece writes a blank
_NORMAL, _UNKNOWN, _USER, _BYTE = 1, 2, 4, 6  # kinds of piece
_UNIGRAM, _BPE = 1, 2  # kinds of model


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    score: float
    kind: int


@dataclass(frozen=True, slots=True)
class SentencePiece:
    """A SentencePiece model; `end_of_text` is its end-of-sentence id. `prefix` is what it puts before each text."""

    model: Any
    fingerprint: str
    vocab: int
    end_of_text: int
    prefix: bytes
    table: TokenBytes

    def encode(self, text: str) -> NDArray[Any]:
        """uint32 [tokens of the text]."""
        return np.array(self.model.encode(text, add_special_tokens=False).ids, np.uint32)

    def decode(self, ids: NDArray[Any]) -> str:
        """The text of the ids [N] of a whole document, as far as the model's normalisation kept it."""
        return self.table.join(ids).removeprefix(self.prefix).decode("utf-8")

    def raw(self, ids: NDArray[Any]) -> bytes:
        """Bytes of ids [N]; control ids stand for nothing."""
        return self.table.join(ids)


def sentencepiece(data: bytes, file: str, vocab: int, fingerprint: str) -> SentencePiece:
    """The tokenizer in the bytes of a model file; BadDataError for what is none, or of a kind that is not read here."""
    try:
        fields = list(_fields(data))
        pieces = [_piece(value) for number, value in fields if number == 1]
        trainer, rules = ({k: v for part, value in fields if part == n for k, v in _fields(value)} for n in (2, 3))
    except (ValueError, IndexError, TypeError, struct.error):
        raise problem_error(BadDataError, file, "tokenizer", "is no SentencePiece model") from None
    if len(pieces) != vocab:
        raise problem_error(BadDataError, file, "vocab", f"has {len(pieces)} pieces, {vocab} are stated")
    kinds = {piece.kind for piece in pieces}
    if _USER in kinds or trainer.get(3, _UNIGRAM) not in (_UNIGRAM, _BPE) or trainer.get(24, 0):
        message = "user-defined pieces, word and character models and blanks behind words are not read here"
        raise problem_error(BadDataError, file, "tokenizer", message)
    prefixed = bool(rules.get(3, 1))
    model = _model(pieces, trainer)
    model.normalizer = _normalizer(rules, prefixed)
    end = int(trainer.get(42, 2))
    if not 0 <= end < vocab:
        raise problem_error(BadDataError, file, "tokenizer", "has no piece that ends a sentence")
    return SentencePiece(model, fingerprint, vocab, end, b" " if prefixed else b"", TokenBytes([*map(_bytes, pieces)]))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number that is too long")


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) of one protocol buffer message: numbers, 4 or 8 bytes, or the bytes of a field."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at) if kind in (1, 5) else (-1, at)
        if size < 0 or at + size > len(data):
            raise ValueError("a field that ends outside of the file")
        yield key >> 3, data[at : at + size]
        at += size


def _piece(data: bytes) -> _Piece:
    fields = dict(_fields(data))
    score = struct.unpack("<f", fields[2])[0] if 2 in fields else 0.0
    return _Piece(bytes(fields.get(1, b"")).decode("utf-8"), float(score), int(fields.get(3, _NORMAL)))


def _bytes(piece: _Piece) -> bytes:
    """What a piece stands for; nothing for control pieces."""
    if piece.kind == _BYTE:
        return bytes([int(piece.text[1:-1], 16)])
    if piece.kind == _UNKNOWN:
        return "\u2047".encode()
    return piece.text.replace(_SPACE, " ").encode("utf-8") if piece.kind == _NORMAL else b""


def _model(pieces: list[_Piece], trainer: dict[int, Any]) -> Any:
    from tokenizers import Tokenizer, models  # only here: no other tokenizer needs it

    unknown = next((place for place, piece in enumerate(pieces) if piece.kind == _UNKNOWN), None)
    fallback = bool(trainer.get(35, 0))
    if trainer.get(3, _UNIGRAM) == _UNIGRAM:
        listed = [(piece.text, piece.score) for piece in pieces]
        return Tokenizer(models.Unigram(listed, unk_id=unknown, byte_fallback=fallback))
    vocab = {piece.text: place for place, piece in enumerate(pieces)}
    name = None if unknown is None else pieces[unknown].text
    return Tokenizer(models.BPE(vocab, _merges(pieces), unk_token=name, fuse_unk=True, byte_fallback=fallback))


def _merges(pieces: list[_Piece]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two others, best score first: SentencePiece states no merges."""
    place = {piece.text: number for number, piece in enumerate(pieces) if piece.kind == _NORMAL}
    found = []
    for piece in pieces:
        if piece.kind != _NORMAL:
            continue
        text = piece.text
        halves = ((text[:cut], text[cut:]) for cut in range(1, len(text)))
        local = [(-piece.score, left, right) for left, right in halves if left in place and right in place]
        found += sorted(local, key=lambda merge: (place[merge[1]], place[merge[2]]))
    found.sort(key=lambda merge: merge[0])  # stable: what has one score stays in the order of the pieces
    return [(left, right) for _, left, right in found]


def _normalizer(rules: dict[int, Any], prefixed: bool) -> Any:
    from tokenizers import Regex, normalizers

    steps: list[Any] = [normalizers.Precompiled(bytes(rules[2]))] if rules.get(2) else []
    if rules.get(4, 1):
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    steps += [normalizers.Prepend(_SPACE)] if prefixed else []
    return normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
