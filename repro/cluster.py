"""What the workflow has to know of Slurm beyond what the executor does: allocations around it, jobs that a killed
controller left, submissions that were refused, when a job has to end, and what its executor makes of a request.

docs/decisions/012-slurm.md says why each is here.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from repro.records.store import replace_text
from repro.spec.errors import ConfigError, Problem, shown
from repro.spec.paths import Root
from repro.spec.reading import read_json

# Read by Snakemake itself or by its Slurm executor; any other key is legal, and ignored.
KNOWN = frozenset(
    (
        *("cluster", "clusters", "constraint", "cpus_per_gpu", "cpus_per_task", "disk", "disk_mb", "disk_mib", "gpu"),
        *("gpu_model", "gres", "mem", "mem_mb", "mem_mb_per_cpu", "mem_mib", "mpi", "nodes", "qos", "runtime"),
        *("slurm_account", "slurm_cluster", "slurm_extra", "slurm_partition", "tasks", "tasks_per_gpu"),
        *("tasks_per_node", "tmpdir"),
    )
)
ANSWER_SECONDS = 20.0  # for squeue; a controller under load takes its time
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER")  # where Slurm is, not what an allocation holds
SHAPE = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_PROCID", "SLURM_MEM_")  # how many tasks, and the memory of each
MAX_LOG_BYTES = 1 << 28
MAX_NOTE_BYTES = 1 << 24
_COMMENT = re.compile(r"rule_(\w+)_wildcards_([0-9a-f]{12})")
# The executor's own words for a job that it could not hand over (sbatch said no, or it did not get as far), in
# Snakemake's account of it, which names the output; and those of a submission that worked.
_REFUSED = re.compile(
    r"Error in rule (run|prepare|leakage):\n    message: "
    r"(?:SLURM sbatch failed\. The error message was '|Job submission failed with exception: )(.*?)"
    r"(?:'\.\n|For further error details)(?:(?!\nError in rule ).)*?\n    output: [^\n]*?/([0-9a-f]{12})[./]",
    re.DOTALL,
)
_TAKEN = re.compile(r"has been submitted with SLURM jobid \S+ \(log: \S*/rule_(?:run|prepare|leakage)/([0-9a-f]{12})/")
_GRES = re.compile(r"[A-Za-z0-9_]+(:[A-Za-z0-9_.]+)?(:\d+[TGM]?)?")
_GPU_FLAG = re.compile(r"--gpus\b|--gres[=\s]\S*gpu|(?:^|\s)-G", re.IGNORECASE)
_LEFT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


def leave_allocation(environment: MutableMapping[str, str], remote: bool = True) -> str | None:
    """Takes away what an outer job set, so that no job inherits its limits; returns a warning if there was one.

    Jobs that run here (not `remote`) stand in the outer job as before: its number and end stay, since their deadline
    is read from them; only the tasks and the memory that it was asked for are not theirs.
    """
    outer = environment.get("SLURM_JOB_ID")
    if outer is None:
        return None
    left = "SLURM_" if remote else SHAPE
    names = [name for name in environment if name.startswith(left) and name not in KEPT]
    for name in names:
        del environment[name]
    if remote:
        told, advice = f"its {len(names)} SLURM_ variables", "this controller ends with that job"
        return f"{_inside(outer)}: {told} are not handed on to jobs; {advice}, so better start it on a login node"
    told = f" ({', '.join(sorted(names)[:6])} not handed on)" if names else ""
    return f"{_inside(outer)}: jobs run in it, one process each{told}, and end with it"


def _inside(job: str) -> str:
    return f"started inside Slurm job {shown(job)!r}"


def _squeue(*words: str) -> str | None:
    """What squeue says; None where there is none or it does not answer."""
    if shutil.which("squeue") is None:
        return None
    try:
        done = subprocess.run(
            ["squeue", "--noheader", *words], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def orphans(root: Root) -> dict[tuple[str, str], list[str]]:
    """{(rule, wildcard): job ids} of this checkout's jobs that Slurm still has, though no controller waits for them.

    Called before Snakemake takes its lock; where another controller lives, Snakemake stops right afterwards.
    """
    return _jobs(root) or {}


def _jobs(root: Root) -> dict[tuple[str, str], list[str]] | None:
    """This checkout's jobs by rule and wildcard; None where squeue does not answer."""
    answer = _squeue("--user", getpass.getuser(), "--format", "%i|%k|%Z")
    if answer is None:
        return None
    found: dict[tuple[str, str], list[str]] = {}
    for line in answer.splitlines():
        job, comment, folder = (*line.split("|", 2), "", "")[:3]
        match = _COMMENT.fullmatch(comment)
        if match and job.isdecimal() and Path(folder).resolve() == root.path:
            found.setdefault((match.group(1), match.group(2)), []).append(job)
    return found


def adoption(root: Root, left: dict[tuple[str, str], list[str]], rule: str) -> dict[str, Callable[[Any, int], str]]:
    """Resources that let a rule's submissions wait for a job left behind; empty where none is.

    The new job then finds the record of the old one, or goes on from its checkpoint, and no device waits meanwhile.
    A retry asks again which of them live: the first submission may have been refused. Slurm takes a job that is gone
    for one that has ended, so without an answer all are waited for.
    """
    jobs = {wildcard: ids for (name, wildcard), ids in left.items() if name == rule}
    if not jobs:
        return {}

    def extra(wildcards: Any, attempt: int) -> str:
        ids = [job for wildcard in wildcards for job in jobs.get(str(wildcard), [])]
        if ids and attempt > 1 and (now := _jobs(root)) is not None:
            alive = {job for those in now.values() for job in those}
            ids = [job for job in ids if job in alive]
        return f"--dependency=afterany:{':'.join(ids)}" if ids else ""

    return {"slurm_extra": extra}


