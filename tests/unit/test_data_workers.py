"""Several processes: the same bytes whatever their number, and an end with a reason whoever dies (case D06)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from data_jobs import maker
from data_world import CHECKOUT, contents, entries, put, source_of

from repro.data import formats, sources, workers
from repro.data.manifest import data_folder
from repro.data.prepare import prepare, verify
from repro.data.workers import Maker
from repro.spec.data import digest
from repro.spec.errors import BadDataError, MissingError, StoppedError
from repro.spec.paths import Root

WORDS = ["the", "of", "and", "to", "in", "is", "was", "for", "on", "that", "with", "as", "his", "by", "which", "had"]


def texts(count: int, words: int = 60) -> list[str]:
    """Made-up documents, some of them copies, some copies but for case."""
    draw = random.Random(7)
    made = [" ".join(draw.choices(WORDS, k=words)) + f" {number}" for number in range(count)]
    return [*made, *made[: count // 20], *(text.upper() for text in made[: count // 10]), "", made[3]]


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of some documents, so that a few kilobytes are many of them."""
    for module in (formats, sources):
        monkeypatch.setattr(module, "BLOCK_BYTES", 4000)


def made_by(root: Root, count: int | None, **more: Any) -> dict[str, bytes]:
    source = source_of(validation=0.1, **more)
    key = digest(source, root)
    return contents(prepare(root, "mine", source, key, workers=count))


@pytest.mark.usefixtures("small_units")
def test_d06_one_two_and_four_workers_make_the_same_files(tmp_path: Path) -> None:
    found = []
    for count in (1, 2, 4):
        root = Root(tmp_path / str(count))
        put(root, texts(400))
        found.append(made_by(root, count))
    assert found[0].keys() == {"train.bin", "val.bin", "manifest.json"}
    assert found[0] == found[1] == found[2]
    manifest = json.loads(found[0]["manifest.json"])
    assert manifest["duplicates_removed"] == 21
    assert manifest["empty_removed"] == 1
    assert manifest["folded_removed"] > 0


def test_the_cut_into_units_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for size in (1, 5000, 1 << 24):
        for module in (formats, sources):
            monkeypatch.setattr(module, "BLOCK_BYTES", size)
        root = Root(tmp_path / str(size))
        put(root, texts(60))
        put(root, texts(30, 20), "texts/more.jsonl")
        found.append(made_by(root, 1))
    assert found[0] == found[1] == found[2]


@pytest.mark.usefixtures("small_units")
def test_problems_of_all_units_are_told_with_their_lines(tmp_path: Path) -> None:
    root = Root(tmp_path)
    put(root, [*texts(100)[:100], "bad\0", *texts(60)[:60], "worse\0"])
    with open(root.path / "texts/docs.jsonl", "a", encoding="utf-8") as stream:
        stream.write("{oops\n")
    for count in (1, 2):
        with pytest.raises(BadDataError) as caught:
            made_by(root, count)
        assert [(problem.line, problem.key) for problem in caught.value.problems] == [
            (101, "document 101"),
            (162, "document 162"),
            (163, ""),
        ]
        assert entries(root) == []


# -- what a worker may do to the others ------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("refuses", MissingError, "here: nothing"),
        ("full", OSError, "No space left"),
        ("faulty", RuntimeError, "ZeroDivisionError: here"),
        ("killed", StoppedError, r"the work: a worker process was killed by signal 9 \(SIGKILL\); the system does"),
        ("terminated", StoppedError, r"killed by signal 15 \(SIGTERM\)\. What was finished is kept"),
    ],
)
def test_what_ends_a_worker_is_told_by_the_parent(kind: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        list(workers.run(Maker(maker, (kind,)), range(6), 2, "the work"))
    assert _workers(os.getpid()) == []


def test_results_come_and_the_source_is_read_no_further_than_needed() -> None:
    read: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(4, 12):
            read.append(number)
            yield number

    results = workers.run(Maker(maker, ("",)), tasks(), 2, "the work")
    first = next(results)
    assert first in (16, 25)
    assert len(read) <= 4
    assert sorted([first, *results]) == [number * number for number in range(4, 12)]


# -- kills from outside ----------------------------------------------------------------------------

CHILD = """
import sys
from pathlib import Path
from repro.data import formats, sources, space
from repro.data.prepare import prepare
from repro.spec.data import DataSource, digest
from repro.spec.errors import ReproError
from repro.spec.paths import Root
from repro.spec.reading import parse_json

if __name__ == "__main__":
    formats.BLOCK_BYTES = sources.BLOCK_BYTES = 20_000
    space.SPARE_BYTES = -(1 << 40)
    root, source = Root(Path(sys.argv[1])), DataSource.model_validate(parse_json(sys.argv[2], "source"))
    try:
        prepare(root, "mine", source, digest(source, root), workers=2)
    except ReproError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
"""
GPT2 = {"validation": 0.1, "tokenizer": "gpt2"}


@pytest.fixture(scope="module")
def many() -> list[str]:
    return texts(6000)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory, many: list[str]) -> dict[str, bytes]:
    root = Root(tmp_path_factory.mktemp("clean"))
    put(root, many)
    source = source_of(**GPT2)
    return contents(prepare(root, "mine", source, digest(source, root), workers=1))


