"""Checkpoints: the right one or none; whatever else lies there is neither loaded nor run."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from train_world import CONTEXT, HASH, SEQUENCES, config, job, run, same_bits, weights, write_data

from repro.spec.errors import BadDataError
from repro.train import checkpoint as ckpt
from repro.train import saving
from repro.train.launch import recall
from repro.train.saving import SaveError
from repro.train.state import TrainState
from tests.conftest import shared_case

OTHER = "cd" * 32


def content(full: str = HASH, mark: float = 1.0) -> dict[str, Any]:
    plain = {"optimizer": {}, "rng": torch.get_rng_state(), "state": TrainState().as_text()}
    return {"full_sha256": full, "model": {"w": torch.full((3,), mark)}} | plain


def put(folder: Path, step: int, full: str = HASH, mark: float = 1.0) -> Path:
    """A whole checkpoint of `step`."""
    return ckpt.save(folder, step, content(full, mark) | {"state": TrainState(step=step).as_text()})


def write(folder: Path, name: str, step: int, full: str = HASH) -> Path:
    """A whole checkpoint under a name of its own."""
    path = put(folder / "made", step, full, float(step))
    target = folder / name
    for suffix in (".pt", ".sha256"):
        path.with_suffix(suffix).rename(target.with_suffix(suffix))
    return target


def seal(path: Path) -> None:
    path.with_suffix(".sha256").write_text(hashlib.sha256(path.read_bytes()).hexdigest())


def test_what_was_saved_comes_back_and_two_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 30, 400):
        put(tmp_path, step, mark=float(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-000000030.pt",
        "step-000000030.sha256",
        "step-000000400.pt",
        "step-000000400.sha256",
    ]
    best, passed = ckpt.newest(tmp_path, HASH)
    assert best is not None
    assert (best["step"], passed) == (400, [])
    assert torch.equal(best["model"]["w"], torch.full((3,), 400.0))


def test_files_that_were_passed_over_do_not_crowd_out_the_good_ones(tmp_path: Path) -> None:
    for step in (800, 900):
        put(tmp_path, step).write_bytes(b"broken")
    for step in (1, 2, 3):
        put(tmp_path, step)
    assert [path.name for path in sorted(tmp_path.glob("*.pt"))] == ["step-000000002.pt", "step-000000003.pt"]
    (tmp_path / "step-000000000.pt").mkdir()
    put(tmp_path, 4)
    best, _ = ckpt.newest(tmp_path, HASH)
    assert best is not None
    assert best["step"] == 4


def test_an_empty_or_missing_folder_holds_nothing(tmp_path: Path) -> None:
    assert ckpt.newest(tmp_path, HASH) == (None, [])
    assert ckpt.newest(tmp_path / "none", HASH) == (None, [])


def test_case_t04_progress_is_read_inside_and_only_in_valid_files_of_this_run(tmp_path: Path) -> None:
    """Names, times of change and foreign or broken files mislead nobody."""
    case = json.loads(shared_case("T04/checkpoints.json").read_text("utf-8"))
    for number, file in enumerate(case["files"]):
        full = HASH if file["run_id"] == case["run_id"] else OTHER
        path = write(tmp_path, f"step-{900 - number:09d}.pt", file["step"], full)
        if not file["valid"]:
            path.write_bytes(path.read_bytes()[:-100])
        os.utime(path, (file["mtime"], file["mtime"]))
    best, passed = ckpt.newest(tmp_path, HASH)
    assert best is not None
    assert best["step"] == 300, case["right"]
    assert len(passed) == 2
    assert sum(line.endswith(ckpt.FOREIGN) for line in passed) == 1


class Attack:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def damage(name: str, path: Path, mark: Path) -> None:
    data = path.read_bytes()
    if name == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif name == "empty":
        path.write_bytes(b"")
    elif name == "one byte":
        path.write_bytes(data[:-50] + bytes([data[-50] ^ 1]) + data[-49:])
    elif name == "no hash":
        path.with_suffix(".sha256").unlink()
    elif name == "hash of no text":
        path.with_suffix(".sha256").write_bytes(b"\xff\xfe")
    elif name == "noise":
        path.write_bytes(os.urandom(1000))
        seal(path)
    elif name == "pickled":
        path.write_bytes(pickle.dumps({"step": 9, "full_sha256": HASH, "state": Attack(mark)}))
        seal(path)
    elif name == "pickled by torch":
        torch.save({"step": 9, "full_sha256": HASH, "state": Attack(mark)}, path)
        seal(path)
    elif name == "no dictionary":
        torch.save([1, 2], path)
        seal(path)
    elif name == "no step":
        torch.save(content(), path)
        seal(path)
    elif name == "step of text":
        torch.save(content() | {"step": "9"}, path)
        seal(path)
    elif name == "folder":
        path.unlink()
        path.mkdir()
    elif name == "dead link":
        path.unlink()
        path.symlink_to("nowhere")
    else:
        raise AssertionError(name)


DAMAGES = [
    "cut", "empty", "one byte", "no hash", "hash of no text", "noise", "pickled", "pickled by torch", "no dictionary",
    "no step", "step of text", "folder", "dead link",
]  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_broken_or_hostile_file_is_passed_over_for_the_one_before(tmp_path: Path, name: str) -> None:
    mark = tmp_path / "ran"
    put(tmp_path, 5)
    damage(name, put(tmp_path, 9), mark)
    best, passed = ckpt.newest(tmp_path, HASH)
    assert best is not None
    assert best["step"] == 5
    assert [line.split(":")[0] for line in passed] == ["step-000000009.pt"]
    assert not mark.exists()


@pytest.mark.parametrize("name", DAMAGES)
def test_a_run_goes_on_past_a_broken_file_and_says_so(tmp_path: Path, name: str) -> None:
    folder = write_data(tmp_path / "data")
    run(folder, config(steps=6), checkpoint_share=1.0, checkpoint_longest=0.0, stop_at=4)
    files = sorted((folder / "ckpt").glob("*.pt"))
    assert [path.name for path in files] == ["step-000000003.pt", "step-000000004.pt"]
    damage(name, files[-1], tmp_path / "ran")
    done, events = run(folder, config(steps=6))
    assert [event["event"] for event in events[:2]] == ["warning", "start"]
    assert "step-000000004.pt" in events[0]["text"]
    assert "passed over" in events[0]["text"]
    assert (events[1]["step"], done.state.step, done.state.status) == (3, 6, None)
    assert not (tmp_path / "ran").exists()


def test_only_foreign_checkpoints_are_no_reason_for_a_fresh_start(tmp_path: Path) -> None:
    """Case T04: refused, unless the user asks for it by taking them away."""
    order = job(tmp_path)
    put(tmp_path / "ckpt", 9, OTHER)
    warnings: list[Any] = []
    with pytest.raises(BadDataError, match="holds checkpoints of another configuration only") as caught:
        recall(order, warnings.append)
    assert caught.value.exit_code == 65
    assert str(tmp_path) not in str(caught.value)
    put(tmp_path / "ckpt", 3)
    state, found = recall(order, warnings.append)
    assert found is not None
    assert (found["step"], state.step) == (3, 3)


def test_only_broken_checkpoints_mean_a_fresh_start_with_a_warning(tmp_path: Path) -> None:
    damage("cut", put(tmp_path / "ckpt", 9), tmp_path)
    warnings: list[Any] = []
    state, found = recall(job(tmp_path), warnings.append)
    assert (state.step, found, len(warnings)) == (0, None, 1)


def test_a_checkpoint_is_data_only_and_loads_without_this_package(tmp_path: Path) -> None:
    """Case T06: tensors and plain types; a renamed package would load it too."""
    folder = write_data(tmp_path / "data")
    run(folder, config(), stop_at=2)
    (path,) = (folder / "ckpt").glob("*.pt")
    loaded = torch.load(path, weights_only=True)
    assert loaded.keys() == {"full_sha256", "model", "optimizer", "rng", "loss", "state", "step"}
    assert (loaded["step"], json.loads(loaded["state"])["step"]) == (2, 2)
    assert b"repro" not in path.read_bytes()


def test_a_save_that_fails_leaves_the_old_one_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case T03."""
    put(tmp_path, 1)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SaveError, match="No space left"):
        put(tmp_path, 2)
    monkeypatch.undo()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["step-000000001.pt", "step-000000001.sha256"], "half of a file would fill the disk"
    best, passed = ckpt.newest(tmp_path, HASH)
    assert best is not None
    assert (best["step"], passed) == (1, [])


