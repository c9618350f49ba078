"""Readers: what they yield and what they refuse."""

from __future__ import annotations

import gzip
import importlib
import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any

import pytest
from data_world import source_of

from repro.data import formats, sources
from repro.data.sources import Document, read_documents, text_bytes
from repro.spec.data import DataSource
from repro.spec.errors import BadDataError, MissingError, ReproError
from repro.spec.paths import Root


@pytest.fixture
def root(tmp_path: Path) -> Root:
    (tmp_path / "texts").mkdir()
    return Root(tmp_path)


def read(root: Root, source: DataSource | None = None) -> list[Document]:
    return list(read_documents(root, "mine", source or source_of()))


def problems_of(root: Root, source: DataSource | None = None) -> list[str]:
    with pytest.raises(ReproError) as caught:
        read(root, source)
    assert caught.value.exit_code == 65
    return [str(problem) for problem in caught.value.problems]


def test_four_kinds_of_file_by_name(root: Root) -> None:
    folder = root.path / "texts"
    (folder / "d.txt").write_bytes("one\r\ndocument é".encode())
    (folder / "c.txt.gz").write_bytes(gzip.compress(b"packed"))
    (folder / "b.jsonl").write_text('{"text": "x"}\n\n{"id": 3, "text": "y\\u2028z"}', "utf-8")
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": ""}\n'))
    (folder / "README.md").write_text("not a text of the source", "utf-8")
    assert read(root) == [
        Document("", "texts/a.jsonl.gz", 1),
        Document("x", "texts/b.jsonl", 1),
        Document("y\u2028z", "texts/b.jsonl", 3),
        Document("packed", "texts/c.txt.gz", None),
        Document("one\r\ndocument é", "texts/d.txt", None),
    ]


def test_all_bad_lines_are_named_at_once(root: Root) -> None:
    folder = root.path / "texts"
    lines = [
        b'{"text": "good"}',
        b'{"text": "cut',
        b"[1, 2]",
        b'{"txt": "x"}',
        b'{"text": 3}',
        b'{"text": "a", "text": "b"}',
        b'{"text": "a", "n": NaN}',
        b'{"text": "\xff"}',
        b'{"text": "\\ud800"}',
        b"[" * 200_000,
    ]
    (folder / "a.jsonl").write_bytes(b"\n".join(lines))
    (folder / "b.txt").write_bytes(b"first\nsecond \xe9\n")
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}\n' * 5000)[:-9])
    (folder / "d.txt.gz").write_bytes(b"no gzip at all")
    (folder / "e.txt.gz").write_bytes(gzip.compress(b"text")[:10] + b"\xff" * 20)
    (folder / "f.txt").mkdir()
    messages = problems_of(root)
    starts = [
        "texts/a.jsonl:2: not JSON: Unterminated string",
        'texts/a.jsonl:3: an object with the key "text"',
        'texts/a.jsonl:4: an object with the key "text"',
        'texts/a.jsonl:5: an object with the key "text"',
        "texts/a.jsonl:6: a key stands twice",
        "texts/a.jsonl:7: NaN is not JSON",
        "texts/a.jsonl:8: not UTF-8 at byte 10 of the line",
        "texts/a.jsonl:9: text: holds half of a surrogate pair",
        "texts/a.jsonl:10: nested too deeply",
        "texts/b.txt:2: not UTF-8 at byte 13",
        "texts/c.jsonl.gz: cannot be read to its end",
        "texts/d.txt.gz: cannot be read to its end",
        "texts/e.txt.gz: cannot be read to its end",
        "texts/f.txt: is no regular file",
    ]
    assert len(messages) == len(starts)
    for message, start in zip(messages, starts, strict=True):
        assert message.startswith(start)


def test_d01_a_byte_order_mark_is_called_by_its_name(root: Root) -> None:
    (root.path / "texts" / "a.jsonl").write_text('{"text": "x"}\n{"text": "y"}\n', "utf-8-sig")
    (message,) = problems_of(root)
    assert message.startswith("texts/a.jsonl:1: begins with a byte order mark (BOM)")


def test_a_file_in_a_wrong_format_does_not_flood(root: Root) -> None:
    (root.path / "texts" / "a.jsonl").write_text("oops\n" * 5000, "utf-8")
    (root.path / "texts" / "b.jsonl").write_text("oops\n" * 5000, "utf-8")
    messages = problems_of(root)
    assert len(messages) == sources.MAX_PROBLEMS + 1
    assert "texts/a.jsonl: too many problems, the rest was not read" in messages


