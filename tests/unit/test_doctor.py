"""What `repro doctor` says of a machine: stub programs on PATH stand for a cluster, a copied checkout for a clone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from repro.plan import build_plan
from repro.spec.paths import Root
from repro.verbs import doctor, doctor_slurm, finding

REPOSITORY = Path(__file__).resolve().parents[2]
QUICK_PROBE = 'print(\'{"version": "9.9", "devices": []}\')'
DISABLED = 'echo "Slurm accounting storage is disabled" >&2; exit 1'


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    shutil.copytree(REPOSITORY / "config", folder / "config", ignore=shutil.ignore_patterns("local.yaml"))
    shutil.copy(REPOSITORY / "requirements.lock", folder)
    return Root(folder)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Puts programs on a PATH that holds nothing else; returns a function that adds one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def add(name, script):
        path = folder / name
        path.write_text(f"#!{shutil.which('sh', path=os.defpath)}\n{script}\n")
        path.chmod(0o755)

    return add


def states(lines):
    return {line.what: line.state for line in lines}


def test_no_slurm_is_no_fault(checkout, programs):
    line, asked = doctor_slurm.examine(checkout)
    assert (line.state, line.what, asked.state) == ("ok", "slurm", "ok")
    assert "not a cluster" in line.detail


def test_disabled_accounting_is_found_and_mended(checkout, programs):
    programs("sbatch", "exit 0")
    programs("sinfo", "echo gpu")
    programs("sacct", DISABLED)
    programs("squeue", "exit 0")
    answer, line, *_ = doctor_slurm.examine(checkout)
    assert (answer.state, answer.detail) == ("ok", "partitions: gpu")
    assert line.state == "warn"
    assert "slurm-status-command: squeue" in line.mend
    profile = checkout.path / "slurm" / "config.yaml"
    profile.parent.mkdir()
    profile.write_text("#   slurm-status-command: squeue\n")
    assert doctor_slurm.job_states(checkout).state == "warn", "a comment sets nothing"
    profile.write_text("slurm-status-command: squeue\n")
    assert doctor_slurm.job_states(checkout).state == "ok"


def test_text_of_disabled_accounting_counts_even_with_exit_0(checkout, programs):
    programs("sacct", 'echo "Slurm accounting storage is disabled"')
    programs("squeue", "exit 0")
    assert doctor_slurm.job_states(checkout).state == "warn"


def test_job_states_that_nothing_can_read_are_a_fail(checkout, programs):
    assert doctor_slurm.job_states(checkout).state == "fail"


def test_working_accounting_is_used(checkout, programs):
    programs("sbatch", "exit 0")
    programs("sinfo", "echo batch")
    programs("sacct", "exit 0")
    assert [line.state for line in doctor_slurm.examine(checkout)] == ["ok", "ok", "ok"]


def test_a_controller_that_does_not_answer_is_a_fail(checkout, programs, monkeypatch):
    monkeypatch.setattr(finding, "TOOL_SECONDS", 0.2)
    programs("sbatch", "exit 0")
    programs("sinfo", "while :; do :; done")
    line, asked = doctor_slurm.examine(checkout)
    assert (line.state, asked.state) == ("fail", "ok")
    assert "did not answer" in line.detail


def test_inside_a_job_is_a_warning(checkout, programs, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17\n\x1b[31m")
    first, *_ = doctor_slurm.examine(checkout)
    assert first.state == "warn"
    assert "\x1b" not in first.detail


CLUSTER = """
case "$*" in
  *%P*) echo all ;;
  *%N*) printf '%s\\n' {nodes} ;;
  *%c*) echo {cores} ;;
esac
"""


@pytest.fixture
def large(programs, checkout):
    """A cluster of two nodes with accounting, on which nothing is wrong."""
    programs("sbatch", "exit 0")
    programs("sacct", "exit 0")
    programs("sinfo", CLUSTER.format(nodes="n1 n2", cores="64"))
    programs("scontrol", "echo 'PreemptMode             = REQUEUE'")
    return checkout


def of(lines, what):
    return next(line for line in lines if line.what == what)


def test_inherited_limits_are_named(large, monkeypatch):
    """Case W08."""
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setenv("SLURM_NTASKS", "7")
    (line,) = doctor_slurm.inherited()
    assert (line.state, "SLURM_MEM_PER_CPU, SLURM_NTASKS" in line.detail) == ("warn", True)


@pytest.mark.parametrize(
    ("kind", "state"), [("nfs4", "ok"), ("lustre", "ok"), ("fuse.juicefs", "ok"), ("xfs", "warn"), ("tmpfs", "fail")]
)
def test_files_that_other_nodes_do_not_see(large, monkeypatch, kind, state):
    """The kind of a disk is all that differs: this test's own folder lies wherever the machine keeps such."""
    monkeypatch.setattr(doctor_slurm, "_kind", lambda path: kind)
    monkeypatch.setattr(doctor_slurm.tempfile, "gettempdir", lambda: "/nowhere")
    found = [line for line in doctor_slurm.examine(large) if line.what == "slurm disk"]
    assert {line.state for line in found} == {state}
    assert all(line.mend for line in found if line.state != "ok")
    if state != "ok":
        assert ["scratch/ may be a link" in line.mend for line in found] == [False, True]


