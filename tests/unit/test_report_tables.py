"""Tables: the plan is the denominator, names survive every format, and a gap is never a number."""

import csv
import io
import json
import re

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_world import (
    claims,
    eval_record,
    index_of,
    plan_of,
    plan_only,
    plausible,
    recorded,
    train_record,
    with_seed,
    world,
)

from repro.records.index import load_index
from repro.records.schema import record_problems
from repro.records.store import write_record
from repro.report.boards import leaderboard_table, write_leaderboard
from repro.report.escape import csv_text, latex, markdown, plain
from repro.report.joined import incomplete, stranger_words, strangers
from repro.report.table import Table, strict_json, to_csv, to_latex, to_markdown, write_table
from repro.report.tables import claims_table, experiment_table, paper_table, write_tables
from repro.spec.errors import CannotWriteError
from repro.spec.paths import Root
from repro.stats.verdict import judge

NAMES = ["pre_ln", "50%_warmup", "A&B", "x|y", "#1 $best$", "α-β"]  # P05
HOSTILE = {  # S10
    "method": "<img src=x onerror=alert(1)>|x",
    "author": "`rm`; $(id)",
    "link": "javascript:alert(1)",
    "file": "../../etc/passwd",
    "note": "a\nb\u202ec",
}


def table_of(names: list[str], values: list[float] | None = None) -> Table:
    """A table of one name and one number a row."""
    values = values or [3.3 - place / 100 for place in range(len(names))]
    rows = tuple((name, f"{value:.2f}") for name, value in zip(names, values, strict=True))
    data = tuple({"method": name, "val_loss": value} for name, value in zip(names, values, strict=True))
    return Table("t", "Names", ("tier smoke",), ("method", "val_loss"), rows, data)


def cells_of(markdown_row: str) -> int:
    """Cells of one Markdown row: bars that no backslash guards, less one."""
    return len(re.findall(r"(?<!\\)\|", markdown_row)) - 1


def latex_cells(line: str) -> int:
    return len(re.findall(r"(?<!\\)&", line)) + 1


