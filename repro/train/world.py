"""The processes of one run: how many the plan wants, which of them this one is, who starts them, how they meet.

This is the one place where devices and nodes of the plan become a launcher and an environment; `launch.py` turns the
environment into Lightning's strategy. A run on one device has one process. On several devices of one node `repro run`
starts the others itself; on several nodes it calls `srun`, which starts a `repro run` for each. Rank 0 alone holds the
lease, saves, and writes records.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from repro.spec.errors import ConfigError, Problem

# What torch.distributed and Lightning read, and an outer launcher may have left behind.
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# How many of us another launcher says that it has started: torchrun or mpirun.
OTHERS = {"WORLD_SIZE": "torchrun", "OMPI_COMM_WORLD_SIZE": "mpirun"}
FIRST_PORT, PORTS = 15_000, 10_000
RESERVED_STEPS = 4_294_967_290  # from here on Slurm's numbers name a job's script or shell, no step of tasks
PEER_LOST = 76  # exit code of a process that another one of its run has left alone


class PeerLostError(Exception):
    """Another process of the run is gone: no fault of the run, all start again from the newest checkpoint."""


@dataclass(frozen=True, slots=True)
class World:
    """`size` processes on one run, `per_node` on a node; this one has number `rank`, and `local` on its node."""

    size: int = 1
    per_node: int = 1
    rank: int = 0
    local: int = 0
    launcher: Literal["none", "here", "srun", "allocation"] = "none"

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.size // self.per_node

    def started_here(self) -> list[World]:
        """The other processes, which `repro run` has to start beside its own."""
        if self.launcher != "here":
            return []
        return [World(self.size, self.per_node, rank, rank, "here") for rank in range(1, self.size)]

    def start_tasks(self, words: list[str]) -> list[str]:
        """The command that starts WORDS once for each device of this allocation."""
        shape = [f"--nodes={self.nodes}", f"--ntasks={self.size}", f"--ntasks-per-node={self.per_node}"]
        return ["srun", *shape, "--kill-on-bad-exit=1", *words]

    def environment(self, address: str, port: int) -> dict[str, str]:
        """What torch.distributed is told, in torchrun's words; nothing for one process."""
        if self.size == 1:
            return {}
        own = {"RANK": self.rank, "LOCAL_RANK": self.local, "GROUP_RANK": self.rank // self.per_node}
        shared = {"WORLD_SIZE": self.size, "LOCAL_WORLD_SIZE": self.per_node, "MASTER_PORT": port}
        return {key: str(value) for key, value in (own | shared).items()} | {"MASTER_ADDR": address}


def find_world(alias: str, devices: int, nodes: int, environ: Mapping[str, str]) -> World:
    """This process's place in a run that the plan gives `devices` devices on `nodes` nodes.

    Slurm's numbers count only where it has started us (`SLURM_PROCID`): as a task of a step, or as the script of an
    allocation, whose tasks are still to be started. Raises ConfigError where it has another number of tasks than the
    plan has devices: each would train the whole run, or wait for what never comes. Of other launchers more than one
    process is refused whatever the plan has: `repro run` starts its processes itself, or calls `srun`.
    """
    for key, name in OTHERS.items():
        if environ.get(key) and (others := _number(environ, key)) > 1:
            raise _misfit(alias, devices, nodes, f"{name} started {others} process(es)", key)
    tasks = _tasks(environ)
    if tasks == 1 and nodes == 1:
        return World(devices, devices, launcher="here" if devices > 1 else "none")
    in_step = "SLURM_STEP_ID" in environ and _number(environ, "SLURM_STEP_ID") < RESERVED_STEPS
    if "SLURM_JOB_ID" in environ and not in_step and tasks in (1, devices):
        return World(devices, devices // nodes, launcher="allocation")
    if tasks != devices:
        started = f"Slurm started {tasks} task(s)" if "SLURM_PROCID" in environ else "this is one process"
        raise _misfit(alias, devices, nodes, started)
    rank = _number(environ, "SLURM_PROCID")
    world = World(devices, devices // nodes, rank, _number(environ, "SLURM_LOCALID", rank % (devices // nodes)), "srun")
    if world.local >= world.per_node or _number(environ, "SLURM_STEP_NUM_NODES", nodes) != nodes:
        raise _misfit(alias, devices, nodes, f"Slurm laid its {tasks} tasks out otherwise")
    return world


def _tasks(environ: Mapping[str, str]) -> int:
    """How many of us Slurm says that it has started; sbatch without --ntasks says nothing, and starts one."""
    if not environ.get("SLURM_PROCID"):
        return 1
    return _number(environ, "SLURM_NTASKS") if environ.get("SLURM_NTASKS") else 1 + _number(environ, "SLURM_PROCID")


def _misfit(alias: str, devices: int, nodes: int, found: str, key: str = "SLURM_NTASKS") -> ConfigError:
    message = f"the plan has {devices} device(s) on {nodes} node(s) for this run; {found}"
    mend = "use one task, or as many as devices"
    if key in OTHERS:
        mend = "start `repro run` once, without it and its variables: it starts what the plan wants"
    elif nodes > 1:
        mend = f"use `srun --nodes={nodes} --ntasks={devices} --ntasks-per-node={devices // nodes}`"
    return ConfigError([Problem(key, None, alias, f"{message}; {mend}")])


def _number(environ: Mapping[str, str], key: str, default: int | None = None) -> int:
    text = environ.get(key, "" if default is None else str(default))
    if not text.isdecimal():
        raise ConfigError([Problem(key, None, "", f"{text!r} is no number of tasks")])
    return int(text)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def agreed_port(environ: Mapping[str, str], meeting: int) -> int:
    """The port that all tasks of one step of Slurm come to by themselves, for the `meeting`-th run of their command."""
    job, step = _number(environ, "SLURM_JOB_ID"), _number(environ, "SLURM_STEP_ID", 0)
    return FIRST_PORT + (job * 7 + step + meeting * 101) % PORTS