def refusals(log: str) -> dict[str, str]:
    """{chunk, or digest of data: words} of what was refused when it was last submitted, out of a controller's log."""
    events: list[tuple[int, str, str | None]] = [
        (m.start(), m.group(3), " ".join(m.group(2).split())[:200]) for m in _REFUSED.finditer(log)
    ]
    events += [(m.start(), m.group(1), None) for m in _TAKEN.finditer(log)]
    last = {name: words for _, name, words in sorted(events, key=lambda event: event[0])}
    return {name: words for name, words in last.items() if words is not None}


def _note(root: Root, tier: str) -> Path:
    return root.scratch / "plan" / tier / "refused.json"


def note_refusals(root: Root, tier: str, log: Path) -> None:
    """Remembers what Slurm refused in the campaign whose log this is, for the views; forgets it if nothing was."""
    with open(log, encoding="utf-8", errors="replace") as stream:
        found = refusals(stream.read(MAX_LOG_BYTES))
    if found:
        replace_text(_note(root, tier), json.dumps(found, indent=1) + "\n")
    else:
        _note(root, tier).unlink(missing_ok=True)


def read_refusals(root: Root, tier: str) -> dict[str, str]:
    """{chunk, or digest of data: words} as noted last."""
    path = _note(root, tier)
    return dict(read_json(path, MAX_NOTE_BYTES)) if path.is_file() else {}


def seconds_left() -> float | None:
    """What the allocation around this process still has; None outside of one, or where it has no end.

    Asked of squeue, since older releases of Slurm do not state the end in a job's environment, and the executor takes
    it away in newer ones.
    """
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        return None
    match = _LEFT.fullmatch((_squeue("--job", job, "--format", "%L") or "").strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def minutes(value: Any) -> int | None:
    """Minutes that Snakemake reads out of a walltime; a bare number is one of minutes; None if it is no walltime."""
    # Here, since only two verbs need them.
    from snakemake.exceptions import WorkflowError
    from snakemake.resources import Resource

    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        found = Resource.parse_human_friendly("runtime", str(value).strip())
    except WorkflowError:
        return None
    return found if isinstance(found, int) else None


def faults(asked: Mapping[str, Any], gpu_needed: bool = False) -> Iterator[tuple[str, str]]:
    """(key, problem) of one rule's request; a value of None is one that cannot be told yet."""
    for key in sorted(set(asked) - KNOWN):
        end = "would run without a GPU" if "gpu" in key.casefold() else "is ignored"
        yield key, f"key not known to the executor, {end}"
    gres, gpu = asked.get("gres"), asked.get("gpu")
    if gres is not None and not _GRES.fullmatch(str(gres)):
        word = "nested quotes" if str(gres)[:1] in "'\"" else "is no NAME[:TYPE][:COUNT]"
        yield "gres", f"{shown(gres)}: {word}"
    if gpu is not None and (isinstance(gpu, bool) or not str(gpu).isdecimal()):
        yield "gpu", f"{shown(gpu)} is no whole number of GPUs"
    wanted = {
        "gpu": str(gpu or 0) != "0" or asked.get("gpu_model"),
        "gres": "gpu" in str(gres or "").casefold(),
        "slurm_extra": _GPU_FLAG.search(str(asked.get("slurm_extra") or "")),
    }
    requests = [key for key, there in wanted.items() if there]
    if len(requests) > 1:
        yield " and ".join(requests), "two GPU requests"
    if gpu_needed and not requests:
        yield "", "no GPU request"
    if (runtime := asked.get("runtime")) is not None and (wrong := _wrong_time(runtime)):
        yield "runtime", wrong


def _wrong_time(value: Any) -> str | None:
    if minutes(value) is None:
        return f"{shown(value)} is no walltime; write '30m' or '2h'"
    if re.fullmatch(r"[\d.]+", str(value).strip()):
        return f"{shown(value)}: a bare number; write a unit, as in '{value}m'"
    return None if re.search(r"[1-9]", str(value)) else f"{shown(value)} is no time at all"


def resource_problems(asked: Mapping[str, Any], gpu_needed: bool = False) -> list[str]:
    """Problems of one request; `gpu_needed` for a training that is planned for a GPU."""
    return [f"{shown(key)}: {problem}" if key else problem for key, problem in faults(asked, gpu_needed)]


def refuse_overrides(overwritten: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises ConfigError for what `--set-resources` asks in vain, from a command line or a profile.

    Snakemake has parsed it, so that a walltime is a number of minutes. A key without a GPU in it that Slurm's executor
    does not know may be another executor's: a warning.
    """
    problems = []
    for rule, resources in overwritten.items():
        asked = {key: getattr(value, "raw", value) for key, value in resources.items()}
        if isinstance(asked.get("runtime"), int):
            asked["runtime"] = f"{asked['runtime']}m"
        for key, message in faults(asked):
            problem = Problem("--set-resources", None, f"{shown(rule)}:{shown(key)}", message)
            if key in asked and key not in KNOWN and "gpu" not in key.casefold():
                print(f"warning: {problem}", file=sys.stderr)
            else:
                problems.append(problem)
    if problems:
        raise ConfigError(problems)
