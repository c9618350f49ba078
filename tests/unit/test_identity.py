"""What a run's id covers: everything that decides its numbers, and nothing else."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plan_world import configuration, experiment, ids, only, plan_of

from repro.plan import Plan, build_plan
from repro.records.index import eval_id
from repro.spec.errors import BadDataError, ReproError
from repro.spec.hashing import sha256_json, short
from repro.spec.load import load_configuration
from repro.spec.methods import registry
from repro.spec.paths import Root
from tests.conftest import Checkout

BASE = experiment("base", seeds=1)


def run_of(**changes: Any) -> Any:
    return only(plan_of(experiment("base", **{"seeds": 1, **changes})))


def test_the_id_is_the_hash_of_the_configuration() -> None:
    run = run_of()
    assert run.full_sha256 == sha256_json(run.config)
    assert run.id == short(run.full_sha256) == run.full_sha256[:12]


TOUCHED: dict[str, dict[str, Any]] = {
    "model": {"model": "gpt_d64_l6"},
    "method": {"methods": ["peri_ln"]},
    "parameter": {"methods": [{"name": "pre_ln", "dt": 0.5}]},
    "lr": {"optimizer": {"lr": 3.1e-4}},
    "weight_decay": {"optimizer": {"weight_decay": 0.0}},
    "betas": {"optimizer": {"betas": [0.9, 0.99]}},
    "eps": {"optimizer": {"eps": 1e-7}},
    "clip": {"optimizer": {"clip": 0.5}},
    "shape": {"schedule": {"shape": "linear"}},
    "warmup": {"schedule": {"warmup": 0.1}},
    "final": {"schedule": {"final": 0.0}},
    "tokens": {"tokens": 204800},
    "batch_tokens": {"batch_tokens": 2048},
    "precision": {"precision": "bf16"},
    "validations": {"validations": 20},
}
UNTOUCHED: dict[str, dict[str, Any]] = {
    "name": {"name": "other"},
    "title": {"title": "another title"},
    "paper": {"paper": "a"},
    "metrics": {"metrics": ["val_loss", "ppl_exp_mean"]},
    "assumptions": {"assumptions": ["something"]},
    "model_as_list": {"model": ["gpt_d64_l4"]},
    "rate_as_list": {"optimizer": {"lr": [3e-4]}},
    "default_written_out": {"schedule": {"shape": "cosine"}, "methods": [{"name": "pre_ln", "dt": 1.0}]},
    "default_as_whole_number": {"methods": [{"name": "pre_ln", "dt": 1}]},
    "other_case_of_a_method": {"methods": ["Pre_LN"]},
    "other_spelling": {"optimizer": {"lr": 0.00030000000000000003}},
}


@pytest.mark.parametrize("name", TOUCHED)
def test_what_decides_numbers_is_covered(name: str) -> None:
    assert run_of(**TOUCHED[name]).id != run_of().id


def test_all_that_is_covered_differs_from_all_else() -> None:
    found = {name: run_of(**changes).id for name, changes in TOUCHED.items()}
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize("name", UNTOUCHED)
def test_what_decides_no_number_is_not_covered(name: str) -> None:
    changes = dict(UNTOUCHED[name])
    run = only(plan_of(experiment(changes.pop("name", "base"), seeds=1, **changes)))
    assert run.id == run_of().id


@pytest.mark.parametrize(
    ("task", "same"),
    [
        ({"device": "cpu", "micro_batch": 4}, True),
        ({"devices": 1}, True),
        ({"micro_batch": 4}, True),
        ({"micro_batch": 8}, False),
        ({"chunk": 5}, True),
        ({"wall_minutes": 5}, True),
        ({"lr_scale": 1.0}, True),
        ({"tokens": 102400, "batch_tokens": 1024, "data": "embedded_lm", "precision": "fp32", "validations": 10}, True),
        ({"threads": 2}, False),
        ({"lr_scale": 2.0}, False),
        ({"tokens": 204800}, False),
        ({"precision": "bf16"}, False),
        ({"validations": 4}, False),
        ({"batch_tokens": 512}, False),
        ({"model": {"gpt_d64_l4": "gpt_d64_l6"}}, False),
    ],
)
def test_of_a_tier_only_what_decides_numbers_is_covered(task: dict[str, Any], same: bool) -> None:
    assert (only(plan_of(BASE, task=task)).id == only(plan_of(BASE)).id) is same


def test_every_leaf_of_the_configuration_is_covered() -> None:
    """Whatever is changed in what a run is made of, its hash is another one."""
    config = run_of().config

    def leaves(value: Any, path: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return [leaf for key, part in inner for leaf in leaves(part, (*path, key))] or [path]

    paths = leaves(config, ())
    assert len(paths) > 25
    for path in paths:
        changed = json.loads(json.dumps(config))
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = "changed"
        assert sha256_json(changed) != sha256_json(config)


def test_nothing_of_the_people_is_in_the_configuration() -> None:
    text = json.dumps(run_of(title="a title", paper="a", metrics=["val_loss", "ppl_exp_mean"]).config)
    for word in ("a title", "base", "ppl_exp_mean", "paper", "alias", "devices", "tier"):
        assert word not in text.replace("position", "")


def test_code_and_rules_are_covered_by_their_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from repro.spec.metrics import PROTOCOLS, Protocol
    from repro.spec.rules import RULES

    before, method = run_of(), registry()["pre_ln"]
    assert before.config["method"]["sha256"] == method.sha256
    evaluated = {name: eval_id(before.full_sha256, "0" * 64, name, 16384) for name in ("val_loss", "ppl_exp_mean")}
    mended = PROTOCOLS["ppl_exp_mean"].info.model_copy(update={"rules": 2})
    monkeypatch.setitem(PROTOCOLS, "ppl_exp_mean", Protocol("ppl_exp_mean", mended))
    assert run_of().id == before.id, "mending a metric orphans no training"
    assert eval_id(before.full_sha256, "0" * 64, "val_loss", 16384) == evaluated["val_loss"]
    assert eval_id(before.full_sha256, "0" * 64, "ppl_exp_mean", 16384) != evaluated["ppl_exp_mean"]
    monkeypatch.setitem(RULES, "train", 2)
    assert run_of().id != before.id


def test_a_comment_in_a_method_keeps_its_runs_and_an_edit_makes_new_ones(tmp_path: Path) -> None:
    from repro.spec.methods import FOLDER, read_method

    text = (FOLDER / "pre_ln.py").read_text("utf-8")
    known = configuration(BASE)

    def id_with(source: str) -> str:
        (tmp_path / "pre_ln.py").write_text(source, "utf-8")
        entry = read_method(tmp_path / "pre_ln.py")
        changed = replace(known, methods=known.methods | {"pre_ln": entry})
        return only(build_plan(known.root, "paper", configuration=changed)).id

    assert id_with(text) == id_with(text + "\n# a comment\n\n") == only(plan_of(BASE)).id
    assert id_with(text.replace("alpha=self.dt", "alpha=2 * self.dt")) != id_with(text)


# Case W10, on the real configuration.
def plan_in(checkout: Checkout) -> Plan:
    return build_plan(Root(checkout.path), "smoke")


def test_case_w10_comments_and_the_order_of_keys_change_no_id(checkout: Checkout) -> None:
    before = plan_in(checkout).runs
    for path in [*(checkout.path / "config").glob("*.yaml"), *(checkout.path / "config/experiments").glob("*.yaml")]:
        text = path.read_text("utf-8")
        lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        if path.parent.name == "experiments" and not any(line.startswith(" ") for line in lines):
            lines.reverse()
        path.write_text("# another comment\n\n" + "\n".join(f"{line}   # end" for line in lines) + "\n", "utf-8")
    after = plan_in(checkout).runs
    assert after.keys() == before.keys()
    assert {run.alias for run in after.values()} == {run.alias for run in before.values()}


def test_case_w10_a_changed_rate_touches_exactly_its_runs(checkout: Checkout) -> None:
    before = plan_in(checkout)
    checkout.replace("config/experiments/a_stability.yaml", r"lr: 6\.0e-4", "lr: 6.1e-4")
    after = plan_in(checkout)
    gone, new = ids(before) - ids(after), ids(after) - ids(before)
    assert gone == {i for i, run in before.runs.items() if run.experiments == ("a_stability",)}
    assert new == {i for i, run in after.runs.items() if "a_stability" in run.experiments}
    assert len(new) == 2 * 2 * 2  # decays, methods, seeds
    assert {run.axes["lr"] for i, run in after.runs.items() if i in new} == {3.05e-3}


def folder_plan(checkout: Checkout) -> Plan:
    return build_plan(Root(checkout.path), "smoke")


@pytest.fixture
def with_folder(checkout: Checkout) -> Checkout:
    """A checkout whose a_stability trains on a local folder; the other experiments do not."""
    checkout.write("texts/a.txt", "first file " * 30)
    checkout.write("texts/sub/b.jsonl", '{"text": "second"}\n')
    checkout.file("config/data.yaml").write_text(
        checkout.file("config/data.yaml").read_text("utf-8")
        + "mine:\n  kind: folder\n  title: t\n  licence: none\n  path: texts\n  tokenizer: bytes\n"
        "  validation: 0.1\n  curve_tokens: 64\n  final_tokens: 64\n"
    )
    checkout.edit("config/tiers.yaml", lambda tiers: tiers["smoke"]["lm"].pop("data"))
    for path in sorted((checkout.path / "config/experiments").glob("*.yaml")):
        if "task: lm" not in path.read_text("utf-8"):
            continue
        name = "mine" if path.stem == "a_stability" else "embedded_lm"
        checkout.replace(f"config/experiments/{path.name}", r"^data: \w+", f"data: {name}")
    return checkout


def test_case_w10_touching_data_changes_nothing_and_a_byte_changes_all_runs_on_it(with_folder: Checkout) -> None:
    before = folder_plan(with_folder)
    on_it = {i for i, run in before.runs.items() if run.data == "mine"}
    assert on_it
    assert on_it < ids(before)
    path = with_folder.path / "texts" / "a.txt"
    os.utime(path, (1, 1))
    assert ids(folder_plan(with_folder)) == ids(before)
    text = path.read_text("utf-8")
    path.write_text("F" + text[1:], "utf-8")  # as long as before
    after = folder_plan(with_folder)
    assert ids(before) - ids(after) == on_it
    assert {run.data for i, run in after.runs.items() if i not in before.runs} == {"mine"}
    path.write_text(text, "utf-8")
    assert ids(folder_plan(with_folder)) == ids(before)


@pytest.mark.parametrize("change", ["add", "remove", "rename", "other_suffix"])
def test_files_that_come_go_or_move_are_other_data(with_folder: Checkout, change: str) -> None:
    before, folder = ids(folder_plan(with_folder)), with_folder.path / "texts"
    if change == "add":
        (folder / "c.txt").write_text("third")
    elif change == "remove":
        (folder / "sub" / "b.jsonl").unlink()
    elif change == "rename":
        (folder / "a.txt").rename(folder / "aa.txt")
    else:
        (folder / "notes.md").write_text("is no text file of the source")
    assert (ids(folder_plan(with_folder)) == before) is (change == "other_suffix")


def test_a_broken_cache_of_hashes_costs_time_only(with_folder: Checkout) -> None:
    before = ids(folder_plan(with_folder))
    cache = with_folder.path / "scratch" / "cache" / "folder_hashes.json"
    assert cache.is_file()
    for text in ("", "[]", "null", "{", '{"x": 1}', json.dumps(dict.fromkeys(json.loads(cache.read_text()), 5))):
        cache.write_text(text)
        assert ids(folder_plan(with_folder)) == before


@pytest.mark.parametrize(
    ("path", "code", "says"),
    [
        ("nowhere", 69, "nowhere: path: no such folder"),
        ("x" * 300, 69, "no such folder"),
        ("config/suite.yaml", 69, "no such folder"),
        ("slurm", 69, "slurm: path: holds no file of .txt"),
        ('"a\\0b"', 64, "should match pattern"),
        ('"a\\nb"', 64, "should match pattern"),
    ],
)
def test_a_folder_that_is_none_is_refused(with_folder: Checkout, path: str, code: int, says: str) -> None:
    with_folder.replace("config/data.yaml", r"path: texts", "path: " + path.replace("\\", "\\\\"))
    with pytest.raises(ReproError, match=says) as caught:
        folder_plan(with_folder)
    assert caught.value.exit_code == code


def test_a_link_out_of_a_folder_and_a_file_that_cannot_be_read_are_refused(
    with_folder: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = with_folder.path / "texts" / "out.txt"
    for target in ("/etc/hostname", "../config/suite.yaml", "../nowhere", "out.txt"):
        link.symlink_to(target)
        with pytest.raises(BadDataError, match=r"texts: out\.txt: is a link that leads out of the folder"):
            folder_plan(with_folder)
        link.unlink()
    for make in (os.mkdir, os.mkfifo):
        make(link)
        with pytest.raises(BadDataError, match=r"texts/out\.txt: is no regular file"):
            folder_plan(with_folder)
        os.rmdir(link) if link.is_dir() else link.unlink()

    def locked(path: Path) -> str:
        raise PermissionError(13, "Permission denied")

    (with_folder.path / "scratch" / "cache" / "folder_hashes.json").unlink(missing_ok=True)
    monkeypatch.setattr("repro.spec.data.sha256_file", locked)
    with pytest.raises(BadDataError, match=r"texts: \S+: cannot be read \(Permission denied\)"):
        folder_plan(with_folder)


def test_settings_of_a_source_are_part_of_its_digest(with_folder: Checkout) -> None:
    before = ids(folder_plan(with_folder))
    with_folder.replace("config/data.yaml", r"(?s)(mine:.*)title: t", r"\1title: another")
    with_folder.replace("config/data.yaml", r"(?s)(mine:.*)final_tokens: 64", r"\1final_tokens: 128")
    assert ids(folder_plan(with_folder)) == before, "how much is measured at the end is part of the measurement only"
    with_folder.replace("config/data.yaml", r"(?s)(mine:.*)curve_tokens: 64", r"\1curve_tokens: 128")
    looked = ids(folder_plan(with_folder))
    assert looked != before, "the curve decides about divergence"
    with_folder.replace("config/data.yaml", r"(?s)(mine:.*)validation: 0.1", r"\1validation: 0.2")
    assert ids(folder_plan(with_folder)) not in (before, looked)


def test_a_source_needs_no_data_to_be_planned() -> None:
    """What is fetched is named by what is pinned."""
    known = load_configuration(Root(Path(__file__).resolve().parents[2]))
    plan = build_plan(known.root, "paper", configuration=known)
    assert {run.data for run in plan.runs.values() if run.config.get("task") == "lm"} == {"openwebtext"}