def test_a_full_disk_is_told_as_a_failed_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from repro.train.faults import failure

    folder = write_data(tmp_path / "data")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", str(folder / "ckpt" / "x"))

    monkeypatch.setattr(ckpt, "write_whole", full)
    with pytest.raises(SaveError, match="No space left") as caught:
        run(folder, config(), checkpoint_share=1.0, checkpoint_longest=0.0)
    status, reason = failure(caught.value, tmp_path)
    assert status == "failed"
    assert reason.startswith("save_failed: OSError: [Errno 28] No space left on device")
    assert str(tmp_path) not in reason


@pytest.mark.parametrize("number", [5, 13, 27, 30, 122])  # EIO, EACCES, EFBIG, EROFS, EDQUOT
def test_whatever_the_disk_says_a_failed_save_is_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    from repro.train.faults import failure
    from repro.train.outcome import save_weights

    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path / "x"))

    monkeypatch.setattr(saving.os, "fsync", refuse)
    for attempt in (lambda: put(tmp_path, 1), lambda: save_weights(torch.nn.Linear(1, 1), tmp_path / "w")):
        with pytest.raises(SaveError) as caught:
            attempt()
        status, reason = failure(caught.value, tmp_path)
        assert status == "failed"
        assert reason.startswith("save_failed: ")
        assert str(tmp_path) not in reason
    assert list(tmp_path.iterdir()) == []