def rows_in(text: str) -> list[str]:
    """Body rows of a Markdown table."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return lines[2:]


def test_p05_odd_names_make_one_row_in_each_format():
    table = table_of(NAMES)
    text = to_markdown(table)
    assert len(rows_in(text)) == 6
    assert {cells_of(row) for row in rows_in(text)} == {2}
    body = [line for line in to_latex(table).splitlines() if line.endswith(r"\\")]
    assert len(body) == 7
    assert {latex_cells(line) for line in body} == {2}
    assert r"50\%\_warmup" in to_latex(table)
    assert r"\ensuremath{\alpha}-\ensuremath{\beta}" in to_latex(table)
    read = list(csv.reader(io.StringIO(to_csv(table))))
    assert [row[0] for row in read[1:]] == NAMES
    assert [float(row[1]) for row in read[1:]] == [row["val_loss"] for row in table.data]


def test_p02_names_that_look_missing_survive():
    names = ["pre", "None", "null", "NA", "none", "nan"]
    read = pd.read_csv(io.StringIO(to_csv(table_of(names))), keep_default_na=False)
    assert list(read["method"]) == names
    assert len(read.groupby("method")) == 6


def test_s10_a_hostile_submission_stays_one_row_of_text(tmp_path):
    table = table_of(list(HOSTILE.values()))
    files = write_table(tmp_path, table)
    text = {path.suffix: path.read_text("utf-8") for path in files}
    assert len(rows_in(text[".md"])) == 5
    assert "<img" not in text[".md"]
    assert {cells_of(row) for row in rows_in(text[".md"])} == {2}
    assert len(list(csv.reader(io.StringIO(text[".csv"])))) == 6
    assert sum(line.endswith(r"\\") for line in text[".tex"].splitlines()) == 6
    for content in text.values():
        assert "\u202e" not in content
        assert "[U+202E]" in content or r"\[U+202E\]" in content or "{[}U+202E{]}" in content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.md", "t.tex"]


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-cmd", "@sum", "\t=1", "\n=1", "-2+3"])
def test_a_formula_becomes_text_in_a_csv(text):
    assert csv_text(text).startswith("'")


@pytest.mark.parametrize("text", ["-0.032", "+3", "-1e-5", "pre_ln", "'", "a-b"])
def test_numbers_and_names_stay_as_they_are_in_a_csv(text):
    assert csv_text(text) == text


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=5))
def test_any_text_round_trips_or_is_neutralised(names):
    shown = [plain(name) or "none" for name in names]
    table = table_of(shown)
    read = list(csv.reader(io.StringIO(to_csv(table))))
    assert [row[0] for row in read[1:]] == [csv_text(name) for name in shown]
    assert all(row[0].removeprefix("'") == name.removeprefix("'") for row, name in zip(read[1:], shown, strict=True))
    assert {cells_of(row) for row in rows_in(to_markdown(table).replace("\\\\", ""))} == {2}
    assert all("<" not in markdown(name) and "\n" not in plain(name) for name in names)
    bare = re.sub(
        r"\\[&%$#_{}]|\\[a-zA-Z]+(\{\})?|\\ensuremath\{\\[a-zA-Z]+\}|\{\[\}|\{\]\}", "", latex(" ".join(names))
    )
    assert not set("&%$#_^~\\<>|[]") & set(bare)


def test_an_empty_cell_and_a_crooked_row_are_refused():
    with pytest.raises(ValueError, match="empty cell"):
        Table("t", "t", (), ("a",), (("",),), ({"a": ""},))
    with pytest.raises(ValueError, match="not rectangular"):
        Table("t", "t", (), ("a", "b"), (("x",),), ({"a": "x"},))


def p01():
    """Planned: pre and post, seeds 1 to 3. Recorded: pre 1, 2, pre 3 crashed, post 1, and post 9, a stranger."""
    plan = plan_only("p01", ["pre_ln", "post_ln"], 3)
    found = {("pre_ln", 1): 3.31, ("pre_ln", 2): 3.30, ("pre_ln", 3): "failed", ("post_ln", 1): 3.40}
    raws = [raw for run in plan.runs.values() for raw in recorded(run, found.get((run.method, run.seed)))]
    post = next(run for run in plan.runs.values() if run.method == "post_ln")
    return plan, index_of(plan.configuration.root, [*raws, *recorded(with_seed(post, 9), 2.00)])


def test_p01_every_planned_run_is_shown_and_strangers_stand_apart():
    plan, index = p01()
    table = experiment_table(plan, index, "p01")
    assert len(plan.runs) == 6
    rows = {row["method"]: row for row in table.data}
    assert (rows["pre_ln"]["planned"], rows["pre_ln"]["complete"], rows["pre_ln"]["seeds_not_complete"]) == (
        3,
        2,
        "failed: 3",
    )
    assert (rows["post_ln"]["complete"], rows["post_ln"]["seeds_not_complete"]) == (1, "missing: 2 3")
    assert rows["post_ln"]["val_loss_mean"] == "missing 2 of 3"
    assert [stranger_words(record).split(" ")[0] for record in strangers(plan, index)] == ["p01/post_ln/s9@smoke"]
    assert [line.split("/", 1)[1] for line in incomplete(index, plan.runs.values())] == [
        "post_ln/s2@smoke: missing",
        "post_ln/s3@smoke: missing",
        "pre_ln/s3@smoke: failed",
    ]
    text = to_markdown(table)
    assert "incomplete: 3 things" in text
    assert "not in the plan, in no number here: p01/post\\_ln/s9@smoke" in text
    assert "2.0" not in "".join(rows_in(text))  # the stranger's loss


def test_a_metric_without_a_record_is_an_open_point():
    plan = plan_only("p01", ["pre_ln"], 2)
    raws = [raw for run in plan.runs.values() for raw in (train_record(run), eval_record(run, "val_loss", 3.3))]
    index = index_of(plan.configuration.root, raws)
    assert len(incomplete(index, plan.runs.values())) == 2 * (len(plan.configuration.experiments["p01"].metrics) - 1)
    assert incomplete(index, plan.runs.values())[0].endswith("s1@smoke: bits_per_byte not measured")
    (row,) = experiment_table(plan, index, "p01").data
    assert (row["val_loss_mean"], row["ppl_exp_mean_mean"]) == (3.3, "not measured 2 of 2")


def test_one_diverged_one_missing_one_failed_of_five_leaves_no_mean_and_no_rank():
    plan = plan_only("board", ["pre_ln", "peri_ln"], 5, leaderboard=True)
    troubled = {1: 2.0, 2: "diverged", 3: None, 4: "failed", 5: 2.1}
    index = world(plan, lambda run: troubled[run.seed] if run.method == "peri_ln" else 2.5 + run.seed / 100)
    table = leaderboard_table(plan, index, "lm")
    assert [row[:2] for row in table.rows] == [("1", "pre_ln"), ("no rank", "peri_ln")]
    shown = dict(zip(table.head, table.rows[1], strict=True))
    assert shown["complete"] == "2 of 5"
    assert shown["seeds not complete"] == "diverged: 2; failed: 4; missing: 3"
    data = table.data[1]
    assert (data["val_loss_mean"], data["val_loss_sample_sd"]) == (
        "diverged 1 of 5, failed 1 of 5, missing 1 of 5",
        "none",
    )
    assert data["rank_low"] == "none"
    assert not {"2.05", "2.0", "2.1", "0"} & {str(data["val_loss_mean"]), shown[table.head[2]]}


def test_every_table_carries_its_protocol():
    plan = plan_of("desk")
    index = world(plan, plausible)
    verdicts = judge(claims(), plan, index, "desk")
    for table in (
        paper_table(plan, index, "a"),
        leaderboard_table(plan, index, "lm"),
        claims_table(plan, verdicts, "a"),
    ):
        text = to_markdown(table).replace("\\", "") + to_latex(table).replace("\\", "")
        for word in (
            "tier desk",
            "embedded_lm (digest",
            "val_loss.v1 (nats/token)",
            "rules train 1",
            "seeds planned a cell",
            "gpt_d64_l4 for",
        ):
            assert text.count(word) >= 2, word
    for row in paper_table(plan, index, "a").data:
        assert (row["tier"], row["val_loss_protocol"], row["rules_train"]) == ("desk", "val_loss.v1", 1)
        assert len(str(row["data_digest"])) == 64


def test_a_planned_cell_with_one_seed_shows_its_value_and_no_spread():
    plan = plan_only("p01", ["pre_ln"], 1)
    table = experiment_table(plan, world(plan, lambda run: 3.3), "p01")
    assert "3.3 (one run: no spread)" in table.rows[0]
    assert (table.data[0]["val_loss_sample_sd"], table.data[0]["val_loss_t95_low"]) == ("none", "none")


def test_all_attempts_are_counted_and_only_the_last_is_used():
    plan = plan_only("p01", ["pre_ln"], 2)
    first = next(iter(plan.runs.values()))
    raws = [
        train_record(first, "oom"),
        *[raw for run in plan.runs.values() for raw in recorded(run, 3.0 + run.seed / 10)],
    ]
    (row,) = experiment_table(plan, index_of(plan.configuration.root, raws), "p01").data
    assert (row["attempts"], row["complete"], row["failed"]) == (3, 2, 0)


def test_p06_all_json_is_strict_after_a_diverged_run(tmp_path):
    plan = plan_only("board", ["pre_ln", "peri_ln"], 2, leaderboard=True)
    index = world(plan, lambda run: "diverged" if run.method == "peri_ln" else 2.5)
    index.evals(next(run.id for run in plan.runs.values() if run.method == "pre_ln"))["val_loss"].raw["metrics"][0][
        "value"
    ] = None
    paths = write_leaderboard(Root(tmp_path), plan, index, "lm")
    document = next(path for path in paths if path.suffix == ".json").read_text("utf-8")

    def refuse(word):
        raise AssertionError(word)

    rows = json.loads(document, parse_constant=refuse)["rows"]
    assert {row["val_loss_mean"] for row in rows} == {None}
    assert {row["state"] for row in rows} == {"diverged 1 of 2", "diverged 2 of 2"}
    assert isinstance(rows[0]["params"], dict)
    with pytest.raises(ValueError, match="not JSON compliant"):
        strict_json({"loss": float("nan")})


def test_files_are_written_once_whole_and_only_if_they_change(tmp_path):
    plan = plan_of("smoke")
    index = world(plan, plausible)
    for paper in "abcd":  # papers without an experiment or a claim have a table too
        paths = write_tables(Root(tmp_path), plan, index, claims(), paper)
        assert [path.name for path in paths] == [
            f"{kind}_{paper}.{e}" for kind in ("paper", "claims", "checks") for e in ("csv", "md", "tex")
        ]
    before = {path: path.stat().st_mtime_ns for path in paths}
    write_tables(Root(tmp_path), plan, index, claims(), "d")
    assert before == {path: path.stat().st_mtime_ns for path in paths}
    assert not [path for path in paths[0].parent.iterdir() if path.name.startswith(".")]
    (tmp_path / "file").write_text("in the way", "utf-8")
    with pytest.raises(CannotWriteError):
        write_table(tmp_path / "file", table_of(["x"]))


def test_records_on_disk_give_the_same_table_as_in_memory(tmp_path):
    plan = plan_only("p01", ["pre_ln"], 2)
    raws = [raw for run in plan.runs.values() for raw in recorded(run, 3.0 + run.seed / 10)]
    assert [problem for raw in raws for problem in record_problems(raw, "x")] == []
    for raw in raws:
        write_record(Root(tmp_path), raw)
    on_disk = experiment_table(plan, load_index(Root(tmp_path)), "p01")
    assert on_disk == experiment_table(plan, index_of(Root(tmp_path), raws), "p01")
    assert on_disk.data[0]["val_loss_mean"] == pytest.approx(3.15)


def test_sizes_that_a_tier_does_not_train_are_named_in_its_tables() -> None:
    said = "not trained at this tier: gpt2_1558m, gpt2_774m"
    for tier, there in (("smoke", True), ("desk", True), ("paper", False)):
        plan = plan_of(tier)
        notes = experiment_table(plan, world(plan, lambda run: None), "a_quality").notes
        assert any(said in note for note in notes) == there


def test_at_the_papers_scale_every_planned_cell_without_a_record_is_a_row_that_says_so() -> None:
    plan = plan_of("paper")
    table = experiment_table(plan, world(plan, lambda run: None), "a_quality")
    assert len(table.rows) == len(plan.cells["a_quality"]) == 16
    assert all("not_run" in row for row in table.rows)
