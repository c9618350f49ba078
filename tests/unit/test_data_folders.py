"""Folders of prepared data: damage, kills, and two processes at once (case D09)."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from data_world import CHECKOUT, TWENTY, contents, entries, made, put, source_of

from repro.data import packed
from repro.data import prepare as prepare_module
from repro.data.manifest import MANIFEST, data_folder, sealed
from repro.data.prepare import load_manifest, verify
from repro.spec.data import digest
from repro.spec.errors import BadDataError, MissingError
from repro.spec.hashing import sha256_file
from repro.spec.paths import Root
from repro.verbs import data


@pytest.fixture
def root(tmp_path: Path) -> Root:
    put(Root(tmp_path), TWENTY)
    return Root(tmp_path)


# -- damaged folders -------------------------------------------------------------------------------


def truncate(folder: Path) -> None:
    os.truncate(folder / "train.bin", 300)


def flip(folder: Path) -> None:
    data = bytearray((folder / "val.bin").read_bytes())
    data[-1] ^= 1
    (folder / "val.bin").write_bytes(data)


def lose_file(folder: Path) -> None:
    (folder / "val.bin").unlink()


def lose_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def edit_manifest(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    manifest["unigram_entropy"] = 1.5
    (folder / MANIFEST).write_text(json.dumps(manifest), "utf-8")


def break_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text('{"schema": 1, "unigram_entropy": NaN}', "utf-8")


def old_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text('{"schema": 0, "extra": 1}', "utf-8")


def swap(folder: Path) -> None:
    (folder / "train.bin").rename(folder / "x")
    (folder / "val.bin").rename(folder / "train.bin")
    (folder / "x").rename(folder / "val.bin")


DAMAGES = [truncate, flip, lose_file, lose_manifest, edit_manifest, break_manifest, old_manifest, swap]


@pytest.mark.parametrize("damage", DAMAGES)
def test_d09_a_damaged_folder_is_named_and_made_again(
    root: Root, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    key, folder = made(root)
    before = contents(folder)
    assert verify(root, key) == []
    damage(folder)
    problems = verify(root, key)
    assert problems
    assert all(problem.file.startswith(f"scratch/data/{key[:12]}/") for problem in problems)
    assert verify(root, key, full=False)
    with caplog.at_level(logging.WARNING):
        assert made(root) == (key, folder)
    assert "is damaged and is made again" in caplog.text
    assert contents(folder) == before
    assert verify(root, key) == []
    assert entries(root) == [key[:12]]


def test_all_problems_of_a_folder_at_once(root: Root) -> None:
    key, folder = made(root)
    truncate(folder)
    flip(folder)
    assert [problem.file.rsplit("/", 1)[1] for problem in verify(root, key)] == ["train.bin", "val.bin"]


def test_nothing_prepared_names_the_command(root: Root) -> None:
    key = digest(source_of(), root)
    with pytest.raises(MissingError, match="repro data prepare"):
        load_manifest(root, key)
    assert "repro data prepare" in str(verify(root, key)[0])


def test_a_manifest_of_another_digest_is_refused_not_replaced(root: Root) -> None:
    key, folder = made(root)
    manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    fields = {name: value for name, value in manifest.items() if name != "sha256"}
    fields["digest"] = key[:12] + "0" * 52
    (folder / MANIFEST).write_text(json.dumps(sealed(fields)), "utf-8")
    before = contents(folder)
    with pytest.raises(BadDataError, match="digest collision: is of "):
        made(root)
    assert contents(folder) == before


def test_a_link_in_place_of_the_folder_is_left_alone(root: Root) -> None:
    key = digest(source_of(), root)
    elsewhere = root.path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x", "utf-8")
    data_folder(root, key).parent.mkdir(parents=True)
    data_folder(root, key).symlink_to(elsewhere)
    with pytest.raises(BadDataError, match="a link or a file"):
        made(root)
    assert (elsewhere / "precious").exists()


def test_the_second_call_reads_no_token(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    key, folder = made(root)
    monkeypatch.setattr(packed, "payload_sha256", lambda path: pytest.fail("hashed again"))
    monkeypatch.setattr(prepare_module, "_build", lambda *_: pytest.fail("made again"))
    stamps = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert made(root) == (key, folder)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == stamps


def test_a_touched_file_is_hashed_once_and_believed_again(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    key, folder = made(root)
    os.utime(folder / "train.bin", ns=(1, 1))
    assert verify(root, key, full=False) == []
    monkeypatch.setattr(packed, "payload_sha256", lambda path: pytest.fail("hashed again"))
    assert verify(root, key, full=False) == []


def flip_and_set_the_times_back(path: Path) -> None:
    state, data = path.stat(), bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_d09_times_that_were_set_back_hide_no_damage(root: Root) -> None:
    _, folder = made(root)
    before = contents(folder)
    flip_and_set_the_times_back(folder / "train.bin")
    made(root)
    assert contents(folder) == before


def test_d09_what_verify_finds_damaged_prepare_mends(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that rots changes no stamp, so what verify has read has to be told."""
    key, folder = made(root)
    before = contents(folder)
    stamps = {path.name: packed.stamp(path.stat()) for path in folder.iterdir()}
    flip_and_set_the_times_back(folder / "train.bin")
    monkeypatch.setattr(packed, "marker_entry", lambda path, sha256: {"stamp": stamps[path.name], "sha256": sha256})
    assert verify(root, key, full=False) == []
    assert len(verify(root, key)) == 1
    monkeypatch.undo()
    made(root)
    assert contents(folder) == before
    assert verify(root, key) == []


