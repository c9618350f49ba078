"""Classification by a cut GPT under the one training module, from its pretraining to its metrics, in one process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from report_world import configuration
from torch.nn import functional as F
from train_world import HASH, limits

from repro.data.labelled import encode
from repro.data.sets import load_labelled, prepare_set
from repro.data.tokenise import ByteTokenizer
from repro.evaluate.class_evidence import batches
from repro.evaluate.evidence import compute
from repro.nn.classifier import NO_TOKEN
from repro.plan import Plan, build_plan
from repro.report import theory
from repro.spec.claims import Arm
from repro.spec.data import digest
from repro.spec.errors import BadDataError, MissingError
from repro.spec.experiment import ClassifyExperiment
from repro.spec.hashing import short
from repro.spec.paths import Root, find_root
from repro.spec.sets import LabelledSource
from repro.stats.select import _matches
from repro.train import pretrain
from repro.train.classify import Classify
from repro.train.launch import recall, train
from repro.train.state import TrainState
from tests.conftest import Checkout

SENTENCES, BATCH, STEPS, CONTEXT = 24, 6, 8, 40
YAML = "config/experiments/d_sst2_depth.yaml"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Root, str, str]:
    """A root with the embedded sentences prepared, their digest, and that of a text that nobody has prepared."""
    root = Root(tmp_path_factory.mktemp("sentences"))
    (root.path / "config").symlink_to(find_root().config)
    sources = configuration().sources
    source = sources["embedded_sentences"]
    assert isinstance(source, LabelledSource)
    found = digest(source, root)
    prepare_set(root, "embedded_sentences", source, found)
    return root, found, digest(sources["embedded_lm"], root)


def pretraining(text: str, seed: int = 1) -> dict[str, Any]:
    return {
        "task": "lm",
        "model": {"n_layer": 2, "n_head": 2, "d_model": 16, "context": CONTEXT, "vocab": 256},
        "method": {"name": "pre_ln", "params": {"dt": 1.0}},
        "data": text,
        "validation": {"times": 4, "tokens": 80},
        "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1, "betas": [0.9, 0.95], "eps": 1e-8, "clip": 1.0},
        "schedule": {"shape": "cosine", "warmup": 0.2, "final": 0.1},
        "steps": 5,
        "tokens_per_step": 4 * CONTEXT,
        "micro_batch": 4,
        "precision": "fp32",
        "seed": seed,
    }


def config(world: tuple[Root, str, str], layers: int = 2, residual: bool = True, seed: int = 1) -> dict[str, Any]:
    return {
        "task": "classify",
        "model": {"layers": layers, "residual": residual, "context": CONTEXT},
        "pretrained": {"origin": "own", "run": pretraining(world[2])},
        "data": world[1],
        "sentences": SENTENCES,
        "validation": {"times": 4, "tokens": 10},
        "optimizer": {"name": "adamw", "lr": 3e-3, "weight_decay": 0.0, "betas": [0.9, 0.95], "eps": 1e-8, "clip": 1.0},
        "schedule": {"shape": "constant", "warmup": 0.0, "final": 1.0},
        "steps": STEPS,
        "tokens_per_step": BATCH,
        "precision": "fp32",
        "seed": seed,
    }


def data_of(world: tuple[Root, str, str]) -> Path:
    return world[0].scratch / "data" / short(world[1])


def job(world: tuple[Root, str, str], folder: Path) -> dict[str, Any]:
    return {
        "id": "abcdef012345", "alias": "a/run", "full_sha256": HASH, "data": str(data_of(world)), "micro_batch": 4,
        "checkpoints": str(folder / "ckpt"), "device": "cpu", "devices": 1,
    }  # fmt: skip


def trained(world: tuple[Root, str, str], settings: dict[str, Any], folder: Path) -> Any:
    return train(settings, job(world, folder), TrainState(), None, limits(), lambda _: None)


def test_the_pretraining_is_made_once_and_made_again_to_the_same_bytes(
    world: tuple[Root, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text is prepared on the way; a damaged file is not used; another configuration is another file."""
    root, run = world[0], pretraining(world[2])
    path, sha256 = pretrain.own_weights(root, run)
    bytes_ = path.read_bytes()
    assert (root.scratch / "data" / short(world[2]) / "train.bin").is_file()
    assert not path.with_suffix(".ckpt").exists()
    note = json.loads(path.with_suffix(".json").read_text("utf-8"))
    assert (note["sha256"], note["config"]) == (sha256, run)
    assert 0 < note["val_loss"] < np.log(256) + 0.5
    with monkeypatch.context() as patched:
        patched.setattr(pretrain, "train", lambda *_: pytest.fail("trained again"))
        assert pretrain.own_weights(root, run) == (path, sha256)
    torch.rand(3)  # where the process's own generator stands must not matter
    path.write_bytes(bytes_[:-1] + bytes([bytes_[-1] ^ 1]))
    assert pretrain.own_weights(root, run) == (path, sha256)
    assert path.read_bytes() == bytes_
    assert pretrain.own_weights(root, pretraining(world[2], seed=2))[1] != sha256


