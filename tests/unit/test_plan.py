"""The plan: shared cells, chunks, counts, names, and where each value came from."""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from plan_world import configuration, experiment, ids, only, plan_of
from report_world import index_of, train_record

from repro.dag import Dag, is_missing
from repro.dispatch import find_runs
from repro.plan import Plan, build_plan
from repro.spec.errors import ConfigError
from repro.spec.experiment import CheckExperiment, Experiment, LmExperiment
from repro.spec.hashing import sha256_text, short
from repro.spec.paths import Root, find_root
from repro.verbs.plans import SEED_PLACE, origins
from repro.verbs.runs import _by_process
from tests.conftest import Checkout

Main = Callable[..., tuple[int, str, str]]
ONE = experiment("a_one", methods=["pre_ln", "peri_ln"], seeds=3, metrics=["val_loss", "ppl_exp_mean"])
TWO = experiment("b_two", methods=["peri_ln", "post_ln"], seeds=5, metrics=["ppl_seq_mean", "val_loss"], paper="a")


def test_a_cell_of_two_experiments_is_planned_once_with_both_names_and_all_metrics() -> None:
    plan = plan_of(ONE, TWO)
    assert len(plan.runs) == 3 + 5 + 5
    shared = [run for run in plan.runs.values() if len(run.experiments) == 2]
    assert {(run.method, run.seed) for run in shared} == {("peri_ln", seed) for seed in (1, 2, 3)}
    for run in shared:
        assert run.experiments == ("a_one", "b_two")
        assert run.metrics == ("val_loss", "ppl_exp_mean", "ppl_seq_mean")
    lonely = next(run for run in plan.runs.values() if run.method == "peri_ln" and run.seed == 4)
    assert (lonely.experiments, lonely.metrics, lonely.paper) == (("b_two",), ("ppl_seq_mean", "val_loss"), "a")
    assert {cell.label: cell.seeds for cell in plan.cells["b_two"]} == dict.fromkeys(
        ("peri_ln", "post_ln"), (1, 2, 3, 4, 5)
    )
    one, two = (next(c for c in plan.cells[name] if c.label == "peri_ln") for name in ("a_one", "b_two"))
    assert one.run_ids == two.run_ids[:3]


def test_more_seeds_or_metrics_keep_the_runs_that_are_there() -> None:
    more = experiment("a_one", methods=["pre_ln", "peri_ln"], seeds=4, metrics=["val_loss"])
    assert ids(plan_of(ONE)) < ids(plan_of(more))


def test_a_board_takes_all_methods_of_its_track_and_a_new_one_with_them() -> None:
    from dataclasses import replace

    board = experiment("board", methods=None)
    known = configuration(board)
    plan = build_plan(known.root, "paper", configuration=known)
    names = {name for name, entry in known.methods.items() if "lm" in entry.info.tracks}
    assert {cell.method for cell in plan.cells["board"]} == names
    newcomer = replace(known.methods["pre_ln"], name="newcomer", sha256="0" * 64)
    wider = build_plan(
        known.root, "paper", configuration=replace(known, methods=known.methods | {"newcomer": newcomer})
    )
    assert set(wider.runs) > set(plan.runs)
    assert len(wider.runs) == len(plan.runs) + board.seeds


# Chunks
def chunks(plan: Plan) -> dict[str, list[str]]:
    return {chunk: [run.id for run in runs] for chunk, runs in plan.chunks().items()}


