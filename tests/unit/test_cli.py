"""The command line: exit codes of the contract, clean standard output, no traceback for what a user can cause."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from plan_world import experiment, only, plan_of
from report_world import train_record

from repro.plan import build_plan
from repro.records.store import write_record
from repro.spec.paths import Root
from tests.conftest import Checkout, copy_checkout

Main = Callable[..., tuple[int, str, str]]


def commands() -> Iterator[tuple[str, ...]]:
    """All verbs, those in groups too."""
    from repro.cli import app

    for command in app.registered_commands:
        yield (command.name or command.callback.__name__.replace("_", "-"),)  # type: ignore[union-attr]
    for group in app.registered_groups:
        yield (str(group.name),)
        yield from ((str(group.name), str(command.name)) for command in group.typer_instance.registered_commands)  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """One copy for the tests that change nothing."""
    target = tmp_path_factory.mktemp("cli") / "checkout"
    target.mkdir()
    return copy_checkout(target)


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_verb_has_help(words: tuple[str, ...], shared: Checkout, repro_main: Main) -> None:
    code, out, err = repro_main(shared, *words, "--help")
    assert (code, err) == (0, "")
    assert f"repro {' '.join(words)} [OPTIONS]" in out or "Usage: " in out
    assert len(out.splitlines()) >= 5


@pytest.mark.parametrize(
    "words",
    [
        ("plann",),
        ("plan", "--tierr", "smoke"),
        ("plan", "--tier"),
        ("plan", "extra"),
        ("plan", "--tier", "medium"),
        ("plan", "--experiment", "nothing"),
        ("plan", "--key", "nothing"),
        ("show",),
        ("show", "0" * 12),
        ("show", "a/b", "--tier", "medium"),
        ("check-config",),
        ("check-config", "gone.yaml"),
        ("run",),
        ("run", "0" * 12),
        ("run", "x", "--tier", "medium"),
        ("run", "x", "--steps", "5"),
        ("run", "x", "--no-record"),
        ("run", "x", "--steps", "0", "--no-record"),
        ("run", "x", "--steps", "many", "--no-record"),
        ("run", "x", "--deadline", "-1"),
        ("diff", "a"),
        ("diff", "0" * 12, "1" * 12),
        ("claims", "--paper", "e"),
        ("tables", "--paper", "e"),
        ("tables", "--tier", "medium"),
        ("leaderboard", "--track", "nothing"),
        ("records", "show", "0" * 12),
        ("records", "import", "gone"),
        ("method", "new", "../x"),
        ("method", "new", "X"),
        ("method", "new", "pre_ln"),
        ("method", "check", "prel_ln"),
        ("data", "prepare", "nothing"),
        ("data", "verify", "nothing"),
        ("bench", "P99"),
        ("nothing", "--help"),
    ],
    ids=" ".join,
)
def test_wrong_use_is_exit_64_with_a_message_and_no_output(
    words: tuple[str, ...], shared: Checkout, repro_main: Main
) -> None:
    code, out, err = repro_main(shared, *words)
    assert (code, out) == (64, "")
    assert err.strip()
    assert "Traceback" not in err
    assert not (shared.path / "results").exists()


@pytest.mark.parametrize("name", ["\x1b[31m<b>", "a\nb", "../../etc/passwd", "x" * 10_000, "$(id)", "é\u202e"])
def test_odd_names_are_shown_short_and_printable(name: str, shared: Checkout, repro_main: Main) -> None:
    for words in (["show", name], ["plan", "--experiment", name], ["records", "show", name], ["method", "check", name]):
        code, out, err = repro_main(shared, *words)
        assert (code, out) == (64, "")
        assert len(err) < 1500
        assert "\x1b" not in err
        assert "\u202e" not in err


def test_data_that_is_not_there_is_exit_69_and_names_the_command(shared: Checkout, repro_main: Main) -> None:
    run = next(run for run in build_plan(Root(shared.path), "smoke").runs.values() if run.data == "embedded_lm")
    code, out, err = repro_main(shared, "run", run.id)
    assert (code, out) == (69, "")
    assert "repro data prepare embedded_lm" in err
    code, _, err = repro_main(shared, "data", "verify", "embedded_lm")
    assert code == 69, err
    paper = next(run for run in build_plan(Root(shared.path), "paper").runs.values() if run.data == "openwebtext")
    code, _, err = repro_main(shared, "run", paper.id)
    assert (code, "openwebtext" in err) == (69, True)


def test_a_bad_record_stops_every_verb_that_counts_records(checkout: Checkout, repro_main: Main) -> None:
    run = only(plan_of(experiment("e", seeds=1)))
    path = write_record(Root(checkout.path), train_record(run))
    path.write_text(path.read_text("utf-8").replace('"complete"', '"diverged"', 1))
    for words in (
        ["plan"],
        ["tables"],
        ["claims"],
        ["leaderboard"],
        ["site"],
        ["records", "validate"],
        ["records", "list"],
        ["run", "x"],
    ):
        code, _, err = repro_main(checkout, *words)
        if words == ["run", "x"]:
            assert code == 64  # the name is wrong before anything is counted
            continue
        assert code == 65, (words, err)
        assert f"{run.id}.json" in err
        assert "sha256: does not match the record" in err


def test_verbs_with_json_print_json_lines_only(shared: Checkout, repro_main: Main) -> None:
    verbs = (
        ["plan"],
        ["claims"],
        ["leaderboard"],
        ["records", "list"],
        ["records", "validate"],
        ["method", "list"],
        ["data", "list"],
    )
    for words in verbs:
        code, out, _ = repro_main(shared, *words, "--json")
        assert code == 0, words
        for line in out.splitlines():
            assert isinstance(json.loads(line, parse_constant=lambda word: pytest.fail(word)), dict)
    assert repro_main(shared, "records", "list", "--json")[1] == ""
    import shutil

    shutil.rmtree(shared.path / "results", ignore_errors=True)


def test_the_contracts_fields_of_claims(shared: Checkout, repro_main: Main) -> None:
    fields = {"id", "paper", "says", "reported", "ours", "verdict", "reason", "tier"}
    fields |= {"n_planned", "n_complete", "n_diverged", "n_failed", "n_missing"}
    for words in ([], ["--paper", "a"], ["--tier", "paper"]):
        rows = [json.loads(line) for line in repro_main(shared, "claims", *words, "--json")[1].splitlines()]
        assert rows
        assert all(row.keys() >= fields for row in rows)
        assert all(not words or row["paper"] == "a" or words[0] == "--tier" for row in rows)


# In processes of their own
def repro(where: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "repro", *words],
        cwd=where, env={**os.environ, **more}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_installed_command_and_the_module_are_the_same(shared: Checkout) -> None:
    command = Path(sys.executable).with_name("repro")
    done = subprocess.run([command, "plan", "--json"], cwd=shared.path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, repro(shared.path, "plan", "--json").stdout)


def test_a_listener_that_leaves_early_is_no_error(shared: Checkout) -> None:
    line = f"{sys.executable} -m repro plan --tier paper --json | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], cwd=shared.path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0)
    assert json.loads(done.stdout)["tier"] == "paper"


def test_a_place_without_a_suite_falls_back_to_the_packages_own(tmp_path: Path, repo_root: Path) -> None:
    done = repro(tmp_path, "plan", "--json", PYTHONPATH=str(repo_root))
    assert done.returncode == 0
    assert done.stdout
    done = repro(tmp_path, "plan", REPRO_ROOT=str(tmp_path), PYTHONPATH=str(repo_root))
    assert (done.returncode, done.stdout) == (64, "")
    assert "config/suite.yaml: not found" in done.stderr


def test_help_and_plan_never_import_what_is_slow(shared: Checkout) -> None:
    for words in (
        ["--help"],
        ["plan"],
        ["method", "list"],
        ["data", "list"],
        ["claims", "--json"],
        ["records", "list"],
    ):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "repro", *words],
            cwd=shared.path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0
        loaded = set(re.findall(r"\|\s+([\w.]+)$", done.stderr, re.MULTILINE))
        slow = {"torch", "lightning", "transformers", "datasets", "pandas", "matplotlib"}
        slow |= {"scipy"} if words[0] != "claims" else set()
        assert loaded & slow == set(), words


LONG = "x" * 300


@pytest.mark.parametrize(
    "words",
    [
        *(("check-config", f"{LONG}{ending}") for ending in ("", ".yaml", ".json", ".py", ".bin")),
        ("report", "--log", LONG),
        ("report", "--log", "nowhere/at/all"),
        ("report", "--log", "config"),
        *(("records", verb, LONG) for verb in ("list", "validate", "import")),
        ("records", "show", f"{LONG}.json"),
        ("diff", f"{LONG}.json", f"{LONG}.json"),
    ],
    ids=lambda words: " ".join(words)[:30],
)
def test_a_path_that_no_system_takes_is_one_line_and_a_usage_error(
    words: tuple[str, ...], shared: Checkout, repro_main: Main
) -> None:
    code, out, err = repro_main(shared, *words)
    assert (code, out) == (64, "")
    assert len(err.splitlines()) == 1
    assert len(err) < 300


def test_a_root_that_no_system_takes_is_a_usage_error(shared: Checkout) -> None:
    done = shared.repro("plan", REPRO_ROOT=LONG)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (64, "", 1)


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EACCES, 64), (errno.ELOOP, 64), (errno.ENOSPC, 73), (errno.EROFS, 73)]
)
def test_what_the_system_refuses_has_the_contracts_code(
    number: int, code: int, shared: Checkout, repro_main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), f"/a/{LONG}")

    monkeypatch.setattr("repro.verbs.plans.plan", refuse)
    found, out, err = repro_main(shared, "plan")
    assert (found, out) == (code, "")
    assert os.strerror(number) in err
    assert len(err) < 200


def test_a_fault_that_is_not_the_users_keeps_its_traceback(
    shared: Checkout, repro_main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ChildProcessError(errno.ECHILD, "no child")

    monkeypatch.setattr("repro.verbs.plans.plan", fail)
    with pytest.raises(ChildProcessError):
        repro_main(shared, "plan")


EARLY = """
import os, signal, sys, types
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
sys.modules["repro.cli"] = types.SimpleNamespace(main=lambda: os.kill(os.getpid(), signal.Signals[sys.argv[2]]))
from repro.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("verb", "name", "code", "said"),
    [
        *(
            ("run", name, 75, f"stopped by {name}: the same command goes on\n")
            for name in ("SIGTERM", "SIGINT", "SIGUSR1")
        ),
        ("plan", "SIGINT", 130, "stopped by the keyboard\n"),
    ],
)
def test_case_t02_a_signal_before_anything_is_under_way(verb: str, name: str, code: int, said: str) -> None:
    """While the command line is still being imported; a scheduler takes 75 for what can go on."""
    done = subprocess.run([sys.executable, "-c", EARLY, verb, name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


def test_the_keyboard_stops_a_verb_with_one_line(
    monkeypatch: pytest.MonkeyPatch, shared: Checkout, repro_main: Main
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("repro.verbs.plans.plan", interrupted)
    assert repro_main(shared, "plan") == (130, "", "stopped by the keyboard\n")
