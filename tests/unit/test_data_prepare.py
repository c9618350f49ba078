"""Prepared data: all or nothing, the same bytes everywhere (cases D02, D05, D07, D08)."""

from __future__ import annotations

import errno
import json
import math
import shutil
import socket
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from data_world import CHECKOUT, HELD, TWENTY, entries, fraction_of, made, put, source_of, texts_of
from numpy.typing import NDArray

from repro.data import build, merge, packed, tokenise
from repro.data import prepare as prepare_module
from repro.data.fetch import fetch
from repro.data.manifest import MANIFEST, data_folder
from repro.data.packed import MARKER, TokenFile, read_header
from repro.data.prepare import load_manifest, prepare, verify
from repro.data.sources import fetched_path
from repro.spec import data as spec_data
from repro.spec.data import DataSource, Sources, digest
from repro.spec.errors import BadDataError, CannotWriteError, ConfigError, MissingError
from repro.spec.hashing import sha256_file, sha256_json
from repro.spec.paths import Root
from repro.spec.reading import load
from tests.shared import shared


@pytest.fixture
def root(tmp_path: Path) -> Root:
    put(Root(tmp_path), TWENTY)
    return Root(tmp_path)


# -- what is made ----------------------------------------------------------------------------------


def test_files_and_manifest(root: Root) -> None:
    key, folder = made(root)
    assert folder == root.scratch / "data" / key[:12]
    assert {path.name for path in folder.iterdir()} == {"train.bin", "val.bin", MANIFEST, MARKER}
    assert entries(root) == [key[:12]]
    manifest = load_manifest(root, key)
    assert set(texts_of(folder, "val")) == HELD
    assert texts_of(folder, "train") == [text for text in TWENTY if text not in HELD]
    for split, documents in (("train", 13), ("val", 7)):
        info, header = manifest["splits"][split], read_header(folder / f"{split}.bin")
        text_bytes = sum(len(text.encode()) for text in texts_of(folder, split))
        assert (info["documents"], info["bytes"]) == (documents, text_bytes)
        assert info["tokens"] == header.count == text_bytes + documents
        assert info["sha256"] == header.sha256
    assert manifest["leakage"] == {"exact": 0, "folded": 0, "near": 7}  # texts that differ in one digit
    assert (manifest["documents_seen"], manifest["duplicates_removed"]) == (20, 0)
    assert (manifest["schema"], manifest["source"], manifest["digest"]) == (1, "mine", key)
    assert (manifest["tokenizer"], manifest["vocab"]) == ("bytes", 256)
    assert manifest["tokenizer_sha256"] == spec_data.TOKENIZERS["bytes"]


def test_unigram_entropy_is_that_of_the_training_tokens(root: Root) -> None:
    key, folder = made(root)
    counts = Counter("".join(f"{text}\0" for text in texts_of(folder, "train")).encode())
    total = sum(counts.values())
    expected = -sum(count / total * math.log(count / total) for count in counts.values())
    assert load_manifest(root, key)["unigram_entropy"] == pytest.approx(expected, rel=1e-11)


def test_copies_and_empty_texts_are_left_out_and_counted(root: Root) -> None:
    held, kept = sorted(HELD), [text for text in TWENTY if text not in HELD]
    put(root, [*TWENTY, kept[0], held[0], held[0], "", "  \n", kept[1].upper()])
    key, folder = made(root)
    manifest = load_manifest(root, key)
    assert manifest["documents_seen"] == 26
    assert manifest["duplicates_removed"] == 3
    assert manifest["empty_removed"] == 2
    documents = sum(info["documents"] for info in manifest["splits"].values())
    assert documents + 5 + manifest["folded_removed"] == 26
    for split in ("train", "val"):
        assert len(set(texts_of(folder, split))) == len(texts_of(folder, split))