def start(root: Root, script: Path) -> subprocess.Popen[str]:
    script.write_text(CHILD, "utf-8")
    arguments = [str(root.path), source_of(**GPT2).model_dump_json(exclude_none=True)]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    return subprocess.Popen(
        [sys.executable, str(script), *arguments], env=environment, stderr=subprocess.PIPE, text=True
    )


def _workers(parent: int) -> list[psutil.Process]:
    """Worker processes of a parent, the resource tracker of multiprocessing left out."""
    children = psutil.Process(parent).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def wait_for(what: Callable[[], Any], seconds: float = 60) -> Any:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError("waited too long")


def shards(root: Root) -> list[Path]:
    return sorted((root.scratch / "data").glob(".shards-*/*.idx"))


def finish(root: Root, clean: dict[str, bytes]) -> None:
    """The next call goes on, and ends at the bytes of a clean one."""
    done = {path.name: path.stat().st_mtime_ns for path in shards(root)}
    source = source_of(**GPT2)
    key = digest(source, root)
    assert verify(root, key)
    with pytest.MonkeyPatch.context() as patch:
        for module in (formats, sources):
            patch.setattr(module, "BLOCK_BYTES", 20_000)
        seen: dict[str, int] = {}
        publish = __import__("repro.data.prepare", fromlist=["_publish"])._publish
        patch.setattr(
            "repro.data.prepare._publish",
            lambda *two: seen.update({path.name: path.stat().st_mtime_ns for path in shards(root)}) or publish(*two),
        )
        folder = prepare(root, "mine", source, key, workers=1)
    assert contents(folder) == clean
    assert done.items() <= seen.items()
    assert entries(root) == [key[:12]]


@pytest.mark.parametrize("victim", ["worker", "parent"])
def test_d06_a_kill_ends_it_soon_and_the_next_call_goes_on(
    tmp_path: Path, many: list[str], clean: dict[str, bytes], victim: str
) -> None:
    root = Root(tmp_path / "root")
    put(root, many)
    child = start(root, tmp_path / "child.py")
    wait_for(lambda: len(shards(root)) >= 2)
    found = wait_for(lambda: _workers(child.pid))
    begun = time.monotonic()
    (found[0] if victim == "worker" else child).send_signal(signal.SIGKILL)
    _, errors = child.communicate(timeout=30)
    wait_for(lambda: not any(process.is_running() and process.status() != "zombie" for process in found), 30)
    assert time.monotonic() - begun < 30
    assert child.returncode == (75 if victim == "worker" else -9), errors
    if victim == "worker":
        assert "source mine: a worker process was killed by signal 9" in errors
    assert not data_folder(root, digest(source_of(**GPT2), root)).exists()
    assert shards(root)
    finish(root, clean)


# -- disks -----------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """A file system of its own at the root's scratch folder; called with options, it is mounted anew with them."""
    place = tmp_path / "root" / "scratch"
    place.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not allowed here")

    def again(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)

    yield again
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_disk_that_refuses_ends_it_with_the_reason(
    tmp_path: Path, small_disk: Callable[[str], None], many: list[str], clean: dict[str, bytes], fault: str
) -> None:
    root = Root(tmp_path / "root")
    put(root, many)
    if fault == "read-only":
        small_disk("ro")
    child = start(root, tmp_path / "child.py")
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 73, errors
    assert {"full": "No space left on device", "read-only": "Read-only file system"}[fault] in errors
    assert not data_folder(root, digest(source_of(**GPT2), root)).exists()
    small_disk("rw,size=64m")
    finish(root, clean)
