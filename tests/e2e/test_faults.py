"""Methods that fail: each end is a record, the rest of the chunk goes on, and the tables show the row."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

from tests.e2e.suite import Suite

FAULTY = '''"""x + f(N x), with a fault to order."""

import torch

from repro.nn.method_api import Method as Base

INFO = {"title": "Faulty", "ref": "test", "tracks": ["lm"], "params": {"fault": "none"}, "dt_zero": "identity"}
HELD = []


class Method(Base):
    norms = ("in",)
    _calls = 0

    def step(self, x, branch, site):
        if site.layer == 0 and site.kind == "attn" and x.requires_grad:
            self._calls += 1
            if self.fault == "raise" and self._calls == 5:
                raise ValueError("no such luck in /some/secret/place/file.py")
            if self.fault == "nan" and self._calls > 3:
                x = x * float("nan")
            if self.fault == "memory":
                HELD.append(torch.ones(30_000_000, dtype=torch.float64))
            if self.fault == "huge":
                HELD.append(torch.ones(10**14, dtype=torch.float64))
        return x + branch(site.norm_in(x))
'''
PEEKING = '''"""Sees the token that it has to guess."""

from repro.nn.method_api import Method as Base

INFO = {"title": "Peeking", "ref": "test", "tracks": ["lm"], "params": {}, "dt_zero": "none"}


class Method(Base):
    norms = ("in",)

    def step(self, x, branch, site):
        return x + branch(site.norm_in(x)) + x.roll(-1, 1)
'''
EXPECTED = {"none": "complete", "raise": "failed", "nan": "diverged", "memory": "oom", "huge": "oom"}


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """One chunk with a run of each fault and good ones beside them, run through the workflow."""
    made = Suite.make(
        tmp_path_factory.mktemp("faults") / "clone",
        seeds=1,
        methods=["pre_ln", "peeking", *({"name": "faulty", "fault": fault} for fault in EXPECTED)],
    )
    (made.path / "repro" / "methods" / "faulty.py").write_text(FAULTY)
    (made.path / "repro" / "methods" / "peeking.py").write_text(PEEKING)
    settings = made.path / "config" / "suite.yaml"
    settings.write_text(settings.read_text("utf-8").replace("keep_weights: all", "keep_weights: none"), "utf-8")
    made.snakemake()
    return made


def trainings(suite: Suite) -> dict[str, dict[str, Any]]:
    """{fault: record} of the faulty method."""
    records = [
        record for record in suite.records().values() if record["kind"] == "train" and record["method"] == "faulty"
    ]
    return {record["params"]["fault"]: record for record in records}


def test_every_end_is_a_record_with_its_status(suite: Suite) -> None:
    found = trainings(suite)
    assert {fault: record["status"] for fault, record in found.items()} == EXPECTED
    for fault, record in found.items():
        assert (record["status_detail"]["reason"] is None) == (fault == "none")


def test_a_method_that_breaks_the_contract_has_no_number(suite: Suite) -> None:
    """It would be the best of all: nobody has to think of `repro method check`."""
    (record,) = [one for one in suite.records().values() if one["method"] == "peeking"]
    assert (record["status"], record["weights_sha256"]) == ("failed", None)
    assert not (suite.path / "scratch" / "final" / f"{record['id']}.safetensors").exists()
    assert "breaks the contract of methods: causality" in record["status_detail"]["reason"]
    tried = suite.repro("run", record["id"], "--steps", "2", "--no-record")
    assert "breaks the contract of methods: causality" in tried.stderr, "a try-out is warned and goes on"


def test_reasons_say_what_happened_and_no_path(suite: Suite) -> None:
    found = trainings(suite)
    assert "no such luck in file.py" in found["raise"]["status_detail"]["reason"]
    assert "step 4" in found["nan"]["status_detail"]["reason"]
    assert "passed the planned" in found["memory"]["status_detail"]["reason"]
    assert found["nan"]["curve"]["train_loss"][-1] is None


def test_a_diverged_run_is_not_measured(suite: Suite) -> None:
    diverged = trainings(suite)["nan"]["id"]
    assert [record for record in suite.records().values() if record["of"] == diverged] == []


def test_tables_show_every_row(suite: Suite) -> None:
    with open(suite.path / "results" / "tables" / "smoke" / "paper_a.csv", newline="") as stream:
        rows = {row["cell"]: row for row in csv.DictReader(stream)}
    assert len(rows) == 7
    assert rows["faulty-faultnan"]["diverged"] == "1"
    for fault in ("raise", "memory", "huge"):
        assert rows[f"faulty-fault{fault}"]["failed"] == "1"
        assert rows[f"faulty-fault{fault}"]["val_loss_n"] in ("0", "none")
    assert rows["peeking"]["failed"] == "1"
    assert rows["faulty"]["complete"] == rows["pre_ln"]["complete"] == "1"


def test_all_records_hold(suite: Suite) -> None:
    suite.repro("records", "validate")
    again = suite.snakemake()
    assert "Nothing to be done" in again.stdout + again.stderr


def test_failures_are_tried_once_more_when_asked_and_nothing_else_is(suite: Suite) -> None:
    before = suite.records()
    bad = {record["id"] for record in before.values() if record["status"] in ("failed", "oom")}
    told = json.loads(suite.repro("status", "--tier", "smoke", "--json").stdout)
    assert {item["id"] for item in told["failures"]} == bad
    assert all(item["reason"] and item["log"].startswith("scratch/logs/") for item in told["failures"])
    assert (told["planned"], told["missing"], told["running"]) == (7, 0, [])
    assert suite.repro("retry", "--tier", "smoke", code=64).stdout == ""
    listed = suite.repro("retry", "--failed", "--tier", "smoke").stdout.splitlines()
    assert {line.split()[0] for line in listed} == bad
    assert json.loads(suite.repro("status", "--tier", "smoke", "--json").stdout)["missing"] == len(bad)
    suite.snakemake()
    after = suite.records()
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {f"{identity}.1.json" for identity in bad}
    assert all(after[f"{identity}.1.json"]["supersedes"] == f"{identity}.json" for identity in bad)
    again = suite.snakemake()
    assert "Nothing to be done" in again.stdout + again.stderr
    suite.repro("records", "validate")


def test_weights_go_by_the_rule_once_their_metrics_are_there(suite: Suite) -> None:
    """`keep_weights: none`: no run leaves weights, however it ended, and every end is a record."""
    assert list((suite.path / "scratch" / "final").glob("*.safetensors")) == []
    evals = [record for record in suite.records().values() if record["kind"] == "eval"]
    assert len(evals) >= 2
    assert {record["status"] for record in evals} == {"complete"}
