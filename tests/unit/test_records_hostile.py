"""Record files that somebody else wrote, changed or linked: told, in no number, and no traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_world import check_record, eval_record, index_of, plan_of, train_record

from repro.records.index import load_index
from repro.records.schema import finite, record_problems, sealed
from repro.records.store import record_path, write_record
from repro.report.theory import write_theory
from repro.spec.errors import BadDataError
from repro.spec.hashing import sha256_json, short
from repro.spec.paths import Root
from tests.conftest import Checkout

Main = Callable[..., tuple[int, str, str]]


def lm_run() -> Any:
    return next(run for run in plan_of("smoke").runs.values() if run.kind == "train" and run.config["task"] == "lm")


def put(folder: Path, raw: dict[str, Any]) -> Path:
    path = record_path(folder, raw["id"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(raw))
    return path


def said(raw: Any) -> str:
    return " ".join(map(str, record_problems(raw, "x")))


@pytest.mark.parametrize("text", ["[]", "null", "5", '"x"', "true", "[[]]", "{}"])
@pytest.mark.parametrize("verb", [("plan", "--tier", "smoke"), ("records", "validate"), ("status",), ("tables",)])
def test_a_file_that_is_no_object_is_told_by_every_verb(
    checkout: Checkout, repro_main: Main, text: str, verb: tuple[str, ...]
) -> None:
    checkout.write("results/records/00/00aaaaaaaaaa.json", text)
    code, _, err = repro_main(checkout, *verb)
    assert "Traceback" not in err
    assert code in (0, 65)
    problems = load_index(Root(checkout.path)).problems
    assert [problem.file for problem in problems] == ["results/records/00/00aaaaaaaaaa.json"] * len(problems) != []
    assert repro_main(checkout, "records", "validate")[0] == 65


@pytest.mark.parametrize(
    ("key", "value"), [("protocol", ["val_loss"]), ("protocol", {"a": 1}), ("rules", "1"), ("tokens", "many")]
)
def test_what_was_measured_is_named_in_plain_types(key: str, value: Any) -> None:
    raw = eval_record(lm_run(), "val_loss", 2.5)
    config = raw["config"] | {key: value}
    full = sha256_json(config)
    raw |= {"config": config, "config_sha256": full, "full_sha256": full, "id": short(full)}
    failed = {"status": "failed", "metrics": [], "status_detail": {"step": None, "reason": "on purpose"}}
    assert "config needs protocol (text), rules and tokens (integers)" in said(sealed(raw | failed))


@pytest.mark.parametrize("value", [1e101, -1e200, 1e299])
def test_what_cannot_be_reckoned_with_is_no_number(value: float) -> None:
    run = next(run for run in plan_of("smoke").runs.values() if run.kind == "check")
    assert "written as null" in said(check_record(run, value))
    assert finite(value) is None
    assert finite(1e99) == 1e99


@pytest.mark.parametrize("value", ["yes", "true", 1, 0, "1"])
@pytest.mark.parametrize("key", ["compiled", "deterministic"])
def test_words_are_no_truth_values(key: str, value: Any) -> None:
    raw = train_record(lm_run())
    assert f"environment.{key}" in said(sealed(raw | {"environment": raw["environment"] | {key: value}}))


@pytest.mark.parametrize("created", ["2026-13-45T99:99:99Z", "2026-02-30T00:00:00Z"])
def test_a_date_is_one(created: str) -> None:
    assert "created is no date" in said(sealed(train_record(lm_run()) | {"created": created}))


@pytest.mark.parametrize("rows", ["abc", 5, None, [1], [["a"]], {"a": 1}])
def test_rows_of_figures_are_objects(rows: Any) -> None:
    assert "probes.rows is no list of objects" in said(sealed(train_record(lm_run()) | {"probes": {"rows": rows}}))


@pytest.mark.parametrize("row", [{}, {"dim": "x"}, {"method": 1, "layer": None}])
def test_rows_of_another_form_are_told_by_the_figure(row: dict[str, Any], tmp_path: Path) -> None:
    plan = plan_of("smoke")
    run = next(run for run in plan.runs.values() if run.kind == "check" and "a_growth" in run.experiments)
    raw = check_record(run, 1.0)
    raw["probes"] = {"rows": [row]}
    with pytest.raises(BadDataError, match=r"results/records: a_growth\.moments: a record's probes are not what"):
        write_theory(Root(tmp_path), plan, index_of(Root(tmp_path), [raw]))


def test_what_lies_in_scratch_never_stands_before_what_is_committed(tmp_path: Path) -> None:
    root, run = Root(tmp_path), replace(lm_run(), tier="desk")
    write_record(root, train_record(run))
    put(root.scratch_records, sealed(train_record(run, final=9.0) | {"tier": "smoke"}))
    index = load_index(root)
    assert index.problems == []
    (only,) = index.records[run.id]
    assert only.path.is_relative_to(root.records)


def test_records_lie_where_their_tier_says(tmp_path: Path) -> None:
    root, run = Root(tmp_path), lm_run()
    put(root.records, train_record(run))
    put(root.scratch_records, sealed(train_record(run) | {"tier": "desk"}))
    assert [problem.key for problem in load_index(root).problems] == ["tier", "tier"]


def test_a_linked_folder_of_records_is_refused_and_not_taken_for_none(
    checkout: Checkout, repro_main: Main, tmp_path: Path
) -> None:
    root, run = Root(checkout.path), replace(lm_run(), tier="desk")
    path = write_record(root, train_record(run))
    path.parent.rename(tmp_path / "away")
    path.parent.symlink_to(tmp_path / "away")
    for verb in (("records", "validate"), ("records", "import", str(root.records))):
        code, _, err = repro_main(checkout, *verb)
        assert (code, "is a symbolic link" in err) == (65, True)
    assert f"results/records/{run.id[:2]}" in str(load_index(root).problems[0])


@pytest.mark.parametrize("known", ["[" * 99_999, "5", "[]", "[[1], [1, 2]]", "null", "[1, 2, 3]", '[[1], "eightsign"]'])
def test_a_cache_of_another_form_is_made_anew(tmp_path: Path, known: str) -> None:
    root = Root(tmp_path)
    write_record(root, train_record(lm_run()))
    load_index(root)
    cache = root.scratch / "cache" / "records.json"
    version = json.loads(cache.read_text())["version"]
    cache.write_text(f'{{"version": "{version}", "files": {{"a": {known}}}}}')
    assert load_index(root).train(lm_run().id)
