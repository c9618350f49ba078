"""What the workflow knows of Slurm, without one: variables, jobs left behind, refusals in a log, requests."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from repro import cluster, dag
from repro.plan import build_plan
from repro.records.index import Index
from repro.spec.catalogue import SlurmSite
from repro.spec.paths import Root
from repro.train.world import find_world
from repro.verbs.profile import minutes, profile_problems, requests, resource_problems, rule_problems
from tests.conftest import shared_case

ROOT = Path(__file__).resolve().parents[2]
REFUSED = """\
Error in rule {rule}:
    message: {message}For further error details see the cluster/cloud log and the log files of the involved rule(s).
    jobid: 6
    input: scratch/data/eeeeeeeeeeee/other.json
    output: {output}
    log: scratch/logs/jobs/x.log (check log file(s) for error details)
"""
CALL = "    sbatch call:\n        sbatch --parsable --comment rule_run_wildcards_ffffffffffff -t 15\n"
FAILED = "SLURM sbatch failed. The error message was '{}'.\n" + CALL
RAISED = "Job submission failed with exception: {}"


def refused(rule: str, name: str, message: str, words: str) -> str:
    """Snakemake's account of a job that the executor could not hand over."""
    outputs = {"run": "scratch/done/{}.json", "prepare": "scratch/data/{}/manifest.json"}
    output = outputs.get(rule, "scratch/data/{}/leakage.json").format(name)
    return REFUSED.format(rule=rule, message=message.format(words), output=output)


LOG = "".join(
    (
        "Job 5 has been submitted with SLURM jobid 4 (log: somewhere/slurm_logs/rule_run/aaaaaaaaaaaa/4.log).\n",
        "Error in rule run:\n    message: SLURM-job '4' failed, status FAILED.\n    output: x/aaaaaaaaaaaa.json\n",
        refused("run", "bbbbbbbbbbbb", FAILED, "sbatch: error: too many\n jobs"),
        refused("run", "cccccccccccc", FAILED, "busy"),
        refused("prepare", "dddddddddddd", FAILED, "busy"),
        "Job 6 has been submitted with SLURM jobid 5 (log: somewhere/slurm_logs/rule_run/cccccccccccc/5.log).\n",
    )
)


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a squeue on PATH that says something and ends with a code."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def says(text: str, code: int = 0) -> None:
        path, shell = folder / "squeue", shutil.which("sh", path="/bin:/usr/bin")
        (tmp_path / "answer").write_text(text)
        path.write_text(f'#!{shell}\nwhile read -r line; do echo "$line"; done < {tmp_path}/answer\nexit {code}\n')
        path.chmod(0o755)

    return says


def test_nothing_of_an_outer_job_is_handed_on_but_where_slurm_is() -> None:
    """Case W08."""
    environment = {"SLURM_JOB_ID": "1", "SLURM_MEM_PER_CPU": "100", "SLURM_NTASKS": "7", "SLURM_CONF": "x", "HOME": "y"}
    warning = cluster.leave_allocation(environment)
    assert environment == {"SLURM_CONF": "x", "HOME": "y"}
    assert warning is not None
    assert "job '1'" in warning
    outside = {"SLURM_CONF": "x", "SLURM_TIME_FORMAT": "relative"}
    assert cluster.leave_allocation(outside) is None
    assert outside == {"SLURM_CONF": "x", "SLURM_TIME_FORMAT": "relative"}


def test_a_local_workflow_inside_a_job_keeps_its_number_and_its_end() -> None:
    """Case W08: a script of seven tasks that runs the local workflow starts runs of one process each."""
    outer = {"SLURM_JOB_ID": "1", "SLURM_JOB_END_TIME": "99", "SLURM_CONF": "x"}
    shape = {"SLURM_NTASKS": "7", "SLURM_NPROCS": "7", "SLURM_PROCID": "0", "SLURM_MEM_PER_CPU": "100"}
    environment = outer | shape
    warning = cluster.leave_allocation(environment, remote=False)
    assert environment == outer
    assert "job '1'" in str(warning)
    assert "SLURM_NTASKS" in str(warning)
    assert find_world("a", 1, 1, environment).launcher == "none"


@pytest.mark.parametrize(("main", "left"), [(True, False), (False, True)])
def test_the_main_process_of_a_local_workflow_leaves_the_tasks_of_its_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], main: bool, left: bool
) -> None:
    monkeypatch.setattr(dag, "_read", lambda tier, main: SimpleNamespace(price=list, missing=[]))
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "7")
    dag.read_dag(None, main=main)
    assert ("SLURM_NTASKS" in os.environ, "started inside Slurm job" in capsys.readouterr().err) == (left, main)


