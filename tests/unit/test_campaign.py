"""Status and retries of a campaign: what counts as failed, what a wish for another attempt changes, notes of runs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from report_world import index_of, plan_only, recorded, train_record

from repro.dag import is_missing
from repro.plan import build_plan
from repro.records.progress import Note, drop_note, read_notes, write_note
from repro.records.retries import add_retries, read_retries, retries_path
from repro.spec.paths import Root, find_root
from repro.verbs.campaign import failures, summary
from repro.verbs.runs import ENDING, seconds_left

BROKEN = {
    "cut": "{",
    "list": "[1]",
    "less": '{"id": "a"}',
    "words": '{"id": "a", "alias": "b", "step": "one", "steps": 2, "rate": 1, "time": "soon"}',
    "deep": "[" * 100_000,
}


def test_a_wish_makes_a_failure_missing_until_its_next_attempt() -> None:
    plan = plan_only("p01", ["pre_ln"], 2)
    first, second = plan.runs.values()
    index = index_of(plan.configuration.root, [train_record(first, "failed"), train_record(second, "diverged")])
    assert not any(is_missing(plan, run, index) for run in plan.runs.values())
    assert [found.run for found in failures(plan, index)] == [first]
    index.retries = {first.id: 0, second.id: 0}
    assert is_missing(plan, first, index)
    assert index.superseded(first.id) == 1
    assert not is_missing(plan, second, index), "what diverged is a result"
    (old,) = index.records[first.id]
    (new,) = index_of(plan.configuration.root, [train_record(first, "oom")]).records[first.id]
    new.entry = replace(new.entry, attempt=1)
    index.records[first.id] = [old, new]
    assert not is_missing(plan, first, index), "the wish was good for one attempt"


def test_a_failed_metric_is_told_and_can_be_measured_again() -> None:
    plan = plan_only("p01", ["pre_ln"], 1)
    (run,) = plan.runs.values()
    train, *evals = recorded(run, 2.5)
    bad = evals[0] | {"status": "failed", "status_detail": {"step": None, "reason": "no encoder"}, "metrics": []}
    index = index_of(plan.configuration.root, [train, bad, *evals[1:]])
    (found,) = failures(plan, index)
    assert (found.record.id, found.reason) == (bad["id"], "no encoder")
    assert not is_missing(plan, run, index)
    index.retries = {bad["id"]: 0}
    assert is_missing(plan, run, index)


@pytest.mark.parametrize("text", ["", "[", "[1]", '{"a": "b"}', "{" * 100_000])
def test_a_broken_file_of_wishes_wishes_nothing(tmp_path: Path, text: str) -> None:
    root = Root(tmp_path)
    retries_path(root).parent.mkdir(parents=True)
    retries_path(root).write_text(text, "utf-8")
    assert read_retries(root) == {}
    add_retries(root, {"abc": 0})
    add_retries(root, {"def": 1})
    assert read_retries(root) == {"abc": 0, "def": 1}


def test_notes_tell_what_runs_and_for_how_long_nothing_was_heard(tmp_path: Path) -> None:
    plan = plan_only("p01", ["pre_ln"], 2)
    first, second = plan.runs.values()
    root = Root(tmp_path)
    plan.configuration = replace(plan.configuration, root=root)
    write_note(root, Note(first.id, first.alias, 10, 98, 2.0, time.time() - 100))
    write_note(root, Note("0" * 12, "another plan's", 1, 2, 1.0, time.time()))
    for name, text in BROKEN.items():
        (root.scratch / "progress" / f"{name}.json").write_text(text, "utf-8")
    told = summary(plan, index_of(root, [train_record(second)]))
    (running,) = told["running"]
    assert (running["id"], running["step"], running["steps"], running["rate"]) == (first.id, 10, 98, 2.0)
    assert 99 < running["age"] < 200
    assert (told["planned"], told["runs"]) == (2, {"complete": 1})
    drop_note(root, first.id)
    drop_note(root, first.id)
    assert [note.id for note in read_notes(root)] == ["0" * 12]


def test_a_job_of_slurm_ends_in_order_before_its_allocation_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 3600))
    left = seconds_left(None)
    assert left is not None
    assert 3600 - 2 * ENDING < left <= 3600 - ENDING
    assert seconds_left(10.0) == 10.0
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time())))
    assert seconds_left(None) == 1.0
    for odd in ("", "soon", "-5"):
        monkeypatch.setenv("SLURM_JOB_END_TIME", odd)
        assert seconds_left(None) is None


def test_a_disk_that_takes_no_note_ends_no_training(tmp_path: Path) -> None:
    root = Root(tmp_path)
    root.scratch.mkdir()
    (root.scratch / "progress").write_text("in the way", "utf-8")
    write_note(root, Note("abc", "alias", 1, 2, 1.0, time.time()))
    drop_note(root, "abc")
    assert list(read_notes(root)) == []


def test_hours_to_come_are_those_of_trainings_and_hours_so_far_those_of_all_attempts() -> None:
    plan = build_plan(find_root(), "proxy")
    run = next(run for run in plan.runs.values() if run.cost.gpu_hours and run.metrics)
    hour = {"wall": 3600.0, "train": 3600.0}
    nothing = summary(plan, index_of(plan.configuration.root, []))
    index = index_of(plan.configuration.root, [train_record(run, "failed", time=hour), train_record(run, time=hour)])
    told = summary(plan, index)
    assert told["gpu_hours_so_far"] == 2.0
    assert told["gpu_hours_to_come"] == pytest.approx(nothing["gpu_hours_to_come"] - run.cost.gpu_hours, abs=2e-3)
    assert (told["to_train"], told["to_measure"]) == (len(plan.runs) - 1, 1)
    assert told["planned"] == told["to_train"] + sum(told["runs"].values())
