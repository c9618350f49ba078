"""Kills in mid-run: the same command goes on, and the end is that of the unbroken run, bit for bit."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import pytest

from repro.train.lease import BEAT_SECONDS
from tests.e2e.suite import Suite, numbers, training_children

STEPS = 150


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """Four runs of one chunk, data prepared."""
    made = Suite.make(tmp_path_factory.mktemp("resume") / "clone", steps=STEPS, seeds=4)
    made.repro("data", "prepare", "embedded_lm")
    return made


@pytest.fixture(scope="module")
def ids(suite: Suite) -> list[str]:
    """Ids by seed."""
    return [run["id"] for run in suite.plan()]


@pytest.fixture(scope="module")
def unbroken(suite: Suite, ids: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """Records of the four runs, made by one chunk without a break; moved away afterwards."""
    chunk = suite.plan()[0]["chunk"]
    suite.repro("run", chunk)
    records = {identity: suite.records()[f"{identity}.json"] for identity in ids}
    suite.record_folder.rename(tmp_path_factory.mktemp("kept") / "records")
    return records


def test_killed_child_is_started_again_and_ends_as_the_unbroken_run(
    suite: Suite, ids: list[str], unbroken: dict[str, dict[str, object]]
) -> None:
    process = suite.start("repro", "run", ids[0])
    suite.wait_for_checkpoint(ids[0])
    (child,) = training_children(process.pid)
    child.send_signal(signal.SIGKILL)
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
    suite.wait_for_checkpoint(ids[1])
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
    suite.wait_for_checkpoint(ids[2])
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


def test_a_holder_that_stood_still_and_lost_its_lock_stops(suite: Suite, ids: list[str]) -> None:
    """As a node that hangs for minutes, while another machine takes the run over: never two writers."""
    suite.record_file(ids[1]).unlink()
    process = suite.start("repro", "run", ids[1])
    suite.wait_for_checkpoint(ids[1])
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(BEAT_SECONDS)
    lock = suite.path / "scratch" / "ckpt" / ids[1] / "lock"
    theirs = '{"host": "another-machine", "job": "12", "pid": 3}\n'
    lock.write_text(theirs)
    os.killpg(process.pid, signal.SIGCONT)
    err = process.communicate(timeout=120)[1]
    assert process.returncode == 75, err
    assert "another process took its lock over" in err
    assert "Traceback" not in err
    assert not suite.record_file(ids[1]).exists()
    assert lock.read_text() == theirs


def test_a_run_that_dies_wherever_it_is_started_is_given_up_and_can_be_tried_again(
    suite: Suite, ids: list[str], unbroken: dict[str, dict[str, object]]
) -> None:
    """Five starts from one step without a word, each by another job; a retry begins to count anew."""
    folder = suite.path / "scratch" / "ckpt" / ids[3]
    folder.mkdir(parents=True)
    (folder / "starts").write_text("".join(f"{number} 0\n" for number in range(5)))
    suite.repro("run", ids[3])
    record = suite.records()[f"{ids[3]}.json"]
    assert (record["status"], record["attempts"]) == ("failed", 6)
    assert record["status_detail"]["reason"].startswith("5 starts from step 0 ended without a word")
    suite.repro("retry", "--failed", "--tier", "smoke")
    suite.repro("run", ids[3])
    again = suite.records()[f"{ids[3]}.1.json"]
    assert (again["status"], again["supersedes"] is not None) == ("complete", True)
    assert numbers(again) == numbers(unbroken[ids[3]])