def test_over_long_documents_are_refused(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "MAX_DOCUMENT_BYTES", 50)
    folder = root.path / "texts"
    (folder / "a.jsonl").write_text('{"text": "ok"}\n' + json.dumps({"text": "x" * 60}) + "\n", "utf-8")
    (folder / "b.txt.gz").write_bytes(gzip.compress(b"x" * 10_000))
    (folder / "c.txt").write_bytes(b"x" * 50)
    first, second = problems_of(root)
    assert first == "texts/a.jsonl:2: longer than 50 bytes"
    assert second.startswith("texts/b.txt.gz: one document may have 50 bytes")


def test_a_pipe_does_not_hang(root: Root) -> None:
    os.mkfifo(root.path / "texts" / "a.jsonl")
    assert problems_of(root) == ["texts/a.jsonl: is no regular file"]


def test_links_that_lead_out_are_refused(root: Root, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "secret.txt"
    outside.write_text("secret", "utf-8")
    folder = root.path / "texts"
    (folder / "a.txt").write_text("inside", "utf-8")
    (folder / "b.txt").symlink_to(folder / "a.txt")
    assert [document.text for document in read(root)] == ["inside", "inside"]
    (folder / "c.txt").symlink_to(outside)
    (folder / "d.jsonl").symlink_to("../../etc/passwd")
    messages = problems_of(root)
    assert len(messages) == 2
    assert all("leads out of the folder" in message for message in messages)


def test_a_link_to_a_folder_is_never_passed_over(root: Root, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside, folder = tmp_path_factory.mktemp("outside"), root.path / "texts"
    (outside / "b.txt").write_text("outside", "utf-8")
    (folder / "sub").mkdir()
    (folder / "sub" / "a.txt").write_text("inside", "utf-8")
    (folder / ".lock").symlink_to("user@machine:1")  # what an editor leaves
    (folder / "README").symlink_to("/etc/hostname")
    assert [document.text for document in read(root)] == ["inside"]
    (folder / "more").symlink_to(outside)
    (folder / "sub" / "again").symlink_to(folder / "sub")
    (folder / "gone").symlink_to(folder / "nowhere")
    follow = "is a link to a folder or to nothing, which is not followed: put here what it stands for"
    assert problems_of(root) == [
        f"texts: gone: {follow}",
        "texts: more: is a link that leads out of the folder",
        f"texts: sub/again: {follow}",
    ]


def test_a_folder_that_cannot_be_read_is_never_passed_over(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    (root.path / "texts" / "a.txt").write_text("read", "utf-8")
    (root.path / "texts" / "closed").mkdir()
    scandir = os.scandir

    def closed(path: str) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    assert problems_of(root) == ["texts: closed: cannot be read (Permission denied)"]


def test_names_that_are_nearly_those_of_a_text_are_never_passed_over(root: Root) -> None:
    folder = root.path / "texts"
    (folder / ".cache").mkdir()
    (folder / "x.txt.d").mkdir()
    (folder / "a.txt").write_text("read", "utf-8")
    fine = (
        "README.md", "LICENSE.TXT", "README.TXT", "state.json", "a.txt.sha256", "a.parquet.metadata",
        ".b.jsonl.part", ".cache/b.jsonl.gz.incomplete", "notes.xz", "x.txt.d/notes",
    )  # fmt: skip
    for name in fine:
        (folder / name).write_text("{}", "utf-8")
    assert [document.text for document in read(root)] == ["read"]
    nearly = (
        "b.JSONL", "b.Parquet", "b.jsonl.GZ", "b.jsonl.gz.aa", "b.jsonl.gz.incomplete", "b.jsonl.lz4", "b.jsonl.part",
        "b.json.gz.1", "b.parquet.tmp", "b.parquet.zst", "b.txt.xz",
    )  # fmt: skip
    for name in nearly:
        (folder / name).write_text("", "utf-8")
    messages = problems_of(root)
    assert [message.split(": ")[1] for message in messages] == sorted(nearly)
    assert all("is not read, its name ends in none of .txt, .txt.gz" in message for message in messages)


def test_files_without_a_document_are_named(root: Root) -> None:
    folder = root.path / "texts"
    (folder / "a.jsonl").write_text('\n\n{"text": "x"}\n\n', "utf-8")
    (folder / "b.txt").write_text("", "utf-8")  # one document, which preparation counts as empty
    assert [document.text for document in read(root)] == ["x", ""]
    for name in ("c.jsonl", "d.jsonl.gz", "e.jsonl.zst", "f.txt.gz"):
        (folder / name).touch()
    (folder / "g.jsonl").write_text(" \n\n", "utf-8")
    (folder / "h.jsonl.gz").write_bytes(gzip.compress(b""))
    empty = [f"texts/{name}: is empty: 0 bytes" for name in ("c.jsonl", "d.jsonl.gz", "e.jsonl.zst", "f.txt.gz")]
    assert problems_of(root) == [*empty, *(f"texts/{name}: holds no document" for name in ("g.jsonl", "h.jsonl.gz"))]


def test_a_folder_that_is_not_there_or_empty(root: Root) -> None:
    (root.path / sources.fetched_path("big")).mkdir(parents=True)
    with pytest.raises(MissingError, match=r"holds no file of .*; run: repro data fetch big"):
        read_documents(root, "big", fetched_source(2))
    with pytest.raises(MissingError, match=r"holds no file of .*; put the text files there"):
        read_documents(root, "mine", source_of())
    with pytest.raises(MissingError, match=r"absent: path: no such folder"):
        read_documents(root, "mine", source_of(path="absent"))


def test_size_estimate_counts_packed_files_for_more(root: Root) -> None:
    (root.path / "texts" / "a.txt").write_bytes(b"x" * 100)
    (root.path / "texts" / "b.txt.gz").write_bytes(b"y" * 100)
    assert text_bytes(root, "mine", source_of()) == 600


# -- fetched ---------------------------------------------------------------------------------------


def fetched_source(documents: int) -> DataSource:
    return source_of().model_copy(
        update={"kind": "fetched", "path": None, "pinned": {"hub": "x/y", "documents": documents}}
    )


def test_what_is_not_fetched_yet_names_place_and_command(root: Root) -> None:
    with pytest.raises(MissingError) as caught:
        read_documents(root, "big", fetched_source(2))
    message = str(caught.value)
    assert "scratch/fetched/big" in message
    assert "big is not here" in message
    assert caught.value.exit_code == 69


def test_a_lost_shard_is_noticed(root: Root) -> None:
    folder = root.path / sources.fetched_path("big")
    folder.mkdir(parents=True)
    (folder / "part0.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n', "utf-8")
    assert [document.text for document in read_documents(root, "big", fetched_source(2))] == ["a", "b"]
    with pytest.raises(BadDataError, match="documents: 2 documents found, 3 are pinned"):
        list(read_documents(root, "big", fetched_source(3)))


@pytest.mark.parametrize("said", ["pinned", "fetch"])
def test_d03_one_shard_is_not_the_whole_source(root: Root, said: str) -> None:
    hub = {"hub": "x/y", "revision": "0" * 40, "pattern": "en/part*.jsonl", "shards": 2}
    more = {"pinned": {"shards": 2}} if said == "pinned" else {"pinned": {"hub": "x/y"}, "fetch": hub}
    source = source_of(kind="fetched", path=None, **more)
    folder = root.path / sources.fetched_path("big")
    folder.mkdir(parents=True)
    (folder / "part0.jsonl").write_text('{"text": "a"}\n', "utf-8")
    with pytest.raises(BadDataError, match=r"scratch/fetched/big: shards: 1 files are here, 2 are pinned"):
        read_documents(root, "big", source)
    (folder / "part1.jsonl").write_text('{"text": "b"}\n', "utf-8")
    assert [document.text for document in read_documents(root, "big", source)] == ["a", "b"]


# -- Wikipedia out of a wheel ----------------------------------------------------------------------


def wheel_source(**more: Any) -> DataSource:
    return source_of().model_copy(
        update={
            "kind": "wheel_wikipedia",
            "dist": "gensim",
            "file": "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
            "sha256": "a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d",
        }
        | more
    )


def test_another_hash_is_refused_before_anything_else(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(f"imported {name}"))
    with pytest.raises(BadDataError) as caught:
        read_documents(root, "wiki", wheel_source(sha256="0" * 64))
    message = str(caught.value)
    assert "enwiki-latest-pages-articles1.xml" in message
    assert "0" * 64 in message
    assert "a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d" in message


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"dist": "no_such_package_here"}, "package no_such_package_here is not installed"),
        ({"file": "gensim/test/other.bz2"}, "does not carry gensim/test/other.bz2"),
    ],
)
def test_absent_package_or_file(root: Root, more: dict[str, str], words: str) -> None:
    with pytest.raises(MissingError, match=words):
        read_documents(root, "wiki", wheel_source(**more))


def test_a_package_that_cannot_be_imported(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(MissingError, match="gensim cannot be imported"):
        list(read_documents(root, "wiki", wheel_source()))


def test_a_file_that_cannot_be_read(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(BadDataError, match=r"cannot be read \(Permission denied\)"):
        read_documents(root, "wiki", wheel_source())
