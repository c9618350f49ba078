"""The situations of the workflow, in one checkout, in the order in which a user meets them.

Nothing is trained twice, nothing is missed, nothing is stale. Each situation starts from where the one before
ended, since training is what costs time here.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.suite import Suite, numbers

TABLE = Path("results/tables/smoke/paper_a.csv")
NOTHING = "Nothing to be done"


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """A fresh clone with committed tables of an older state, and no records."""
    made = Suite.make(tmp_path_factory.mktemp("workflow") / "clone")
    table = made.path / TABLE
    table.parent.mkdir(parents=True)
    for name in (
        "paper_a",
        "claims_a",
        "paper_b",
        "claims_b",
        "paper_c",
        "claims_c",
        "paper_d",
        "claims_d",
        "leaderboard_lm",
    ):
        (table.parent / f"{name}.csv").write_text("stale\n")
    page = made.path / "results" / "site" / "smoke" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("stale")
    return made


@pytest.fixture(scope="module")
def trained(suite: Suite) -> Suite:
    """Situation 1: a fresh clone with committed tables trains all that was planned."""
    suite.snakemake()
    return suite


def run_ids(suite: Suite) -> list[str]:
    """Ids of the planned runs, by alias."""
    return [run["id"] for run in suite.plan()]


def test_fresh_clone_with_committed_tables_trains_everything(trained: Suite) -> None:
    plan = trained.plan()
    assert [run["state"] for run in plan] == ["recorded"] * 2
    kinds = [record["kind"] for record in trained.records().values()]
    assert (kinds.count("train"), kinds.count("eval")) == (2, 2)
    assert "stale" not in (trained.path / TABLE).read_text()
    assert (trained.path / "results/site/smoke/index.html").read_text() != "stale"


def test_second_call_does_nothing(trained: Suite) -> None:
    before = trained.states()
    done = trained.snakemake()
    assert NOTHING in done.stdout + done.stderr
    assert trained.states() == before


def test_edited_rule_text_trains_nothing(trained: Suite) -> None:
    rule = trained.path / "workflow" / "rules" / "run.smk"
    rule.write_text(rule.read_text().replace("--stamp {output:q}", "--stamp  {output:q}"))
    before = trained.states()
    trained.snakemake()
    assert trained.states() == before


def test_stale_table_is_made_again(trained: Suite) -> None:
    """A table of another state, as a merge brings it: same records, other file."""
    table = trained.path / TABLE
    good = table.read_text()
    table.write_text("stale\n")
    before = trained.states()
    trained.snakemake()
    assert table.read_text() == good
    assert trained.states() == before
    done = trained.snakemake()
    assert NOTHING in done.stdout + done.stderr


def test_new_metric_trains_nothing(trained: Suite) -> None:
    before = trained.states()
    trained.write_experiment(metrics=["val_loss", "ppl_exp_mean"])
    assert {run["state"] for run in trained.plan()} == {"missing"}
    trained.snakemake()
    after = trained.states()
    assert {name: after[name] for name in before} == before
    new = [trained.records()[name] for name in after.keys() - before.keys()]
    assert [record["kind"] for record in new] == ["eval", "eval"]
    assert "ppl_exp_mean" in (trained.path / TABLE).read_text()


def test_new_experiment_over_existing_cells_trains_nothing(trained: Suite) -> None:
    before = trained.states()
    trained.write_experiment(name="a_twin", seeds=1)
    trained.snakemake()
    assert trained.states() == before
    assert "a_twin" in (trained.path / TABLE).read_text()


def test_deleted_record_and_stamp_retrain_exactly_that_run(trained: Suite) -> None:
    """With its stamp: the chunk is half recorded, and only the missing run of it is trained; bit for bit."""
    first, second = run_ids(trained)
    before, states = trained.records(), trained.states()
    trained.record_file(first).unlink()
    shutil.rmtree(trained.path / "scratch" / "done")
    trained.snakemake()
    after = trained.records()
    assert numbers(after[f"{first}.json"]) == numbers(before[f"{first}.json"])
    changed = {name for name, state in trained.states().items() if states.get(name) != state}
    assert changed == {f"{first}.json"}
    assert f"{second}.json" in after


def test_deleted_record_without_its_stamp_is_noticed(trained: Suite) -> None:
    """The stamp alone must never hide that a result is gone; here the result comes back as by `git pull`."""
    first, _ = run_ids(trained)
    file = trained.record_file(first)
    kept = file.read_bytes()
    file.unlink()
    done = trained.snakemake("-n")
    assert "scratch/done/" in done.stdout + done.stderr
    assert NOTHING not in done.stdout + done.stderr
    file.write_bytes(kept)
    before = trained.states()
    trained.snakemake()
    assert trained.states() == before


def test_record_pulled_in_makes_tables_again_and_trains_nothing(tmp_path: Path, trained: Suite) -> None:
    clone = Suite.make(tmp_path / "clone")
    experiment = Path("config/experiments/a_small.yaml")  # as the situations before have left it, if they ran
    shutil.copy(trained.path / experiment, clone.path / experiment)
    shutil.copytree(trained.record_folder, clone.record_folder)
    clone.snakemake()
    assert not (clone.path / "scratch" / "final").exists()
    table = clone.path / TABLE
    complete, before = table.read_text(), clone.states()
    first, _ = run_ids(clone)
    pulled = clone.record_file(first)
    content = pulled.read_bytes()
    pulled.unlink()
    clone.repro("tables", "--tier", "smoke")
    assert [run["state"] for run in clone.plan()] == ["missing", "recorded"]
    assert table.read_text() != complete
    pulled.write_bytes(content)
    clone.snakemake()
    assert table.read_text() == complete
    assert pulled.read_bytes() == content
    others = {name: state for name, state in before.items() if name != pulled.name}
    assert {name: state for name, state in clone.states().items() if name != pulled.name} == others
    assert not (clone.path / "scratch" / "final").exists()
