"""Kills in mid-run: the same command goes on, and the end is that of the unbroken run, bit for bit."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.suite import Suite, numbers

STEPS = 150


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """Three runs of one chunk, data prepared."""
    made = Suite.make(tmp_path_factory.mktemp("resume") / "clone", steps=STEPS, seeds=3)
    made.repro("data", "prepare", "embedded_lm")
    return made


@pytest.fixture(scope="module")
def ids(suite: Suite) -> list[str]:
    """Ids by seed."""
    return [run["id"] for run in suite.plan()]


@pytest.fixture(scope="module")
def unbroken(suite: Suite, ids: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """Records of the three runs, made by one chunk without a break; moved away afterwards."""
    chunk = suite.plan()[0]["chunk"]
    suite.repro("run", chunk)
    records = {identity: suite.records()[f"{identity}.json"] for identity in ids}
    suite.record_folder.rename(tmp_path_factory.mktemp("kept") / "records")
    return records


def wait_for_checkpoint(suite: Suite, identity: str, after: float) -> None:
    """Until the run has a checkpoint younger than `after`."""
    folder = suite.path / "scratch" / "ckpt" / identity
    for _ in range(1200):
        if any(file.stat().st_mtime > after for file in folder.glob("step-*.pt")):
            return
        time.sleep(0.05)
    raise AssertionError("no checkpoint within a minute")


def training_child(pid: int) -> psutil.Process:
    """The child that trains, below a `repro run`."""
    children = [
        child for child in psutil.Process(pid).children(recursive=True) if "repro.train.child" in child.cmdline()
    ]
    assert len(children) == 1
    return children[0]


def test_killed_child_is_started_again_and_ends_as_the_unbroken_run(
    suite: Suite, ids: list[str], unbroken: dict[str, dict[str, object]]
) -> None:
    process = suite.start("repro", "run", ids[0])
    wait_for_checkpoint(suite, ids[0], 0)
    training_child(process.pid).send_signal(signal.SIGKILL)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    record = suite.records()[f"{ids[0]}.json"]
    assert numbers(record) == numbers(unbroken[ids[0]])
    assert (record["attempts"], record["resumes"]) == (2, 1)
    assert "resumed at step" in err
    assert out == ""


def test_killed_process_group_resumes_from_another_folder(
    suite: Suite, ids: list[str], unbroken: dict[str, dict[str, object]], tmp_path: Path
) -> None:
    """As a node that goes down; and where the second start stands in the file system does not matter (C04)."""
    process = suite.start("repro", "run", ids[1])
    wait_for_checkpoint(suite, ids[1], 0)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert f"{ids[1]}.json" not in suite.records()
    before = sorted(folder.name for folder in (suite.path / "scratch" / "ckpt").iterdir())
    moved = Suite(tmp_path)
    moved.environment = suite.environment | {"REPRO_ROOT": str(suite.path)}
    done = moved.call("repro", "run", ids[1])
    assert "resumed at step" in done.stderr
    record = suite.records()[f"{ids[1]}.json"]
    assert numbers(record) == numbers(unbroken[ids[1]])
    assert record["resumes"] == 1
    assert list(tmp_path.iterdir()) == []
    assert set(before) >= {folder.name for folder in (suite.path / "scratch" / "ckpt").iterdir()}


def test_deadline_and_signal_stop_between_steps_and_go_on(
    suite: Suite, ids: list[str], unbroken: dict[str, dict[str, object]]
) -> None:
    """Exit 75 without a record; the run alone gives the bits that it gave inside its chunk."""
    process = suite.start("repro", "run", ids[2])
    wait_for_checkpoint(suite, ids[2], 0)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 75, err
    assert "Traceback" not in err
    assert f"{ids[2]}.json" not in suite.records()
    assert suite.repro("run", ids[2], "--deadline", "1", code=75).stdout == ""
    suite.repro("run", ids[2])
    record = suite.records()[f"{ids[2]}.json"]
    assert numbers(record) == numbers(unbroken[ids[2]])
    assert record["attempts"] >= 2


def test_second_writer_leaves(suite: Suite, ids: list[str]) -> None:
    """While another process holds the run's lease nothing is trained, and nothing of it is touched."""
    suite.record_file(ids[0]).unlink()
    folder = suite.path / "scratch" / "ckpt" / ids[0]
    folder.mkdir()
    with open(folder / "lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = suite.repro("run", ids[0], code=75)
    assert "another process" in done.stderr
    assert not suite.record_file(ids[0]).exists()


def test_two_starts_at_once_train_once(suite: Suite, ids: list[str], unbroken: dict[str, dict[str, object]]) -> None:
    processes = [suite.start("repro", "run", ids[0]) for _ in range(2)]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert {process.returncode for process in processes} <= {0, 75}, errors
    record = suite.records()[f"{ids[0]}.json"]
    assert numbers(record) == numbers(unbroken[ids[0]])
    assert record["attempts"] == 1
    assert not any(name.startswith(f"{ids[0]}.1") for name in suite.records())