def test_what_could_not_be_loaded_again_is_not_saved(tmp_path: Path) -> None:
    """Case T06: a class of a method's own in its state."""

    class Own:
        pass

    state = {"w": torch.zeros(1), "extra": {"own": [1, Own()]}}
    with pytest.raises(TypeError, match=r"checkpoint\.model\.extra\.own\.1 is a Own; a checkpoint holds tensors"):
        ckpt.save(tmp_path, 1, content() | {"model": state})
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_half_written_is_cleared(tmp_path: Path) -> None:
    (tmp_path / ".step-000000001.pt.123").write_bytes(b"half")
    put(tmp_path, 2)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".pt", ".sha256"]


@pytest.mark.parametrize(
    "change",
    [
        {"state": "{"},
        {"state": "{}"},
        {"state": '{"step": 9, "unknown": 1}'},
        {"state": None},
        {"optimizer": None},
        {"rng": None},
        {"model": []},
    ],
)
def test_a_whole_file_without_what_a_run_needs_is_passed_over(tmp_path: Path, change: dict[str, Any]) -> None:
    put(tmp_path, 5)
    ckpt.save(tmp_path, 9, content() | {"state": TrainState(step=9).as_text()} | change)
    best, passed = ckpt.newest(tmp_path, HASH)
    assert best is not None
    assert (best["step"], len(passed)) == (5, 1)


def test_final_weights_are_checked_when_they_are_loaded(tmp_path: Path) -> None:
    from safetensors.torch import save

    from repro.train.outcome import load_weights, save_weights

    folder = write_data(tmp_path / "data")
    done, _ = run(folder, config(steps=2))
    path = tmp_path / "final" / "x.safetensors"
    sha256 = save_weights(done.net, path)
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    fresh = run(write_data(tmp_path / "other"), config(steps=1, seed=9))[0].net
    load_weights(fresh, path, sha256)
    assert all(torch.equal(a, b) for a, b in zip(fresh.parameters(), done.net.parameters(), strict=True))
    with pytest.raises(ValueError, match="does not match the recorded weights"):
        load_weights(fresh, path, "0" * 64)
    other = run(write_data(tmp_path / "third"), config("peri_ln", steps=1))[0].net
    with pytest.raises(ValueError, match="holds other parameters than the model"):
        load_weights(other, path, sha256)
    short = {name: tensor for name, tensor in done.net.named_parameters() if name != "wpe.weight"}
    path.write_bytes(save({name: tensor.detach() for name, tensor in short.items()}))
    with pytest.raises(ValueError, match="holds other parameters"):
        load_weights(fresh, path, hashlib.sha256(path.read_bytes()).hexdigest())


def test_final_weights_hold_buffers_too_and_are_loaded_strictly(tmp_path: Path) -> None:
    from repro.train.outcome import load_weights, save_weights

    def net(t: float, size: int = 3) -> torch.nn.Module:
        made = torch.nn.Linear(size, 1)
        made.register_buffer("t", torch.tensor(t))
        made.register_buffer("scratch", torch.tensor(t), persistent=False)
        return made

    path = tmp_path / "x.safetensors"
    sha256 = save_weights(net(5.0), path)
    fresh = net(0.0)
    load_weights(fresh, path, sha256)
    assert (float(fresh.t), float(fresh.scratch)) == (5.0, 0.0)
    for other, said in ((torch.nn.Linear(3, 1), "other parameters than the model: t"), (net(0.0, 1), "weight is")):
        before = [tensor.clone() for tensor in other.state_dict().values()]
        with pytest.raises(ValueError, match=said):
            load_weights(other, path, sha256)
        assert all(torch.equal(a, b) for a, b in zip(before, other.state_dict().values(), strict=True))


def test_a_torch_file_made_by_hand_is_read_as_data(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"x": Attack(tmp_path / "ran")}, buffer)
    buffer.seek(0)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(buffer, weights_only=True)
    assert not (tmp_path / "ran").exists()


