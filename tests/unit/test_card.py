"""The card of a method: it tells Pre-LN from Peri-LN as paper A does, also in a method file it has never seen."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from repro.spec.errors import ConfigError
from repro.spec.methods import MethodEntry, read_method, registry
from repro.theory import card as cards
from repro.verbs import card as verb
from repro.verbs import methods as methods_verb

FILE = '''"""A method that the suite does not know."""

from torch import Tensor

from repro.nn import method_api as api

INFO = {{"title": "New", "ref": "community", "tracks": ["lm"], "params": {params}, "dt_zero": "none"}}


class Method(api.Method):
    """New."""

    norms = {norms}

    def step(self, x: Tensor, branch: api.Branch, site: api.Site) -> Tensor:
        """x [batch, tokens, d] -> the same shape."""
        return {step}
'''


def written(tmp_path: Path, step: str, norms: str = '("in", "out")', params: str = "{}") -> MethodEntry:
    path = tmp_path / "methods" / "unseen.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(FILE.format(step=step, norms=norms, params=params), "utf-8")
    return read_method(path)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks deep enough for the words, small enough for a test."""
    monkeypatch.setattr(cards, "DEPTH", 8)
    monkeypatch.setattr(cards.Subject.shape, "__defaults__", (8,))
    for name in ("start", "loud"):
        method = getattr(cards.Subject, name)
        monkeypatch.setattr(method, "__defaults__", (0, 8))


def by_name(entry: MethodEntry) -> dict[str, dict[str, Any]]:
    rows = cards.card(entry)
    assert [row for row in rows if row["failed"]] == []
    return {row["name"]: row for row in rows}


def words(entry: MethodEntry) -> dict[str, str]:
    return {name: row["word"] for name, row in by_name(entry).items()}


@pytest.mark.usefixtures("small")
def test_it_tells_pre_ln_from_peri_ln_as_the_paper_does() -> None:
    pre, peri = (by_name(registry()[name]) for name in ("pre_ln", "peri_ln"))
    assert (pre["branch"]["word"], peri["branch"]["word"]) == ("unbounded", "bounded")
    assert pre["sensitivity_to_weights"]["value"] == pytest.approx(1, abs=0.01)
    assert peri["sensitivity_to_weights"]["value"] == pytest.approx(0, abs=0.01)
    assert pre["uncertainty_to_weights"]["word"] == "amplified without bound"
    assert peri["uncertainty_to_weights"]["word"] == "controlled"
    assert pre["growth_with_weights"]["word"] == "grows exponentially with them"
    assert peri["growth_with_weights"]["word"] == "unmoved"
    assert (pre["growth_slack"]["value"], pre["growth_mean_adversarial"]["bound"]) == (None, None)
    assert peri["growth_mean_adversarial"]["bound"] == 1
    assert 0.5 < peri["growth_slack"]["value"] <= 1 + 1e-9
    assert peri["uncertainty"]["value"] < peri["uncertainty"]["bound"]
    assert (peri["branch_reach"]["value"], peri["branch_reach"]["bound"]) == (pytest.approx(1), 1)
    assert {pre["dt_mean"]["word"], peri["dt_mean"]["word"]} == {"scales by 0.1"}
    assert peri["sensitivity_to_state"]["word"] == "falls as 1/size"
    json.dumps(list(pre.values()), allow_nan=False)


@pytest.mark.usefixtures("small")
def test_a_bounded_method_that_it_has_never_seen(tmp_path: Path) -> None:
    torch.manual_seed(3)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    found = by_name(written(tmp_path, "x + 0.25 * site.norm_out(branch(x))", '("out",)'))
    assert (torch.equal(state, torch.get_rng_state()), torch.get_num_threads()) == (True, threads)
    assert found["branch"]["word"] == "bounded"
    assert found["branch_reach"]["bound"] == pytest.approx(0.25)  # found from numbers: no dt says it
    assert found["growth_slack"]["word"] == "bound kept"
    assert found["uncertainty_to_weights"]["word"] == "controlled"
    assert found["dt_mean"]["word"] == "has no dt"