def test_d05_a_text_of_the_same_size_and_time_is_another_text(root: Root) -> None:
    path, (key, _) = root.path / "texts" / "docs.jsonl", made(root)
    state = path.stat()
    path.write_text(path.read_text("utf-8").replace("number 0", "number x"), "utf-8")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert made(root)[0] != key


def test_d03_a_manifest_is_obeyed_after_the_preparation_too(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_source", lambda name: (root, source_of()))
    key, folder = made(root)
    manifest = root.path / "texts" / MANIFEST
    sha256 = {"docs.jsonl": sha256_file(root.path / "texts" / "docs.jsonl")}
    manifest.write_text(json.dumps({"sha256": sha256, "documents": 20}), "utf-8")
    assert made(root) == (key, folder)
    manifest.write_text(json.dumps({"sha256": sha256, "documents": 400}), "utf-8")
    with pytest.raises(BadDataError, match="20 documents found, 400 are pinned"):
        made(root)
    manifest.write_text(json.dumps({"sha256": sha256 | {"part-9.jsonl": "0" * 64}, "documents": 400}), "utf-8")
    with pytest.raises(BadDataError) as caught:
        made(root)
    assert [str(problem) for problem in caught.value.problems] == [
        "texts: documents: 20 of 400 are here",
        "texts: part-9.jsonl: is missing",
    ]
    assert verify(root, key) == []
    with pytest.raises(BadDataError, match="is missing"):
        data.verify_source("mine")


def test_what_prepare_says_of_near_copies_is_true(
    root: Root, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(data, "_source", lambda name: (root, source_of()))
    data.prepare_source("mine", 1)
    said = "7 validation documents are nearly in the training text; `repro data leakage mine --out FILE` writes which"
    assert said in capsys.readouterr().err
    data.leakage("mine", root.path / "which.json", 1)
    assert len(json.loads((root.path / "which.json").read_text("utf-8"))["nearest"]) == 7


# -- kills and company -----------------------------------------------------------------------------

CHILD = """
import os, sys, time
from pathlib import Path
from repro.data import build, prepare as module
from repro.spec.data import DataSource, digest
from repro.spec.paths import Root
from repro.spec.reading import parse_json
root, source = Root(Path(sys.argv[1])), DataSource.model_validate(parse_json(sys.argv[2], "source"))
{meddle}
print(module.prepare(root, "mine", source, digest(source, root)))
"""
DIE = "lambda *_: os._exit(9)"
KILLS = {
    "while the source is read": f"build.tokenise_unit = {DIE}",
    "before the files": f"build.select = {DIE}",
    "between the two files": f"build._unspool = {DIE}",
    "before the manifest": f"build.written_overlap = {DIE}",
    "before the marker": f"build.write_marker = {DIE}",
    "before the rename": f"module.fsync_folder = {DIE}",
}


def child(root: Root, meddle: str) -> subprocess.Popen[str]:
    arguments = [str(root.path), source_of().model_dump_json(exclude_none=True)]
    return subprocess.Popen(
        [sys.executable, "-c", CHILD.format(meddle=meddle), *arguments],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    root = Root(tmp_path_factory.mktemp("clean"))
    put(root, TWENTY)
    return contents(made(root)[1])


@pytest.mark.parametrize("meddle", KILLS.values(), ids=KILLS.keys())
def test_a_kill_leaves_nothing_that_looks_whole(root: Root, clean: dict[str, bytes], meddle: str) -> None:
    killed = child(root, meddle)
    _, errors = killed.communicate(timeout=120)
    assert killed.returncode == 9, errors
    key = digest(source_of(), root)
    assert not data_folder(root, key).exists()
    assert any(name.startswith((".tmp-", ".shards-")) for name in entries(root))
    with pytest.raises(MissingError):
        load_manifest(root, key)
    _, folder = made(root)
    assert contents(folder) == clean
    assert entries(root) == [key[:12]]


def test_a_kill_while_a_damaged_folder_is_replaced(root: Root, clean: dict[str, bytes]) -> None:
    key, folder = made(root)
    flip(folder)
    killed = child(
        root,
        "rename = Path.rename\nPath.rename = lambda a, b: os._exit(9) if '.tmp-' in a.name else rename(a, b)",
    )
    killed.communicate(timeout=120)
    assert killed.returncode == 9
    assert not folder.exists()
    assert contents(made(root)[1]) == clean
    assert entries(root) == [key[:12]]


def test_two_processes_at_once_make_it_once(root: Root, clean: dict[str, bytes]) -> None:
    slow = """
fill = module.fill
def slow(place, *rest):
    (root.path / f"worked-{os.getpid()}").touch()
    time.sleep(0.7)
    fill(place, *rest)
module.fill = slow
"""
    children = [child(root, slow) for _ in range(2)]
    results = [process.communicate(timeout=120) for process in children]
    assert [process.returncode for process in children] == [0, 0], results
    key = digest(source_of(), root)
    assert {output.strip() for output, _ in results} == {str(data_folder(root, key))}
    assert len(list(root.path.glob("worked-*"))) == 1
    assert contents(data_folder(root, key)) == clean
    assert entries(root) == [key[:12]]


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, repro.data.prepare, repro.data.order\n"
        "heavy = {'torch', 'lightning', 'datasets', 'transformers', 'pandas', 'scipy', 'gensim', 'tiktoken'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
