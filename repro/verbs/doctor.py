"""`repro doctor`: what is installed, which device, disk, data, records, cluster; each line with its mend.

Torch is looked at by a process of its own, which works while the rest is checked, so the verb stays quick where
an import hangs or fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from repro.data.whole import prepared_problems
from repro.plan import Plan, build_plan
from repro.records.index import load_index
from repro.records.provenance import code
from repro.spec.data import DataSource, digest
from repro.spec.errors import ReproError
from repro.spec.hashing import short
from repro.spec.load import Configuration, load_configuration
from repro.spec.paths import Root, find_root
from repro.spec.sets import LabelledSource, SeriesSource
from repro.verbs.checks import check_file
from repro.verbs.output import columns

OLDEST_PYTHON = (3, 11)
TORCH_SECONDS = 20.0
TOOL_SECONDS = 5.0  # for an answer of git's or Slurm's programs
FULL_GB, TIGHT_GB = 0.5, 5.0  # below these a run's checkpoints do not fit, or soon will not
TORCH_PROBE = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
names = [torch.cuda.get_device_name(number) for number in range(count)]
print(json.dumps({"version": torch.__version__, "devices": names}))
"""
SETUP = "touch requirements.lock && make setup"
CHECK_CONFIG = "repro check-config config"
SQUEUE = "put `slurm-status-command: squeue` and `slurm-no-account: true` into slurm/config.yaml"


@dataclass(frozen=True, slots=True)
class Line:
    """One finding: `state` is ok, warn or fail; `mend` says what to do about it."""

    state: str
    what: str
    detail: str
    mend: str = ""


def doctor() -> None:
    """Prints all findings; exit 1 if one of them is a fail, and only then."""
    root = find_root()
    with start_probe() as probe:
        lines = examine(root, probe)
    columns([(line.state, line.what, line.detail, line.mend) for line in lines], ("", "what", "detail", "mend"))
    if any(line.state == "fail" for line in lines):
        sys.exit(1)


def examine(root: Root, probe: subprocess.Popen[str]) -> list[Line]:
    """All findings about one checkout and this machine; a check that breaks down is itself a fail."""
    lines = [python(), *packages(root), *_guarded("disk", lambda: [disk(root), *writable(root)])]
    found = _guarded("configuration", lambda: configuration(root), CHECK_CONFIG)
    lines += found
    if all(line.state != "fail" for line in found):
        plan = build_plan(root)
        lines += [line for name in plan.configuration.sources for line in _guarded(name, _data_check(plan, name))]
    lines += _guarded("records", lambda: [records(root)])
    lines += _guarded("git", lambda: [git(root)])
    lines += slurm(root)
    return [*lines[:1], *torch_lines(probe, root), *lines[1:]]


def _guarded(what: str, check: Callable[[], list[Line]], mend: str = "see the file that is named") -> list[Line]:
    """The check's lines, or one that says how the check ended."""
    try:
        return check()
    except ReproError as error:
        return [Line("fail", what, first_of([str(problem) for problem in error.problems]), mend)]
    except OSError as error:
        return [Line("fail", what, one_line(f"{Path(str(error.filename)).name}: {error.strerror}"), mend)]


def first_of(problems: list[str]) -> str:
    """The first of many problems, and how many there are beside it."""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return one_line(problems[0]) + more


def one_line(text: str) -> str:
    """A message of another program as part of one line."""
    return "".join(sign if sign.isprintable() else "?" for sign in " ".join(text.split()))[:160]


def python() -> Line:
    """The interpreter's version."""
    version = sys.version.split()[0]
    if sys.version_info < OLDEST_PYTHON:
        return Line("fail", "python", f"{version} is too old", "install Python 3.11 or newer, then make setup")
    return Line("ok", "python", version)


def packages(root: Root) -> list[Line]:
    """Installed versions against requirements.lock; only a missing direct dependency is a fail."""
    lock = root.path / "requirements.lock"
    if not lock.is_file():
        return [Line("warn", "packages", "requirements.lock is not there", "restore it from git")]
    installed = {_plain(item.name): item.version for item in metadata.distributions() if item.name}
    missing, different, count = [], [], 0
    for name, pin, matches in _locked(lock.read_text("utf-8")):
        count += 1
        have = installed.get(_plain(name))
        if have is None:
            missing.append(name)
        elif not matches(have):
            different.append(f"{name} {have} (locked: {pin})")
    direct = _direct()
    lines = []
    if missing:
        state = "fail" if any(_plain(name) in direct for name in missing) else "warn"
        lines.append(Line(state, "packages", f"not installed: {_some(missing)}", SETUP))
    if different:
        lines.append(Line("warn", "packages", f"other versions than locked: {_some(different)}", SETUP))
    return lines or [Line("ok", "packages", f"{count} as locked")]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _locked(text: str) -> Iterator[tuple[str, str, Callable[[str], bool]]]:
    """(name, version, test of an installed version) of each pin that this machine needs."""
    from packaging.requirements import Requirement

    for line in text.splitlines():
        if not line[:1].isalnum():
            continue
        pin = Requirement(line.rstrip(" \\"))
        if pin.marker is None or pin.marker.evaluate():
            yield pin.name, str(pin.specifier).lstrip("="), pin.specifier.contains


