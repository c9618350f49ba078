"""Records: written once, checked across their fields, found again, and silent about the machine they come from."""

from __future__ import annotations

import copy
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from plan_world import experiment, only, plan_of
from report_world import eval_record, train_record, with_seed

from repro.plan import Run
from repro.records import index as index_module
from repro.records.index import Index, load_index
from repro.records.provenance import code, cpu_name, environment
from repro.records.schema import RecordModel, finite, record_problems, sealed
from repro.records.store import attempt_of, attempts_of, place, record_path, replace_text, write_once, write_record
from repro.spec.errors import BadDataError, CannotWriteError
from repro.spec.hashing import sha256_json
from repro.spec.paths import Root
from tests.conftest import Checkout, copy_checkout

Main = Callable[..., tuple[int, str, str]]


@cache
def run() -> Run:
    """The one run that most tests record."""
    return only(plan_of(experiment("e", seeds=1)))


def record(status: str = "complete", **changes: Any) -> dict[str, Any]:
    """A good record at the smallest scale, whose place is not committed."""
    return train_record(replace(run(), tier="smoke"), status, **changes)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def messages(raw: Any) -> str:
    return "\n".join(str(problem) for problem in record_problems(raw, "r.json"))


def mutated(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """`base` with one value changed, sealed again: a record that is whole but untrue."""
    raw = copy.deepcopy(base)
    place = raw
    *parents, last = path.split(".")
    for key in parents:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return sealed(raw)


# Writing
def test_what_is_written_reads_back_equal_and_is_found(root: Root) -> None:
    path = write_record(root, record())
    assert path == root.path / "scratch" / "records" / run().id[:2] / f"{run().id}.json"
    raw = json.loads(path.read_text("utf-8"))
    assert raw == record()
    assert messages(raw) == ""
    found = load_index(root)
    assert found.problems == []
    assert found.train(run().id) is not None
    assert found.train(run().id).raw == raw  # type: ignore[union-attr]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_all_but_the_smallest_scale_goes_to_the_committed_place(root: Root) -> None:
    path = write_record(root, train_record(replace(run(), tier="desk")))
    assert path == root.path / "results" / "records" / run().id[:2] / f"{run().id}.json"
    assert {place(root, tier) for tier in ("desk", "proxy", "paper")} == {root.records}


def test_the_seal_is_made_when_it_is_written(root: Root) -> None:
    unsealed = {key: value for key, value in record().items() if key != "sha256"}
    raw = json.loads(write_record(root, unsealed).read_text("utf-8"))
    assert raw["sha256"] == sha256_json(unsealed)


def test_a_record_that_breaks_a_rule_is_not_written(root: Root) -> None:
    with pytest.raises(BadDataError, match="complete, but not all planned tokens were seen"):
        write_record(root, mutated(record(), "status", "complete") | train_half())
    assert not [path for path in root.path.rglob("*") if path.is_file()]


def train_half() -> dict[str, Any]:
    budget = record()["budget"]
    half = budget["steps"] // 2
    return {"budget": budget | {"steps": half, "tokens_seen": half * budget["tokens_per_step"]}}


@pytest.mark.parametrize("status", ["complete", "diverged"])
def test_a_result_is_never_superseded(root: Root, status: str) -> None:
    path = write_record(root, record(status))
    before = path.read_bytes(), path.stat().st_mtime_ns
    for later in ("complete", "diverged", "failed"):
        with pytest.raises(BadDataError, match=f"a {status} record exists and is never rewritten"):
            write_record(root, record(later))
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert attempts_of(root.scratch_records, run().id) == [path]


def test_failed_runs_may_have_later_attempts_and_each_names_the_one_before(root: Root) -> None:
    for number, status in enumerate(["failed", "oom", "timeout", "complete"]):
        path = write_record(root, record(status))
        assert path.name == (f"{run().id}.{number}.json" if number else f"{run().id}.json")
        before = {0: None, 1: f"{run().id}.json"}.get(number, f"{run().id}.{number - 1}.json")
        assert json.loads(path.read_text("utf-8"))["supersedes"] == before
    found = load_index(root)
    assert found.problems == []
    assert (found.attempts(run().id), found.train(run().id).status) == (4, "complete")  # type: ignore[union-attr]
    assert [attempt_of(path) for path in attempts_of(root.scratch_records, run().id)] == [0, 1, 2, 3]
    with pytest.raises(BadDataError):
        write_record(root, record())


def test_of_many_writers_at_once_exactly_one_writes(root: Root) -> None:
    path = root.path / "a" / "record.json"

    def attempt(number: int) -> bool:
        try:
            write_once(path.with_name(path.name), str(number) * 1000)
        except OSError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = [number for number, ok in enumerate(pool.map(attempt, range(8))) if ok]
    assert len(won) == 1
    assert path.read_text() == str(won[0]) * 1000


def test_an_existing_file_is_never_touched(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("first")
    with pytest.raises(FileExistsError):
        write_once(path, "second")
    assert path.read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_place_that_cannot_be_written_is_an_error_of_its_own(root: Root) -> None:
    root.scratch.mkdir()
    root.scratch_records.write_text("a file where a folder is needed")
    with pytest.raises(CannotWriteError) as caught:
        write_record(root, record())
    assert caught.value.exit_code == 73
    with pytest.raises(CannotWriteError):
        replace_text(root.scratch_records / "x" / "y.json", "text")


def test_a_derived_file_is_rewritten_only_if_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.txt"
    assert replace_text(path, "one")
    os.utime(path, (1, 1))
    assert not replace_text(path, "one")
    assert path.stat().st_mtime == 1
    assert replace_text(path, "two")
    path.write_bytes(b"\xff")
    assert replace_text(path, "two")
    assert [p.name for p in path.parent.iterdir()] == ["x.txt"]


# What a record must be
def test_the_good_records_are_good() -> None:
    for status in ("complete", "diverged", "failed", "timeout", "oom"):
        assert messages(record(status)) == ""
    assert messages(eval_record(run(), "val_loss", 2.5)) == ""
    assert messages(eval_record(run(), "ppl_exp_mean", None)) == ""


COMPLETE: dict[str, tuple[str, Any, str]] = {
    "no seed": ("seed", ..., "seed: is missing"),
    "more keys": ("host", "me", "host: unknown key"),
    "more keys inside": ("time.sleep", 1.0, "time.sleep: unknown key"),
    "schema": ("schema", 2, "schema"),
    "id": ("id", "0" * 12, "id does not follow from full_sha256"),
    "id form": ("id", "../../x", "id: ../../x: string should match pattern"),
    "full hash": ("full_sha256", "0" * 64, "do not follow from config"),
    "config": ("config.optimizer.lr", 1.0, "do not follow from config"),
    "config hash": ("config_sha256", "0" * 64, "do not follow from config"),
    "method": ("method", "peri_ln", "differ from config"),
    "params": ("params", {"dt": 2.0}, "differ from config"),
    "other seed": ("seed", 99, "differ from config"),
    "method's code": ("method_sha256", "0" * 64, "differ from config"),
    "tokens": ("budget.tokens_seen", 5, "budget.tokens_seen is not steps * tokens_per_step"),
    "planned": ("budget.tokens_planned", 10**9, "budget is not what config plans"),
    "too long a step": ("budget.tokens_per_step", 10**6, "budget is not what config plans"),
    "no budget": ("budget", None, "a training needs a budget"),
    "negative": ("budget.steps", -1, "budget.steps"),
    "no curve": ("curve", None, "the curve is not finite to its end"),
    "hole in the curve": ("curve.train_loss", [5.0, None], "must have one length"),
    "empty curve": ("curve", {}, "the curve is not finite to its end"),
    "no weights": ("weights_sha256", None, "weights_sha256 is null"),
    "has of": ("of", "0" * 12, "only an eval record has `of`"),
    "time": ("time.train", 1e6, "time.train + time.eval is more than time.wall"),
    "mfu": ("speed.mfu", 1.04, "speed.mfu: 1.04: input should be less than or equal to 1"),
    "speed": ("speed.tokens_per_second", 1.0, "is less than half of the tokens seen"),
    "resumed": ("resumes", 1, "resumed, but attempts is 1"),
    "attempts": ("attempts", 0, "attempts"),
    "status": ("status", "completed", 'did you mean "complete"?'),
    "kind": ("kind", "training", "kind"),
    "origin": ("origin", "me", "origin"),
    "tier": ("tier", "large", "tier"),
    "alias": ("alias", "<b>x</b>", "alias"),
    "alias long": ("alias", "a" * 201, "alias"),
    "experiment": ("experiments", ["../x"], "experiments.0"),
    "reason long": ("status_detail.reason", "x" * 2001, "status_detail.reason"),
    "device": ("environment.device", "me@host", "environment.device"),
    "packages": ("environment.packages", {"a": "<script>"}, "environment.packages"),
    "commit": ("code.git_commit", "HEAD", "code.git_commit"),
    "created": ("created", "yesterday", "created"),
    "number as text": ("time.wall", "5", "a number is expected, without quotes"),
    "boolean as number": ("seed", True, "a number is expected"),
}


@pytest.mark.parametrize("name", COMPLETE)
def test_each_rule_is_kept(name: str) -> None:
    path, value, says = COMPLETE[name]
    assert says in messages(mutated(record(), path, value))
    assert "sha256: does not match" not in messages(mutated(record(), path, value))


@pytest.mark.parametrize(
    ("series", "says"),
    [
        ({"train_loss": [3.0, None, 2.0]}, "not finite to its end"),
        ({"tokens": [100, 100, 200]}, "tokens must grow"),
        ({"tokens": [100, 50, 200]}, "tokens must grow"),
        ({"tokens": [1, 2, 3]}, "not finite to its end"),
        ({"val_loss": [None, None]}, "must have one length"),
        ({"train_loss": [3.0, 2.5, float("nan")]}, "curve.train_loss.2"),
        ({"train_loss": [3.0, 2.5, float("inf")]}, "holds a number that is not JSON"),
    ],
)
def test_a_complete_curve_is_finite_grows_and_ends_with_the_last_token(series: dict[str, Any], says: str) -> None:
    end = record()["budget"]["tokens_seen"]
    good = {"tokens": [100, 200, end], "train_loss": [3.0, 2.5, 2.0], "val_loss": [None, None, 2.1]}
    assert messages(mutated(record(), "curve", good)) == ""
    bad = record() | {"curve": good | series}
    assert says in messages(bad)


def test_a_curve_has_at_most_two_hundred_points() -> None:
    long = {"tokens": list(range(1, 202)), "train_loss": [1.0] * 201, "val_loss": [None] * 201}
    assert "curve.tokens" in messages(mutated(record("diverged"), "curve", long))


@pytest.mark.parametrize("status", ["diverged", "failed", "timeout", "oom"])
def test_every_end_but_the_planned_one_has_a_reason(status: str) -> None:
    for reason in (None, ""):
        assert f"{status} without a reason" in messages(mutated(record(status), "status_detail.reason", reason))


def test_a_number_of_another_protocol_does_not_pass_under_an_eval_record() -> None:
    raw = eval_record(run(), "val_loss", 2.5)
    raw["metrics"][0]["protocol"] = "other.v9"
    assert "metrics of another protocol than val_loss.v1" in messages(raw)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("of", None, "of or weights_sha256 differ from config"),
        ("of", "0" * 12, "of or weights_sha256 differ from config"),
        ("weights_sha256", "0" * 64, "of or weights_sha256 differ from config"),
        ("metrics", [], "has metrics exactly if it is complete"),
        ("status", "failed", "has metrics exactly if it is complete"),
        ("metrics.0", {"name": "val_loss"}, ""),
        ("kind", "check", "method, params or seed differ from config"),
    ],
)
def test_rules_of_measurements(path: str, value: Any, says: str) -> None:
    raw = eval_record(run(), "val_loss", 2.5)
    if path == "metrics.0":
        raw = sealed(raw | {"metrics": [value]})
        assert "metrics.0.unit: is missing" in messages(raw)
    else:
        assert says in messages(mutated(raw, path, value))


