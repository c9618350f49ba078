"""Several devices for one run, on a CPU: the curve of one process, kills, refusals, and faults of one of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.e2e.suite import TIMEOUT, Suite, numbers, training_children

STEPS = 50


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """Runs of two devices each. At this rate of learning round-off stays round-off for all of the steps."""
    made = Suite.make(tmp_path_factory.mktemp("devices") / "clone", steps=STEPS, seeds=3)
    made.edit_tier(lr_scale=0.5, devices=2, chunk=1)
    settings = made.path / "config" / "suite.yaml"  # a fast machine would be done before the first checkpoint
    settings.write_text(
        settings.read_text("utf-8").replace("checkpoint_seconds: 600", "checkpoint_seconds: 0.05"), "utf-8"
    )
    made.repro("data", "prepare", "embedded_lm")
    return made


@pytest.fixture(scope="module")
def ids(suite: Suite) -> list[str]:
    return [run["id"] for run in suite.plan()]


@pytest.fixture(scope="module")
def alone(suite: Suite, ids: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The same runs, by the same ids, on one device each."""
    suite.edit_tier(devices=1, chunk=3)
    suite.repro("run", *ids)
    records = [suite.records()[f"{identity}.json"] for identity in ids]
    suite.record_folder.rename(tmp_path_factory.mktemp("kept") / "records")
    suite.edit_tier(devices=2, chunk=1)
    return records


def expect_same(record: dict[str, Any], one: dict[str, Any]) -> None:
    """Equal to float32 round-off, and honest about the devices."""
    assert (record["status"], one["status"]) == ("complete", "complete")
    assert (record["environment"]["device_count"], one["environment"]["device_count"]) == (2, 1)
    assert len(record["curve"]["train_loss"]) == STEPS
    for part in ("train_loss", "val_loss"):
        ours, theirs = record["curve"][part], one["curve"][part]
        assert [value is None for value in ours] == [value is None for value in theirs]
        assert all(abs(a - b) < 2e-5 for a, b in zip(ours, theirs, strict=True) if a is not None)
    assert numbers(record)["config"] == numbers(one)["config"]
    assert record["budget"] == one["budget"]


def test_two_devices_give_the_curve_of_one(suite: Suite, ids: list[str], alone: list[dict[str, Any]]) -> None:
    suite.repro("run", ids[0])
    expect_same(suite.records()[f"{ids[0]}.json"], alone[0])


def slurm_task(suite: Suite, rank: int, tasks: int, *words: str) -> subprocess.Popen[str]:
    """`repro WORDS` as Slurm would start task `rank` of a step."""
    told = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "127.0.0.1"}
    told |= {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NTASKS": str(tasks)}
    return subprocess.Popen(
        [sys.executable, "-m", "repro", *words],
        cwd=suite.path,
        env=suite.environment | told,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_case_w04_another_number_of_tasks_is_refused_at_once(suite: Suite, ids: list[str]) -> None:
    before = suite.states()
    task = slurm_task(suite, 0, 3, "run", ids[1])
    _, err = task.communicate(timeout=60)
    assert task.returncode == 64
    assert "2 device(s)" in err
    assert "3 task(s)" in err
    assert "Traceback" not in err
    assert suite.states() == before


def test_either_process_killed_both_start_again(suite: Suite, ids: list[str], alone: list[dict[str, Any]]) -> None:
    process = suite.start("repro", "run", ids[1])
    suite.wait_for_checkpoint(ids[1])
    both = training_children(process.pid)
    assert len(both) == 2
    both[1].send_signal(signal.SIGKILL)
    _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, err
    record = suite.records()[f"{ids[1]}.json"]
    expect_same(record, alone[1])
    assert (record["attempts"], record["resumes"]) == (2, 1)


def test_stopped_on_two_devices_and_ended_on_one(suite: Suite, ids: list[str], alone: list[dict[str, Any]]) -> None:
    """Tokens a step and order of data stay; only the record's count of devices is the last one's."""
    process = suite.start("repro", "run", ids[2])
    suite.wait_for_checkpoint(ids[2])
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 75, err
    suite.edit_tier(devices=1, chunk=1)
    err = suite.repro("run", ids[2]).stderr
    assert "resumed at step" in err
    record = suite.records()[f"{ids[2]}.json"]
    record["environment"]["device_count"] += 1
    expect_same(record, alone[2])
    suite.edit_tier(devices=2, chunk=1)


FAULTY = '''"""Fails in the second process alone."""

import torch
from repro.nn.method_api import Method as Base

INFO = {"title": "Faulty", "ref": "a test", "tracks": ["lm"], "params": {}, "dt_zero": "none"}


class Method(Base):
    norms = ("in",)

    def step(self, x, branch, site):
        if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
            raise RuntimeError("a fault of mine")
        return x + branch(site.norm_in(x))
'''


def test_a_fault_of_the_second_process_is_a_record(suite: Suite) -> None:
    (suite.path / "repro" / "methods" / "faulty.py").write_text(FAULTY, "utf-8")
    suite.write_experiment(name="a_faulty", methods=["faulty"])
    faulty = next(run["id"] for run in suite.plan() if run["method"] == "faulty")
    started = time.monotonic()
    suite.repro("run", faulty)
    record = suite.records()[f"{faulty}.json"]
    assert record["status"] == "failed"
    assert record["status_detail"]["reason"] == "RuntimeError: a fault of mine (in process 1 of 2)"
    assert time.monotonic() - started < 240


def test_a_step_that_cannot_be_shared_out_is_refused(suite: Suite) -> None:
    """Case T09: tokens a step are fixed; devices that do not divide them are refused by the plan."""
    suite.edit_tier(devices=3)
    done = suite.repro("plan", "--tier", "smoke", code=64)
    assert "16 sequences a step are no multiple of 3 devices" in done.stderr
    suite.edit_tier(devices=2, chunk=2)
    assert "chunk must be 1 where a run has several devices" in suite.repro("plan", "--tier", "smoke", code=64).stderr
    suite.edit_tier(devices=3, nodes=2, chunk=1)
    assert "are no multiple of nodes, 2" in suite.repro("plan", "--tier", "smoke", code=64).stderr