def _direct() -> set[str]:
    """Packages that pyproject.toml itself names, extras left out."""
    try:
        wanted = metadata.requires("repro") or []
    except metadata.PackageNotFoundError:
        return set()
    names = [re.match(r"[A-Za-z0-9._-]+", text) for text in wanted if "extra ==" not in text]
    return {_plain(name.group()) for name in names if name}


def start_probe() -> subprocess.Popen[str]:
    """A process that imports torch and tells its version and devices as JSON."""
    command = [sys.executable, "-c", TORCH_PROBE]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def torch_lines(probe: subprocess.Popen[str], root: Root) -> list[Line]:
    """Whether torch can be imported, and whether its devices have a peak speed in config/hardware.yaml."""
    try:
        out, err = probe.communicate(timeout=TORCH_SECONDS)
    except subprocess.TimeoutExpired:
        probe.kill()
        probe.communicate()
        mend = "imports are slow from a network disk: put .venv on a local one"
        return [Line("warn", "torch", f"its import took longer than {TORCH_SECONDS:g} s", mend)]
    if probe.returncode:
        return [Line("fail", "torch", one_line((err.strip().splitlines() or ["no output"])[-1]), SETUP)]
    told = json.loads(out.splitlines()[-1])
    return [Line("ok", "torch", told["version"]), *_guarded("device", lambda: _devices(told["devices"], root))]


def _devices(names: list[str], root: Root) -> list[Line]:
    if not names:
        return [Line("ok", "device", f"no GPU, {os.cpu_count()} CPU cores")]
    known = load_configuration(root).hardware
    mend = "add its peak FLOP/s, with the source, to config/hardware.yaml"
    return [
        Line("ok", "device", f"{names.count(name)} x {name}")
        if name in known
        else Line("warn", "device", f"{names.count(name)} x {name}: its peak is unknown, records get no MFU", mend)
        for name in dict.fromkeys(names)
    ]


