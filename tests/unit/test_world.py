"""Processes of one run: who starts them, who is which, and one writer for all of them (cases W04, W05, W08)."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from pathlib import Path

import pytest

from repro.spec.errors import ConfigError
from repro.train import lease as leases
from repro.train.lease import beat, lease
from repro.train.starts import count_starts, note_end, note_start
from repro.train.world import World, agreed_port, find_world, free_port

STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}


def task(number: int, tasks: int, **more: str) -> dict[str, str]:
    """What Slurm tells a task of a step."""
    return STEP | {"SLURM_PROCID": str(number), "SLURM_NTASKS": str(tasks)} | more


@pytest.mark.parametrize("environ", [{}, task(0, 1), {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "7"}])
def test_one_device_is_one_process(environ: dict[str, str]) -> None:
    """The last one is case W08: an allocation around us, which started no task of its own."""
    world = find_world("a", 1, 1, environ)
    assert world == World(1, 1, 0, 0, "none")
    assert world.environment("127.0.0.1", 1) == {}
    assert world.started_here() == []


@pytest.mark.parametrize("unset", [{}, {"SLURM_NTASKS": ""}])
def test_a_script_without_a_number_of_tasks_is_one_process(unset: dict[str, str]) -> None:
    """What sbatch without --ntasks tells its script."""
    script = {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NNODES": "1", "SLURM_TASKS_PER_NODE": "1"} | unset
    assert find_world("a", 1, 1, script).launcher == "none"
    assert find_world("a", 4, 1, script).launcher == "here"
    assert find_world("a", 4, 2, script).launcher == "allocation"


def test_a_later_task_is_not_alone() -> None:
    with pytest.raises(ConfigError, match=r"1 device\(s\) on 1 node\(s\) for this run; Slurm started 2 task"):
        find_world("a_run", 1, 1, STEP | {"SLURM_PROCID": "1"})


@pytest.mark.parametrize("environ", [{}, task(0, 1)])
def test_several_devices_of_one_node_are_started_here(environ: dict[str, str]) -> None:
    world = find_world("a", 4, 1, environ)
    assert (world.rank, world.size, world.per_node, world.launcher) == (0, 4, 4, "here")
    assert [(other.rank, other.local) for other in world.started_here()] == [(1, 1), (2, 2), (3, 3)]
    told = world.started_here()[2].environment("127.0.0.1", 5)
    assert told == {
        "RANK": "3", "LOCAL_RANK": "3", "GROUP_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "5",
    }  # fmt: skip


BATCH = {"SLURM_JOB_ID": "7"}


@pytest.mark.parametrize("environ", [BATCH, BATCH | {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}])
def test_in_an_allocation_without_a_step_the_tasks_are_still_to_be_started(environ: dict[str, str]) -> None:
    """The script of a job; the executor of Snakemake takes all but the job's number out of its environment."""
    world = find_world("a", 8, 2, environ)
    assert (world.launcher, world.size, world.nodes) == ("allocation", 8, 2)
    assert world.start_tasks(["repro", "run"]) == [
        "srun", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--kill-on-bad-exit=1", "repro", "run",
    ]  # fmt: skip


def test_tasks_of_slurm_are_the_processes() -> None:
    world = find_world("a", 4, 2, task(3, 4, SLURM_LOCALID="1"))
    assert (world.rank, world.local, world.nodes, world.launcher) == (3, 1, 2, "srun")
    assert world.started_here() == []
    assert world.environment("node1", 5)["GROUP_RANK"] == "1"