@pytest.mark.usefixtures("small")
def test_a_norm_that_does_not_bound_what_is_added_earns_no_bound(tmp_path: Path) -> None:
    found = by_name(written(tmp_path, "x + branch(x) + site.norm_out(branch(x))", '("out",)'))
    assert found["branch"]["word"] == "unbounded"
    assert (found["branch_reach"]["bound"], found["growth_slack"]["word"]) == (None, "no bound known")


def test_a_part_that_fails_is_a_row_and_the_others_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_subject: cards.Subject) -> Any:
        yield cards.Line("first", "start", "says", float("inf"), "w")
        raise RuntimeError("no such thing\nsecond line")

    def fine(_subject: cards.Subject) -> Any:
        yield cards.Line("other", "start", "says", 2.0, "w", headline=True)

    monkeypatch.setattr(cards, "parts", lambda: {"one": ("paper_x", broken), "two": ("paper_y", fine)})
    rows = cards.card(written(tmp_path, "x + branch(x)"))
    assert [(row["name"], row["value"], row["word"], row["failed"]) for row in rows] == [
        ("first", None, "not finite", False),
        ("one", None, "RuntimeError: no such thing", True),
        ("other", 2.0, "w", False),
    ]


def test_a_file_that_cannot_run_is_one_failed_row(tmp_path: Path) -> None:
    entry = written(tmp_path, "x")
    entry.path.write_text(entry.path.read_text("utf-8").replace("norms =", "1 / 0\n    norms ="), "utf-8")
    (row,) = cards.card(entry)
    assert (row["failed"], row["word"]) == (True, "ZeroDivisionError: division by zero")


@pytest.mark.parametrize("error", ["GeneratorExit", "KeyboardInterrupt", "Exception"])
def test_a_method_that_prints_and_raises_anything_leaves_json_alone_on_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: str
) -> None:
    entry = written(tmp_path, "x")
    text = entry.path.read_text("utf-8").replace("return x", f'print("noise")\n        raise {error}("no")')
    entry.path.write_text('print("at import")\n' + text, "utf-8")
    for module in (verb, methods_verb):
        monkeypatch.setattr(module, "registry", lambda: {"unseen": entry})
    for make in (lambda: methods_verb.check("unseen", True), lambda: verb.card("unseen", False, True)):
        with pytest.raises(SystemExit, match="1"):
            make()
        caught = capsys.readouterr()
        rows = [json.loads(line) for line in caught.out.splitlines()]
        assert f"{error}: no" in {row.get("word", row.get("detail")) for row in rows}
        assert "at import" in caught.err
        assert "noise" in caught.err


def test_the_users_own_interrupt_ends_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = written(tmp_path, "x")
    from repro.nn import contract, contract_subject

    class Pressed(contract_subject.Subject):
        def method(self, **_: object) -> Any:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(contract, "Subject", Pressed)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests may run where it is ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            contract.check_method(entry)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_parts_are_found_by_their_files() -> None:
    assert {"a_bounded", "a_growth", "a_sensitivity", "a_step", "a_uncertainty"} <= cards.parts().keys()
    assert all(paper.startswith("paper_") for paper, _ in cards.parts().values())


ROW = {"method": "m", "part": "p", "paper": "paper_a", "name": "n", "state": "start", "says": "what", "value": 1.0,
       "low": 0.5, "high": 1.5, "bound": None, "word": "linear", "headline": True, "failed": False}  # fmt: skip


def test_the_verb_prints_lines_a_table_or_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        cards,
        "card",
        lambda entry: [ROW | {"method": entry.name}, ROW | {"method": entry.name, "name": "o", "headline": False}],
    )
    verb.card("pre_ln", False, False)
    out = capsys.readouterr().out.splitlines()
    assert out[0].split("  ")[0] == "state of weights"
    assert len(out) == 3
    assert "1 [0.5, 1.5]" in out[1]
    verb.card(None, True, False)
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["method", "n"]
    assert [line.split()[0] for line in out[1:]] == list(registry())
    verb.card(None, True, True)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 2 * len(registry())
    for name, every in ((None, False), ("pre_ln", True), ("nothing", False)):
        with pytest.raises(ConfigError):
            verb.card(name, every, False)
    monkeypatch.setattr(cards, "card", lambda entry: [ROW | {"method": entry.name, "failed": True}])
    with pytest.raises(SystemExit, match="1"):
        verb.card("pre_ln", False, False)