def _standing(path: Path) -> Path:
    """The nearest folder at or above `path` that is there."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def disk(root: Root) -> Line:
    """Free space where checkpoints and data go."""
    free = shutil.disk_usage(_standing(root.scratch)).free / 1e9
    mend = "make room, or let scratch/ be a link to a larger disk"
    if free < TIGHT_GB:
        return Line("fail" if free < FULL_GB else "warn", "disk", f"{free:.1f} GB free for scratch/", mend)
    return Line("ok", "disk", f"{free:.0f} GB free for scratch/")


def writable(root: Root) -> list[Line]:
    """Whether files can be made where records, data and tables go."""
    refused = []
    for folder in (root.scratch, root.records):
        try:
            with tempfile.TemporaryFile(dir=_standing(folder)):
                pass
        except OSError as error:
            refused.append(f"{root.shown(folder)} ({error.strerror})")
    if refused:
        return [
            Line("fail", "writing", f"not possible: {', '.join(refused)}", "give this user the right to write there")
        ]
    return [Line("ok", "writing", "scratch/ and results/ can be written")]


def configuration(root: Root) -> list[Line]:
    """Every file of config/, and the plan of the default tier."""
    known = load_configuration(root)
    files = sorted(root.config.rglob("*.yaml"))
    problems = [problem for path in files for problem in _file_problems(path, root, known)]
    if problems:
        return [Line("fail", "configuration", first_of(problems), CHECK_CONFIG)]
    plan = build_plan(root, configuration=known)
    return [Line("ok", "configuration", f"{len(files)} files, {len(plan.runs)} runs at tier {plan.tier}")]


def _file_problems(path: Path, root: Root, known: Configuration) -> list[str]:
    try:
        check_file(path, root, known)
    except ReproError as error:
        return [str(problem) for problem in error.problems]
    return []


def _data_check(plan: Plan, name: str) -> Callable[[], list[Line]]:
    return lambda: [data(plan, name, plan.configuration.sources[name])]


def data(plan: Plan, name: str, source: DataSource | SeriesSource | LabelledSource) -> Line:
    """Whether the prepared files of one source are there and whole; what no planned run needs may be missing."""
    root, what = plan.configuration.root, f"data {name}"
    needed = any(run.data == name for run in plan.runs.values())
    try:
        sha256 = digest(source, root)
    except ReproError as error:
        return Line("warn" if needed else "ok", what, one_line(error.problems[0].message), "see config/data.yaml")
    folder = root.scratch / "data" / short(sha256)
    if (folder / "manifest.json").is_file():
        if problems := prepared_problems(root, sha256, isinstance(source, DataSource)):
            mend = f"rm -r {root.shown(folder)} && repro data prepare {name}"
            return Line("fail", what, one_line(str(problems[0])), mend)
        return Line("ok", what, "prepared")
    if not needed:
        return Line("ok", what, f"not prepared; no run at tier {plan.tier} needs it")
    absent = source.fetch is not None and not (root.scratch / "fetched" / name).is_dir()
    fetch = f"repro data fetch {name} && " if absent else ""
    return Line("warn", what, "not prepared", f"{fetch}repro data prepare {name} (or let Snakemake do it)")


def records(root: Root) -> Line:
    """Whether every record file is what it says."""
    index = load_index(root)
    if index.problems:
        return Line("fail", "records", first_of([str(p) for p in index.problems]), "repro records validate")
    own, others = (sum(map(len, found.values())) for found in (index.records, index.community))
    return Line("ok", "records", f"{own} of this suite, {others} of others")


def git(root: Root) -> Line:
    """Whether records will name a commit, and whether it is all of the code."""
    if shutil.which("git") is None:
        return Line("warn", "git", "not on PATH: records will name no commit", "install git")
    state = code(root)
    if state["git_commit"] is None:
        return Line("warn", "git", "no commit here: records will name none", "work in a clone")
    if state["dirty"]:
        detail = f"{state['git_commit'][:12]} with changes: records will say `dirty`"
        return Line("warn", "git", detail, "commit the changes (git status)")
    return Line("ok", "git", f"{state['git_commit'][:12]}, clean")


def slurm(root: Root) -> list[Line]:
    """Whether this is a cluster, whether it answers, and how the states of jobs can be read there."""
    inside = os.environ.get("SLURM_JOB_ID")
    lines = []
    if inside:
        detail = f"this shell is inside job {one_line(inside)[:20]}: jobs submitted from here inherit its settings"
        lines.append(Line("warn", "slurm", detail, "start Snakemake from a login node"))
    if shutil.which("sbatch") is None:
        return [*lines, Line("ok", "slurm", "no sbatch on PATH: not a cluster, or not one for this user")]
    status, text = ask("sinfo", "-h", "-o", "%P")
    if status:
        mend = "ask the cluster's people; local runs (snakemake -c2) need no Slurm"
        return [*lines, Line("fail", "slurm", f"sbatch is there, but sinfo: {text or 'no answer'}", mend)]
    return [*lines, Line("ok", "slurm", f"partitions: {text or 'none'}"), job_states(root)]


def job_states(root: Root) -> Line:
    """How Snakemake can learn that a job has ended: without accounting `sacct` answers nothing for ever."""
    status, text = ask("sacct", "-X", "-n", "-o", "JobID")
    if not status and "accounting storage is disabled" not in text.casefold():
        return Line("ok", "slurm states", "read by sacct")
    if shutil.which("squeue") is None:
        detail = f"sacct: {text or 'no answer'}; and squeue is not on PATH"
        return Line("fail", "slurm states", detail, "put Slurm's programs on PATH")
    if _profile_uses_squeue(root):
        return Line("ok", "slurm states", "no accounting; slurm/config.yaml reads them by squeue")
    return Line("warn", "slurm states", f"no accounting, sacct: {text or 'no answer'}", SQUEUE)


def _profile_uses_squeue(root: Root) -> bool:
    profile = root.path / "slurm" / "config.yaml"
    text = profile.read_text("utf-8") if profile.is_file() else ""
    return re.search(r"^\s*slurm-status-command:\s*[\"']?squeue\b", text, re.MULTILINE) is not None


def ask(*command: str) -> tuple[int, str]:
    """Exit code and output, on one line, of a program; code 1 where it is missing or does not answer in time."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    except FileNotFoundError:
        return 1, f"{command[0]} is not on PATH"
    except (OSError, subprocess.TimeoutExpired):
        return 1, f"{command[0]} did not answer within {TOOL_SECONDS:g} s"
    return done.returncode, one_line(f"{done.stdout} {done.stderr}")