def test_all_broken_rules_are_told_at_once() -> None:
    raw = record() | train_half() | {"weights_sha256": None, "resumes": 1, "schema": 1}
    found = messages(sealed(raw))
    assert all(
        text in found for text in ("not all planned tokens", "weights_sha256 is null", "resumed, but attempts is 1")
    )
    raw = record() | {"seed": "x", "host": 1, "created": 5}
    assert {line.split(": ")[1] for line in messages(raw).splitlines()} == {"seed", "host", "created", "sha256"}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"method": None},
        {"method": "x", "seed": 1},
        {"method": [], "steps": "abc", "tokens_per_step": "x"},
        {"method": {"name": "pre_ln"}, "steps": 10**9, "tokens_per_step": {}},
        {"steps": "x" * 100, "tokens_per_step": 10**12},
    ],
)
def test_a_hostile_configuration_is_a_problem_and_no_traceback(config: dict[str, Any]) -> None:
    full = sha256_json(config)
    raw = record() | {"config": config, "full_sha256": full, "config_sha256": full, "id": full[:12]}
    assert "differ from config" in messages(sealed(raw))
    raw["kind"] = "check"
    assert isinstance(messages(sealed(raw)), str)
    raw |= {"kind": "train", "method": None, "params": {}, "method_sha256": None}
    raw["budget"] = {"tokens_planned": 10**15, "tokens_seen": 0, "steps": 0, "tokens_per_step": 10**12}
    assert messages(sealed(raw))