def test_a_validation_text_that_is_in_train_but_for_case_is_dropped(root: Root) -> None:
    copy = copy_that_is_held_out(next(text for text in TWENTY if text not in HELD))
    put(root, [copy, *TWENTY])
    key, folder = made(root)
    assert load_manifest(root, key)["folded_removed"] == 1
    assert set(texts_of(folder, "val")) == HELD
    assert set(texts_of(folder, "train")) == set(TWENTY) - HELD


def copy_that_is_held_out(text: str) -> str:
    """The text in capitals with so many blanks behind it that its hash falls into the validation part."""
    copies = (text.upper() + " " * blanks for blanks in range(50))
    return next(copy for copy in copies if fraction_of(copy) < 0.3)


@pytest.mark.parametrize("validation", [0.1, 0.2, 0.3, 0.4, 0.49])
def test_d08_files_together_publish_no_overlap(tmp_path: Path, validation: float) -> None:
    """Whatever side of the split the related texts fall on, what is published does not overlap."""
    root = Root(tmp_path)
    lines = [shared(f"cases/D08/{file}").read_text("utf-8") for file in ("train.jsonl", "val.jsonl")]
    put(root, [json.loads(line)["text"] for line in "".join(lines).splitlines()] + TWENTY)
    key, folder = made(root, source_of(validation=validation))
    assert load_manifest(root, key)["duplicates_removed"] == 1
    train, val = ({" ".join(text.casefold().split()) for text in texts_of(folder, split)} for split in ("train", "val"))
    assert not train & val