@pytest.mark.parametrize(
    ("devices", "nodes", "tasks", "said"),
    [
        (
            1,
            1,
            2,
            "the plan has 1 device(s) on 1 node(s) for this run; Slurm started 2 task(s); use one task",
        ),
        (4, 1, 2, "4 device(s) on 1 node(s) for this run; Slurm started 2 task(s)"),
        (4, 2, 1, "Slurm started 1 task(s); use `srun --nodes=2 --ntasks=4 --ntasks-per-node=2`"),
        (4, 2, 3, "Slurm started 3 task(s)"),
        (1, 1, 0, "Slurm started 0 task(s)"),
    ],
)
def test_case_w04_another_number_of_tasks_is_refused(devices: int, nodes: int, tasks: int, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_world("a_run", devices, nodes, task(0, tasks))
    assert said in str(caught.value)
    assert "a_run" in str(caught.value)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"WORLD_SIZE": "2", "RANK": "1"}, "; torchrun started 2 process(es); start `repro run` once"),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, "; mpirun started 2 process(es)"),
        (task(0, 1) | {"WORLD_SIZE": "3"}, "; torchrun started 3 process(es)"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE: 'two' is no number of tasks"),
    ],
)
def test_case_w04_processes_of_another_launcher_are_refused(devices: int, environ: dict[str, str], said: str) -> None:
    """Each would train the whole run, or start as many again."""
    with pytest.raises(ConfigError) as caught:
        find_world("a_run", devices, 1, environ)
    assert said in str(caught.value)
    assert "two" in said or f"the plan has {devices} device(s) on 1 node(s)" in str(caught.value)


@pytest.mark.parametrize(
    "environ", [{"WORLD_SIZE": "1", "RANK": "0"}, {"OMPI_COMM_WORLD_SIZE": "1"}, {"WORLD_SIZE": ""}]
)
def test_one_process_of_another_launcher_is_one_process(environ: dict[str, str]) -> None:
    assert find_world("a", 1, 1, environ).launcher == "none"
    assert find_world("a", 2, 1, environ).launcher == "here"


@pytest.mark.parametrize("layout", [{"SLURM_LOCALID": "2"}, {"SLURM_LOCALID": "0", "SLURM_STEP_NUM_NODES": "1"}])
def test_tasks_that_are_laid_out_otherwise_are_refused(layout: dict[str, str]) -> None:
    """Three tasks on one node and one on the other: each would take a device that is not there."""
    with pytest.raises(ConfigError, match="laid its 4 tasks out otherwise; use `srun --nodes=2 --ntasks=4"):
        find_world("a_run", 4, 2, task(3, 4, **layout))


def test_the_shell_of_an_allocation_is_no_task() -> None:
    """Slurm numbers it as a step; without an allocation the message names none."""
    shell = task(0, 4) | {"SLURM_STEP_ID": "4294967290"}
    assert find_world("a", 4, 1, shell).launcher == "allocation"
    with pytest.raises(ConfigError, match=r"on 2 node\(s\) for this run; this is one process; use `srun"):
        find_world("a", 4, 2, {})


@pytest.mark.parametrize("text", ["two", "-1", "1e3", "2(x2)"])
def test_a_number_of_tasks_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="is no number of tasks"):
        find_world("a", 2, 1, STEP | {"SLURM_PROCID": "0", "SLURM_NTASKS": text})


