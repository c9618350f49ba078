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
from repro.verbs import doctor_slurm as slurm
from repro.verbs.checks import check_file
from repro.verbs.finding import Line, one_line
from repro.verbs.output import columns

OLDEST_PYTHON = (3, 11)
TORCH_SECONDS = 20.0
FULL_GB, TIGHT_GB = 0.5, 5.0  # below these a run's checkpoints do not fit, or soon will not
TORCH_PROBE = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
names = [torch.cuda.get_device_name(number) for number in range(count)]
print(json.dumps({"version": torch.__version__, "devices": names}))
"""
SETUP = "touch requirements.lock && make setup"
CHECK_CONFIG = "repro check-config config"


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
    lines += slurm.examine(root)
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
