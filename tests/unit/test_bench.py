"""The frame of `repro bench`, and tiny versions of its situations: what is compared must be able to differ."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from repro.bench import chunks, dry_runs, main, measure, planning, probing, registry, situation
from repro.dag import is_missing
from repro.records.index import load_index
from repro.spec.errors import ConfigError
from repro.spec.paths import Root

REPOSITORY = Root(Path(__file__).resolve().parents[2])


def quiet(text):
    """Tells nobody."""


@pytest.fixture
def session(tmp_path):
    return registry.Session(REPOSITORY, tmp_path, ("P9", "P10"), measure.Progress())


def question(bar=2.0, formula=lambda t: t["ours"] / t["peer"]):
    return measure.Question("P0", "ours / peer", "peer", formula, bar, packages=("pydantic",))


def fake(rows, packages=()):
    def measured(_session):
        if isinstance(rows, Exception):
            raise rows
        return rows

    return registry.Ratio("P0", "words", packages, measured)


def test_sides_take_turns_and_are_judged_by_medians():
    calls = []

    def side(name, seconds):
        given = iter(seconds)
        return lambda: calls.append(name) or next(given)

    times = measure.interleave({"ours": side("a", [3, 9, 2]), "peer": side("b", [2, 2, 1])}, 3, quiet)
    assert calls == ["a", "b"] * 3
    row = question().answer(times, None, "same")
    assert (row.median, row.minimum, row.spread, row.ok) == (1.5, 2.0, 3.0, True)
    assert question(1.4).answer(times, None, "").ok is False
    assert question(None).answer(times, None, "").ok is None


def test_noise_widens_a_bar_but_not_without_end():
    assert measure.allowed(1.0, 0.02) == 1.0
    assert measure.allowed(1.0, 0.05) == 1.05
    assert measure.allowed(1.0, 0.5) == pytest.approx(1.1)
    assert measure.noise_of({"a": [1.0, 2.0, 9.0], "b": [1.0, 1.0, 1.0]}, "a", "b") == 1.0


def test_what_noise_hides_is_not_ok_and_no_infinity_in_json():
    assert measure.beyond(5.0, 3.0, 1.0) == 2.0
    assert math.isinf(measure.beyond(5.0, 1.0, 1.0))
    hidden = question(formula=lambda t: measure.beyond(t["ours"], t["peer"], t["peer"]))
    row = hidden.answer({"ours": [2.0], "peer": [1.0]}, 0.0, "same")
    assert row.ok is False
    assert "noise" in row.detail
    assert json.loads(json.dumps(row.as_json(), allow_nan=False))["median"] is None


def test_rows_of_an_absent_peer_and_of_unequal_work(session):
    (row,) = registry.rows_of(fake([], packages=("pydantic", "no-such-peer")), session)
    assert (row.ok, row.median) == (None, None)
    assert "no-such-peer" in row.detail
    (row,) = registry.rows_of(fake(measure.NotEqualError("20 jobs, not 19")), session)
    assert (row.ok, row.detail) == (False, "20 jobs, not 19")


def test_ids_are_known_ordered_and_refused_all_at_once():
    known = registry.ratios()
    assert {"P9", "P10", "P11", "P12"} <= set(known)
    assert list(known).index("P9") < list(known).index("P10")
    assert [one.id for one in main.choose(["p10", "P9", "P9"], known)] == ["P9", "P10"]
    assert [one.id for one in main.choose([], known)] == list(known)
    with pytest.raises(ConfigError) as refused:
        main.choose(["P9", "Q1", "P999"], known)
    assert len(refused.value.problems) == 2
    assert "known: " in str(refused.value)


def test_the_verb_prints_json_lines_and_exits_1_if_a_row_is_not_ok(monkeypatch, capsys):
    times = {"ours": [2.0], "peer": [1.0]}
    good, bad, none = (question(bar).answer(times, 0.01, "same") for bar in (2.0, 1.0, None))
    monkeypatch.setattr(main, "ratios", lambda: {"P0": fake([good, none])})
    main.bench([], as_json=True)
    out = capsys.readouterr()
    rows = [json.loads(line) for line in out.out.splitlines()]
    fields = ["id", "ratio", "median", "minimum", "spread", "bar", "ok", "peer", "versions"]
    assert [list(row)[: len(fields)] for row in rows] == [fields, fields]
    assert [row["ok"] for row in rows] == [True, None]
    assert out.err == "", "progress is for terminals"
    monkeypatch.setattr(main, "ratios", lambda: {"P0": fake([good, bad])})
    with pytest.raises(SystemExit) as end:
        main.bench(["P0"], as_json=False)
    assert end.value.code == 1
    assert "NOT OK" in capsys.readouterr().out


def test_a_process_that_fails_is_not_timed(tmp_path):
    seconds, text = measure.run_timed((sys.executable, "-c", "print('here')"), tmp_path)
    assert (text, seconds > 0) == ("here\n", True)
    with pytest.raises(measure.NotEqualError, match="code 3: last words"):
        measure.run_timed((sys.executable, "-c", "print('last words'); raise SystemExit(3)"), tmp_path)


def test_situations_of_20_runs_list_exactly_what_is_missing(session):
    """Six dry runs: bare jobs; 4 of 20 missing, with and without stamps; nothing missing."""
    sizes = dry_runs.Sizes(planned=20, missing=4, rounds=1)
    sides = dry_runs.done_sides(session, sizes)
    assert list(sides) == ["some", "some, stamped", "none"]
    some, stamped, none = (Root(session.folder / name) for name in ("some", "stamped", "none"))
    plan = situation.plan_of(some)
    counts = []
    for root in (some, stamped, none):
        index = load_index(root)
        assert index.problems == []
        counts.append(sum(is_missing(plan, run, index) for run in plan.runs.values()))
    assert counts == [4, 4, 0]
    assert len(list((stamped.scratch / "done").glob("*.json"))) == 16
    assert not (some.scratch / "done").exists()
    text = measure.run_timed(dry_runs._COMMAND, some.path)[1]
    chunks_missing = {run.chunk for run in plan.runs.values() if is_missing(plan, run, load_index(some))}
    dry_runs.expect_chunks(text, chunks_missing)
    for wrong in (set(), set(list(chunks_missing)[1:]), {run.chunk for run in plan.runs.values()}):
        with pytest.raises(measure.NotEqualError, match="4 run jobs"):
            dry_runs.expect_chunks(text, wrong)


def test_bare_and_generated_jobs_are_counted(session):
    for name, text in (("bare", dry_runs._BARE), ("generated", dry_runs._GENERATED)):
        folder = dry_runs._snakefile(session, name, text, 20)
        counts = dry_runs.job_counts(measure.run_timed(dry_runs._COMMAND, folder)[1])
        dry_runs.expect_jobs(counts, 20, name)
        with pytest.raises(measure.NotEqualError, match="20 jobs, not 21"):
            dry_runs.expect_jobs(counts, 21, name)


def test_slopes_of_linear_and_of_quadratic_growth():
    sizes = (1_000, 2_500, 5_000, 10_000)
    assert dry_runs.slope_ratio({n: 3.0 + n * 1e-3 for n in sizes}) == pytest.approx(1.0)
    assert dry_runs.slope_ratio({n: 3.0 + (n * 1e-3) ** 2 for n in sizes}) > 1.5


def test_a_made_checkout_plans_what_was_asked_for(tmp_path):
    root = situation.make_checkout(REPOSITORY, tmp_path / "made", 40, chunk=20)
    plan = situation.plan_of(root)
    assert len(plan.runs) == 40
    assert sorted(map(len, plan.chunks().values())) == [20, 20]
    assert not (root.path / "config" / "local.yaml").exists()
    with pytest.raises(ConfigError, match="multiple"):
        situation.make_checkout(REPOSITORY, tmp_path / "odd", 7, chunk=1)
    done = subprocess.run([sys.executable, *planning._PLAN], cwd=root.path, capture_output=True, text=True, check=True)
    planning.expect_runs(done.stdout, 40)
    with pytest.raises(measure.NotEqualError, match="40 lines"):
        planning.expect_runs(done.stdout, 41)


def test_imports_are_read_from_the_interpreters_own_report():
    text = "import time:       204 |        204 |   _io\nimport time: 1 | 2 |     torch.nn.modules\nsomething else\n"
    assert planning.imported(text) == {"_io", "torch"}


def test_records_inside_a_chunk_and_alone_must_be_equal():
    ours = {"aa": {"metrics": [1.0]}, "bb": {"metrics": [2.0]}}
    chunks.expect_equal(ours, {"aa": {"metrics": [1.0]}, "bb": {"metrics": [2.0]}})
    with pytest.raises(measure.NotEqualError, match=r"record bb differs.*metrics"):
        chunks.expect_equal(ours, {"aa": {"metrics": [1.0]}, "bb": {"metrics": [2.5]}})
    with pytest.raises(measure.NotEqualError, match="alone"):
        chunks.expect_equal(ours, {"aa": {"metrics": [1.0]}})
    with pytest.raises(measure.NotEqualError, match="inside a chunk"):
        chunks.expect_equal({}, {})


def test_only_times_may_change_between_two_records_of_a_run(tmp_path):
    root = situation.make_checkout(REPOSITORY, tmp_path / "made", 10, chunk=10)
    plan = situation.plan_of(root)
    runs = list(plan.runs.values())
    situation.record(root, plan, runs[:2])
    found = chunks.records_of(root, runs[0])
    assert len(found) == 2, "the training's and its metric's"
    assert all(not set(chunks.CHANGING) & set(record) for record in found.values())
    assert all("metrics" in record and "config" in record for record in found.values())


def test_the_cost_of_probes_is_scaled_to_one_step_in_50_and_so_is_its_noise():
    times = {"with": [11.0, 12.0, 14.0], "without": [10.0] * 3, "without again": [10.0, 10.5, 11.0]}
    in_50, each = probing.answers(times, probing.Size("words", 11, {}))
    assert in_50.median == pytest.approx(1 + 0.2 * 10 / 50)
    assert each.median == pytest.approx(1 + 0.2 * 10)
    assert (in_50.noise, each.noise) == (pytest.approx(0.05 * 10 / 50), pytest.approx(0.05 * 10))
    assert (in_50.ok, each.ok) == (True, None)
    slow = times | {"with": [13.0] * 3}
    assert probing.answers(slow, probing.Size("words", 11, {}))[0].ok is False


def finished(rows, loss=1.0, weight=1.0):
    state = SimpleNamespace(layers=[{"step": n} for n in rows], curve=lambda: {"loss": [loss]}, val_history=[loss])
    return SimpleNamespace(state=state, net=SimpleNamespace(state_dict=lambda: {"w": torch.tensor([weight])}))


def test_runs_with_probes_and_without_must_differ_in_their_rows_and_in_nothing_else():
    plain = finished([])
    probing.expect_equal(finished([1, 1, 9, 9]), plain)
    for probed, other, words in (
        (finished([]), plain, "0 steps are probed"),
        (finished([1, 9]), finished([1]), "1 rows in the other"),
        (finished([1, 9], loss=1.0 + 1e-16 + 1e-15), plain, "loss curve"),
        (finished([1, 9], weight=1.0000001), plain, "weights differ .*: w"),
    ):
        with pytest.raises(measure.NotEqualError, match=words):
            probing.expect_equal(probed, other)


def test_a_short_run_of_the_desk_tier_is_measured_with_probes_and_without(session):
    from repro.train import module

    config = probing.config_of(session, probing.SIZES[0])
    assert (config["model"]["n_layer"], config["model"]["d_model"], config["tokens_per_step"]) == (4, 64, 4096)
    assert probing.config_of(session, probing.SIZES[1])["model"]["d_model"] == 768
    known, tiny = module.probe_steps, {"n_layer": 1, "n_head": 1, "d_model": 8, "context": 8, "vocab": 16}
    size = probing.Size("tiny", 3, {"model": tiny, "tokens_per_step": 16})
    one_in_50, each = probing.measure(session, size, rounds=1)
    assert (one_in_50.rounds, one_in_50.bar, one_in_50.ok is None) == (1, 1.05, False)
    assert each.median - 1 == pytest.approx(50 * (one_in_50.median - 1))
    assert module.probe_steps is known
    assert not torch.are_deterministic_algorithms_enabled()
