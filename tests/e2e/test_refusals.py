"""Bad input is refused before any job: by the verbs in no time, by Snakemake at its start; no traceback."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.suite import Suite


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """A checkout with prepared data and one good record."""
    made = Suite.make(tmp_path_factory.mktemp("refusals") / "clone")
    made.repro("data", "prepare", "embedded_lm")
    made.repro("run", made.plan()[0]["id"])
    return made


@pytest.fixture
def suite(original: Suite, tmp_path: Path) -> Suite:
    """A copy to spoil."""
    shutil.copytree(original.path, tmp_path / "clone")
    return Suite(tmp_path / "clone")


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def _typo(suite: Suite) -> None:
    _edit(suite.path / "config/experiments/a_small.yaml", "batch_tokens", "batch_tokns")


def _typo_in_tiers(suite: Suite) -> None:
    _edit(suite.path / "config/tiers.yaml", "lr_scale", "lr_scal")


def _off(suite: Suite) -> None:
    _edit(suite.path / "config/experiments/a_small.yaml", "- pre_ln", "- off")


def _unknown_method(suite: Suite) -> None:
    _edit(suite.path / "config/experiments/a_small.yaml", "- pre_ln", "- pre-ln")


def _markup(suite: Suite) -> None:
    _edit(suite.path / "config/experiments/a_small.yaml", "name: a_small", 'name: "<img src=x>"')


def _path_name(suite: Suite) -> None:
    _edit(suite.path / "config/experiments/a_small.yaml", "name: a_small", 'name: "../../a_small"')


def _cut_tokens(suite: Suite) -> None:
    file = next((suite.path / "scratch" / "data").glob("*/train.bin"))
    file.write_bytes(file.read_bytes()[:-1000])


def _changed_record(suite: Suite) -> None:
    file = sorted(suite.record_folder.rglob("*.json"))[0]
    _edit(file, '"attempts": 1', '"attempts": 2')


def _deep_record(suite: Suite) -> None:
    (suite.record_folder / "ab").mkdir(exist_ok=True)
    (suite.record_folder / "ab" / "abababababab.json").write_text("[" * 10_000 + "]" * 10_000)


CONFIG = {
    "typo": (_typo, "a_small.yaml:7: batch_tokns", "batch_tokens"),
    "typo in tiers": (_typo_in_tiers, "tiers.yaml:", "lr_scale"),
    "boolean word": (_off, "a_small.yaml:13", "quote it"),
    "unknown method": (_unknown_method, "a_small.yaml:13", "pre_ln"),
    "markup": (_markup, "a_small.yaml:1: name", "string should match"),
    "path": (_path_name, "a_small.yaml:1: name", "string should match"),
}
DATA = {
    "cut tokens": (_cut_tokens, "train.bin", ""),
    "changed record": (_changed_record, ".json", "changed after it was written"),
    "deep record": (_deep_record, "abababababab.json", "nested deeper"),
}


def _refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    text = done.stdout + done.stderr
    assert "Traceback" not in text
    for word in words:
        assert word in text, text


@pytest.mark.parametrize("case", CONFIG)
def test_configuration_is_refused_everywhere(suite: Suite, case: str) -> None:
    spoil, place, hint = CONFIG[case]
    spoil(suite)
    before = sorted(str(path) for path in suite.path.rglob("*") if "__pycache__" not in path.parts)
    _refused(suite.repro("check-config", "config", code=64), place, hint)
    _refused(suite.repro("run", "a_small/pre_ln/s2@smoke", code=64), place, hint)
    _refused(suite.snakemake(code=1), place, hint)
    after = sorted(str(path) for path in suite.path.rglob("*") if "__pycache__" not in path.parts)
    assert [path for path in after if path not in before and "/.snakemake/" not in path + "/"] == []


@pytest.mark.parametrize("case", DATA)
def test_data_and_records_are_refused_everywhere(suite: Suite, case: str) -> None:
    spoil, place, hint = DATA[case]
    spoil(suite)
    if case == "cut tokens":
        _refused(suite.repro("check-config", str(next(suite.path.glob("scratch/data/*/train.bin"))), code=65), place)
    else:
        _refused(suite.repro("records", "validate", code=65), place, hint)
    _refused(suite.repro("run", "a_small/pre_ln/s2@smoke", code=65), place, hint)
    _refused(suite.snakemake(code=1), place, hint)


def test_all_problems_at_once(suite: Suite) -> None:
    for spoil in (_typo, _typo_in_tiers):
        spoil(suite)
    done = suite.repro("plan", code=64)
    _refused(done, "batch_tokns", "lr_scal")


def test_nothing_of_a_hostile_file_runs(suite: Suite, tmp_path: Path) -> None:
    """A YAML tag that would call something, a link to outside, a record with names that are markup."""
    mark = tmp_path / "ran"
    hostile = suite.path / "config" / "experiments" / "evil.yaml"
    hostile.write_text(f'name: evil\ntitle: !!python/object/apply:os.system ["touch {mark}"]\n')
    _refused(suite.repro("plan", code=64), "evil.yaml:2", "tag")
    hostile.unlink()
    link = suite.record_folder / "ab" / "abababababab.json"
    link.parent.mkdir()
    link.symlink_to("/etc/hostname")
    _refused(suite.repro("records", "validate", code=65), "symbolic link")
    link.unlink()
    record = json.loads(sorted(suite.record_folder.rglob("*.json"))[0].read_text())
    record["alias"] = "<img src=x onerror=alert(1)>|x"
    link.write_text(json.dumps(record))
    _refused(suite.repro("records", "validate", code=65), "alias")
    assert not mark.exists()


def test_only_known_settings_reach_snakemake(suite: Suite) -> None:
    done = suite.call("snakemake", "-c2", "--config", "teir=smoke", code=1)
    _refused(done, "unknown key", "teir")
    _refused(suite.call("snakemake", "-n", "--config", "tier=$(id)", code=1), "not known", "smoke")


@pytest.mark.parametrize("words", [("plan", "--tier", "smok"), ("run", "../../etc"), ("show", "x" * 5000), ("bogus",)])
def test_usage_errors_are_64(original: Suite, words: tuple[str, ...]) -> None:
    done = original.repro(*words, code=64)
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 2000


def test_signatures(original: Suite) -> None:
    """The spoilers above do spoil: the checkout as it was is accepted."""
    assert original.repro("check-config", "config").returncode == 0
    assert original.repro("records", "validate").returncode == 0
    spoilers: list[Callable[[Suite], None]] = [entry[0] for entry in (CONFIG | DATA).values()]
    assert len(set(spoilers)) == 9


def test_a_metric_whose_encoder_is_not_fetched_is_refused_before_any_training(suite: Suite) -> None:
    suite.write_experiment(methods=["pre_ln"], metrics=["val_loss", "bertscore_tf_roberta"])
    before = suite.states()
    done = suite.repro("run", suite.plan()[-1]["id"], code=69)
    assert "scratch/fetched/roberta-large: bertscore_tf_roberta: is not there" in done.stderr
    assert "repro data fetch roberta-large" in done.stderr
    workflow = suite.snakemake("-n", code=1)
    assert "repro data fetch roberta-large" in workflow.stderr + workflow.stdout
    assert suite.states() == before
    assert "Traceback" not in done.stderr + workflow.stderr
