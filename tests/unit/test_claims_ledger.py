"""The ledger of claims: what was changed or added after a run shows in the verdict, and nothing else does."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from claim_world import World, around, claim, margin, rule, verdict
from report_world import claims

from repro.spec.claim_ledger import Ledger, ledger_text, load_ledger, read_ledger, registered
from repro.spec.claims import Claim, check_claims
from repro.spec.errors import ConfigError
from repro.spec.paths import find_root
from repro.stats.verdict import judge

EARLY, RUN, LATER, LAST = (f"2026-0{month}-01T00:00:00Z" for month in (1, 2, 3, 4))
VALUE = claim("value", {"value": 2.0}, rule("tost"), **margin(0.05))
WIDE = claim("value", {"value": 2.0}, rule("tost"), **margin(0.5))
VALUES = {"one": around(2.0)}


def found(one: Claim, ledger: Ledger) -> tuple[str, str | None]:
    """What came late, and since when the rule stands."""
    made = verdict(one, VALUES, ledger=ledger, created=RUN)
    assert made.late in made.reason
    return made.late, made.since


def test_a_rule_from_before_the_runs_says_nothing() -> None:
    assert found(VALUE, registered(Ledger(), [VALUE], EARLY)) == ("", EARLY)
    assert found(VALUE, registered(Ledger(), [VALUE], RUN)) == ("", RUN)


def test_a_margin_changed_after_a_run_shows() -> None:
    ledger = registered(Ledger(), [VALUE], EARLY)
    said = "margin changed without being registered, after 8 of 8 recorded runs"
    assert found(WIDE, ledger) == (said, None)
    ledger = registered(ledger, [WIDE], LATER)
    assert found(WIDE, ledger) == ("margin changed on 2026-03-01, after 8 of 8 recorded runs", LATER)


def test_a_margin_changed_before_the_runs_or_changed_back_is_no_matter() -> None:
    before = registered(registered(Ledger(), [WIDE], "2025-12-01T00:00:00Z"), [VALUE], EARLY)
    assert found(VALUE, before) == ("", EARLY)
    back = registered(registered(registered(Ledger(), [VALUE], EARLY), [WIDE], LATER), [VALUE], LAST)
    assert found(VALUE, back) == ("", LAST)


def test_a_test_changed_after_a_run_shows_with_all_that_changed() -> None:
    ledger = registered(Ledger(), [VALUE], EARLY)
    other = claim("value", {"value": 2.5}, rule("tost", 5), **margin(0.05))
    late, _ = found(other, ledger)
    assert late.startswith("reported and decide changed without being registered")


def test_a_claim_added_after_a_run_shows() -> None:
    assert found(VALUE, registered(Ledger(), [VALUE], LATER))[0] == (
        "the claim was added on 2026-03-01, after 8 of 8 recorded runs"
    )
    assert found(VALUE, Ledger()) == (
        "the claim is not registered, so counts as added after 8 of 8 recorded runs",
        None,
    )


def test_words_around_the_rule_may_be_mended() -> None:
    ledger = registered(Ledger(), [VALUE], EARLY)
    mended = VALUE.model_copy(update={"note": "a better note", "says": "the same in other words"})
    assert found(mended, ledger) == ("", EARLY)
    assert registered(ledger, [mended], LATER) == ledger


def test_without_a_run_there_is_nothing_to_be_late_for() -> None:
    nothing = {"one": dict.fromkeys(range(1, 9))}
    made = verdict(VALUE, nothing, ledger=Ledger())
    assert (made.verdict, made.late, made.since) == ("not_run", "", None)


def test_a_family_that_grew_or_shrank_after_a_run_is_named() -> None:
    second, third = (VALUE.model_copy(update={"id": f"A-C{number}"}) for number in (2, 3))
    ledger = registered(registered(Ledger(), [VALUE, second], EARLY), [third], LATER)
    world = World(VALUES, created=RUN)
    first, *_ = judge([VALUE, second, third], world, world, "desk", ledger)
    assert first.late == "A-C3 joined f after the first recorded run"
    (alone,) = judge([VALUE], world, world, "desk", registered(Ledger(), [VALUE, second], EARLY))
    assert alone.late == "A-C2 left f after the first recorded run"
    same, *_ = judge([VALUE, second], world, world, "desk", registered(Ledger(), [VALUE, second], EARLY))
    assert same.late == ""


def test_a_claim_that_is_planned_later_joins_its_family_then() -> None:
    second = VALUE.model_copy(update={"id": "A-C2", "not_planned": "later"})
    ledger = registered(Ledger(), [VALUE, second], EARLY)
    world = World(VALUES, created=RUN)
    first, _ = judge([VALUE, second.model_copy(update={"not_planned": None})], world, world, "desk", ledger)
    assert first.late == "A-C2 joined f after the first recorded run"


def test_the_ledger_only_grows_and_reads_back(tmp_path: Path) -> None:
    ledger = registered(registered(Ledger(), [VALUE], EARLY), [WIDE], LATER)
    assert [version.since for version in ledger.claims["A-C1"]] == [EARLY, LATER]
    path = tmp_path / "registered.yaml"
    path.write_text(ledger_text(ledger), "utf-8")
    assert read_ledger(path, "registered.yaml") == ledger
    path.write_text(ledger_text(Ledger()), "utf-8")
    assert read_ledger(path, "registered.yaml") == Ledger()
    with pytest.raises(ValueError, match="not in the order"):
        registered(ledger, [VALUE], EARLY)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (EARLY, "yesterday", "since"),
        ('"value"', '"velue"', None),
        (f'"since": "{EARLY}"', f'"since": "{LAST}"', "not in the order of their dates"),
        ('"family": "f"', '"family": "F f"', "family"),
        ("  A-C1:", "  E-C1:", "E-C1"),
    ],
)
def test_a_ledger_that_is_not_what_it_says_is_refused(tmp_path: Path, old: str, new: str, message: str | None) -> None:
    ledger = registered(registered(Ledger(), [VALUE], EARLY), [WIDE], LATER)
    text = ledger_text(ledger).replace(old, new, 1)
    path = tmp_path / "registered.yaml"
    path.write_text(text, "utf-8")
    if message is None:
        assert check_claims(path, "registered.yaml", None) == []
        return
    with pytest.raises(ConfigError, match=message):
        check_claims(path, "registered.yaml", None)


def test_every_shipped_claim_is_registered_as_it_stands() -> None:
    ledger = load_ledger(find_root())
    stale = [one.id for one in claims() if registered(ledger, [one], "2999-01-01T00:00:00Z") != ledger]
    assert stale == [], "run python tools/register_claims.py"


def test_claims_of_the_ledger_that_are_gone_are_few() -> None:
    """A claim that was dropped stays in the ledger, and somebody has to say here why it is gone."""
    gone = set(load_ledger(find_root()).claims) - {one.id for one in claims()}
    assert gone == set()


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = find_root().path / "tools" / "register_claims.py"
    spec = importlib.util.spec_from_file_location("register_claims", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tool_tells_a_changed_margin_and_registers_it(tool: ModuleType, tmp_path: Path) -> None:
    shutil.copytree(find_root().config, tmp_path / "config")
    assert tool.main(["--check"], tmp_path) == 0
    path = tmp_path / "config" / "claims" / "paper_a.yaml"
    text = path.read_text("utf-8")
    path.write_text(text.replace("{value: 0.02, unit: nats/token}", "{value: 0.03, unit: nats/token}"), "utf-8")
    assert tool.main(["--check"], tmp_path) == 1
    ledger = tmp_path / "config" / "claims" / "registered.yaml"
    before = ledger.read_text("utf-8").splitlines()
    assert tool.main([], tmp_path) == 0
    after = ledger.read_text("utf-8").splitlines()
    added = [line for line in after if line not in before]
    assert [line for line in before if line not in after] == []
    assert len(added) == len([one for one in claims() if one.id.startswith("A-C5")])
    assert tool.main(["--check"], tmp_path) == 0


def test_both_files_beside_the_claims_are_checked_for_what_they_are(tmp_path: Path) -> None:
    unused = tmp_path / "unused.yaml"
    unused.write_text("unused:\n  - paper: a\n    why: because\n    rows: []\n", "utf-8")
    with pytest.raises(ConfigError, match="rows"):
        check_claims(unused, "unused.yaml", None)
