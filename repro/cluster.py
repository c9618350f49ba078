"""What the workflow has to know of Slurm beyond what the executor does: allocations around it, jobs that a killed
controller left, submissions that were refused, and when a job has to end.

docs/decisions/012-slurm.md says why each is here.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

from repro.records.store import replace_text
from repro.spec.errors import shown
from repro.spec.paths import Root
from repro.spec.reading import read_json

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