def test_jobs_left_behind_are_those_of_this_checkout(squeue: Any, tmp_path: Path) -> None:
    root = Root(tmp_path.resolve())
    squeue(
        f"7|rule_run_wildcards_aaaaaaaaaaaa|{tmp_path}\n8|rule_run_wildcards_aaaaaaaaaaaa|{tmp_path}\n"
        f"9|rule_run_wildcards_bbbbbbbbbbbb|{tmp_path}/other\n10|(null)|{tmp_path}\n\n11\n"
        f"12|rule_leakage_wildcards_cccccccccccc|{tmp_path}\n"
    )
    found = cluster.orphans(root)
    assert found == {("run", "aaaaaaaaaaaa"): ["7", "8"], ("leakage", "cccccccccccc"): ["12"]}
    extra = cluster.adoption(root, found, "run")["slurm_extra"]
    assert extra(["aaaaaaaaaaaa"], 1) == "--dependency=afterany:7:8"
    assert extra(["bbbbbbbbbbbb"], 1) == ""
    assert cluster.adoption(root, found, "prepare") == {}
    squeue("7|rule_run_wildcards_aaaaaaaaaaaa|x\n", code=1)
    assert cluster.orphans(root) == {}


def test_a_retry_waits_for_what_still_lives(squeue: Any, tmp_path: Path) -> None:
    """Case W06 with W09: the first submission may have been refused, and the old job still trains."""
    root = Root(tmp_path.resolve())
    both = f"7|rule_run_wildcards_aaaaaaaaaaaa|{tmp_path}\n8|rule_run_wildcards_aaaaaaaaaaaa|{tmp_path}\n"
    squeue(both)
    extra = cluster.adoption(root, cluster.orphans(root), "run")["slurm_extra"]
    own = f"9|rule_run_wildcards_aaaaaaaaaaaa|{tmp_path}\n"
    for answer, code, asked in ((both, 0, "7:8"), (both[both.index("8|") :] + own, 0, "8"), ("", 1, "7:8")):
        squeue(answer, code)
        assert extra(["aaaaaaaaaaaa"], 2) == f"--dependency=afterany:{asked}"
    squeue(own)
    assert extra(["aaaaaaaaaaaa"], 3) == "", "the retry of a job that has ended waits for nothing"


def test_refused_is_what_was_refused_last() -> None:
    """Case W09: a retry that worked makes a refusal forgotten; data that were not prepared are named too."""
    assert cluster.refusals(LOG) == {"bbbbbbbbbbbb": "sbatch: error: too many jobs", "dddddddddddd": "busy"}
    assert cluster.refusals("") == {}


@pytest.mark.parametrize("rule", ["run", "prepare", "leakage"])
@pytest.mark.parametrize(
    "words",
    [
        "The given account wrong appears to be invalid. Available\naccounts:\nuser",
        "SLURM job submission failed. The error message was sbatch: error: Batch job submission failed: Invalid"
        " partition\n",
    ],
)
def test_what_never_got_as_far_as_slurm_was_refused_too(rule: str, words: str) -> None:
    """Case W09: an account that the executor does not find, an sbatch that fails and ends with 0."""
    taken = "Job 7 has been submitted with SLURM jobid 5 (log: x/rule_{}/aaaaaaaaaaaa/5.log).\n".format
    log = refused(rule, "aaaaaaaaaaaa", RAISED, words)
    assert cluster.refusals(taken(rule) + log) == {"aaaaaaaaaaaa": " ".join(words.split())}
    assert cluster.refusals(log + taken(rule)) == {}


def test_refusals_are_noted_and_forgotten(tmp_path: Path) -> None:
    root, log = Root(tmp_path), tmp_path / "log"
    log.write_text(LOG)
    assert cluster.read_refusals(root, "smoke") == {}
    cluster.note_refusals(root, "smoke", log)
    assert list(cluster.read_refusals(root, "smoke")) == ["bbbbbbbbbbbb", "dddddddddddd"]
    assert cluster.read_refusals(root, "desk") == {}
    log.write_text("all went well")
    cluster.note_refusals(root, "smoke", log)
    assert cluster.read_refusals(root, "smoke") == {}