@pytest.mark.parametrize("raw", [None, [], "text", 5, {}, {"a": float("nan")}, {"config": {"x": float("inf")}}])
def test_anything_else_is_no_record(raw: object) -> None:
    assert messages(raw)


# Finding
@pytest.mark.parametrize("offset", range(0, 4000, 97))
def test_a_changed_byte_is_noticed_and_the_file_is_named(root: Root, offset: int) -> None:
    path = write_record(root, record())
    data = bytearray(path.read_bytes())
    place = offset % len(data)
    data[place] = data[place] ^ 1 if data[place] not in b" \n" else ord("x")
    path.write_bytes(bytes(data))
    found = load_index(root)
    name = f"scratch/records/{run().id[:2]}/{run().id}.json"
    assert found.problems
    assert {problem.file for problem in found.problems} == {name}
    assert found.train(run().id) is None
    with pytest.raises(BadDataError, match=re.escape(name)):
        found.refuse_problems()


@pytest.mark.parametrize("cut", [0, 1, 100, -2])
def test_a_file_cut_short_is_noticed(root: Root, cut: int) -> None:
    path = write_record(root, record())
    path.write_bytes(path.read_bytes()[:cut])
    assert load_index(root).problems


@pytest.mark.parametrize(
    "name",
    [
        "{id}.copy.json",
        "{id}.01.json",
        "{id}.1.2.json",
        "{id}.\u0661.json",
        "x{id}.json",
        "{ID}.json",
        "../{id}.json",
        "../zz/{id}.json",
        "../{id2}/deeper/{id2}/{id}.json",
    ],
)
def test_a_record_of_another_name_or_place_is_refused(root: Root, name: str) -> None:
    path = write_record(root, record())
    other = path.parent / name.format(id=run().id, ID=run().id.upper(), id2=run().id[:2])
    other.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, other)
    problems = load_index(root).problems
    assert len(problems) == 1, problems
    assert problems[0].file == os.path.normpath(other.relative_to(root.path))