def test_a_temporary_folder_is_no_shared_disk(large, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor_slurm, "_kind", lambda path: "ext4")
    monkeypatch.setattr(doctor_slurm.tempfile, "gettempdir", lambda: str(tmp_path))
    assert {line.state for line in doctor_slurm.file_system(large)} == {"fail"}


def test_one_node_needs_no_shared_disk(large, programs, monkeypatch):
    programs("sinfo", CLUSTER.format(nodes="n1 n1", cores="64"))
    monkeypatch.setattr(doctor_slurm, "_kind", lambda path: "tmpfs")
    assert doctor_slurm.file_system(large) == []


def test_the_kind_of_a_disk_is_that_of_the_nearest_mount(monkeypatch, tmp_path):
    parts = [("/", "ext4"), (str(tmp_path), "nfs4"), (str(tmp_path / "other"), "tmpfs")]
    found = [SimpleNamespace(mountpoint=place, fstype=kind) for place, kind in parts]
    monkeypatch.setattr(doctor_slurm.psutil, "disk_partitions", lambda all: found)
    assert doctor_slurm._kind(tmp_path / "checkout") == "nfs4"


def test_small_nodes_preemption_and_a_place_by_variable(large, programs, monkeypatch):
    lines = doctor_slurm.examine(large)
    assert {line.what for line in lines}.isdisjoint({"slurm nodes", "slurm preemption", "slurm place"})
    programs("sinfo", CLUSTER.format(nodes="n1 n2", cores="4"))
    programs("scontrol", "echo 'PreemptMode             = CANCEL'")
    monkeypatch.setenv("SLURM_CONF", "somewhere")
    lines = doctor_slurm.examine(large)
    assert "prepare=4" in of(lines, "slurm nodes").mend
    assert of(lines, "slurm preemption").state == "warn"
    assert "SLURM_CONF" in of(lines, "slurm place").detail


def test_requests_that_do_not_reach_slurm(checkout, programs):
    """Cases W02 and W03, in a profile and in a rule; with no Slurm on PATH too."""
    assert of(doctor_slurm.examine(checkout), "slurm requests").state == "ok"
    profile = checkout.path / "slurm" / "config.yaml"
    profile.parent.mkdir()
    profile.write_text("set-resources: {run: {gpus: 1}}\ndefault-resources:\n  runtime: soon\n")
    line = of(doctor_slurm.examine(checkout), "slurm requests")
    assert (line.state, line.detail) == (
        "fail",
        "slurm/config.yaml:3: default-resources.runtime: soon is no walltime; write '30m' or '2h' (and 1 more)",
    )
    profile.write_text("default-resources: {runtime: 30m}\n")
    rules = checkout.path / "workflow" / "rules"
    rules.mkdir(parents=True)
    (rules / "run.smk").write_text("rule run:\n    resources:\n        mem_mb=1, nvidia_gpu=1,\n")
    line = doctor_slurm.requests(checkout)
    assert (line.state, "workflow/rules/run.smk:3: nvidia_gpu" in line.detail) == ("fail", True)


@pytest.mark.parametrize("text", ["default-resources: 5", "set-resources: 5", "{", "- a", "default-resources: {a: [}"])
def test_a_profile_that_is_none_is_told(checkout, programs, text):
    (checkout.path / "slurm").mkdir()
    (checkout.path / "slurm" / "config.yaml").write_text(text)
    line = doctor_slurm.requests(checkout)
    assert (line.state, line.detail.startswith("slurm/config.yaml")) == ("fail", True)


def test_packages_as_locked_missing_and_different(checkout):
    lock = checkout.path / "requirements.lock"
    lock.write_text(
        "# made by hand\npydantic==0.1.0 \\\n    --hash=sha256:00\nno_such_thing==1.0 ; python_version > '3'\n"
    )
    missing, different = doctor.packages(checkout)
    assert (missing.state, different.state) == ("warn", "warn")
    assert "no_such_thing" in missing.detail
    assert "(locked: 0.1.0)" in different.detail
    lock.write_text("other==1 ; sys_platform == 'none'\n")
    assert [line.state for line in doctor.packages(checkout)] == ["ok"]
    lock.unlink()
    assert [line.state for line in doctor.packages(checkout)] == ["warn"]