def test_chunks_are_a_partition_by_first_experiment_and_have_a_size() -> None:
    plan = plan_of(ONE, TWO, task={"chunk": 2})
    found = chunks(plan)
    assert Counter(i for part in found.values() for i in part) == Counter(dict.fromkeys(plan.runs, 1))
    for chunk, part in found.items():
        assert chunk == short(sha256_text("chunk " + " ".join(sorted(part))))
        assert len({plan.runs[i].experiments[0] for i in part}) == 1
    groups = Counter(run.experiments[0] for run in plan.runs.values())
    sizes: dict[str, list[int]] = {}
    for part in found.values():
        sizes.setdefault(plan.runs[part[0]].experiments[0], []).append(len(part))
    assert all(sorted(sizes[group], reverse=True) == [2] * (n // 2) + [1] * (n % 2) for group, n in groups.items())
    assert all(len(part) == 1 for part in chunks(plan_of(ONE, TWO, task={"chunk": 1})).values())
    assert len(chunks(plan_of(ONE, TWO, task={"chunk": 100}))) == len(groups)


@pytest.mark.parametrize(
    "narrowed",
    [
        {"experiments": ["b_two"]},
        {"methods": ["peri_ln"]},
        {"experiments": ["b_two"], "methods": ["peri_ln", "post_ln"]},
        {"experiments": ["a_one", "b_two"]},
    ],
)
def test_chunks_ids_and_metrics_are_those_of_the_whole_whatever_was_asked_for(narrowed: dict[str, Any]) -> None:
    whole = plan_of(ONE, TWO, task={"chunk": 2})
    part = plan_of(ONE, TWO, task={"chunk": 2}, **narrowed)
    assert part.runs
    assert {i: (run.chunk, run.alias, run.metrics) for i, run in part.runs.items()} == {
        i: (whole.runs[i].chunk, whole.runs[i].alias, whole.runs[i].metrics) for i in part.runs
    }
    wanted = narrowed.get("experiments") or ["a_one", "b_two"]
    kinds = narrowed.get("methods") or ["pre_ln", "peri_ln", "post_ln"]
    assert set(part.runs) == {
        i for i, r in whole.runs.items() if set(r.experiments) & set(wanted) and r.method in kinds
    }
    assert set(part.cells) == set(wanted)
    assert {cell.method for cells in part.cells.values() for cell in cells} <= set(kinds)


def test_chunks_do_not_depend_on_what_is_recorded() -> None:
    """The worker reads the plan again when some records are there: it must find the chunk it was sent for."""
    plan = plan_of(ONE, TWO, task={"chunk": 3})
    runs = list(plan.runs.values())
    index = index_of(plan.configuration.root, [train_record(run, "failed") for run in runs[::2]])
    assert any(is_missing(plan, run, index) for run in runs)
    assert chunks(plan_of(ONE, TWO, task={"chunk": 3})) == chunks(plan)


def test_the_order_of_methods_and_experiments_in_files_changes_no_chunk() -> None:
    other = experiment("a_one", methods=["peri_ln", "pre_ln"], seeds=3, metrics=["val_loss", "ppl_exp_mean"])
    assert chunks(plan_of(TWO, other, task={"chunk": 2})).keys() == chunks(plan_of(ONE, TWO, task={"chunk": 2})).keys()


@pytest.mark.parametrize(
    ("narrowed", "says"),
    [
        ({"experiments": ["a_on"]}, "experiment: 'a_on' is not known; did you mean \"a_one\"? known: a_one, b_two"),
        ({"methods": ["Pre"]}, "method: 'Pre' is not known"),
    ],
)
def test_unknown_names_are_refused(narrowed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(ONE, TWO, **narrowed)
    assert f"command line: {says}" in str(caught.value)
    assert caught.value.exit_code == 64


def test_an_experiment_that_the_suite_names_twice_is_planned_once() -> None:
    from dataclasses import replace

    known = configuration(ONE, TWO)
    suite = known.suite.model_copy(update={"experiments": ["a_one", "a_one"]})
    plan = build_plan(known.root, "paper", configuration=replace(known, suite=suite))
    assert {run.experiments for run in plan.runs.values()} == {("a_one",)}
    assert len(plan.cells["a_one"]) == 2


def test_two_configurations_with_one_short_id_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro.plan.short", lambda sha256: "0" * 12)
    with pytest.raises(ConfigError, match="two configurations share the short id 000000000000"):
        plan_of(ONE)


@pytest.mark.parametrize("runs", [1000, 10_000])
def test_large_plans(runs: int) -> None:
    rates = [round(1e-4 * 1.05**k, 9) for k in range(runs // 100)]
    decays = [0.0, 0.1, 0.2, 0.3, 0.4]
    wide = experiment("wide", methods=["pre_ln", "peri_ln"], optimizer={"lr": rates, "weight_decay": decays}, seeds=10)
    started = time.perf_counter()
    plan = plan_of(wide, task={"chunk": 7})
    took = time.perf_counter() - started
    assert len(plan.runs) == len({run.alias for run in plan.runs.values()}) == runs
    assert max(len(part) for part in plan.chunks().values()) == 7
    assert took < 30, "seconds; the bar on time is kept by the benchmark"


# Names
@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "pre_ln"),
        ({"methods": [{"name": "peri_ln", "dt": 0.1}]}, "peri_ln-dt0.1"),
        ({"methods": [{"name": "peri_ln", "dt": 1}]}, "peri_ln"),
        ({"model": ["gpt_d64_l4", "gpt_d64_l6"]}, "pre_ln/gpt_d64_l4"),
        ({"optimizer": {"lr": [0.002, 0.0002]}}, "pre_ln/lr0.002"),
        ({"optimizer": {"weight_decay": [0.0, 0.1]}}, "pre_ln/wd0"),
        ({"optimizer": {"lr": [0.1 * 3, 1], "weight_decay": [0, 0.1]}}, "pre_ln/lr0.3/wd0"),
        ({"title": "variant_1B_lr0.0002", "optimizer": {"lr": [0.002, 1]}}, "pre_ln/lr0.002"),
    ],
)
def test_labels_are_built_of_resolved_values(changes: dict[str, Any], label: str) -> None:
    """Case C06."""
    plan = plan_of(experiment("named", seeds=1, **changes))
    assert plan.cells["named"][0].label == label
    assert next(iter(plan.runs.values())).alias.endswith("@paper")
    assert f"named/{label}/s1@paper" in {run.alias for run in plan.runs.values()}
    assert all(re.fullmatch(r"[A-Za-z0-9_./@+-]{1,200}", run.alias) for run in plan.runs.values())


def test_a_label_shows_the_rate_after_the_scaling_of_its_tier() -> None:
    grid = experiment("named", seeds=1, optimizer={"lr": [6e-4, 2e-3]})
    plan = plan_of(grid, task={"lr_scale": 5})
    assert [cell.label for cell in plan.cells["named"]] == ["pre_ln/lr0.003", "pre_ln/lr0.01"]
    assert [plan.runs[cell.run_ids[0]].config["optimizer"]["lr"] for cell in plan.cells["named"]] == [0.003, 0.01]


def test_cells_that_differ_have_labels_that_differ() -> None:
    close = experiment("close", seeds=1, optimizer={"lr": [1.2345678e-4, 1.2345679e-4]})
    plan = plan_of(close)
    assert len({cell.label for cell in plan.cells["close"]}) == 2
    assert len({run.alias for run in plan.runs.values()}) == 2


def test_names_hold_no_sign_that_a_record_or_a_shell_would_mind() -> None:
    from dataclasses import replace

    from pydantic import TypeAdapter

    from repro.records.schema import Alias

    texts = {"kind": "a b|<c>/../$(d)", "p" * 40: "q" * 200, "flag": True}
    known = configuration(experiment("e", seeds=1, methods=[{"name": "odd"} | texts]))
    info = known.methods["pre_ln"].info.model_copy(update={"params": {"kind": "x", "p" * 40: "y", "flag": False}})
    odd = replace(known.methods["pre_ln"], name="odd", info=info)
    run = only(build_plan(known.root, "paper", configuration=replace(known, methods={"odd": odd})))
    TypeAdapter(Alias).validate_python(run.alias)
    TypeAdapter(Alias).validate_python(f"{run.alias}+{'m' * 41}")


def test_tokens_are_whole_steps() -> None:
    run = only(plan_of(experiment("e", seeds=1, tokens=102401, batch_tokens=1024)))
    assert (run.config["steps"], run.config["tokens_per_step"], run.tokens) == (100, 1024, 102400)
    assert only(plan_of(experiment("e", seeds=1, tokens=1024, batch_tokens=1024))).config["steps"] == 1
    with pytest.raises(ConfigError, match="tokens: at tier paper: 1023 tokens are less than one step of 1024"):
        plan_of(experiment("e", seeds=1, tokens=1023, batch_tokens=1024))


def points(plan: Plan, one: Experiment) -> int:
    """Cells that an experiment asks for at the plan's tier."""
    if isinstance(one, CheckExperiment):
        return math.prod(map(len, one.grid.values()))
    if not isinstance(one, LmExperiment):
        tier = getattr(plan.configuration.tiers[plan.tier], one.task)
        axes = [key for key in ("betas", "controls", "layers", "heads", "depths", "residuals") if hasattr(one, key)]
        return math.prod(len(getattr(tier, key, None) or getattr(one, key)) for key in axes)
    rates = len(plan.configuration.tiers[plan.tier].lm.lr_grid or one.optimizer.lr) if one.tuning_seeds else 0
    most = plan.configuration.tiers[plan.tier].lm.lr_points or 1000
    sizes = [name for name in one.model if name not in plan.configuration.tiers[plan.tier].lm.without]
    grid = len(sizes) * (rates or min(most, len(one.optimizer.lr))) * len(one.optimizer.weight_decay)
    return grid * len(one.methods or plan.configuration.methods)


def test_the_real_plan_holds_every_cell_and_every_seed_of_every_tier() -> None:
    root = find_root()
    for tier in ("smoke", "desk", "proxy", "paper"):
        plan = build_plan(root, tier)
        for name, one in plan.configuration.experiments.items():
            cells = plan.cells[name]
            allowed = getattr(plan.configuration.tiers[tier], one.task).seeds or one.seeds
            assert len(cells) == points(plan, one)
            assert all(cell.seeds == tuple(range(1, min(one.seeds, allowed) + 1)) for cell in cells)
            for cell in cells:
                assert [plan.runs[i].seed for i, _ in cell.all_runs] == [seed for _, seed in cell.all_runs]
                assert all(name in plan.runs[i].experiments for i in cell.run_ids)
        assert {i for cells in plan.cells.values() for cell in cells for i, _ in cell.all_runs} == set(plan.runs)


# repro plan
FIELDS = {
    "id",
    "alias",
    "experiments",
    "chunk",
    "tracks",
    "tier",
    "method",
    "params",
    "seed",
    "tokens",
    "state",
    "cost",
}


def test_the_verb_prints_the_contracts_fields_one_run_a_line(checkout: Checkout, repro_main: Main) -> None:
    code, out, _ = repro_main(checkout, "plan", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert len(rows) == len({row["id"] for row in rows}) == len(build_plan(Root(checkout.path), "smoke").runs)
    for row in rows:
        assert row.keys() >= FIELDS
        assert row["cost"].keys() >= {"gpu_hours", "flops", "memory_gb", "device"}
        assert row["state"] == "missing"
    assert [row["alias"] for row in rows] == sorted(row["alias"] for row in rows)
    for words in ([], ["--cost"]):
        code, out, err = repro_main(checkout, "plan", *words)
        assert code == 0
        assert len(out.splitlines()) == len(rows) + 1
        assert f"{len(rows)} runs at tier smoke, {len(rows)} missing" in err


def test_the_verb_narrows(checkout: Checkout, repro_main: Main) -> None:
    words = ["--experiment", "a_quality", "--experiment", "lm_leaderboard", "--method", "peri_ln", "--json"]
    _, out, _ = repro_main(checkout, "plan", *words)
    rows = [json.loads(line) for line in out.splitlines()]
    assert {row["method"] for row in rows} == {"peri_ln"}
    assert all({"a_quality", "lm_leaderboard"} & set(row["experiments"]) for row in rows)
    for words in (["--tier", "smok"], ["--experiment", "a_qualty"], ["--method", "perl_ln"]):
        code, out, err = repro_main(checkout, "plan", *words)
        assert (code, out) == (64, "")
        assert "did you mean" in err


# repro show
def located(checkout: Checkout, place: str) -> str:
    file, line = place.rsplit(":", 1)
    return checkout.file(file).read_text("utf-8").splitlines()[int(line) - 1]


def test_show_names_lines_that_really_hold_the_value(checkout: Checkout) -> None:
    checkout.replace(
        "config/experiments/c_lr_tolerance.yaml",
        r"^optimizer: .*",
        "optimizer:\n  name: adamw\n  lr:\n    - 6.0e-4\n    - 2.0e-3\n  weight_decay: 0.125\n  betas: [0.9, 0.97]",
    )
    checkout.replace(
        "config/experiments/a_quality.yaml", r"\{name: peri_ln, dt: 0\.1\}", "\n  {name: Peri_LN,\n   dt: 0.25}"
    )
    checkout.replace(
        "config/experiments/a_stability.yaml", r"methods: .*", "methods:\n- name: peri_ln\n  params:\n    dt: 0.75"
    )
    plan = build_plan(Root(checkout.path), "smoke")
    found: dict[str, dict[str, tuple[Any, str]]] = {}
    names: dict[str, list[str]] = {}
    for alias, run in plan.by_alias().items():
        names.setdefault(run.id, []).append(alias)
    for run in plan.runs.values():
        rows = origins(plan, run)
        assert [key for key, _, _ in rows] == list(dict.fromkeys(key for key, _, _ in rows))
        found |= {alias: {key: (value, place) for key, value, place in rows} for alias in names[run.id]}
        for key, value, place in rows:
            for part in re.split(r" scaled by ", place):
                if not re.search(r":\d+$", part):
                    assert part in ("default", SEED_PLACE) or checkout.file(part).is_file(), (key, part)
                    continue
                line = located(checkout, part)
                leaf = key.split(".")[-1]
                named = {"steps": "tokens", "tokens_per_step": "batch_tokens", "times": "validations"}.get(leaf, leaf)
                if key == "validation.tokens":
                    named = "curve_tokens"
                holds = named in line or str(value) in line or key in ("data", "optimizer.lr")
                assert holds, (run.alias, key, value, part, line)
    rate = found["c_lr_tolerance/pre_qk/lr0.01/s1@smoke"]["optimizer.lr"]
    assert rate[0] == 0.01
    own, scale = rate[1].split(" scaled by ")
    assert located(checkout, own).strip() == "- 2.0e-3"
    assert "lr_scale" in located(checkout, scale)
    dt = found["a_quality/peri_ln-dt0.25/gpt2_124m/s1@smoke"]["method.params.dt"]
    assert (dt[0], located(checkout, dt[1]).strip()) == (0.25, "dt: 0.25}]")
    dt = found["a_stability/peri_ln-dt0.75/wd0/s1@smoke"]["method.params.dt"]
    assert (dt[0], located(checkout, dt[1]).strip()) == (0.75, "dt: 0.75")
    looked = found["a_quality/pre_ln/gpt2_124m/s1@smoke"]["validation.tokens"]
    assert "curve_tokens: " + str(looked[0]) in located(checkout, looked[1])


def test_show_finds_runs_by_id_alias_and_chunk(checkout: Checkout, repro_main: Main) -> None:
    plan = build_plan(Root(checkout.path), "smoke")
    run = random.Random(0).choice([run for run in plan.runs.values() if run.config.get("task") == "lm"])
    for name in (run.id, run.alias, run.chunk):
        code, out, _ = repro_main(checkout, "show", name, "--json")
        rows = {row["id"]: row for row in map(json.loads, out.splitlines())}
        assert code == 0
        assert rows[run.id]["config"] == run.config
        assert {value["key"] for value in rows[run.id]["values"]} >= {"optimizer.lr", "model.n_layer", "seed"}
    assert set(rows) == {other.id for other in plan.chunks()[run.chunk]}


def test_runs_of_other_tiers_are_found_without_naming_the_tier(checkout: Checkout) -> None:
    root = Root(checkout.path)
    desk = next(iter(build_plan(root, "desk").runs.values()))
    plan, runs = find_runs(root, [desk.id, desk.id, desk.alias], None)
    assert (plan.tier, [run.id for run in runs]) == ("desk", [desk.id])
    with pytest.raises(ConfigError, match="is no id, chunk or alias"):
        find_runs(root, [desk.id], "smoke")
    with pytest.raises(ConfigError, match=r"tier: 'dsk' is not known; did you mean \"desk\""):
        find_runs(root, [desk.id], "dsk")
    smoke = next(iter(build_plan(root, "smoke").runs.values()))
    with pytest.raises(ConfigError) as caught:
        find_runs(root, [smoke.id, desk.id, "\x1b<b>" + "x" * 300], None)
    assert len(caught.value.problems) == 2
    assert all("\x1b" not in str(problem) and len(str(problem)) < 250 for problem in caught.value.problems)


def test_a_chunk_says_what_it_runs_on_and_what_that_costs() -> None:
    """One line a job in a dry run: a user sees devices, memory, walltime and price before anything is submitted."""
    plan = build_plan(find_root(), "paper")
    dag = Dag(plan.configuration.root, plan, plan.chunks())
    for chunk, runs in dag.chunks.items():
        said, asked = dag.about(chunk), dag.resources(chunk)
        assert said.startswith(runs[0].alias)
        assert f"{asked['mem_mb'] / 1000:.1f} GB of memory, " in said
        assert said.endswith(f"{sum(run.cost.gpu_hours for run in runs):.1f} GPU hours")
        assert ("1 GPU," in said) == (runs[0].cost.device == "gpu")


def test_the_price_is_told_by_experiment_before_anything_starts() -> None:
    plan = build_plan(find_root(), "paper")
    dag = Dag(plan.configuration.root, plan, plan.chunks(), missing=list(plan.chunks()))
    head, *rows, whole = dag.price()
    assert head.split()[0] == "experiment"
    on_gpu = [run for run in plan.runs.values() if run.cost.device == "gpu"]
    assert [row.split()[0] for row in rows] == sorted({run.experiments[0] for run in on_gpu})
    name, runs, gpus, longest, hours = whole.split()
    assert (name, int(runs), gpus) == ("all", len(on_gpu), "1")
    assert float(longest) == round(max(run.cost.minutes for run in on_gpu))
    assert float(hours) == pytest.approx(sum(run.cost.gpu_hours for run in on_gpu), abs=0.06)
    smoke = build_plan(find_root(), "smoke")
    assert Dag(smoke.configuration.root, smoke, smoke.chunks(), missing=list(smoke.chunks())).price() == []


def submit_line(asked: dict[str, Any], threads: int) -> list[str]:
    """What the executor gives sbatch for these resources."""
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command

    class Resources(dict[str, Any]):
        __getattr__ = dict.__getitem__

    job = SimpleNamespace(resources=Resources(asked | {"runtime": 60}), threads=threads)
    keys = ("run_uuid", "slurm_logfile", "comment_str", "account", "partition", "workdir")
    return str(get_submit_command(job, dict.fromkeys(keys, ""))).split()


@pytest.mark.parametrize(
    ("task", "asked", "line"),
    [
        ({}, {"gpu": 1}, []),
        ({"devices": 4}, {"gpu": 4}, []),
        (
            {"devices": 8, "nodes": 2},
            {"gpu": 8, "nodes": 2, "tasks": 8, "mpi": "srun", "tasks_per_gpu": 1},
            ["--nodes=2", "--ntasks=8", "--ntasks-per-gpu=1"],
        ),
        ({"devices": 2, "device": "cpu"}, {"gpu": 0, "cpus_per_task": 2}, ["--ntasks=1", "--cpus-per-task=2"]),
    ],
)
def test_devices_and_nodes_of_the_plan_are_what_slurm_is_asked_for(
    task: dict[str, Any], asked: dict[str, Any], line: list[str]
) -> None:
    """Case W04: one place; on several nodes each device is a task, on one node a process of the one task."""
    plan = plan_of(experiment("one", seeds=1, batch_tokens=2048), task={"micro_batch": 1, **task})
    dag = Dag(plan.configuration.root, plan, plan.chunks())
    (chunk,) = dag.chunks
    found = dag.resources(chunk)
    assert {key: value for key, value in found.items() if key not in ("mem_mb", "runtime")} == asked
    words = submit_line(found, dag.threads())
    assert [word for word in line if word not in words] == [], words
    assert ("--ntasks-per-gpu=1" in words) == ("--ntasks-per-gpu=1" in line)
    assert ("on 2 nodes" in dag.about(chunk)) == ("nodes" in asked)


def test_chunks_of_one_process_beside_those_of_several_nodes_ask_for_nothing_odd() -> None:
    plan = plan_of(experiment("one", seeds=1, batch_tokens=2048), task={"micro_batch": 1, "devices": 2, "nodes": 2})
    other = plan_of(experiment("two", seeds=1))
    dag = Dag(plan.configuration.root, plan, plan.chunks() | other.chunks())
    asked = {
        chunk: {key: value(SimpleNamespace(chunk=chunk)) if callable(value) else value for key, value in words.items()}
        for chunk in dag.chunks
        for words in [dag.job_resources()]
    }
    (small,) = other.chunks()
    words = submit_line(asked[small], 1)
    assert "--nodes=1" in words
    assert not any(word.startswith("--ntasks-per-gpu") for word in words)


def test_methods_never_share_a_process() -> None:
    """What a method's file does to the process when it is imported stays among its own runs (case T12)."""
    plan = build_plan(find_root(), "smoke")
    runs = [run for run in plan.runs.values() if run.kind == "train" and run.config["task"] == "lm"]
    groups = _by_process(runs)
    assert all(len({run.method for run in group}) == 1 for group in groups)
    assert len(groups) == len({run.method for run in runs}), "and the runs of one share one"
    assert sorted(run.id for group in groups for run in group) == sorted(run.id for run in runs)
