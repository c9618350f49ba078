"""A Slurm of one node with two CPUs and a pretended GPU: daemons of its own in a folder of its own.

Nothing of the system is touched: munge has its own key and socket, Slurm its own configuration, ports and state.
Programs find it by SLURM_CONF, in which also the socket of munge stands.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo", "sacct")
PACKAGES = "slurm-wlm munge"
PATIENCE = 60  # seconds for an answer or an end of a daemon, on a machine that others use too
SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

# No accounting, as on many small clusters: the trap that `repro doctor` looks for. A requeued job starts again once its
# old credential has run out, two minutes by default.
CONFIGURATION = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=3
CredType=cred/munge
SlurmctldPort={controller_port}
SlurmdPort={node_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
PlugStackConfig={folder}/plugstack.conf
SchedulerParameters=sched_interval=2
KillWait=10
ReturnToService=2
GresTypes=gpu
NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory={memory} Gres=gpu:1
PartitionName=all Nodes=node Default=YES MaxTime=INFINITE
"""


def absent() -> list[str]:
    """Programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=SYSTEM_PATH) is None]


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; all are held until all are found, so that they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass
class Cluster:
    """The running cluster, and the environment in which Slurm's programs find it."""

    folder: Path
    environment: dict[str, str]

    @classmethod
    def start(cls) -> Cluster:
        """Brings all daemons up, and waits until a job has run; what came up goes down again if that fails."""
        folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: a socket's path has at most 107 signs
        folder.chmod(0o755)  # munge wants its clients to reach the socket
        kept = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
        found = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{folder}/bin:{SYSTEM_PATH}"}
        cluster = cls(folder, kept | found)
        try:
            cluster._write()
            cluster._munged()
            cluster._daemon("slurmctld")
            cluster._daemon("slurmd", "-N", "node")
            cluster.wait_until_ready()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @property
    def name(self) -> str:
        """The cluster's own name."""
        return f"test{self.folder.name.removeprefix('slurm-')}".lower().replace("_", "x")

    @property
    def access(self) -> dict[str, str]:
        """What a process needs to find this cluster."""
        return {name: self.environment[name] for name in ("SLURM_CONF", "PATH")}

    def _write(self) -> None:
        for name in ("munge", "state", "spool", "bin"):
            (self.folder / name).mkdir(mode=0o755)
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        controller_port, node_port = _free_ports(2)
        text = CONFIGURATION.format(
            host=socket.gethostname().split(".")[0],
            user=getpass.getuser(),
            folder=self.folder,
            name=self.name,
            controller_port=controller_port,
            node_port=node_port,
            memory=psutil.virtual_memory().total // 2**20 - 512,
        )
        (self.folder / "slurm.conf").write_text(text)
        # The executor takes SLURM_CONF away before it calls srun in a job, as if all had theirs in /etc.
        srun = self.folder / "bin" / "srun"
        real = shutil.which("srun", path=SYSTEM_PATH)
        srun.write_text(f'#!/bin/sh\nSLURM_CONF={self.folder}/slurm.conf exec {real} "$@"\n')
        srun.chmod(0o755)
        (self.folder / "plugstack.conf").touch()
        (self.folder / "gpu0").touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu0\n")

    def _munged(self) -> None:
        parts = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        self._daemon("munged", *(f"--{option}={self.folder}/munge/{name}" for option, name in parts.items()))

    def _daemon(self, *command: str) -> None:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"

    def wait_until_ready(self) -> None:
        """Until the node takes jobs and has run one."""
        deadline = time.monotonic() + PATIENCE
        while self.call("sinfo", "-h", "-o", "%T", code=None).strip() != "idle":
            if time.monotonic() > deadline:
                logs = [(path.name, path.read_text()[-2000:]) for path in self.folder.glob("*.log")]
                raise AssertionError(f"the node does not come up: {logs}")
            time.sleep(0.2)
        assert self.call("srun", "-Q", "-n1", "echo", "works").strip() == "works"

    def call(self, *command: str, code: int | None = 0, patience: float = PATIENCE) -> str:
        """Standard output of one of Slurm's programs."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=patience, check=False
        )
        assert code is None or done.returncode == code, f"{command}: exit {done.returncode} {done.stderr}"
        return done.stdout

    def jobs(self) -> list[tuple[str, str, str]]:
        """(id, state, comment) of all jobs that have not ended."""
        lines = self.call("squeue", "-h", "-o", "%i|%T|%k").splitlines()
        return [(found[0], found[1], found[2]) for line in lines if len(found := line.split("|")) == 3]

    def processes(self, job: str) -> list[psutil.Process]:
        """Everything that runs below the step daemons of one job, these left out: what a failing node takes along.

        Job numbers alone are not enough: another cluster of these tests may be up on the same machine.
        """
        own = {"SLURM_JOB_ID": job, "SLURM_CLUSTER_NAME": self.name}
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                told = process.environ()
                if all(told.get(key) == value for key, value in own.items()) and "slurmstepd" not in process.name():
                    found.append(process)
        return found

    def pid_files(self) -> list[Path]:
        """Of the daemons, in the order in which they are to end."""
        return [self.folder / "slurmctld.pid", self.folder / "slurmd.pid", self.folder / "munge" / "pid"]

    def stop(self) -> None:
        """Ends all jobs, then the daemons by their pid files, and removes the folder."""
        with suppress(AssertionError, subprocess.TimeoutExpired, OSError):
            self.call("scancel", "--user", getpass.getuser(), "--signal=KILL", code=None)
            self.call("scancel", "--user", getpass.getuser(), code=None)
            deadline = time.monotonic() + PATIENCE
            while self.jobs() and time.monotonic() < deadline:
                time.sleep(0.2)
        for path in self.pid_files():
            with suppress(OSError, ValueError, psutil.Error):
                daemon = psutil.Process(int(path.read_text()))
                daemon.send_signal(signal.SIGTERM)
                try:
                    daemon.wait(PATIENCE)
                except psutil.TimeoutExpired:
                    daemon.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