def test_tasks_come_to_one_port_and_jobs_to_others() -> None:
    steps = [{"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)} for job in range(50) for step in (0, 1)]
    ports = {agreed_port(step, 0) for step in steps}
    assert len(ports) == 100
    assert len({agreed_port(steps[0], meeting) for meeting in range(50)}) == 50
    assert all(15_000 <= port < 25_000 for port in ports)
    assert 1024 < free_port() < 65536


def test_starts_are_counted_by_where_they_began_and_how_they_ended(tmp_path: Path) -> None:
    assert [note_start(tmp_path, 0) for _ in range(3)] == [(1, 1), (2, 2), (3, 3)]
    assert note_start(tmp_path, 40) == (4, 1)
    assert note_start(tmp_path, 40) == (5, 2)
    note_end(tmp_path)
    assert note_start(tmp_path, 40) == (6, 1), "what ended in words is no death"
    assert note_start(tmp_path, 400) == (7, 1)
    assert count_starts(tmp_path) == 7
    assert count_starts(tmp_path / "none") == 0


# The lease
@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fractions of a second for minutes."""
    monkeypatch.setattr(leases, "AGE_SECONDS", 0.6)
    monkeypatch.setattr(leases, "POLL_SECONDS", 0.02)


def held_elsewhere(folder: Path) -> Path:
    """A lock that a process of another machine left or holds."""
    folder.mkdir(exist_ok=True)
    path = folder / "lock"
    path.write_text(json.dumps({"host": "another-machine", "job": "12", "pid": 3}) + "\n")
    return path


def test_one_holder_a_run_and_nothing_to_clean_up(tmp_path: Path) -> None:
    said: list[str] = []
    with lease(tmp_path / "run", said.append) as first:
        assert first
        assert json.loads((tmp_path / "run" / "lock").read_text())["pid"] == os.getpid()
        with lease(tmp_path / "run", said.append) as second:
            assert not second
    assert (tmp_path / "run" / "lock").read_text() == ""
    with lease(tmp_path / "run", said.append) as third:
        assert third
    assert said == []


def test_the_lock_of_a_dead_process_of_this_machine_is_free_at_once(tmp_path: Path) -> None:
    with lease(tmp_path, print) as first:
        assert first
        left = (tmp_path / "lock").read_text()
    (tmp_path / "lock").write_text(left)  # as after kill -9
    started = time.monotonic()
    with lease(tmp_path, pytest.fail) as again:
        assert again
    assert time.monotonic() - started < leases.AGE_SECONDS / 10


@pytest.mark.usefixtures("quick")
def test_without_locks_of_the_file_system_the_heartbeat_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(leases.fcntl, "flock", unsupported)
    with lease(tmp_path, lambda _: None) as first:
        assert first
        holder = threading.Timer(0.2, beat, [tmp_path, os.getpid()])
        holder.start()
        with lease(tmp_path, lambda _: None) as second:
            assert not second
        holder.join()


@pytest.mark.usefixtures("quick")
def test_an_old_lock_of_another_machine_is_taken_over_with_a_message(tmp_path: Path) -> None:
    path, said = held_elsewhere(tmp_path / "run"), list[str]()
    os.utime(path, (1, 1))
    with lease(tmp_path / "run", said.append) as mine:
        assert mine
        assert "another-machine" not in path.read_text()
    assert "held by another process (job 12)" in said[0]
    assert said[1].endswith("taken over")


@pytest.mark.usefixtures("quick")
def test_a_lock_that_another_machine_keeps_alive_is_left_alone(tmp_path: Path) -> None:
    path = held_elsewhere(tmp_path / "run")
    holder = threading.Timer(0.2, os.utime, [path])
    holder.start()
    with lease(tmp_path / "run", lambda _: None) as mine:
        assert not mine
    assert "another-machine" in path.read_text()
    holder.join()


@pytest.mark.usefixtures("quick")
def test_of_two_that_take_over_the_last_to_write_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where locks of the file system do not reach over machines."""
    path = held_elsewhere(tmp_path / "run")
    monkeypatch.setattr(leases.fcntl, "flock", lambda *_: None)
    mine = leases._is_still

    def later(place: Path, written: str) -> bool:
        place.write_text('{"host": "a-third-machine", "job": null, "pid": 4}\n')
        return mine(place, written)

    monkeypatch.setattr(leases, "_is_still", later)
    with lease(tmp_path / "run", lambda _: None) as won:
        assert not won
    assert "a-third-machine" in path.read_text()


@pytest.mark.parametrize("text", ["", "[]", "null", '{"pid": 3}', "{", '"another-machine"'])
def test_an_unreadable_lock_is_nobodys(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock").write_text(text)
    with lease(tmp_path, pytest.fail) as mine:
        assert mine


def test_a_beat_where_nothing_is_ends_nothing(tmp_path: Path) -> None:
    assert beat(tmp_path / "gone", 3)


def test_a_lock_that_was_taken_over_is_neither_kept_alive_nor_cleared(tmp_path: Path) -> None:
    """The holder stood still for longer than the age limit, and wakes up."""
    with lease(tmp_path, pytest.fail) as mine:
        assert mine
        assert beat(tmp_path, os.getpid())
        path = held_elsewhere(tmp_path)
        os.utime(path, (1, 1))
        assert not beat(tmp_path, os.getpid())
        assert path.stat().st_mtime == 1
    assert "another-machine" in path.read_text()


def test_a_watch_of_a_lock_ends_with_the_stop_flag(tmp_path: Path) -> None:
    path = held_elsewhere(tmp_path)
    started = time.monotonic()
    with lease(tmp_path, lambda _: None, lambda: True) as mine:
        assert not mine
    assert time.monotonic() - started < leases.AGE_SECONDS / 10
    assert "another-machine" in path.read_text()