def test_a_broken_file_that_is_set_aside_crowds_out_no_good_one(tmp_path: Path) -> None:
    """10 is good, 20 is cut: after 15 and 25 both of these are there, not 20 and 25."""
    folder = tmp_path / "ckpt"
    for step in (10, 20):
        put(folder, step)
    damage("cut", folder / "step-000000020.pt", tmp_path)
    write(folder, "step-000000030.pt", 30, OTHER)
    _, found = recall(job(tmp_path), lambda _: None, tidy=True)
    assert found is not None
    assert found["step"] == 10
    assert (folder / "step-000000020.broken").is_file()
    assert (folder / "step-000000030.pt").is_file(), "a foreign one is the user's to remove"
    for step in (15, 25):
        put(folder, step)
    good = [path.name for path in sorted(folder.glob("step-*.pt")) if ckpt.newest(folder, HASH)[0] is not None]
    assert good[:2] == ["step-000000015.pt", "step-000000025.pt"]


# Case T10: names and weights of a checkpoint
def rewrite(path: Path, change: Any) -> None:
    """A checkpoint with other content and a hash that fits."""
    found = torch.load(path, weights_only=True)
    step = found.pop("step")
    path.unlink()
    ckpt.save(path.parent, step, found | change(found))


def stopped(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of data with one checkpoint, of step 3."""
    folder = write_data(tmp_path / "data")
    run(folder, config(), stop_at=3)
    (path,) = (folder / "ckpt").glob("*.pt")
    return folder, path


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod."])
def test_case_t10_a_wrappers_prefix_is_taken_off_with_a_note(tmp_path: Path, prefix: str) -> None:
    folder, path = stopped(tmp_path)
    unbroken, _ = run(write_data(tmp_path / "other"), config())
    rewrite(path, lambda found: {"model": {prefix + name: value for name, value in found["model"].items()}})
    done, events = run(folder, config())
    notes = [event["text"] for event in events if event["event"] == "warning"]
    assert len(notes) == 1
    assert f"the prefix {prefix} was taken off its names" in notes[0]
    assert same_bits(weights(done), weights(unbroken))


def test_case_t10_a_key_that_is_missing_or_too_much_is_named(tmp_path: Path) -> None:
    folder, path = stopped(tmp_path)
    name = next(iter(torch.load(path, weights_only=True)["model"]))
    rewrite(path, lambda found: {"model": {k: v for k, v in found["model"].items() if k != name}})
    with pytest.raises(BadDataError, match=f"step 3: {re.escape(name)} is missing"):
        run(folder, config())
    rewrite(path, lambda found: {"model": found["model"] | {name: torch.zeros(1), "more": torch.zeros(1)}})
    with pytest.raises(BadDataError, match=r"more is not of this model \(and 1 more\)") as caught:
        run(folder, config())
    assert str(tmp_path) not in str(caught.value)


def test_case_t10_weights_that_fit_but_are_others_are_found_out(tmp_path: Path) -> None:
    """Every shape fits, the stored loss does not."""
    folder, path = stopped(tmp_path)
    rewrite(path, lambda found: {"model": {name: value * 3 for name, value in found["model"].items()}})
    with pytest.raises(BadDataError, match="on the first validation batch"):
        run(folder, config())


def test_case_t10_another_variants_checkpoint_is_refused_even_if_shapes_fit(tmp_path: Path) -> None:
    """Pre- and Post-LN have the same names and shapes; the configuration's hash tells them apart."""
    folder, path = stopped(tmp_path)
    rewrite(path, lambda _: {"full_sha256": OTHER})
    with pytest.raises(BadDataError, match="another configuration"):
        run(folder, config("post_ln"))


# Case T05: the curve of a run that died
def test_case_t05_one_point_a_step_after_a_death(tmp_path: Path) -> None:
    """Twenty steps, a checkpoint at 10, death at 15: points 1 to 20 once each, equal to the unbroken run's."""
    unbroken, _ = run(write_data(tmp_path / "one"), config(steps=20))
    folder = write_data(tmp_path / "two")
    run(folder, config(steps=20), stop_at=10)
    saved = {path: path.read_bytes() for path in (folder / "ckpt").iterdir()}
    run(folder, config(steps=20), stop_at=15)
    shutil.rmtree(folder / "ckpt")
    (folder / "ckpt").mkdir()
    for path, data in saved.items():
        path.write_bytes(data)  # what was made between 10 and 15 is lost
    done, events = run(folder, config(steps=20))
    assert events[0] == {"event": "start", "step": 10, "steps": 20}
    assert done.state.tokens == [step * SEQUENCES * CONTEXT for step in range(1, 21)]
    assert done.state.curve() == unbroken.state.curve()
    assert same_bits(weights(done), weights(unbroken))