def test_a_text_that_no_source_is_is_refused_by_its_folder(world: tuple[Root, str, str]) -> None:
    with pytest.raises(MissingError, match="no source of this digest"):
        pretrain.own_weights(world[0], pretraining("0" * 64))


def test_a_folder_with_other_weights_than_the_pinned_ones_is_refused(world: tuple[Root, str, str]) -> None:
    folder = world[0].scratch / "fetched" / "gpt2"
    with pytest.raises(MissingError, match="no such folder"):
        pretrain.start_of(world[0], {"origin": "folder", "folder": "gpt2", "sha256": "0" * 64})
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")
    with pytest.raises(BadDataError, match=r"scratch/fetched/gpt2: pretrained.sha256: holds [0-9a-f]{64}, 0{64} is"):
        pretrain.start_of(world[0], {"origin": "folder", "folder": "gpt2", "sha256": "0" * 64})


def test_a_run_starts_from_the_pretrained_weights_with_a_head_of_its_seed(world: tuple[Root, str, str]) -> None:
    one, other, cut = (Classify(config(world, seed=seed), data_of(world)).build() for seed in (1, 2, 1))
    first = dict(one.named_parameters())
    different = {name for name, value in other.named_parameters() if not torch.equal(value, first[name])}
    assert different == {"classify.weight"}
    assert all(torch.equal(value, first[name]) for name, value in cut.named_parameters())
    shallow = Classify(config(world, layers=1), data_of(world)).build()
    assert {name for name, _ in shallow.named_parameters()} < first.keys()


def test_steps_take_every_sentence_once_an_epoch_and_pad_behind_ends_only(world: tuple[Root, str, str]) -> None:
    task = Classify(config(world), data_of(world), 4)
    splits, _ = load_labelled(world[0], world[1])
    chosen = splits["train"].subset(SENTENCES)
    wanted = sorted((text.encode()[:CONTEXT], int(label)) for text, label in zip(*_pairs(chosen), strict=True))
    seen = []
    for step in range(SENTENCES // BATCH):
        pieces = task.step_batches(step)
        assert [len(targets) for _, targets in pieces] == [4, 2]
        assert sum(targets.numel() for _, targets in pieces) == BATCH
        for tokens, targets in pieces:
            assert bool((tokens[:, -1] != NO_TOKEN).any())  # no column of padding alone
            for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
                seen.append((bytes(token for token in row if token != NO_TOKEN), target))
    assert sorted(seen) == wanted
    same = Classify(config(world), data_of(world), 4)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(task.step_batches(5), same.step_batches(5), strict=True))
    shown = [tokens for tokens, _ in task.validation_batches(10)]
    assert sum(len(tokens) for tokens in shown) == 10


def _pairs(split: Any) -> tuple[Any, Any]:
    return split.sentences, split.labels


def test_residuals_off_is_another_training(world: tuple[Root, str, str], tmp_path: Path) -> None:
    on, off = (trained(world, config(world, residual=flag), tmp_path / str(flag)) for flag in (True, False))
    assert on.state.status is off.state.status is None
    assert on.state.start_val_loss != off.state.start_val_loss
    assert on.state.train_loss != off.state.train_loss
    assert on.state.val_history[-1] < on.state.start_val_loss


