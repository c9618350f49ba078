"""The cluster's part of `repro doctor`: what makes jobs wait for ever, run without a device or lose their files."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import psutil

from repro.cluster import KEPT
from repro.dag import MANY_WORKERS
from repro.spec.errors import ReproError
from repro.spec.paths import Root, is_inside
from repro.spec.reading import read_yaml
from repro.verbs.finding import Line, ask, one_line
from repro.verbs.profile import lint

SQUEUE = "put `slurm-status-command: squeue` and `slurm-no-account: true` into slurm/config.yaml"
# File systems that many machines mount; any other is taken for a disk of this machine.
SHARED = ("afs", "beegfs", "ceph", "cifs", "fuse", "gluster", "gpfs", "lustre", "nfs", "panfs", "smb", "weka")


def examine(root: Root) -> list[Line]:
    """Whether this is a cluster, whether it answers, and what of it would trap a campaign."""
    lines = inherited()
    if shutil.which("sbatch") is None:
        lines.append(Line("ok", "slurm", "no sbatch on PATH: not a cluster, or not one for this user"))
        return [*lines, requests(root)]
    status, text = ask("sinfo", "-h", "-o", "%P")
    if status:
        mend = "ask the cluster's people; local runs (snakemake -c2) need no Slurm"
        lines.append(Line("fail", "slurm", f"sbatch is there, but sinfo: {text or 'no answer'}", mend))
        return [*lines, requests(root)]
    lines.append(Line("ok", "slurm", f"partitions: {text or 'none'}"))
    return [*lines, job_states(root), requests(root), *file_system(root), *nodes(), *preemption(), *place()]


def inherited() -> list[Line]:
    """Whether this shell stands in a job whose limits jobs would inherit."""
    inside = os.environ.get("SLURM_JOB_ID")
    if not inside:
        return []
    limits = sorted(name for name in os.environ if re.match(r"SLURM_(MEM|NTASKS|CPUS|GPUS|TRES|JOB_GPUS)", name))
    held = f" ({', '.join(limits[:6])})" if limits else ""
    detail = f"this shell is inside job {one_line(inside)[:20]}: jobs submitted by hand inherit its settings{held}"
    mend = "start Snakemake from a login node; with the profile slurm it hands none of them on"
    return [Line("warn", "slurm", detail, mend)]


def job_states(root: Root) -> Line:
    """How Snakemake can learn that a job has ended: without accounting `sacct` answers nothing for ever."""
    status, text = ask("sacct", "-X", "-n", "-o", "JobID")
    if not status and "accounting storage is disabled" not in text.casefold():
        return Line("ok", "slurm states", "read by sacct")
    if shutil.which("squeue") is None:
        detail = f"sacct: {text or 'no answer'}; and squeue is not on PATH"
        return Line("fail", "slurm states", detail, "put Slurm's programs on PATH")
    if _profile(root).get("slurm-status-command") == "squeue":
        return Line("ok", "slurm states", "no accounting; slurm/config.yaml reads them by squeue")
    return Line("warn", "slurm states", f"no accounting, sacct: {text or 'no answer'}", SQUEUE)


def _profile(root: Root) -> dict[str, Any]:
    """The profile's keys; none where it is not there or cannot be read."""
    path = root.path / "slurm" / "config.yaml"
    try:
        value = read_yaml(path, root.shown(path)).value if path.is_file() else {}
    except ReproError:
        return {}
    return value if isinstance(value, dict) else {}


def requests(root: Root) -> Line:
    """Whether profile and rules ask for GPUs and time in a way that reaches Slurm; files say so without one."""
    problems = lint(root)
    if problems:
        more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
        mend = "`repro check-config slurm` lists a profile's; GPUs by `gpu: 1` or one unquoted gres, time as in '30m'"
        return Line("fail", "slurm requests", one_line(str(problems[0])) + more, mend)
    return Line("ok", "slurm requests", "every key is one that the executor knows")


def _kind(path: Path) -> str:
    """Type of the file system that holds `path`."""
    place, found = path.resolve(), ("", "unknown")
    for part in psutil.disk_partitions(all=True):
        if is_inside(place, Path(part.mountpoint)) and len(part.mountpoint) >= len(found[0]):
            found = (part.mountpoint, part.fstype)
    return found[1]


def file_system(root: Root) -> list[Line]:
    """Whether the nodes can see the checkout and its scratch/; a cluster of one node needs no shared disk."""
    status, text = ask("sinfo", "-h", "-N", "-o", "%N", signs=1 << 16)
    if status or len(set(text.split())) < 2:
        return []
    lines = []
    for name, folder in (("the checkout", root.path), ("scratch/", root.scratch)):
        kind = _kind(folder)
        if kind.startswith(SHARED):
            continue
        own = kind in ("tmpfs", "ramfs", "overlay") or is_inside(folder, Path(tempfile.gettempdir()))
        detail = f"{name} lies on {'a temporary' if own else 'a'} disk of this machine ({kind}), jobs run on others"
        mend = "put it on a disk that all nodes mount" + ("" if name == "the checkout" else ": scratch/ may be a link")
        lines.append(Line("fail" if own else "warn", "slurm disk", detail, mend))
    return lines or [Line("ok", "slurm disk", "checkout and scratch/ lie on a shared file system")]


def nodes() -> list[Line]:
    """Whether a node has the cores that preparing a large source asks for; Slurm may let such a job wait for ever."""
    status, text = ask("sinfo", "-h", "-o", "%c", signs=1 << 12)
    cores = [int(number) for number in re.findall(r"\d+", text)]
    if status or not cores or max(cores) >= MANY_WORKERS:
        return []
    mend = f"in slurm/config.yaml, `set-threads: [prepare={max(cores)}, leakage={max(cores)}]`"
    return [
        Line("warn", "slurm nodes", f"at most {max(cores)} cores; a large source asks for {MANY_WORKERS}", mend),
    ]


def preemption() -> list[Line]:
    """Whether a preempted job is ended for good: then the executor goes on waiting for it."""
    status, text = ask("scontrol", "show", "config", signs=1 << 16)
    found = re.search(r"PreemptMode\s*=\s*(\S+)", text)
    if status or found is None or "CANCEL" not in found.group(1):
        return []
    detail = "preempted jobs are cancelled here, and the executor waits for them to come back"
    mend = "use a QOS that is not preempted; else, when `repro status` stands still, start the controller again"
    return [Line("warn", "slurm preemption", detail, mend)]


def place() -> list[Line]:
    """Whether Slurm is found by a variable only: the executor takes it away before it starts a job's step."""
    named = [name for name in KEPT if name in os.environ]
    if not named:
        return []
    detail = f"{', '.join(named)} is set; inside a job the executor calls srun without it"
    mend = "nothing to do if srun works without it; else put an srun that sets it first on PATH"
    return [Line("warn", "slurm place", detail, mend)]
