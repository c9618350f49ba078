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
from repro.cluster import minutes, resource_problems
from repro.plan import build_plan
from repro.records.index import Index
from repro.spec.catalogue import SlurmSite
from repro.spec.errors import ConfigError
from repro.spec.load import load_configuration
from repro.spec.paths import Root
from repro.spec.reading import Document, read_yaml
from repro.train.world import find_world
from repro.verbs.checks import check_file
from repro.verbs.profile import Profile, lint, profile_problems, rule_problems
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


def asked_of(profile: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a profile asks for, by rule."""
    return {rule: request.asked for rule, request in Profile(Document("p", profile)).requests.items()}


def problems_of(text: str, folder: Path) -> list[str]:
    """What is said of a profile with this text."""
    path = folder / "profile.yaml"
    path.write_text(text)
    try:
        return [str(problem) for problem in profile_problems(read_yaml(path, "p"))]
    except ConfigError as error:
        return [str(problem) for problem in error.problems]


def test_runtimes_of_a_profile() -> None:
    """Case W02."""
    profile = yaml.safe_load(shared_case("W02/profile.yaml").read_text("utf-8"))
    expected = json.loads(shared_case("W02/expected.json").read_text("utf-8"))
    assert {rule: minutes(asked["runtime"]) for rule, asked in asked_of(profile).items()} == expected["minutes"]
    problems = profile_problems(read_yaml(shared_case("W02/profile.yaml"), "p"))
    assert [(problem.line, problem.key) for problem in problems] == [
        (2, "default-resources.runtime"),
        (5, "set-resources.train.runtime"),
    ]
    assert all("write a unit" in problem.message for problem in problems)
    listed = {"default-resources": ["runtime=30"], "set-resources": ["train:runtime=2h", "eval:runtime=soon"]}
    assert [minutes(asked["runtime"]) for asked in asked_of(listed).values()] == [30, 120, None]
    assert len(profile_problems(Document("p", listed))) == 2


@pytest.mark.parametrize(
    ("text", "read"),
    [("30min", 30), ("60 minutes", 60), ("1 hour", 60), ("2H", 120), ("1w", 10080), ("1.5h", 90), ("45s", 1)],
)
def test_a_walltime_is_what_snakemake_takes_for_one(text: str, read: int) -> None:
    assert minutes(text) == read
    assert resource_problems({"runtime": text}) == []


@pytest.mark.parametrize("value", ["0m", "0 h", "2h30m", "-5m", "soon", "", True, 60, "60", 0, [1], {"a": 1}])
def test_a_walltime_that_is_none(value: Any) -> None:
    (problem,) = resource_problems({"runtime": value})
    assert problem.startswith("runtime: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "default_resources: [runtime=30m]",
            ["p:1: default_resources: no option of Snakemake; write default-resources"],
        ),
        ("jobs: 1\nlatency_wait: 5", ["p:2: latency_wait: no option of Snakemake; write latency-wait"]),
        ("resourses: {gpu: 1}", ["p:1: resourses: Snakemake ignores a mapping here"]),
        ('set-resources: "run:gpus=1"', ["p:1: set-resources.run.gpus: key not known to the executor, would run"]),
        ("set-resources:\n- run:gpu=1\n- run:gres='gpu:1'", ["p:2: set-resources.run.gpu and gres: two GPU requests"]),
        ("set-resources: {run: [gpus=1]}", ["p:1: set-resources.run: ['gpus=1'] is no mapping"]),
        ("set-resources: {run: }", ["p:1: set-resources.run: None is no mapping"]),
        ("set-resources: [gpus=1, 5]", ["p:1: set-resources.0: gpus=1: neither", "p:1: set-resources.1: 5: neither"]),
        ("default-resources: 5", ["p:1: default-resources: 5: neither a mapping nor KEY=VALUE"]),
        ("set-resources: 5", ["p:1: set-resources: 5: neither a mapping nor RULE:KEY=VALUE"]),
        ("- a", ["p:1: is no mapping of options"]),
        ("default-resources: {gpu: 1", ["p:2: did not find"]),
        ("default-resources:\n  gpu: 1\n  runtime: 30", ["p:3: default-resources.runtime: 30: a bare number"]),
        ("", []),
        ("__use_yte__: true\nset-threads: {run: 2}\nset-resources: ['run:gpu=2', 'run:runtime=2h']", []),
    ],
)
def test_a_profile_is_told_with_its_lines(tmp_path: Path, text: str, said: list[str]) -> None:
    """Cases W02 and W03."""
    found = problems_of(text, tmp_path)
    assert len(found) == len(said)
    assert all(line.startswith(words) for line, words in zip(found, said, strict=True)), found


@pytest.mark.parametrize("name", ["slurm/config.yaml", "slurm/other.yaml", "profiles/mine.yaml"])
def test_check_config_knows_a_profile_by_its_folder_or_its_keys(tmp_path: Path, name: str) -> None:
    path, root = tmp_path / name, Root(ROOT)
    path.parent.mkdir()
    path.write_text("executor: slurm\ndefault-resources:\n  runtime: 30\n")
    configuration = load_configuration(root)
    with pytest.raises(ConfigError, match=r".yaml:3: default-resources.runtime: 30: a bare number"):
        check_file(path, root, configuration)
    path.write_text("executor: slurm\ndefault-resources:\n  runtime: 30m\n")
    check_file(path, root, configuration)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gpu": -1}, "gpu: -1 is no whole number of GPUs"),
        ({"gpu": "one"}, "gpu: one is no whole"),
        ({"gpu": True}, "gpu: True is no whole"),
        ({"gpu": 1, "gres": "GPU:1"}, "gpu and gres: two GPU requests"),
        ({"gpu": 1, "slurm_extra": "--gpus=1"}, "gpu and slurm_extra: two GPU requests"),
        ({"gres": "gpu:1", "slurm_extra": "--exclusive --gpus-per-node=2"}, "gres and slurm_extra: two GPU requests"),
        ({"gpu_model": "a100", "slurm_extra": "--gres gpu:1"}, "gpu and slurm_extra: two GPU requests"),
        ({"GPUS": 1}, "GPUS: key not known to the executor, would run without a GPU"),
        ({"gpu": "2"}, None),
        ({"gpu": 0, "gres": "gpu:1"}, None),
        ({"gpu": 1, "slurm_extra": "--gpu-bind=none --exclusive", "gres": "tmp:1G"}, None),
        ({"slurm_extra": "--gpus-per-node=2"}, None),
    ],
)
def test_one_gpu_request_of_whole_gpus(asked: dict[str, Any], said: str | None) -> None:
    """Case W03."""
    found = resource_problems(asked)
    assert [problem[: len(said or "")] for problem in found] == ([said] if said else [])


def test_what_a_command_line_asks_in_vain_is_refused_before_any_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cases W02 and W03, as Snakemake has read them: a key that another executor may know is a warning."""
    from snakemake.cli import parse_set_resources

    def read(*words: str, main: bool = True) -> None:
        dag.read_dag(None, main, SimpleNamespace(nodes=None, overwrite_resources=parse_set_resources(words)))

    monkeypatch.setattr(dag, "_read", lambda tier, main: SimpleNamespace(price=list, missing=[]))
    read("run:runtime=5h", "run:mem_mb=4000", "run:gpu=2", "prepare:runtime=90")
    assert capsys.readouterr().err == ""
    read("run:walltime=5")
    assert "warning: --set-resources: run:walltime: key not known" in capsys.readouterr().err
    with pytest.raises(ConfigError) as caught:
        read("run:gpus=1", "prepare:runtime='soon'", "run:gpu='one'")
    assert [problem.key for problem in caught.value.problems] == ["prepare:runtime", "run:gpu", "run:gpus"]
    read("run:gpus=1", main=False)


RULES = """\
rule a:
    input: "x"
    resources:
        mem_mb=1, nvidia_gpu=1,
        gres="'gpu:1'",  # of one kind

        runtime=60,
        **SUITE.site_words(),
    shell: "x"


if True:

    rule b:
        resources: walltime=60, gpu=lambda wildcards: SUITE.gpus(wildcards), runtime=SUITE.minutes()
        shell: "gpus=1"

rule c:
    resources:
        gres="gpu:1", gpu=1"""


def test_requests_of_rules() -> None:
    """Cases W02 and W03: several keys on one line, quotes, bare numbers; what a function answers cannot be told."""
    assert [(problem.line, problem.key) for problem in rule_problems(RULES, "r")] == [
        (4, "nvidia_gpu"),
        (5, "gres"),
        (7, "runtime"),
        (15, "walltime"),
        (20, "gpu and gres"),
    ]
    assert [str(p) for p in rule_problems("rule a:\n    resources: gpu=\n", "r")] == ["r:2: resources: cannot be read"]
    assert lint(Root(ROOT)) == [], "those of this repository"


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


def test_the_profile_is_complete_and_names_no_site() -> None:
    """Cases W02, W06, W07 and W09: what each key is for stands beside it."""
    text = (ROOT / "slurm" / "config.yaml").read_text("utf-8")
    profile = yaml.safe_load(text)
    assert profile_problems(Document("p", profile)) == []
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