def test_links_are_refused(root: Root) -> None:
    path = write_record(root, record())
    aside = root.path / "aside.json"
    path.rename(aside)
    for target in (aside, Path("/etc/passwd"), path, root.path / "nowhere"):
        path.symlink_to(target)
        problems = load_index(root).problems
        assert [str(problem) for problem in problems] == [f"{path.relative_to(root.path)}: is a symbolic link"]
        path.unlink()


def later(raw: dict[str, Any], number: int, supersedes: str | None) -> dict[str, Any]:
    return sealed(raw | {"supersedes": supersedes})


@pytest.mark.parametrize(
    ("first", "supersedes", "says"),
    [
        ("complete", "{id}.json", "attempt 1 follows a complete record; only failed, oom, timeout may be retried"),
        ("diverged", "{id}.json", "attempt 1 follows a diverged record"),
        (None, "{id}.json", "attempt 1 follows a missing record"),
        ("failed", None, "must be {id}.json in a file of this name"),
        ("failed", "{id}.1.json", "must be {id}.json in a file of this name"),
        ("failed", "{id}.json", None),
        ("oom", "{id}.json", None),
        ("timeout", "{id}.json", None),
    ],
)
def test_an_attempt_put_there_by_hand_keeps_the_rules_too(
    root: Root, first: str | None, supersedes: str | None, says: str | None
) -> None:
    """A pull or a copy goes past `write_record`; a better result must not hide the one before it."""
    if first is not None:
        write_record(root, record(first))
    path = record_path(root.scratch_records, run().id, 1)
    named = supersedes and supersedes.format(id=run().id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(later(record(), 1, named)))
    problems = [str(problem) for problem in load_index(root).problems]
    assert len(problems) == (says is not None)
    assert all(says is not None and says.format(id=run().id) in problem for problem in problems)


def test_the_first_attempt_supersedes_nothing(root: Root) -> None:
    path = record_path(root.scratch_records, run().id)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(later(record(), 0, f"{run().id}.json")))
    assert "must be null in a file of this name" in str(load_index(root).problems[0])


def test_names_of_attempts() -> None:
    names = {"a.json": 0, "a.1.json": 1, "a.12.json": 12, "a.x.json": 0, "a.1.2.json": 0, "a.-1.json": 0}
    assert {name: attempt_of(Path(name)) for name in names} == names


def test_records_of_others_stand_apart(root: Root) -> None:
    path = record_path(root.community, run().id)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(sealed(record() | {"origin": "community"})))
    found = load_index(root)
    assert found.problems == []
    assert found.train(run().id) is None
    assert [r.raw["origin"] for r in found.community[run().id]] == ["community"]
    path.write_text(path.read_text().replace('"seed": 1', '"seed": 2', 1))
    assert load_index(root).problems, "the same checks for all"


