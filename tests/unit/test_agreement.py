"""Records of one thing made of different data, counts, units or encoders: never in one number (cases D07, M02, M07)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_world import check_record, eval_record, index_of, plan_of, recorded, train_record

from repro.records.agreement import disagreements, sightings
from repro.records.index import load_index
from repro.records.schema import record_problems, sealed
from repro.records.skeleton import eval_skeleton
from repro.records.store import record_path, write_record
from repro.report.quality import quality_notes
from repro.spec.paths import Root
from tests.conftest import Checkout

Main = Callable[..., tuple[int, str, str]]
DATA = {"name": "embedded_lm", "split": "val", "sha256": "1" * 64, "tokens": 20000, "tokenizer_sha256": "2" * 64}


def lm_runs(count: int = 4) -> list[Any]:
    runs = [run for run in plan_of("smoke").runs.values() if run.kind == "train" and run.config["task"] == "lm"]
    return runs[:count]


def pair(run: Any, **data: Any) -> list[dict[str, Any]]:
    """A training and its loss, both on `DATA` with `data` changed."""
    saw = {"data": [DATA | data], "tier": "smoke"}
    return [sealed(raw | saw) for raw in (train_record(run), eval_record(run, "val_loss", 2.5))]


def written(root: Root, raws: list[dict[str, Any]]) -> None:
    for raw in raws:
        path = record_path(root.scratch_records, raw["id"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(raw))


def messages(root: Root) -> list[str]:
    return [str(problem) for problem in load_index(root).problems]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def test_alike_records_agree(root: Root) -> None:
    written(root, [raw for run in lm_runs() for raw in pair(run)])
    assert messages(root) == []


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": "0" * 64},
        {"tokenizer_sha256": "0" * 64},
        {"tokens": 7},
        {"name": "another"},
        {"split": "test"},
        {"tokenizer_sha256": None},
    ],
)
def test_a_run_on_other_data_is_told_and_in_no_number(root: Root, change: dict[str, Any]) -> None:
    *good, odd = lm_runs()
    written(root, [raw for run in good for raw in pair(run)] + pair(odd, **change))
    index = load_index(root)
    assert len(index.problems) == 1
    assert f"{odd.id}.json: data: data with digest" in str(index.problems[0])
    assert "differs from what 3 other records say" in str(index.problems[0])
    assert index.train(odd.id) is None
    assert all(index.train(run.id) and index.evals(run.id) for run in good)


def test_a_number_taken_on_other_data_than_the_runs_is_told(root: Root) -> None:
    run = lm_runs(1)[0]
    train, measured = pair(run)
    other = sealed(eval_record(run, "ppl_exp_mean", 12.0) | {"data": [DATA], "tier": "smoke"})
    written(root, [train, sealed(measured | {"data": []}), other])
    index = load_index(root)
    assert [f"data of run {run.id}" in str(problem) for problem in index.problems] == [True]
    assert set(index.evals(run.id)) == {"ppl_exp_mean"}


def test_a_number_of_fewer_items_is_told(root: Root) -> None:
    raws = [raw for run in lm_runs() for raw in pair(run)]
    raws[-1]["metrics"][0]["n"] = 7
    written(root, [*raws[:-1], sealed(raws[-1])])
    (message,) = messages(root)
    assert "data: n of val_loss on data" in message


def test_of_two_that_disagree_none_stands(root: Root) -> None:
    one, two = lm_runs(2)
    written(root, [*pair(one), *pair(two, tokens=7)])
    assert len(messages(root)) == 2
    assert all("2 records disagree, and no side has most" in message for message in messages(root))
    assert load_index(root).train(one.id) is None


@dataclass(frozen=True)
class Saw:
    """A record in short."""

    name: int
    saw: dict[str, str]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_what_most_say_stands_whatever_the_order(said: list[str]) -> None:
    records = [Saw(place, {"x": word}) for place, word in enumerate(said)]
    unlike = {record.name for record, _ in disagreements(records)}
    assert unlike == {record.name for record, _ in disagreements(records[::-1])}
    left = {record.saw["x"] for record in records if record.name not in unlike}
    assert len(left) <= 1
    assert all(said.count(word) > said.count(other) for word in left for other in set(said) - left)


def test_checks_see_no_data() -> None:
    run = next(run for run in plan_of("smoke").runs.values() if run.kind == "check")
    assert sightings(check_record(run, 1.0)) == {}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"unit": "bits/token"}, "val_loss is in bits/token, val_loss.v1 in nats/token"),
        ({"n": 0}, "val_loss is made of no items (n is 0)"),
        ({"value": -0.5}, "val_loss is -0.5, outside 0.."),
        ({"name": "rouge1_tf"}, "metrics are rouge1_tf; val_loss.v1 makes val_loss"),
    ],
)
def test_a_number_that_its_protocol_cannot_make_is_refused(change: dict[str, Any], says: str) -> None:
    raw = eval_record(lm_runs(1)[0], "val_loss", 2.5)
    raw["metrics"][0] |= change
    assert says in " ".join(map(str, record_problems(sealed(raw), "x")))


def test_a_number_stands_once_and_with_its_like() -> None:
    raw = eval_record(lm_runs(1)[0], "val_loss", 2.5)
    twice = sealed(raw | {"metrics": raw["metrics"] * 2})
    assert "metrics are val_loss, val_loss; val_loss.v1 makes val_loss" in str(record_problems(twice, "x")[0])
    rouge = eval_record(lm_runs(1)[0], "rouge_tf", 2.5)
    part = sealed(rouge | {"metrics": rouge["metrics"][:2]})
    assert "metrics are rouge1_tf, rouge2_tf; rouge_tf.v1 makes rouge1_tf" in str(record_problems(part, "x")[0])
    train = sealed(train_record(lm_runs(1)[0]) | {"metrics": raw["metrics"]})
    assert "a training has no metrics" in str(record_problems(train, "x")[0])


def test_an_import_of_records_on_other_data_is_refused_whole(
    checkout: Checkout, repro_main: Main, tmp_path: Path
) -> None:
    *good, odd = lm_runs()
    for raw in (raw for run in good for raw in pair(run)):
        write_record(Root(checkout.path), raw)
    away = Root(tmp_path / "away")
    written(away, pair(odd, sha256="0" * 64))
    code, _, err = repro_main(checkout, "records", "import", away.path)
    assert (code, "differs from what 3 other records say" in err) == (65, True)
    assert not record_path(Root(checkout.path).scratch_records, odd.id).exists()


def test_scores_of_two_encoders_have_no_mean() -> None:
    plan = plan_of("smoke")
    runs = [run for run in lm_runs(100) if "bertscore_tf" in run.metrics]
    raws = [raw for run in runs for raw in recorded(run, 2.5)]
    measured = [raw for raw in raws if raw["config"].get("protocol") == "bertscore_tf"]
    assert len(measured) == len(runs) > 2
    for raw in measured:
        raw["probes"] = {"protocol": f"bertscore(encoder={'b' if raw is measured[0] else 'a'})"}
    index = index_of(plan.configuration.root, raws)
    without = [run.id for run in runs if "bertscore_tf" not in index.evals(run.id)]
    assert without == [measured[0]["of"]]
    assert all("val_loss" in index.evals(run.id) for run in runs)
    (note,) = [note for note in quality_notes(plan, index) if "another encoder" in note.rule]
    assert (note.severity, note.value, note.message) == ("error", 1, measured[0]["alias"])


def test_losses_of_a_run_in_half_precision_are_taken_in_single() -> None:
    raw = train_record(lm_runs(1)[0])
    half = raw | {"environment": raw["environment"] | {"precision": "bf16"}}
    assert eval_skeleton(half, "0" * 64, "val_loss", 16)["base"]["environment"]["precision"] == "fp32"
    double = raw | {"environment": raw["environment"] | {"precision": "fp64"}}
    assert eval_skeleton(double, "0" * 64, "val_loss", 16)["base"]["environment"]["precision"] == "fp64"