def test_d08_overlap_in_what_is_written_is_refused(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the removal of copies ever fails, the check of the files stops the publication."""
    put(root, [*TWENTY, copy_that_is_held_out("document number 0")])
    monkeypatch.setattr(merge.Selection, "drop", lambda *_: None)
    words = r"validation document 3 is, but for case and blanks, training document 1"
    with pytest.raises(BadDataError, match=words):
        made(root)
    assert entries(root) == []


def test_d07_validation_file_is_the_same_for_both_orders(tmp_path: Path) -> None:
    found = []
    for order in "ab":
        root = Root(tmp_path / order)
        (root.path / "texts").mkdir(parents=True)
        shutil.copy(shared(f"cases/D07/docs_order_{order}.jsonl"), root.path / "texts" / "docs.jsonl")
        key, folder = made(root)
        found.append((load_manifest(root, key)["splits"], (folder / "val.bin").read_bytes(), folder))
    assert found[0][1] == found[1][1]
    assert found[0][0]["val"] == found[1][0]["val"]
    assert found[0][0]["train"]["documents_sha256"] == found[1][0]["train"]["documents_sha256"]
    assert set(texts_of(found[0][2], "val")) == HELD


class Characters:
    """A tokenizer from outside: one id a character."""

    vocab, end_of_text = 0x110001, 0x110000
    fingerprint = sha256_json({"tokenizer": "characters"})

    def encode(self, text: str) -> NDArray[Any]:
        return np.array([ord(sign) for sign in text], np.int64)

    def decode(self, ids: NDArray[Any]) -> str:
        return "".join(map(chr, ids.tolist()))

    def raw(self, ids: NDArray[Any]) -> bytes:
        return self.decode(ids[ids != self.end_of_text]).encode()


def test_d05_another_tokenizer_is_another_artefact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tokenise.MAKERS, "characters", Characters)
    monkeypatch.setitem(spec_data.TOKENIZERS, "characters", Characters.fingerprint)
    monkeypatch.setitem(spec_data.VOCABULARY, "characters", Characters.vocab)
    root = Root(tmp_path)
    put(
        root,
        [json.loads(line)["text"] for line in shared("cases/D05/docs.jsonl").read_text("utf-8").splitlines()],
    )
    by_bytes = source_of(final_tokens=2)
    by_characters = by_bytes.model_copy(update={"tokenizer": "characters"})
    counted = {}
    for source in (by_characters, by_bytes):
        key, folder = made(root, source)
        splits = load_manifest(root, key)["splits"].values()
        marks = sum(info["documents"] for info in splits)
        counted[folder] = sum(info["tokens"] for info in splits) - marks
        assert sum(info["bytes"] for info in splits) == 7
        assert read_header(folder / "val.bin").width == (4 if source is by_characters else 1)
    assert sorted(counted.values()) == [6, 7]

    work: list[Path] = []
    original = build.fill
    monkeypatch.setattr(prepare_module, "fill", lambda place, *rest: work.append(place) or original(place, *rest))
    made(root, by_characters)
    assert work == []
    put(root, ["ab", "abd", "é"])
    made(root, by_characters)
    assert len(work) == 1
    assert len(entries(root)) == 3


def test_gpt2_tokens_of_a_folder(root: Root) -> None:
    key, folder = made(root, source_of(tokenizer="gpt2"))
    assert read_header(folder / "train.bin").width == 2
    assert (load_manifest(root, key)["vocab"], load_manifest(root, key)["end_of_text"]) == (50257, 50256)
    coder = tokenise.tokenizer("gpt2")
    with TokenFile.open(folder / "val.bin") as tokens:
        assert {coder.decode(ids) for ids in tokens.documents(50256)} == HELD


# -- refusals --------------------------------------------------------------------------------------


def test_texts_that_hold_the_end_mark_are_named(root: Root) -> None:
    put(root, [*TWENTY, "a\0", "fine", "\0"])
    with pytest.raises(BadDataError) as caught:
        made(root)
    assert [str(problem).split(" (")[0] for problem in caught.value.problems] == [
        "texts/docs.jsonl:21: document 21: holds byte 0",
        "texts/docs.jsonl:23: document 23: holds byte 0",
    ]
    assert entries(root) == []


def test_bad_lines_leave_nothing(root: Root) -> None:
    with open(root.path / "texts" / "docs.jsonl", "a", encoding="utf-8") as stream:
        stream.write("{oops\n[]\n")
    with pytest.raises(BadDataError) as caught:
        made(root)
    assert [problem.line for problem in caught.value.problems] == [21, 22]
    assert entries(root) == []


@pytest.mark.parametrize(("texts", "words"), [(["document number 2"], "training"), (["x", "xx"], "validation")])
def test_a_split_without_a_document_is_refused(root: Root, texts: list[str], words: str) -> None:
    assert fraction_of("x") > 0.01 < fraction_of("xx")
    put(root, texts)
    with pytest.raises(BadDataError, match=f"no document for {words} among {len(texts)}"):
        made(root, source_of(validation=0.01 if words == "validation" else 0.3))
    assert entries(root) == []


def test_more_validation_tokens_than_there_are(root: Root) -> None:
    with pytest.raises(ConfigError) as caught:
        made(root, source_of(curve_tokens=5000, final_tokens=70_000))
    held = read_header(next((root.scratch / "data").glob("*/val.bin"))).count
    assert [str(problem) for problem in caught.value.problems] == [
        f"config/data.yaml: mine.curve_tokens: is 5000, the validation split has {held} tokens",
        f"config/data.yaml: mine.final_tokens: is 70000, the validation split has {held} tokens",
    ]


def test_a_source_that_changed_since_the_plan(root: Root) -> None:
    key = digest(source_of(), root)
    put(root, [*TWENTY, "one more"])
    with pytest.raises(BadDataError, match="the source changed"):
        prepare(root, "mine", source_of(), key)


def test_a_source_that_changes_while_it_is_read(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    original = build.fill

    def meddling(*arguments: Any) -> None:
        original(*arguments)
        put(root, [*TWENTY, "one more"])

    monkeypatch.setattr(prepare_module, "fill", meddling)
    with pytest.raises(BadDataError, match="the source changed"):
        made(root)
    assert entries(root) == []


@pytest.mark.parametrize("wrong", ["", "abc", "g" * 64, "../../etc", "A" * 64])
def test_what_is_no_digest_never_becomes_a_path(root: Root, wrong: str) -> None:
    with pytest.raises(ValueError, match="64 hex digits"):
        data_folder(root, wrong)


def test_d02_data_not_fetched_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection was tried"))
    monkeypatch.setenv("HOME", str(tmp_path))
    root, begun = Root(tmp_path), time.monotonic()
    for name in ("openwebtext", "c4_en", "wikipedia_en", "webtext", "tiny_shakespeare"):
        source = text_source(name)
        with pytest.raises(MissingError) as caught:
            prepare(root, name, source, digest(source, root))
        assert caught.value.exit_code == 69
        assert fetched_path(name) in str(caught.value)
        assert f"run: repro data fetch {name}" in str(caught.value)
    assert time.monotonic() - begun < 10
    assert entries(root) == []


def test_a_full_disk_is_seen_beforehand(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000_000))
    with pytest.raises(CannotWriteError, match="scratch/data: disk: about 17 MB are needed, 1 MB are free"):
        made(root)
    assert entries(root) == []


def test_a_disk_that_fills_on_the_way(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(packed.os, "fsync", full)
    with pytest.raises(CannotWriteError, match="No space left on device") as caught:
        made(root)
    assert caught.value.exit_code == 73
    assert entries(root) == [f".shards-{digest(source_of(), root)[:12]}"]
    monkeypatch.undo()
    made(root)
    assert entries(root) == [digest(source_of(), root)[:12]]


def test_a_place_that_cannot_be_written(root: Root) -> None:
    key = digest(source_of(), root)
    (root.scratch / "data").write_text("a file where a folder belongs", "utf-8")
    with pytest.raises(CannotWriteError, match="scratch/data: File exists"):
        prepare(root, "mine", source_of(), key)


# -- real text -------------------------------------------------------------------------------------


def text_source(name: str) -> DataSource:
    source = load(Sources, CHECKOUT / "config" / "data.yaml").root[name]
    assert isinstance(source, DataSource)
    return source


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Root, str, Path]:
    """The embedded source as it is configured, prepared with every connection forbidden."""
    source = text_source("embedded_lm")
    root = Root(tmp_path_factory.mktemp("embedded"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection was tried"))
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        key = digest(source, root)
        return root, key, prepare(root, "embedded_lm", source, key)


def test_d02_embedded_text_needs_no_network(embedded: tuple[Root, str, Path]) -> None:
    root, key, folder = embedded
    manifest = load_manifest(root, key)
    assert manifest["documents_seen"] == 107
    assert manifest["empty_removed"] == 1
    assert manifest["splits"]["train"]["documents"] == 90
    assert manifest["splits"]["val"]["documents"] == 16
    assert (read_header(folder / "train.bin").count, read_header(folder / "val.bin").count) == (2_488_720, 621_346)
    assert manifest["unigram_entropy"] == pytest.approx(3.25819275601, abs=1e-9)
    assert verify(root, key) == []


# What the first release wrote: run ids, golden losses and published curves hang on these bytes.
EMBEDDED_DIGEST = "bf6ab34cee423f37be8c02bafa488d0b0121682bf699e54176dbbf370fbc2cd5"
EMBEDDED_FILES = {
    "train.bin": "5e0f8d8ed822c7e9eec07c573d8a3ce116d026b82a4b1c395d10fd7b3e124c3e",
    "val.bin": "026eac441c25ebe9616373569883b16e4157750fcef8201d6c252021ba978a18",
}


def test_the_embedded_source_keeps_its_name_and_its_bytes(embedded: tuple[Root, str, Path]) -> None:
    _, key, folder = embedded
    assert key == EMBEDDED_DIGEST
    assert {name: sha256_file(folder / name) for name in EMBEDDED_FILES} == EMBEDDED_FILES


def test_embedded_text_is_what_it_should_be(embedded: tuple[Root, str, Path]) -> None:
    _, _, folder = embedded
    texts = texts_of(folder, "train") + texts_of(folder, "val")
    assert sum(map(len, texts)) == 3_102_949
    assert any(text.startswith("'''Anarchism''' is a political philosophy") for text in texts)


def tokens_of(root: Root, source: DataSource) -> dict[str, int]:
    """GPT-2 tokens of each split without the marks behind documents, as other programs count them."""
    key, _ = made(root, source)
    splits = load_manifest(root, key)["splits"]
    return {split: info["tokens"] - info["documents"] for split, info in splits.items()}


@pytest.mark.parametrize(
    ("folder", "count"),
    [("data/webtext", 819_821), ("data/openwebtext", 113_570), ("data/wikipedia_tinystories", 588_165)],
)
def test_published_token_counts_of_real_folders(tmp_path: Path, folder: str, count: int) -> None:
    """Read where they lie. A folder of one document gets a second one, as no split may be empty."""
    root = Root(tmp_path)
    shutil.copytree(shared(folder), tmp_path / "texts", ignore=shutil.ignore_patterns("README.md"))
    extra = next(text for text in map(str, range(1000)) if fraction_of(text) < 0.01)
    put(root, [extra])
    more = tokenise.tokenizer("gpt2").encode(extra).size
    source = source_of(validation=0.01, tokenizer="gpt2", final_tokens=2)
    assert sum(tokens_of(root, source).values()) == count + more


def test_tiny_shakespeare_as_nanogpt_cuts_it(tmp_path: Path) -> None:
    """Fetched from a local folder by the configured source: hash of the file, 90/10 cut, nanoGPT's own counts."""
    root, source = Root(tmp_path), text_source("tiny_shakespeare")
    assert source.fetch is not None
    fetch(root, "tiny_shakespeare", source.fetch, str(shared("data/tinyshakespeare")))
    key = digest(source, root)
    manifest_of = prepare(root, "tiny_shakespeare", source, key)
    splits = load_manifest(root, key)["splits"]
    assert {split: info["tokens"] - 1 for split, info in splits.items()} == {"train": 301_966, "val": 36_059}
    assert {split: info["bytes"] for split, info in splits.items()} == {"train": 1_003_854, "val": 111_540}
    assert (manifest_of / "val.bin").is_file()


def test_a_tail_is_cut_of_one_document_only(root: Root) -> None:
    source = source_of(split="tail", validation=0.25)
    with pytest.raises(BadDataError, match="texts: split: tail cuts one document in two, there are 20"):
        made(root, source)
    put(root, ["0123456789é1234x"])
    _, folder = made(root, source)
    assert texts_of(folder, "train") == ["0123456789é1"]
    assert texts_of(folder, "val") == ["234x"]


def test_real_web_text_as_a_folder(tmp_path: Path) -> None:
    root = Root(tmp_path)
    (tmp_path / "texts").mkdir()
    for path in ("webtext/webtext.train.first1408.jsonl.gz", "openwebtext/openwebtext.first100.txt.gz"):
        shutil.copy(shared(f"data/{path}"), tmp_path / "texts")
    counts = {}
    for tokenizer in ("bytes", "gpt2"):
        key, _ = made(root, source_of(validation=0.05, tokenizer=tokenizer, final_tokens=2048))
        manifest = load_manifest(root, key)
        splits = manifest["splits"].values()
        documents = sum(info["documents"] for info in splits)
        removed = sum(manifest[f"{kind}_removed"] for kind in ("duplicates", "empty", "folded"))
        assert manifest["documents_seen"] == documents + removed == 1409
        assert manifest["leakage"] == {"exact": 0, "folded": 0, "near": 0}
        assert removed == 0
        counts[tokenizer] = sum(info["tokens"] for info in splits) - documents
    assert counts["gpt2"] == 819_821 + 113_570