def test_measurements_are_found_by_run_and_current_protocol(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    for raw in (record(), eval_record(run(), "val_loss", 2.5), eval_record(run(), "ppl_exp_mean", None)):
        write_record(root, raw | {"tier": "smoke"})
    found = load_index(root)
    evals = found.evals(run().id)
    assert set(evals) == {"val_loss", "ppl_exp_mean"}
    assert evals["val_loss"].value("val_loss") == 2.5
    assert evals["val_loss"].value("other") is None
    assert evals["ppl_exp_mean"].value("ppl_exp_mean") is None
    assert found.evals("0" * 12) == {}
    from repro.spec.metrics import PROTOCOLS, Protocol

    mended = PROTOCOLS["val_loss"].info.model_copy(update={"rules": 2})
    monkeypatch.setitem(PROTOCOLS, "val_loss", Protocol("val_loss", mended))
    assert set(load_index(root).evals(run().id)) == {"ppl_exp_mean"}, "numbers of an older protocol are not mixed in"


@pytest.mark.parametrize("status", ["diverged", "failed"])
def test_only_a_complete_run_has_measurements(root: Root, status: str) -> None:
    """A number that stands beside a diverged run would find its way into a mean."""
    write_record(root, record(status))
    path = write_record(root, eval_record(run(), "val_loss", 2.5) | {"tier": "smoke"})
    problems = [str(problem) for problem in load_index(root).problems]
    assert problems == [f"{path.relative_to(root.path)}: of: measures {run().id}, which is {status}"]


# The cache
def reads(root: Root, monkeypatch: pytest.MonkeyPatch) -> tuple[Index, int]:
    """The index, and how many files were read for it."""
    count = 0
    real = index_module.read_json

    def counted(*words: Any) -> Any:
        nonlocal count
        count += 1
        return real(*words)

    monkeypatch.setattr(index_module, "read_json", counted)
    found = load_index(root)
    monkeypatch.setattr(index_module, "read_json", real)
    return found, count


def test_files_that_did_not_change_are_not_read_again(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [with_seed(replace(run(), tier="smoke"), seed) for seed in range(1, 6)]
    paths = [write_record(root, train_record(one)) for one in runs]
    assert reads(root, monkeypatch)[1] == 5
    found, count = reads(root, monkeypatch)
    assert (count, len(found.records)) == (0, 5)
    paths[0].unlink()
    found, count = reads(root, monkeypatch)
    assert (count, len(found.records), found.train(runs[0].id)) == (0, 4, None)
    write_record(root, train_record(runs[0], "diverged"))
    found, count = reads(root, monkeypatch)
    assert (count, found.train(runs[0].id).status) == (1, "diverged")  # type: ignore[union-attr]
    paths[1].write_text(paths[1].read_text().replace("complete", "diverged"))
    assert len(reads(root, monkeypatch)[0].problems) > 0
    assert reads(root, monkeypatch)[1] == 1, "a bad file is looked at each time"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", '{"files": {}}', '{"version": "old", "files": {}}'])
def test_a_broken_or_old_cache_is_made_anew(root: Root, text: str) -> None:
    write_record(root, record())
    load_index(root)
    cache_file = root.scratch / "cache" / "records.json"
    assert cache_file.is_file()
    cache_file.write_text(text)
    found = load_index(root)
    assert (found.problems, list(found.records)) == ([], [run().id])
    assert json.loads(cache_file.read_text())["files"]


def test_a_cache_that_cannot_be_written_costs_time_only(root: Root) -> None:
    write_record(root, record())
    (root.scratch / "cache").write_text("a file where a folder is needed")
    assert list(load_index(root).records) == [run().id]


def test_an_empty_checkout_has_an_empty_index(root: Root) -> None:
    found = load_index(root)
    assert (found.records, found.problems, found.attempts("0" * 12)) == ({}, [], 0)
    assert not root.scratch.exists() or not root.scratch_records.exists()


# The verbs
def test_the_verbs_list_show_validate_and_compare(checkout: Checkout, repro_main: Main) -> None:
    root = Root(checkout.path)
    one, two = replace(run(), tier="smoke"), with_seed(replace(run(), tier="smoke"), 2)
    for raw in (train_record(one), train_record(two, "failed"), eval_record(one, "val_loss", 2.5) | {"tier": "smoke"}):
        write_record(root, raw)
    code, out, err = repro_main(checkout, "records", "validate")
    assert (code, out, err) == (0, "", "3 records or submissions are what they say\n")
    assert json.loads(repro_main(checkout, "records", "validate", "--json")[1]) == {"records": 3, "problems": []}
    rows = [json.loads(line) for line in repro_main(checkout, "records", "list", "--json")[1].splitlines()]
    assert {(row["id"], row["kind"], row["status"]) for row in rows} >= {
        (one.id, "train", "complete"),
        (two.id, "train", "failed"),
    }
    assert len(repro_main(checkout, "records", "list")[1].splitlines()) == 4
    for name in (one.id, one.alias, rows[0]["file"]):
        code, out, _ = repro_main(checkout, "records", "show", name, "--json")
        assert code == 0
        assert messages(json.loads(out)) == ""
    assert repro_main(checkout, "records", "show", one.id)[0] == 0
    code, out, _ = repro_main(checkout, "diff", one.id, two.id)
    assert code == 0
    keys = [line.split()[0] for line in out.splitlines()[1:]]
    assert {"seed", "status", "id", "status_detail.reason"} <= set(keys)
    assert not {"method", "config.optimizer.lr"} & set(keys)
    for words in (["show", "0" * 12], ["show", "nothing/here"]):
        assert repro_main(checkout, "records", *words)[0] == 64
    assert repro_main(checkout, "records", "show", "gone.json")[0] == 65


def test_validate_tells_all_problems_of_all_files(checkout: Checkout, repro_main: Main) -> None:
    for number, text in enumerate(
        ["[", "[NaN]", "{}", "[" * 10_000, '{"a": 1, "a": 2}', json.dumps(record() | {"seed": 7})]
    ):
        checkout.write(f"in/{number}.json", text)
    (checkout.path / "in" / "link.json").symlink_to("/etc/hostname")
    code, out, err = repro_main(checkout, "records", "validate", "in")
    assert (code, out) == (65, "")
    assert all(f"in/{name}.json" in err for name in (*range(6), "link"))
    code, out, _ = repro_main(checkout, "records", "validate", "in", "--json")
    assert code == 65
    assert json.loads(out)["records"] == 7
    assert len(json.loads(out)["problems"]) >= 7


def test_validate_of_the_whole_checkout_sees_places_and_attempts_too(checkout: Checkout, repro_main: Main) -> None:
    path = write_record(Root(checkout.path), record())
    shutil.copy(path, path.with_name(f"{run().id}.copy.json"))
    code, out, err = repro_main(checkout, "records", "validate", "--json")
    assert (code, len(json.loads(out)["problems"])) == (65, 1)
    assert "place and name of the file do not follow from the id" in err


def test_what_a_record_says_cannot_move_the_terminal(checkout: Checkout, repro_main: Main) -> None:
    detail = {"step": 1, "reason": "\x1b]0;title\x07\x1b[2J\u202eevil\nsecond line"}
    write_record(Root(checkout.path), record("failed", status_detail=detail))
    code, out, err = repro_main(checkout, "records", "show", run().id)
    assert (code, err) == (0, "")
    assert "?]0;title??[2J?evil?second line" in out
    assert not set(out) & set("\x1b\x07\u202e")


def test_a_file_of_a_hundred_thousand_faults_is_refused_in_a_moment(checkout: Checkout, repro_main: Main) -> None:
    checkout.write("in/many.json", json.dumps({f"k{number}": 0 for number in range(60_000)}))
    started = time.perf_counter()
    code, _, err = repro_main(checkout, "records", "validate", "in")
    assert time.perf_counter() - started < 5
    assert (code, len(err.splitlines())) == (65, 202)
    assert "in/many.json: and 598" in err


def test_records_come_home_all_or_none(checkout: Checkout, repro_main: Main, tmp_path: Path) -> None:
    away, root = Root(tmp_path / "away"), Root(checkout.path)
    one, two = replace(run(), tier="desk"), with_seed(replace(run(), tier="desk"), 2)
    write_record(away, train_record(one, "failed"))
    write_record(away, train_record(one))
    write_record(away, train_record(two))
    broken = record_path(away.records, two.id).with_name("broken.json")
    broken.write_text("{}")
    assert repro_main(checkout, "records", "import", away.path)[0] == 65
    assert not root.records.exists()
    broken.unlink()
    code, _, err = repro_main(checkout, "records", "import", away.path)
    assert (code, err) == (0, "3 new records\n")
    assert {p.name for p in root.records.rglob("*.json")} == {f"{one.id}.json", f"{one.id}.1.json", f"{two.id}.json"}
    assert repro_main(checkout, "records", "import", away.path)[2] == "0 new records\n"
    assert load_index(root).problems == []
    other = record_path(away.records, two.id)
    other.write_text(json.dumps(train_record(two, final=1.0)))
    code, _, err = repro_main(checkout, "records", "import", away.path)
    assert (code, f"another record of {two.id} is here already" in err) == (65, True)


def test_an_import_supersedes_no_result_and_takes_no_name_twice(
    checkout: Checkout, repro_main: Main, tmp_path: Path
) -> None:
    one = replace(run(), tier="desk")
    write_record(Root(checkout.path), train_record(one))
    better = record_path(tmp_path / "in", one.id, 1)
    better.parent.mkdir(parents=True)
    better.write_text(json.dumps(sealed(train_record(one, final=1.0) | {"supersedes": f"{one.id}.json"})))
    code, _, err = repro_main(checkout, "records", "import", tmp_path / "in")
    assert (code, "follows a complete record" in err) == (65, True)
    two = with_seed(one, 2)
    for folder, final in (("a", 2.0), ("b", 1.0)):
        path = record_path(tmp_path / "twice" / folder, two.id)
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(train_record(two, final=final)))
    code, _, err = repro_main(checkout, "records", "import", tmp_path / "twice")
    assert (code, f"another record of {two.id} is here already" in err) == (65, True)
    assert len(list(Root(checkout.path).records.rglob("*.json"))) == 1
    assert repro_main(checkout, "records", "import", tmp_path / "nowhere")[0] == 64


# Provenance
def test_a_number_that_is_not_finite_is_null() -> None:
    assert [finite(x) for x in (1, 2.5, float("nan"), float("inf"), float("-inf"), None)] == [
        1.0,
        2.5,
        None,
        None,
        None,
        None,
    ]


def test_the_processors_name_fits_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_.,:;*+=/() -]{1,200}", cpu_name())
    odd = "model name\t: Intel(R) Xeon(R) CPU é® @ 2.20GHz <b> |" + "x" * 500
    monkeypatch.setattr(Path, "read_text", lambda *_: odd)
    assert cpu_name().startswith("Intel(R) Xeon(R) CPU   2.20GHz b ")
    raw = mutated(record(), "environment.device", cpu_name())
    assert messages(raw) == ""


