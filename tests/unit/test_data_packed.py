"""Token files: width, range, wholeness, gathering (cases D04, D09)."""

from __future__ import annotations

import errno
import gc
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.data import packed, stored
from repro.data.packed import (
    HEADER_BYTES,
    TokenFile,
    TokenWriter,
    is_marked,
    read_header,
    token_dtype,
    write_marker,
    write_tokens,
)
from repro.spec.errors import BadDataError, MissingError
from tests.shared import shared


def case(name: str) -> Any:
    return json.loads(shared(f"cases/{name}/case.json").read_text("utf-8"))


def all_tokens(path: Path) -> list[int]:
    with TokenFile.open(path) as tokens:
        return tokens.read(0, tokens.header.count).tolist()


@pytest.fixture(params=["held", "on disk"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of reading: small files are held in memory, large ones read where needed."""
    if request.param == "on disk":
        monkeypatch.setattr(packed, "IN_MEMORY_BYTES", 0)
    return str(request.param)


@pytest.mark.parametrize(
    ("vocab", "width"), [(1, 1), (256, 1), (257, 2), (65536, 2), (65537, 4), (128256, 4), (2**32, 4)]
)
def test_width_follows_the_vocabulary(vocab: int, width: int) -> None:
    assert token_dtype(vocab).itemsize == width


@pytest.mark.parametrize("vocab", [0, -1, 2**32 + 1])
def test_impossible_vocabulary(vocab: int) -> None:
    with pytest.raises(ValueError, match="vocab"):
        token_dtype(vocab)


def test_d04_ids_above_16_bits_come_back(tmp_path: Path, place: str) -> None:
    given_case = case("D04")
    header = write_tokens(tmp_path / "t.bin", given_case["token_ids"], given_case["vocab_size"])
    assert all_tokens(tmp_path / "t.bin") == given_case["token_ids"]
    assert (header.width, header.count, header.vocab) == (4, 6, 128256)
    assert read_header(tmp_path / "t.bin") == header


@pytest.mark.parametrize("ids", [[1, 50257, 2], [3, -1], [70000], np.array([2**63], np.uint64)])
def test_ids_outside_of_the_vocabulary_are_refused_before_the_cast(tmp_path: Path, ids: Any) -> None:
    with pytest.raises(BadDataError, match=r"token \d has id .* outside of 0\.\.50256"):
        write_tokens(tmp_path / "t.bin", ids, 50257)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ids", [[1.0, 2.0], [[1, 2]], [True], [2**70], ["1"]])
def test_what_is_no_row_of_whole_numbers_is_refused(tmp_path: Path, ids: Any) -> None:
    with pytest.raises(BadDataError, match="whole numbers"):
        write_tokens(tmp_path / "t.bin", ids, 256)
    assert list(tmp_path.iterdir()) == []


def test_place_of_a_bad_id_counts_over_pieces(tmp_path: Path) -> None:
    def write() -> None:
        with TokenWriter(tmp_path / "t.bin", 256) as writer:
            writer.append([1, 2, 3])
            writer.append([4, 5, 300])

    with pytest.raises(BadDataError, match="token 5 has id 300"):
        write()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.integers(0, 70_000), max_size=30), max_size=8), st.integers(1, 40))
def test_pieces_make_the_same_file_as_one_row(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[list[int]], buffered: int
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    row = [token for piece in pieces for token in piece]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "_BUFFERED_TOKENS", buffered)
        with TokenWriter(folder / "a.bin", 70_001) as writer:
            for piece in pieces:
                writer.append(piece)
                assert writer.tokens_appended <= len(row)
    write_tokens(folder / "b.bin", np.array(row, np.int64), 70_001)
    assert (folder / "a.bin").read_bytes() == (folder / "b.bin").read_bytes()
    assert all_tokens(folder / "a.bin") == row
    assert writer.counts.tolist() == np.bincount(row, minlength=70_001).tolist()


def test_nothing_stands_under_the_name_before_the_end(tmp_path: Path) -> None:
    def fail_half_way() -> None:
        with TokenWriter(tmp_path / "t.bin", 256) as writer:
            writer.append([1])
            assert not (tmp_path / "t.bin").exists()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert list(tmp_path.iterdir()) == []


def test_d09_a_file_without_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.bin"
    path.write_bytes(bytes(case("D09")["file_bytes"]))
    with pytest.raises(BadDataError, match=r"cut\.bin: is no token file .*2001 bytes"):
        TokenFile.open(path)


@pytest.mark.parametrize("cut", [1, 2, 900, 2000, 2002, 2003, 2257])
def test_d09_a_cut_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "t.bin"
    write_tokens(path, np.arange(case("D09")["meta_tokens"]), 50257)
    assert path.stat().st_size == HEADER_BYTES + 2002
    os.truncate(path, HEADER_BYTES + 2002 - cut)
    with pytest.raises(BadDataError, match=r"t\.bin: "):
        TokenFile.open(path)


def test_a_longer_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    write_tokens(path, np.arange(100), 256)
    with open(path, "ab") as stream:
        stream.write(b"\0")
    with pytest.raises(BadDataError, match="has 357 bytes, but 100 tokens of 1 bytes need 356"):
        TokenFile.open(path)


@pytest.mark.parametrize("offset", [0, 8, 12, 16, 24, 32, 70, 251, 252, 255, 256, 300, 355])
def test_one_altered_byte_anywhere_is_refused(tmp_path: Path, place: str, offset: int) -> None:
    path = tmp_path / "t.bin"
    write_tokens(path, np.arange(100), 256)
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadDataError, match=r"t\.bin: "):
        TokenFile.open(path)


@pytest.mark.parametrize(("vocab", "width"), [(0, 1), (256, 2), (2**40, 4), (70_000, 2)])
def test_a_forged_header_that_contradicts_itself_is_refused(tmp_path: Path, vocab: int, width: int) -> None:
    path = tmp_path / "t.bin"
    header = packed.TokenHeader(width, 0, vocab, "0" * 64)
    path.write_bytes(header.pack())
    with pytest.raises(BadDataError, match="for a vocabulary of"):
        TokenFile.open(path)
    path.write_bytes(struct.pack("<8sI", packed.MAGIC, 2).ljust(HEADER_BYTES, b"\0"))
    with pytest.raises(BadDataError, match="format version 2"):
        TokenFile.open(path)


def test_a_file_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such token file"):
        TokenFile.open(tmp_path / "absent.bin")
    with pytest.raises(BadDataError, match="cannot be read"):
        TokenFile.open(tmp_path)


def test_an_empty_file_of_tokens_is_a_file(tmp_path: Path, place: str) -> None:
    write_tokens(tmp_path / "t.bin", [], 256)
    assert all_tokens(tmp_path / "t.bin") == []
    with TokenFile.open(tmp_path / "t.bin") as tokens:
        assert tokens.blocks(8) == 0
        with pytest.raises(BadDataError, match="0 tokens hold no block of context 8"):
            tokens.gather([0], 8)


def test_a_large_file_is_hashed_once_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "IN_MEMORY_BYTES", 0)
    path = tmp_path / "t.bin"
    write_tokens(path, np.arange(100), 256)
    hashed: list[Path] = []
    original = packed.payload_sha256
    monkeypatch.setattr(packed, "payload_sha256", lambda path: hashed.append(path) or original(path))
    for _ in range(3):
        TokenFile.open(path).close()
    assert len(hashed) == 1
    os.utime(path, ns=(1, 1))
    TokenFile.open(path).close()
    assert len(hashed) == 2


def test_the_marker_is_believed_only_for_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "IN_MEMORY_BYTES", 0)
    path = tmp_path / "t.bin"
    header = write_tokens(path, np.arange(100), 256)
    write_marker(tmp_path, [("t.bin", header.sha256)])
    assert is_marked(path, header)
    monkeypatch.setattr(packed, "payload_sha256", lambda path: "nobody should look")
    TokenFile.open(path, verify=False).close()
    with pytest.raises(BadDataError, match="nobody should look"):
        TokenFile.open(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(BadDataError, match="nobody should look"):
        TokenFile.open(path, verify=False)


@pytest.mark.parametrize("marker", ["", "[]", "{}", '{"t.bin": 3}', "null", "[" * 100_000])
def test_an_unreadable_marker_vouches_for_nothing(tmp_path: Path, marker: str) -> None:
    header = write_tokens(tmp_path / "t.bin", [1, 2], 256)
    assert not is_marked(tmp_path / "t.bin", header)
    (tmp_path / packed.MARKER).write_text(marker, "utf-8")
    assert not is_marked(tmp_path / "t.bin", header)


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 300), st.integers(1, 20), st.sampled_from([256, 1000, 70_000]), st.booleans())
def test_every_token_but_the_first_is_a_target_once(
    tmp_path_factory: pytest.TempPathFactory, count: int, context: int, vocab: int, held: bool
) -> None:
    path = tmp_path_factory.mktemp("blocks") / "t.bin"
    ids = np.random.default_rng(count).integers(0, vocab, count)
    write_tokens(path, ids, vocab)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "IN_MEMORY_BYTES", 1 << 20 if held else 0)
        tokens = TokenFile.open(path)
    blocks = tokens.blocks(context)
    assert blocks == (count - 1) // context
    if blocks:
        x, y = tokens.gather(np.arange(blocks)[::-1], context)
        assert x.dtype == y.dtype == np.int64
        assert x.flags.c_contiguous
        assert y.flags.c_contiguous
        assert x[::-1].reshape(-1).tolist() == ids[: blocks * context].tolist()
        assert y[::-1].reshape(-1).tolist() == ids[1 : blocks * context + 1].tolist()
    tokens.close()


@pytest.mark.parametrize("wrong", [[-1], [0, 12], [3, -2], [10**9]])
def test_a_block_that_is_not_there(tmp_path: Path, place: str, wrong: list[int]) -> None:
    write_tokens(tmp_path / "t.bin", np.arange(97), 256)
    with TokenFile.open(tmp_path / "t.bin") as tokens:
        assert tokens.blocks(8) == 12
        assert tokens.gather([], 8)[0].shape == (0, 8)
        with pytest.raises(IndexError, match=r"within 0\.\.11"):
            tokens.gather(wrong, 8)


def test_what_was_gathered_can_be_changed_without_harm(tmp_path: Path, place: str) -> None:
    write_tokens(tmp_path / "t.bin", np.arange(33), 256)
    with TokenFile.open(tmp_path / "t.bin") as tokens:
        first, _ = tokens.gather([1], 8)
        first[:] = 0
        assert tokens.gather([1], 8)[0].tolist() == [list(range(8, 16))]
        with pytest.raises(ValueError, match="read-only"):
            tokens.read(0, 4)[0] = 9


def test_a_file_cut_while_it_is_open_is_an_error_not_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "IN_MEMORY_BYTES", 0)
    path = tmp_path / "t.bin"
    write_tokens(path, np.arange(200), 256)
    with TokenFile.open(path) as tokens:
        os.truncate(path, HEADER_BYTES + 100)
        with pytest.raises(BadDataError, match="cut while it was in use"):
            tokens.gather([20], 8)


def test_many_rows_come_in_pieces_and_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tokens(tmp_path / "t.bin", np.arange(4000) % 251, 256)
    numbers = np.random.default_rng(0).integers(0, 499, 700)
    held = TokenFile.open(tmp_path / "t.bin").gather(numbers, 8)
    monkeypatch.setattr(packed, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(stored, "_MAPPED_BYTES", 100)  # pages are given back before every piece
    with TokenFile.open(tmp_path / "t.bin") as tokens:
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(tokens.gather(numbers, 8), held, strict=True))


def test_a_file_that_cannot_be_mapped_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on address space, or a file system without maps."""
    monkeypatch.setattr(packed, "IN_MEMORY_BYTES", 0)
    write_tokens(tmp_path / "t.bin", [1, 2, 3], 256)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(stored.mmap, "mmap", refuse)
    with pytest.raises(BadDataError, match=r"t\.bin: cannot be read \(Cannot allocate memory\)"):
        TokenFile.open(tmp_path / "t.bin")


@pytest.mark.parametrize("scanned", [1, 3, 1000])
def test_documents_come_back(tmp_path: Path, place: str, scanned: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_SCANNED_TOKENS", scanned)
    write_tokens(tmp_path / "t.bin", [5, 6, 0, 0, 7, 0, 8, 9, 9, 9, 0], 256)
    with TokenFile.open(tmp_path / "t.bin") as tokens:
        assert [ids.tolist() for ids in tokens.documents(0)] == [[5, 6], [], [7], [8, 9, 9, 9]]
        with pytest.raises(BadDataError, match="last document has no end"):
            list(tokens.documents(9))


def resident_mb() -> float:
    """Resident memory of this process in MB, mapped files included."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def test_d09_memory_does_not_grow_with_what_was_read(tmp_path: Path) -> None:
    path, count = tmp_path / "t.bin", 100_000_000
    header = packed.TokenHeader(2, count, 50257, "0" * 64)
    with open(path, "wb") as stream:
        stream.write(header.pack())
        stream.truncate(header.file_bytes)  # 200 MB of zeros that take no room on the disk
    write_marker(tmp_path, [("t.bin", "0" * 64)])
    with TokenFile.open(path, verify=False) as tokens:
        random, blocks = np.random.default_rng(0), tokens.blocks(1024)
        tokens.gather(random.integers(0, blocks, 12), 1024)
        before = resident_mb()
        for _ in range(1000):
            tokens.gather(random.integers(0, blocks, 12), 1024)
        assert resident_mb() - before < 50