def test_a_classification_that_is_stopped_goes_on_to_the_same_bits(
    world: tuple[Root, str, str], tmp_path: Path
) -> None:
    settings = config(world)
    whole = trained(world, settings, tmp_path / "whole")
    stop: list[int] = []

    def report(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 3:
            stop.append(15)

    first = train(settings, job(world, tmp_path), TrainState(), None, limits(stop), report)
    assert first.state.status == "stopped"
    state, found = recall(job(world, tmp_path), lambda _: None)
    assert state.step == 3
    done = train(settings, job(world, tmp_path), state, found, limits(), lambda _: None)
    pairs = zip(whole.net.parameters(), done.net.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert done.state.train_loss == whole.state.train_loss


def test_metrics_equal_a_direct_look_at_every_sentence(world: tuple[Root, str, str], tmp_path: Path) -> None:
    done = trained(world, config(world), tmp_path)
    evidence = done.task.evidence(done.net, torch.device("cpu"))
    splits, _ = load_labelled(world[0], world[1])
    for name, split in (("train", splits["train"].subset(SENTENCES)), ("dev", splits["dev"])):
        errors, losses = 0, []
        for text, label in zip(*_pairs(split), strict=True):
            with torch.no_grad():
                logits = done.net(torch.tensor([list(text.encode()[:CONTEXT])]))
            errors += int(logits.argmax()) != label
            losses.append(float(F.cross_entropy(logits.double(), torch.tensor([int(label)]))))
        found = compute(f"class_{name}", evidence)
        assert found.n == len(split)
        assert found.values[f"{name}_error"] == pytest.approx(errors / len(split), abs=1e-12)
        assert found.values[f"{name}_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
        assert found.details["errors"] == errors
        assert found.details["error_low"] <= errors / len(split) <= found.details["error_high"]
        assert found.details["pretrained"].startswith("own GPT, 2 layers, width 16, 5 steps, ")
        assert found.details["truncated"] == sum(len(text.encode()) > CONTEXT for text in split.sentences)


def test_sentences_without_a_class_are_never_scored(world: tuple[Root, str, str]) -> None:
    task = Classify(config(world), data_of(world))
    task.dev = replace(task.dev, labels=np.full_like(task.dev.labels, -1))
    with pytest.raises(BadDataError, match=r'split "dev": labels: .* no label'):
        compute("class_dev", task.evidence(task.build(), torch.device("cpu")))


def test_more_sentences_than_there_are_are_refused_before_training(world: tuple[Root, str, str]) -> None:
    with pytest.raises(BadDataError, match="subset: 10000 sentences asked for"):
        Classify(config(world) | {"sentences": 10_000}, data_of(world))


def test_batches_keep_every_row_with_its_class(world: tuple[Root, str, str]) -> None:
    splits, _ = load_labelled(world[0], world[1])
    split = encode(splits["dev"], ByteTokenizer().encode, CONTEXT, 0)
    rows = np.arange(len(split.labels))[::-1].copy()
    seen = []
    for part, (tokens, classes) in batches(split, rows, 7):
        assert classes.tolist() == split.labels[part].tolist()
        assert ((tokens != NO_TOKEN).sum(1).numpy() == split.lengths[part]).all()
        seen += part.tolist()
    assert sorted(seen) == sorted(rows.tolist())


def small(**changes: Any) -> ClassifyExperiment:
    fields: dict[str, Any] = {
        "name": "d_small", "task": "classify", "data": "embedded_sentences", "paper": "d",
        "pretrained": {"model": "gpt_d64_l6", "data": "embedded_lm", "steps": 5, "batch_tokens": 128, "lr": 1e-3},
        "depths": [2, 4], "sentences": 20, "context": 32, "epochs": 2, "batch": 10,
        "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.0}, "seeds": 2, "metrics": ["class_train"],
    }  # fmt: skip
    return ClassifyExperiment.model_validate(fields | changes)


def plan_with(*experiments: ClassifyExperiment) -> Plan:
    known = configuration()
    made = replace(known, experiments={one.name: one for one in experiments})
    return build_plan(known.root, "paper", configuration=made)


def test_a_classification_is_planned_by_depth_and_residual() -> None:
    plan = plan_with(small())
    cells = plan.cells["d_small"]
    assert [cell.label for cell in cells] == ["L2/residual", "L2/none", "L4/residual", "L4/none"]
    run = plan.runs[cells[0].run_ids[0]]
    assert (run.data, run.tracks, run.config["steps"]) == ("embedded_sentences", ("classify",), 4)
    assert run.cost.device == "cpu"
    arm = Arm.model_validate({"method": "pre_ln", "axes": {"layers": 4, "residual": False}})
    assert [cell.label for cell in cells if _matches(cell, arm, {})] == ["L4/none"]
    assert arm.label == "pre_ln layers=4 residual=False"


@pytest.mark.parametrize(
    "change",
    [
        {"sentences": 21},
        {"context": 16},
        {"pretrained": {"model": "gpt_d64_l6", "data": "embedded_lm", "steps": 6, "batch_tokens": 128, "lr": 1e-3}},
        {"pretrained": {"model": "gpt_d64_l6", "folder": "gpt2", "sha256": "0" * 64}},
    ],
)
def test_the_id_follows_the_subset_and_what_it_starts_from(change: dict[str, Any]) -> None:
    assert not plan_with(small()).runs.keys() & plan_with(small(**change)).runs.keys()
    assert plan_with(small()).runs.keys() == plan_with(small(title="other", assumptions=["x"])).runs.keys()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda v: v.update(data="openwebtext"), "data: openwebtext is not known"),
        (lambda v: v.update(metrics=["val_loss"]), "metrics.0: val_loss is not known"),
        (lambda v: v["pretrained"].update(model="gpt_d64_l99"), "pretrained.model: gpt_d64_l99 is not known"),
        (lambda v: v["pretrained"].update(data="sst2"), "pretrained.data: sst2 is not known"),
        (lambda v: v["pretrained"].update(folder="gpt2"), "pretrained: needs either"),
        (lambda v: v["pretrained"].update(folder="../x"), "pretrained.folder: ../x"),
        (lambda v: v["pretrained"].update(batch_tokens=100), "100 tokens a step are no multiple of the context"),
        (lambda v: v["pretrained"].update(steps=0), "pretrained.steps"),
        (lambda v: v.update(context=2000), "context of 64, 2000 is asked for"),
        (lambda v: v.update(residuals=[1]), "residuals.0"),
        (lambda v: v.update(depths=[2, 2]), "names 2 twice"),
        (lambda v: v["optimizer"].update(lr=[1e-3, 1e-4]), "takes one lr"),
    ],
)
def test_a_slip_is_refused_by_file_line_and_key(checkout: Checkout, repro_main: Any, change: Any, says: str) -> None:
    checkout.edit(YAML, change)
    code, out, err = repro_main(checkout, "plan", "--tier", "smoke")
    assert (code, out) == (64, "")
    assert says in err
    assert f"{YAML}:" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"depths": [2, 7]}, "smoke: the pretrained model has 4 layers, 7 are asked for"),
        ({"data": {"sst2": "embedded_lm"}}, "smoke.classify.data.sst2: embedded_lm is not known"),
        ({"model": {"gpt_d64_l10": "x"}}, "smoke.classify.model.gpt_d64_l10: x is not known"),
    ],
)
def test_a_slip_in_a_scale_is_refused_too(
    checkout: Checkout, repro_main: Any, change: dict[str, Any], says: str
) -> None:
    checkout.edit("config/tiers.yaml", lambda v: v["smoke"]["classify"].update(change))
    code, _, err = repro_main(checkout, "plan", "--tier", "smoke")
    assert (code, says in err) == (64, True), err


def test_the_figure_is_made_of_the_metrics_of_complete_runs() -> None:
    """Rows by depth and residual; a run without a metric has none, and one that failed is not there."""
    plan = plan_with(small())
    cells = plan.cells["d_small"]
    failed = cells[3].run_ids[1]

    class Recorded:
        def train(self, run_id: str) -> Any:
            seed = plan.runs[run_id].seed
            return SimpleNamespace(status="failed" if run_id == failed else "complete", seed=seed)

        def evals(self, run_id: str) -> Any:
            layers = plan.runs[run_id].axes["layers"]
            return {"class_train": SimpleNamespace(value=lambda _name: layers / 10)}

    ((drawing, rows),) = theory.drawings(plan, cast(Any, Recorded()), "d_small")
    assert len(rows) == 7
    assert rows[0] == {
        "model": "gpt_d64_l6",
        "layers": 2,
        "residual": True,
        "seed": 1,
        "train_error": 0.2,
        "dev_error": None,
    }
    assert len(drawing.draw(rows).axes) == 2