def test_code_and_environment_pass_the_schema(repo_root: Path) -> None:
    made = environment(Root(repo_root), cpu_name(), 1, "fp32", 1)
    assert messages(sealed(record() | {"environment": made, "code": code(Root(repo_root))})) == ""
    assert {"torch", "lightning", "numpy", "snakemake"} <= made["packages"].keys()


def test_dirty_means_a_change_outside_of_results_and_scratch(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    def dirty() -> bool:
        made = code.__wrapped__(Root(tmp_path))
        assert re.fullmatch(r"[0-9a-f]{40}", made["git_commit"])
        return bool(made["dirty"])

    git("init", "-q")
    (tmp_path / "x").write_text("1")
    git("add", ".")
    git("commit", "-qm", "first")
    assert not dirty()
    for folder in ("results/records", "scratch"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "new").write_text("1")
    assert not dirty()
    (tmp_path / "y").write_text("untracked")
    assert dirty()
    (tmp_path / "y").unlink()
    (tmp_path / "x").write_text("2")
    assert dirty()


def test_without_git_only_the_source_hash_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    made = code(Root(tmp_path))
    assert (made["git_commit"], made["dirty"]) == (None, None)
    assert re.fullmatch(r"[0-9a-f]{64}", made["source_sha256"])


# A real run of five steps, and one whose losses are no numbers from the first step on.
BOMB = '''"""x + 1e30 f(x): overflows at once."""

from torch import Tensor

from repro.nn import method_api as api

INFO = {"title": "Bomb", "ref": "control", "tracks": ["lm"], "params": {}, "dt_zero": "identity"}


class Method(api.Method):
    """Its loss is no number."""

    def step(self, x: Tensor, branch: api.Branch, site: api.Site) -> Tensor:
        """x [batch, tokens, d] -> the same shape."""
        return x + 1e30 * branch(x)
'''


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout in which two runs were trained by the real command, and measured."""
    target = tmp_path_factory.mktemp("trained") / "checkout"
    target.mkdir()
    checkout = copy_checkout(target)
    for old in [*(target / "config/experiments").iterdir(), *(target / "config/claims").iterdir()]:
        old.unlink()
    checkout.write("repro/methods/bomb.py", BOMB)
    checkout.write("texts/a.jsonl", "".join(json.dumps({"text": f"text {n} " * 30}) + "\n" for n in range(200)))
    checkout.file("config/data.yaml").write_text(
        "mine: {kind: folder, title: t, licence: none, path: texts, tokenizer: bytes, validation: 0.2,\n"
        "  curve_tokens: 256, final_tokens: 512}\n"
    )
    checkout.edit("config/tiers.yaml", lambda tiers: [tiers.pop(tier) for tier in ("desk", "proxy", "paper")])
    checkout.edit("config/tiers.yaml", lambda tiers: tiers.update(smoke={"lm": tiers["smoke"]["lm"]}))
    checkout.edit("config/tiers.yaml", lambda tiers: tiers["smoke"]["lm"].update(tokens=5120, seeds=1, data="mine"))
    checkout.write(
        "config/experiments/a_short.yaml",
        "name: a_short\npaper: a\ntask: lm\nmodel: gpt2_124m\ndata: mine\ntokens: 1000000\nbatch_tokens: 1024\n"
        "optimizer: {name: adamw, lr: 6.0e-4, weight_decay: 0.1}\nmethods: [peri_ln, bomb]\nseeds: 1\n"
        "metrics: [val_loss, ppl_exp_mean, ppl_seq_mean]\n",
    )
    done = checkout.repro("data", "prepare", "mine", timeout=300)
    assert done.returncode == 0, done.stderr
    names = [row.split()[0] for row in checkout.repro("plan").stdout.splitlines()[1:]]
    done = checkout.repro("run", *names, timeout=400)
    assert done.returncode == 0, done.stderr
    return checkout


def real_records(trained: Checkout) -> list[tuple[Path, dict[str, Any]]]:
    files = sorted((trained.path / "scratch" / "records").rglob("*.json"))
    return [(path, json.loads(path.read_text("utf-8"))) for path in files]


def strict(text: str) -> Any:
    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_real_run_leaves_a_record_for_its_end_and_for_each_metric(trained: Checkout) -> None:
    found = [raw for _, raw in real_records(trained)]
    assert sorted((raw["kind"], raw["method"], raw["status"]) for raw in found) == [
        *[("eval", "peri_ln", "complete")] * 3,
        ("train", "bomb", "diverged"),
        ("train", "peri_ln", "complete"),
    ]
    train = next(raw for raw in found if (raw["kind"], raw["method"]) == ("train", "peri_ln"))
    assert train["budget"] == {"tokens_planned": 5120, "tokens_seen": 5120, "steps": 5, "tokens_per_step": 1024}
    assert train["curve"]["tokens"] == [1024, 2048, 3072, 4096, 5120]
    assert None not in train["curve"]["train_loss"]
    assert train["environment"]["threads"] == 1
    assert len(train["structure"]) >= 3
    assert {d["split"] for d in train["data"]} == {"train", "val"}
    value = {raw["metrics"][0]["name"]: raw["metrics"][0] for raw in found if raw["kind"] == "eval"}
    assert value["val_loss"]["unit"] == "nats/token"
    assert value["val_loss"]["n"] == 512
    assert value["ppl_seq_mean"]["value"] >= value["ppl_exp_mean"]["value"] > 1


def test_case_p06_every_json_file_is_strict_after_a_diverged_run(trained: Checkout) -> None:
    bomb = next(raw for _, raw in real_records(trained) if raw["method"] == "bomb")
    assert "non-finite loss at step 1" in bomb["status_detail"]["reason"]
    assert bomb["curve"]["train_loss"] == [None]
    assert bomb["probes"]["val_loss_start"] is None
    assert (bomb["weights_sha256"], bomb["metrics"]) == (None, [])
    files = [path for path in trained.path.rglob("*.json") if ".venv" not in path.parts]
    assert len(files) > 5
    for path in files:
        strict(path.read_text("utf-8"))
    for words in (
        ["plan", "--json"],
        ["records", "list", "--json"],
        ["claims", "--json"],
        ["records", "show", bomb["id"], "--json"],
    ):
        done = trained.repro(*words)
        assert done.returncode == 0, done.stderr
        for line in done.stdout.splitlines():
            strict(line)


def test_no_record_tells_who_where_or_on_which_host(trained: Checkout) -> None:
    secrets = {platform.node(), str(trained.path), str(trained.path.parent), str(Path.home()), os.path.expanduser("~")}
    secrets |= {value for key, value in os.environ.items() if len(value) > 12 and key not in ("LS_COLORS",)}
    name = os.environ.get("USER") or Path.home().name
    for path, raw in real_records(trained):
        text = path.read_text("utf-8")
        found = [secret for secret in secrets if len(secret) > 3 and secret in text]
        assert found == [], path.name
        assert len(name) < 3 or not re.search(rf"\b{re.escape(name)}\b", text)
        assert not re.search(r'"/[A-Za-z]', text)
        assert RecordModel.model_validate(raw)


def test_the_real_records_are_valid_and_nothing_remains_to_be_done(trained: Checkout) -> None:
    assert trained.repro("records", "validate").returncode == 0
    rows = [json.loads(line) for line in trained.repro("plan", "--json").stdout.splitlines()]
    assert {row["state"] for row in rows} == {"recorded"}
    before = {path: path.stat().st_mtime_ns for path, _ in real_records(trained)}
    done = trained.repro("run", *[row["id"] for row in rows])
    assert done.returncode == 0
    assert {path: path.stat().st_mtime_ns for path, _ in real_records(trained)} == before
