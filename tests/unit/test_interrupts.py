"""A training that is ended at random moments, by signals and by kill -9, ends with the unbroken run's weights."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from train_world import config, job, limits, run, same_bits, weights, write_data

from repro.train.launch import Finished, recall, train
from repro.train.process import prepare_process

STEPS, KILLS, SIGNALS = 200, 5, 20
SAVES = {"checkpoint_share": 1.0, "checkpoint_longest": 0.02}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    prepare_process(1)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    done, _ = run(write_data(tmp_path_factory.mktemp("unbroken")), config(steps=STEPS))
    return done


@pytest.fixture
def flags() -> Iterator[list[int]]:
    """What a worker does with signals: it notes them, and nothing else."""
    seen: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    for number in before:
        signal.signal(number, lambda received, _frame: seen.append(received))
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


def test_case_t02_signals_at_random_moments(tmp_path: Path, unbroken: Finished, flags: list[int]) -> None:
    """SIGTERM or SIGUSR1, twenty times in one run: each time it saves between two steps, and goes on from there."""
    folder, draw, stops, last = write_data(tmp_path), random.Random(0), 0, 0
    while True:
        flags.clear()
        state, found = recall(job(folder), lambda _: None)
        assert state.step == last
        number = draw.choice([signal.SIGTERM, signal.SIGUSR1])
        timer = threading.Timer(draw.uniform(0, 0.15), os.kill, [os.getpid(), number])
        if stops < SIGNALS:
            timer.start()
        done = train(config(steps=STEPS), job(folder), state, found, limits(flags), lambda _: None)
        timer.cancel()
        if done.state.status is None:
            break
        assert done.state.status == "stopped"
        assert done.state.step > last or stops == SIGNALS
        stops, last = stops + 1, done.state.step
    assert stops >= SIGNALS / 4, "hardly a signal came in time"
    assert same_bits(weights(done), weights(unbroken))
    assert done.state.curve() == unbroken.state.curve()


def _train_in_a_process(folder: Path, end: Any) -> None:
    done, _ = run(folder, config(steps=STEPS), **SAVES)
    torch.save(weights(done), folder / "end.pt")
    end.set()


def test_random_kills_each_end_with_the_weights_of_the_unbroken_run(tmp_path: Path, unbroken: Finished) -> None:
    """kill -9, wherever it meets the process; `python -m tests.e2e.random_kills` does it to the whole suite."""
    folder, draw, killed = write_data(tmp_path), random.Random(1), 0
    context = multiprocessing.get_context("fork")
    for _ in range(200):
        end = context.Event()
        process = context.Process(target=_train_in_a_process, args=(folder, end))
        process.start()
        if killed < KILLS:
            time.sleep(draw.uniform(0.05, 0.8))
            process.kill()
        process.join(120)
        if end.is_set():
            break
        assert process.exitcode == -signal.SIGKILL
        killed += 1
    assert killed >= 2
    assert same_bits(torch.load(folder / "end.pt", weights_only=True), weights(unbroken))


SEEDED = """
import hashlib, sys
from pathlib import Path
from train_world import config, run, weights, write_data
from repro.train.process import prepare_process
prepare_process(1)
done, _ = run(write_data(Path(sys.argv[1])), config(seed=int(sys.argv[2])))
print(hashlib.sha256(b"".join(t.numpy().tobytes() for t in weights(done).values())).hexdigest())
"""


def test_case_t11_same_seed_same_weights_whatever_pythons_own_hashes(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])

    def start(name: str, seed: int, hashes: str) -> subprocess.Popen[str]:
        environ = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": hashes, "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-c", SEEDED, str(tmp_path / name), str(seed)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environ)

    runs = [start("one", 3, "1"), start("two", 3, "2"), start("three", 4, "1")]
    one, two, other = (process.communicate(timeout=240)[0].strip() for process in runs)
    assert len(one) == 64
    assert one == two
    assert one != other
