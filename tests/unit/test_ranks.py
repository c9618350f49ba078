"""Two processes on one run: validation counts every item once (case T15), and training is that of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from train_world import config, run, weights, write_data

from repro.train.process import prepare_process
from repro.train.ranks import is_peer_loss
from repro.train.world import World, free_port

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from repro.train.module import validation_sums

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)

class Items:
    def validation_batches(self, tokens):
        for loss in (1.0, 2.0, 3.0, 4.0, 5.0):
            yield torch.tensor([loss]), torch.zeros(1)

    def loss_sums(self, net, batch):
        return batch[0].sum(), batch[1].numel()

print(*validation_sums(Items(), torch.nn.Linear(1, 1), 5, torch.device("cpu")))
dist.destroy_process_group()
"""


def test_case_t15_five_items_on_two_processes(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "meet")]
    both = [subprocess.Popen([*words, str(rank)], stdout=subprocess.PIPE, text=True) for rank in (0, 1)]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert outputs == ["15.0 5\n"] * 2


# One rank of a training: reads its order from the command line, writes what it ended with.
TRAINER = """
import json, sys
from pathlib import Path
from train_world import config, run, weights
from repro.train.process import prepare_process
from repro.train.world import World

folder, rank, settings, options = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4])
prepare_process(1)
done, events = run(folder, config(**settings), world=World(2, 2, rank, rank, "here"), **options)
found = {name: tensor.double().flatten().tolist() for name, tensor in weights(done).items()}
state = done.state
print(json.dumps({"weights": found, "curve": state.curve(), "status": state.status, "step": state.step,
                  "start": state.start_val_loss, "events": len(events)}))
"""


def start_two(folders: list[Path], settings: dict[str, Any], *options: dict[str, Any]) -> list[tuple[int, str, str]]:
    """The same training by two processes, each with options of its own if there are two: exit code, output, errors."""
    port, both = free_port(), []
    for rank in (0, 1):
        world = World(2, 2, rank, rank, "here").environment("127.0.0.1", port)
        own = options[rank % len(options)] if options else {}
        words = [sys.executable, "-c", TRAINER, str(folders[rank]), str(rank), json.dumps(settings), json.dumps(own)]
        path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
        environ = os.environ | world | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        both.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ))
    outputs = [process.communicate(timeout=240) for process in both]
    return [(process.returncode, *said) for process, said in zip(both, outputs, strict=True)]


def two(folder: Path, settings: dict[str, Any], *options: dict[str, Any]) -> list[dict[str, Any]]:
    """What both processes end with."""
    ends = start_two([folder, folder], settings, *options)
    assert [code for code, *_ in ends] == [0, 0], ends
    return [json.loads(out) for _, out, _ in ends]


def furthest(ours: dict[str, list[float]], theirs: Any) -> float:
    """The largest difference between two sets of weights."""
    flat = {name: tensor.double().flatten().tolist() for name, tensor in theirs.items()}
    assert ours.keys() == flat.keys()
    return max(abs(a - b) for name in ours for a, b in zip(ours[name], flat[name], strict=True))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    prepare_process(1)


@pytest.mark.parametrize("micro_batch", [None, 1, 3])
def test_two_processes_train_as_one_does(tmp_path: Path, micro_batch: int | None) -> None:
    """Weights and sums in float64, cross-entropy in float32: any micro-batch, one mean over all tokens of a step."""
    settings = {"precision": "fp64", "steps": 12}
    alone, _ = run(write_data(tmp_path / "one"), config(**settings))
    both = two(write_data(tmp_path / "two"), settings, {"micro_batch": micro_batch})
    for found in both:
        assert furthest(found["weights"], weights(alone)) < 2e-6
        assert found["curve"]["tokens"] == alone.state.tokens
        assert found["curve"]["train_loss"] == pytest.approx(alone.state.train_loss, abs=1e-6)
        assert found["curve"]["val_loss"][-1] == pytest.approx(alone.state.val_loss[-1], abs=1e-6)
        assert found["start"] == pytest.approx(alone.state.start_val_loss, abs=1e-6)
    assert both[0]["weights"] == both[1]["weights"]


def test_a_run_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    """Four steps alone, four by two, four alone: order of data and tokens a step stay, so do the numbers."""
    settings = {"precision": "fp64", "steps": 12}
    unbroken, _ = run(write_data(tmp_path / "one"), config(**settings))
    folder = write_data(tmp_path / "moved")
    run(folder, config(**settings), stop_at=4)
    both = two(folder, settings, {"stop_at": 8}, {})
    assert [(found["status"], found["step"]) for found in both] == [("stopped", 8)] * 2
    done, events = run(folder, config(**settings))
    assert events[0] == {"event": "start", "step": 8, "steps": 12}
    ends = {name: tensor.double().flatten().tolist() for name, tensor in weights(done).items()}
    assert furthest(ends, weights(unbroken)) < 2e-6
    assert done.state.train_loss == pytest.approx(unbroken.state.train_loss, abs=1e-6)


def test_what_one_process_is_told_all_do_after_the_same_step(tmp_path: Path) -> None:
    """A signal to the second process alone; the first one saves."""
    folder = write_data(tmp_path / "data")
    both = two(folder, {}, {}, {"stop_at": 5})
    assert [(found["status"], found["step"]) for found in both] == [("stopped", 5)] * 2
    assert [path.name for path in sorted((folder / "ckpt").glob("*.pt"))] == ["step-000000005.pt"]


def test_processes_that_see_different_checkpoints_are_refused(tmp_path: Path) -> None:
    """scratch/ on a disk of each node's own: one would go on at step 3, the other begin."""
    folders = [write_data(tmp_path / name) for name in ("one", "other")]
    run(folders[0], config(), stop_at=3)
    ends = start_two(folders, {})
    assert all(code != 0 and "see different checkpoints" in err for code, _, err in ends), ends


def test_only_the_loss_of_a_neighbour_is_no_fault_of_the_run() -> None:
    assert is_peer_loss(RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"))
    assert is_peer_loss(ConnectionResetError("Connection reset by peer"))
    assert not is_peer_loss(RuntimeError("shape '[2, 3]' is invalid for input of size 5"))
