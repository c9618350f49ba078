"""Theory checks as runs: registry, parameters, plan, records; forecasts and flows as trainings of the one module."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from report_world import configuration

from repro.plan import Plan, build_plan
from repro.records.measured import Measured
from repro.records.schema import record_problems, sealed
from repro.records.skeleton import check_skeleton
from repro.spec.checks import CHECKS, like_default, with_params
from repro.spec.experiment import CheckExperiment, FlowExperiment, ForecastExperiment
from repro.spec.metrics import METRICS
from repro.spec.paths import Root
from repro.train import checking
from repro.train.checking import check
from tests.conftest import Checkout

CREATED = "2026-12-31T12:00:00Z"
SMALL = {"tokens": 6, "d": 4, "d_qk": 8}


def plan_with(*experiments: Any, tier: str = "paper") -> Plan:
    known = configuration()
    made = replace(known, experiments={one.name: one for one in experiments})
    return build_plan(known.root, tier, configuration=made)


def monotone(**changes: Any) -> CheckExperiment:
    fields = {"name": "d_small", "task": "check", "check": "d_monotone", "paper": "d", "params": SMALL, "seeds": 2}
    return CheckExperiment.model_validate(fields | changes)


def test_every_check_is_registered_with_values_of_its_own() -> None:
    assert len(CHECKS) >= 15
    for name, found in CHECKS.items():
        assert found.id == f"{name}.v{found.info.rules}"
        for value in found.info.values:
            assert METRICS[value].family == name
            assert METRICS[value].checked
        assert (found.info.seconds, found.info.memory_gb) > (0, 0)


def test_parameters_keep_their_types_and_unknown_ones_are_refused() -> None:
    found = CHECKS["d_monotone"]
    assert with_params(found, {"d_qk": 8}, {"d_qk": 16})["d_qk"] == 16
    with pytest.raises(ValueError, match=r"d_qx is no parameter of d_monotone.*d_qk"):
        with_params(found, {"d_qx": 8})
    for value in ("8", 8.5, True, None, [8]):
        with pytest.raises(ValueError, match="d_qk"):
            with_params(found, {"d_qk": value})
    assert like_default("x", 1, 0.5) == 1.0
    assert like_default("x", [1, 2], [0.5]) == [1.0, 2.0]


def test_what_every_check_and_the_configuration_say_of_parameters_is_in_range() -> None:
    for found in CHECKS.values():
        assert with_params(found, found.info.params) == found.info.params
        assert set(found.info.words) | set(found.info.may_be_empty) <= set(found.info.params)
        texts = {
            key for key, value in found.info.params.items() if isinstance(value, str) or "inverse_d_qk" in str(value)
        }
        assert texts == set(found.info.words)


@pytest.mark.parametrize("name", CHECKS)
def test_no_size_or_count_of_any_check_may_be_zero_or_less(name: str) -> None:
    for key, default in CHECKS[name].info.params.items():
        bad: list[Any] = ["x", None, True, {}]
        if isinstance(default, list):
            bad += [[default[0], default[0]], [None], default[0]]
            bad += [] if key in CHECKS[name].info.may_be_empty else [[]]
        else:
            bad += [[default]] + (
                [] if isinstance(default, str) else [0, -1, -3, 1e301, 10**30 * (type(default) is int)]
            )
        for value in bad:
            with pytest.raises(ValueError, match=key):
                with_params(CHECKS[name], {key: value})


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("a_step", {"depths": [0]}, "depths.0: 0 is out of range: 1 or more, 10000000 at most, is expected, as 6 is"),
        ("a_step", {"depths": [6, 6.0]}, "depths: names 6 twice"),
        ("d_rank_collapse", {"betas": []}, "betas: needs an item at least"),
        ("d_rank_collapse", {"betas": [-0.5]}, "betas.0: -0.5 is out of range: 0 or more is expected"),
        ("d_rank_collapse", {"starts": ["unit", "units"]}, 'starts: units is not known; did you mean "unit"?'),
        ("d_rate", {"skip": "none"}, "skip: none is not known; known: attention, both"),
        ("d_rate", {"step_seeds": [1, 1]}, "step_seeds: names 1 twice"),
        ("d_rate", {"watch": [0]}, "watch.0: 0 is out of range"),
        ("a_prenorm_growth", {"rho": 0}, "rho: 0 is out of range: above 0 is expected, as 1.2 is"),
        ("b_convergence", {"cells": [[4, 0]]}, "cells.0.1: 0 is out of range"),
        ("b_convergence", {"cells": [[4]]}, r"cells.0: \[4\] is no list of 2"),
        ("b_convergence", {"cells": [4]}, "cells.0: 4 is no list of 2"),
    ],
)
def test_a_parameter_out_of_range_is_refused_with_what_is_allowed(name: str, change: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("?", r"\?")):
        with_params(CHECKS[name], change)


def test_case_c01_a_whole_number_in_any_spelling_is_one() -> None:
    found = CHECKS["d_rate"]
    made = with_params(found, {"steps": 1e3, "betas": [0, 0.1 + 0.2, 1], "step_seeds": [0, 1e0], "watch": []})
    assert (made["steps"], type(made["steps"])) == (1000, int)
    assert (made["betas"], made["step_seeds"], made["watch"]) == ([0.0, 0.3, 1.0], [0, 1], [])
    assert all(isinstance(beta, float) for beta in made["betas"])
    assert with_params(CHECKS["b_convergence"], {"cells": [[16, 16.0]]})["cells"] == [[16, 16]]
    plans = [plan_with(monotone(params=SMALL | {"d": size})) for size in (5, 5.0)]
    assert plans[0].runs.keys() == plans[1].runs.keys()


def test_a_grid_makes_cells_and_a_seed_a_run() -> None:
    plan = plan_with(monotone(grid={"d_qk": [8, 16, 32]}, params={"tokens": 6, "d": 4}))
    cells = plan.cells["d_small"]
    assert [cell.label for cell in cells] == [f"d_monotone-d_qk{size}" for size in (8, 16, 32)]
    assert len(plan.runs) == 6
    run = next(iter(plan.runs.values()))
    assert (run.kind, run.method, run.data, run.metrics) == ("check", "d_monotone", None, ())
    assert run.config["check"]["params"] == run.params
    assert len(plan.chunks()) == 1


def test_the_id_follows_parameters_seed_and_rules_and_nothing_else() -> None:
    base = plan_with(monotone())
    assert plan_with(monotone(title="other", assumptions=["x"])).runs.keys() == base.runs.keys()
    assert not plan_with(monotone(params=SMALL | {"d": 5})).runs.keys() & base.runs.keys()
    assert plan_with(monotone(seeds=1)).runs.keys() < base.runs.keys()


def job_of(plan: Plan, tmp_path: Path) -> dict[str, Any]:
    run = next(iter(plan.runs.values()))
    return {"base": check_skeleton(plan.configuration.root, run), "log": str(tmp_path / "log")}


def test_a_check_ends_in_a_record_that_passes_the_schema(tmp_path: Path) -> None:
    job = job_of(plan_with(monotone()), tmp_path)
    record = sealed(job["base"] | check(job, Root(tmp_path)) | {"created": CREATED})
    assert record_problems(json.loads(json.dumps(record, allow_nan=False)), "r.json") == []
    assert record["status"] == "complete"
    assert {metric["name"] for metric in record["metrics"]} == set(CHECKS["d_monotone"].info.values)
    again = sealed(job["base"] | check(job, Root(tmp_path)) | {"created": CREATED})
    assert again["metrics"] == record["metrics"]
    assert again["probes"] == record["probes"]
    changed = sealed(record | {"rules_version": {"d_monotone": 2}})
    assert "rules_version differs" in " ".join(map(str, record_problems(changed, "r.json")))


@pytest.mark.parametrize("fault", [RuntimeError("no luck"), MemoryError()])
def test_a_check_that_raises_is_a_failed_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    def run(_params: dict[str, Any], _seed: int) -> Measured:
        raise fault

    monkeypatch.setattr(checking, "importlib", SimpleNamespace(import_module=lambda _: SimpleNamespace(run=run)))
    job = job_of(plan_with(monotone()), tmp_path)
    record = sealed(job["base"] | check(job, Root(tmp_path)) | {"created": CREATED})
    assert record_problems(record, "r.json") == []
    assert record["status"] == ("oom" if isinstance(fault, MemoryError) else "failed")
    assert record["metrics"] == []
    assert type(fault).__name__ in record["status_detail"]["reason"]


def test_a_value_that_is_no_number_is_null_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(CHECKS["d_monotone"].info.values)
    values = dict.fromkeys(names, 1.0) | {names[0]: math.nan}
    module = SimpleNamespace(run=lambda _params, _seed: Measured(values, 3))
    monkeypatch.setattr(checking, "importlib", SimpleNamespace(import_module=lambda _: module))
    job = job_of(plan_with(monotone()), tmp_path)
    record = check(job, Root(tmp_path))
    assert record["metrics"][0]["value"] is None
    assert names[0] in record["status_detail"]["reason"]


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("config/experiments/b_gram.yaml", lambda v: v.update(check="b_grim"), "check: b_grim is not known"),
        ("config/experiments/b_gram.yaml", lambda v: v.update(params={"headz": 3}), "headz is no parameter of b_gram"),
        ("config/experiments/b_gram.yaml", lambda v: v.update(grid={"heads": [1.5]}), "grid.heads: heads: 1.5"),
        ("config/experiments/b_gram.yaml", lambda v: v.update(task="chek"), "task: chek is not known"),
        (
            "config/tiers.yaml",
            lambda v: v["smoke"]["check"]["params"].update(b_grim={}),
            "smoke.check.params.b_grim: b_grim is not known",
        ),
        (
            "config/tiers.yaml",
            lambda v: v["smoke"]["check"]["params"].update(a_prenorm_growth={"layers": -3, "draws": 0}),
            "smoke.check.params.a_prenorm_growth: layers: -3 is out of range",
        ),
        ("config/experiments/b_gram.yaml", lambda v: v.update(grid={"heads": [0]}), "grid.heads: heads: 0 is out of"),
        (
            "config/experiments/d_jena_beta.yaml",
            lambda v: v.update(data="openwebtext"),
            "data: openwebtext is not known",
        ),
        ("config/experiments/d_jena_beta.yaml", lambda v: v.update(metrics=["val_loss"]), "val_loss is not known"),
        ("config/experiments/b_flow.yaml", lambda v: v.update(metrics=["val_loss"]), "val_loss is not known"),
        ("config/experiments/b_flow.yaml", lambda v: v.update(layers=[0]), "layers.0"),
        ("config/experiments/a_lr.yaml", lambda v: v["optimizer"].update(lr=6e-4), "tuning_seeds choose among"),
        ("config/experiments/a_lr.yaml", lambda v: v.update(data="jena_2020"), "data: jena_2020 is not known"),
    ],
)
def test_a_slip_is_refused_by_file_line_and_key(
    checkout: Checkout, repro_main: Any, file: str, change: Any, says: str
) -> None:
    checkout.edit(file, change)
    code, out, err = repro_main(checkout, "plan", "--tier", "smoke")
    assert (code, out) == (64, "")
    assert says in err
    assert f"{file}:" in err
    assert "Traceback" not in err


def test_a_forecast_is_planned_by_beta_and_control_and_shares_one_step() -> None:
    one = ForecastExperiment.model_validate(
        {
            "name": "d_small", "task": "forecast", "data": "embedded_weather", "d_qk": 8, "hidden": 16, "steps": 10,
            "betas": [0.0, 1.0], "controls": ["none", "permuted"], "seeds": 3, "metrics": ["forecast_train"],
        }
    )  # fmt: skip
    plan = plan_with(one)
    assert [cell.label for cell in plan.cells["d_small"]] == [
        "beta0/none", "beta1/none", "beta0/permuted", "beta1/permuted",
    ]  # fmt: skip
    rules = {json.dumps(run.config["optimizer"]["lr"]) for run in plan.runs.values()}
    assert rules == {json.dumps({"betas": [0.0, 1.0], "seeds": [1, 2, 3]})}
    assert {run.params["beta"] for run in plan.runs.values()} == {0.0, 1.0}


def test_a_flow_is_planned_by_depth_and_width() -> None:
    one = FlowExperiment.model_validate(
        {
            "name": "b_small",
            "task": "flow",
            "layers": [2, 4],
            "heads": [3],
            "steps": 5,
            "seeds": 2,
            "metrics": ["flow_end"],
        }
    )
    plan = plan_with(one)
    assert [cell.label for cell in plan.cells["b_small"]] == ["L2-M3", "L4-M3"]
    assert all(run.data is None for run in plan.runs.values())
