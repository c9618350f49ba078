"""The workflow on a real Slurm of one node: the same records as a local run, whatever happens to jobs and controller.

All in one file, so that one process brings one cluster up; training is what costs time, so stories are few.
"""

from __future__ import annotations

import csv
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from repro.spec.paths import Root
from repro.verbs import doctor_slurm
from tests.cluster.slurm import Cluster
from tests.cluster.world import PATIENCE as WAIT
from tests.cluster.world import World, wait_until
from tests.e2e.suite import numbers

STEPS = 80
NOT_SUBMITTED = "missing (not submitted)"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> World:
    """Four runs, a chunk each; data prepared."""
    return World.make(tmp_path_factory.mktemp("slurm") / "clone", cluster, steps=STEPS, seeds=4)


@pytest.fixture(scope="module")
def plan(world: World) -> list[dict[str, Any]]:
    """The planned runs."""
    return world.suite.plan()


@pytest.fixture(scope="module")
def local(world: World, plan: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """{id: record} of a local run that nothing disturbed; moved away afterwards."""
    world.suite.repro("run", *(run["id"] for run in plan))
    records = {record["id"]: record for record in world.suite.records().values()}
    world.suite.record_folder.rename(tmp_path_factory.mktemp("kept") / "records")
    return records


def rows(world: World) -> list[dict[str, str]]:
    """The table of paper A."""
    with open(world.suite.path / "results" / "tables" / "smoke" / "paper_a.csv", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_faults_on_slurm_lose_nothing_and_train_nothing_twice(
    world: World, plan: list[dict[str, Any]], local: dict[str, Any]
) -> None:
    """Cases W01, W05 and W06: a cancelled, a requeued and a killed job, and a killed controller."""
    suite, cluster, left = world.suite, world.cluster, list(plan)
    actions = [
        lambda job: cluster.call("scancel", job),
        lambda job: cluster.call("scontrol", "requeue", job),
        world.kill_job,
    ]

    def at_work() -> dict[str, Any] | None:
        """A run that nothing was done to yet, and that is in the middle of its training."""
        return next((run for run in left if world.checkpoint(run["id"]) and world.job_of(run["chunk"])), None)

    with world.controller() as first:
        for action in actions:
            run = wait_until(at_work, "a run at work")
            action(world.job_of(run["chunk"]))
            left.remove(run)
        last = wait_until(at_work, "the last run at work")
        os.killpg(first.pid, signal.SIGKILL)
    before, orphan = suite.states(), world.job_of(last["chunk"])
    assert orphan is not None, "the controller's death ended a job"
    suite.call("snakemake", "--unlock", "--config", "tier=smoke")  # as docs/cluster.md says, then the same command
    with world.controller() as second:
        said = world.finish(second)
    records = suite.records()
    assert {record["id"]: numbers(record) for record in records.values()} == {
        identity: numbers(record) for identity, record in local.items()
    }
    starts = {run["alias"]: suite.records()[f"{run['id']}.json"]["attempts"] for run in plan}
    assert all(starts[run["alias"]] >= 2 for run in plan if run is not last), starts
    assert starts[last["alias"]] == 1, f"the job that the first controller left was not waited for: {starts}\n{said}"
    after = suite.states()
    assert {name: after[name] for name in before} == before
    logs = (suite.path / "scratch" / "logs" / "jobs").glob("run-*.log")
    assert any("resumed at step" in log.read_text() for log in logs)
    assert [row["complete"] for row in rows(world)] == ["4"]


def test_second_call_submits_nothing(world: World, local: dict[str, Any]) -> None:
    with world.controller() as process:
        assert "Nothing to be done" in world.finish(process)


STUB_SBATCH = """#!/bin/sh
exec 9> {folder}/lock
flock 9
number=$(($(cat {folder}/count 2>/dev/null || echo 0) + 1))
echo $number > {folder}/count
env > {folder}/environment-$number
for word in "$@"; do echo "$word"; done > {folder}/arguments-$number
if [ $((number % {every})) = 0 ]; then echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1; fi
exec {real} "$@" 9>&-
"""
STUB_SQUEUE = """#!/bin/sh
case "$*" in *--states=all*) ;; *) exec {real} "$@" ;; esac
number=$(($(cat {folder}/asked 2>/dev/null || echo 0) + 1))
echo $number > {folder}/asked
if [ $number -le 5 ]; then echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; fi
exec {real} "$@"
"""


def put_stubs(folder: Path, cluster: Cluster, every: int) -> dict[str, str]:
    """Programs before the real ones: sbatch that refuses calls, squeue that fails five times; the new PATH."""
    folder.mkdir()
    for name, text in (("sbatch", STUB_SBATCH), ("squeue", STUB_SQUEUE)):
        real = shutil.which(name, path=cluster.environment["PATH"])
        (folder / name).write_text(text.format(folder=folder, every=every, real=real))
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{cluster.environment['PATH']}"}


def submitted(folder: Path) -> list[str]:
    """The arguments of each call of the stub, as one text."""
    return [path.read_text() for path in sorted(folder.glob("arguments-*"))]


def test_refused_submission_silent_controller_and_outer_job(world: World, cluster: Cluster, tmp_path: Path) -> None:
    """Cases W09, W06 and W08: every third submission is refused, five questions in a row are not answered."""
    small = World.make(tmp_path / "clone", cluster, data=world.suite.path / "scratch" / "data", steps=20, seeds=3)
    path = put_stubs(tmp_path / "stubs", cluster, every=3)
    outer = {"SLURM_JOB_ID": "1", "SLURM_MEM_PER_CPU": "100", "SLURM_NTASKS": "7"}
    words = ("--retries", "0", "--max-status-checks-per-second", "2")
    with small.controller(*words, eager=True, **path, **outer) as process:
        said = world.finish(process, code=1)
    assert "started inside Slurm job '1'" in said
    seen = (tmp_path / "stubs" / "environment-1").read_text().splitlines()
    assert [line.split("=")[0] for line in seen if line.startswith("SLURM_")] == ["SLURM_CONF"]
    assert int((tmp_path / "stubs" / "asked").read_text()) > 5
    assert len(submitted(tmp_path / "stubs")) == 3
    (row,) = rows(small)
    lost = [run for run in small.suite.plan() if run["state"] == "missing"]
    assert (row["complete"], row["missing"], len(lost)) == ("2", "1", 1)
    assert row["seeds_not_complete"] == f"{NOT_SUBMITTED}: {lost[0]['seed']}"
    assert f"{NOT_SUBMITTED}: {lost[0]['alias']}" in (
        small.suite.path / "results" / "tables" / "smoke" / "paper_a.md"
    ).read_text().replace("\\", "")
    assert "QOSMaxSubmitJobPerUserLimit" in small.suite.repro("status", "--tier", "smoke").stdout


def test_a_job_without_its_device_trains_nothing_and_its_request_is_one(
    world: World, cluster: Cluster, tmp_path: Path
) -> None:
    """Cases W02 and W03: one GPU under the key that Slurm's plugin knows, time in minutes; exit 69 comes back."""
    data = world.suite.path / "scratch" / "data"
    asked = World.make(tmp_path / "clone", cluster, data=data, steps=20, seeds=1, device="gpu")
    path = put_stubs(tmp_path / "stubs", cluster, every=100)
    with asked.controller("--retries", "1", eager=True, **path) as process:
        said = world.finish(process, code=1)
    lines = submitted(tmp_path / "stubs")
    assert len(lines) == 2, "one start and one retry: Snakemake cannot tell exit 69 from others"
    for line in lines:
        words = line.splitlines()
        assert [word for word in words if "gpu" in word or "gres" in word] == ["--gpus=1"]
        assert int(words[words.index("-t") + 1]) >= 15
        assert int(words[words.index("--mem") + 1]) >= 1000
    assert "the plan says gpu and none is visible" in "".join(
        log.read_text() for log in (asked.suite.path / "scratch" / "logs" / "jobs").glob("run-*.log")
    )
    logs = (asked.suite.path / ".snakemake" / "slurm_logs").rglob("*.log")
    assert not any("output files are missing" in log.read_text() for log in logs), "a failure passed for a success"
    assert asked.suite.records() == {}
    assert [row["missing"] for row in rows(asked)] == ["1"], said


def test_two_tasks_train_one_run(world: World, cluster: Cluster, tmp_path: Path) -> None:
    """A job of two tasks calls `srun -n2`; with gloo they give the curve of one process to float32 round-off."""
    data = world.suite.path / "scratch" / "data"
    # At this rate of learning round-off stays round-off for all of the steps.
    pair = World.make(tmp_path / "clone", cluster, data=data, steps=50, seeds=1, lr_scale=0.5)
    (run,) = pair.suite.plan()
    pair.suite.repro("run", run["id"])
    alone = pair.suite.records()[f"{run['id']}.json"]
    pair.suite.record_folder.rename(tmp_path / "alone")
    pair.suite.edit_tier(devices=2)
    stamp = f"scratch/done/{run['chunk']}.json"
    command = shlex.join([sys.executable, "-m", "repro", "run", run["id"], "--tier", "smoke", "--stamp", stamp])
    log = tmp_path / "job.log"
    words = ("--wait", "-n2", "-t10", f"--chdir={pair.suite.path}", f"--output={log}", f"--wrap={command}")
    done = cluster.call("sbatch", *words, code=None, patience=WAIT)
    assert (pair.suite.path / stamp).is_file(), done + log.read_text("utf-8")
    record = pair.suite.records()[f"{run['id']}.json"]
    assert (record["environment"]["device_count"], alone["environment"]["device_count"]) == (2, 1)
    assert (record["status"], record["budget"]) == ("complete", alone["budget"])
    for part in ("train_loss", "val_loss"):
        pairs = list(zip(record["curve"][part], alone["curve"][part], strict=True))
        assert len(pairs) == 50
        assert max(abs(ours - theirs) for ours, theirs in pairs if theirs is not None) < 2e-5
    assert [row["complete"] for row in tables(pair)] == ["1"]


def tables(world: World) -> list[dict[str, str]]:
    """The table of paper A, made now."""
    world.suite.repro("tables", "--tier", "smoke")
    return rows(world)


def test_time_left_is_asked_of_slurm(cluster: Cluster) -> None:
    """The end of a job is not in the environment of a step: older releases do not state it, the plugin removes it."""
    code = "from repro.verbs.runs import seconds_left; print(seconds_left(None))"
    told = cluster.call("env", "-u", "SLURM_JOB_END_TIME", "srun", "-Q", "-n1", "-t5", sys.executable, "-c", code)
    assert 150 < float(told) <= 240, told


def test_doctor_on_the_real_cluster(world: World, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cluster.access.items():
        monkeypatch.setenv(name, value)
    root = Root(world.suite.path)
    lines = {line.what: line for line in doctor_slurm.examine(root)}
    assert lines["slurm"].detail == "partitions: all*"
    assert (lines["slurm states"].state, "squeue" in lines["slurm states"].detail) == ("ok", True)
    profile = world.suite.path / "slurm" / "config.yaml"
    text = profile.read_text("utf-8")
    profile.write_text(text.replace("\nslurm-status-command: squeue", ""), "utf-8")
    try:
        line = doctor_slurm.job_states(root)
    finally:
        profile.write_text(text, "utf-8")
    assert (line.state, "slurm-status-command: squeue" in line.mend) == ("warn", True)