def test_runs_on_data_that_slurm_did_not_take_were_not_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case W09: their own jobs never came up."""
    plan = build_plan(Root(ROOT), "smoke")
    on_text = [run for run in plan.runs.values() if run.data == "embedded_lm"]
    others = [run for run in plan.runs.values() if not dag.sources_of(plan, run)]
    assert on_text
    assert others
    (digest,) = dag.sources_of(plan, on_text[0])
    monkeypatch.setattr(dag, "read_refusals", lambda *_: {digest: "busy", others[0].chunk: "too many"})
    told = dag.bind(plan, Index(plan.configuration.root)).refused
    assert {told[run.id] for run in on_text} == {"busy"}
    assert {run.id for run in others if run.id in told} == {r.id for r in others if r.chunk == others[0].chunk}


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("59:01", 3541), ("1:02:03", 3723), ("2-03:04:05", 183845), ("0:07", 7), ("UNLIMITED", None), ("", None)],
)
def test_time_left_of_an_allocation(
    squeue: Any, monkeypatch: pytest.MonkeyPatch, told: str, seconds: float | None
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "3")
    squeue(told + "\n")
    assert cluster.seconds_left() == seconds
    monkeypatch.delenv("SLURM_JOB_ID")
    assert cluster.seconds_left() is None


def test_runtimes_of_a_profile() -> None:
    """Case W02."""
    profile = yaml.safe_load(shared_case("W02/profile.yaml").read_text("utf-8"))
    expected = json.loads(shared_case("W02/expected.json").read_text("utf-8"))
    assert {rule: minutes(asked["runtime"]) for rule, asked in requests(profile)} == expected["minutes"]
    problems = profile_problems(profile)
    assert [problem.split(":")[0] for problem in problems] == ["default", "train"]
    assert all("write a unit" in problem for problem in problems)
    listed = {"default-resources": ["runtime=30"], "set-resources": ["train:runtime=2h30m", "eval:runtime=soon"]}
    assert [minutes(asked["runtime"]) for _, asked in requests(listed)] == [30, 150, None]
    assert len(profile_problems(listed)) == 2


def test_gpu_requests() -> None:
    """Case W03."""
    rules = yaml.safe_load(shared_case("W03/rules.yaml").read_text("utf-8"))
    expected = json.loads(shared_case("W03/expected.json").read_text("utf-8"))
    found = {name: resource_problems(asked, gpu_needed=True) for name, asked in rules.items()}
    assert [name for name, problems in found.items() if not problems] == expected["accepted"]
    for name, words in (("train_b", "would run without a GPU"), ("train_e", "nested quotes"), ("train_f", "two GPU")):
        assert words in found[name][0]
        assert words[:8] in expected["rejected"][name] or name == "train_b"
    assert found["train_g"] == ["no GPU request"]
    assert rule_problems("rule x:\n    resources:\n        gpus=1,\n        gpu=2,\n") == [
        "gpus: key not known to the executor, would run without a GPU"
    ]


def test_the_profile_is_complete_and_names_no_site() -> None:
    """Cases W02, W06, W07 and W09: what each key is for stands beside it."""
    text = (ROOT / "slurm" / "config.yaml").read_text("utf-8")
    profile = yaml.safe_load(text)
    assert profile_problems(profile) == []
    assert profile["latency-wait"] >= 60
    assert profile["keep-going"] is True
    assert 0 < profile["jobs"] <= 1000
    assert profile["retries"] >= 3
    number, seconds = profile["max-jobs-per-timespan"].removesuffix("s").split("/")
    assert int(seconds) / int(number) >= 1, "a pause between two tries"
    assert profile["slurm-status-attempts"] / profile["max-status-checks-per-second"] >= 3600
    assert not {"slurm-requeue", "slurm_account", "slurm_partition", "slurm-qos"} & {
        *profile,
        *profile["default-resources"],
    }
    for block in re.split(r"\n(?=#)", text):
        lines = block.splitlines()
        bare = [line for line in lines if not line.startswith("#") and "#" not in line]
        assert not bare or lines[0].startswith("#"), bare


@pytest.mark.parametrize("word", ["a b", "x;reboot", "$(id)", "`id`", "a'b", 'a"b', "-p", "", "ä", "a\nb"])
@pytest.mark.parametrize("key", ["account", "partition", "qos"])
def test_names_of_a_site_are_plain_words(key: str, word: str) -> None:
    assert SlurmSite(**{key: "gpu_long-2.x"})
    with pytest.raises(ValidationError):
        SlurmSite(**{key: word})