def test_a_missing_direct_dependency_is_a_fail(checkout, monkeypatch):
    monkeypatch.setattr(doctor, "_direct", lambda: {"no-such-thing"})
    (checkout.path / "requirements.lock").write_text("no_such_thing==1.0\n")
    (line,) = doctor.packages(checkout)
    assert (line.state, line.mend) == ("fail", doctor.SETUP)


def test_data_that_a_planned_run_needs(checkout):
    plan = build_plan(checkout, "smoke")
    sources = plan.configuration.sources
    needed = doctor.data(plan, "embedded_lm", sources["embedded_lm"])
    assert needed.state == "warn"
    assert "repro data prepare embedded_lm" in needed.mend
    assert doctor.data(plan, "openwebtext", sources["openwebtext"]).state == "ok"
    large = build_plan(checkout, "paper")
    assert "repro data fetch openwebtext" in doctor.data(large, "openwebtext", sources["openwebtext"]).mend


def test_damaged_data_are_a_fail(checkout):
    plan = build_plan(checkout, "smoke")
    source = plan.configuration.sources["embedded_lm"]
    folder = checkout.scratch / "data" / doctor.short(doctor.digest(source, checkout))
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    assert doctor.data(plan, "embedded_lm", source).state == "fail"


def test_torch_that_breaks_hangs_or_works(checkout, monkeypatch):
    monkeypatch.setattr(doctor, "TORCH_PROBE", "raise ImportError('libtorch is not there')")
    with doctor.start_probe() as probe:
        (line,) = doctor.torch_lines(probe, checkout)
    assert (line.state, line.detail) == ("fail", "ImportError: libtorch is not there")
    monkeypatch.setattr(doctor, "TORCH_PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "TORCH_SECONDS", 0.3)
    with doctor.start_probe() as probe:
        (line,) = doctor.torch_lines(probe, checkout)
    assert line.state == "warn"
    monkeypatch.setattr(doctor, "TORCH_SECONDS", 20.0)
    names = '["NVIDIA H200", "NVIDIA H200", "Unheard Of"]'
    monkeypatch.setattr(doctor, "TORCH_PROBE", f'print(\'{{"version": "2.0", "devices": {names}}}\')')
    with doctor.start_probe() as probe:
        torch, known, unknown = doctor.torch_lines(probe, checkout)
    assert (torch.state, known.detail) == ("ok", "2 x NVIDIA H200")
    assert (unknown.state, "hardware.yaml" in unknown.mend) == ("warn", True)


def test_disk_and_writing(checkout, monkeypatch):
    monkeypatch.setattr(doctor, "TIGHT_GB", 1e9)
    assert doctor.disk(checkout).state == "warn"
    monkeypatch.setattr(doctor, "FULL_GB", 1e9)
    assert doctor.disk(checkout).state == "fail"
    assert states(doctor.writable(checkout)) == {"writing": "ok"}
    assert not (checkout.path / "results").exists(), "looking leaves nothing behind"

    def refuse(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    assert states(doctor.writable(checkout)) == {"writing": "fail"}


def test_broken_configuration_and_records_are_told_not_thrown(checkout, monkeypatch, capsys, programs):
    monkeypatch.setenv("REPRO_ROOT", str(checkout.path))
    monkeypatch.setattr(doctor, "TORCH_PROBE", QUICK_PROBE)
    record = checkout.scratch_records / "ab" / "abcdefabcdef.json"
    record.parent.mkdir(parents=True)
    record.write_text("{")
    tiers = checkout.config / "tiers.yaml"
    tiers.write_text(tiers.read_text().replace("seeds: 2", "sedes: 2", 1))
    with pytest.raises(SystemExit) as end:
        doctor.doctor()
    assert end.value.code == 1
    out = capsys.readouterr().out
    assert "config/tiers.yaml" in out
    assert doctor.CHECK_CONFIG in out
    assert "repro records validate" in out
    assert all(line.split()[0] in ("ok", "warn", "fail", "what") for line in out.splitlines())


def test_warnings_alone_end_well_and_no_torch_is_imported(checkout, tmp_path):
    """In a process of its own, with another probe: the verb itself must not need torch.

    Only git is on its PATH: this machine may have Slurm's programs without a cluster, which is a fail.
    """
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "git").symlink_to(shutil.which("git"))
    code = (
        "import sys; from repro.verbs import doctor as d; d.TORCH_PROBE = sys.argv[1]; d.doctor(); "
        "sys.exit(bool({'torch', 'lightning', 'scipy', 'pandas'} & set(sys.modules)))"
    )
    environment = os.environ | {"REPRO_ROOT": str(checkout.path), "PATH": str(programs)}
    done = subprocess.run(
        [sys.executable, "-c", code, QUICK_PROBE], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warn  git" in done.stdout, "a copy without git names no commit"
