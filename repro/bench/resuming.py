"""P17: what a kill -9 costs: the steps since the last checkpoint, and taking it up again."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from repro.bench.measure import NotEqualError, Question, Row, interleave, noise_of
from repro.bench.registry import Session, ratio

STEPS, ROUNDS = 200, 4
CONTEXT, VOCAB, SEQUENCES = 64, 256, 64
SHAPE = {"n_layer": 4, "n_head": 4, "d_model": 64, "context": CONTEXT, "vocab": VOCAB}
CONFIG: dict[str, Any] = {
    "task": "lm",
    "model": SHAPE,
    "method": {"name": "pre_ln", "params": {}},
    "validation": {"times": 4, "tokens": 4096},
    "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.1, "betas": [0.9, 0.95], "eps": 1e-8, "clip": 1.0},
    "schedule": {"shape": "cosine", "warmup": 0.1, "final": 0.1},
    "steps": STEPS,
    "tokens_per_step": SEQUENCES * CONTEXT,
    "precision": "fp32",
    "seed": 1,
}


@ratio("P17", "kill -9 and resume against the uninterrupted run", ("torch", "lightning"))
def resume_cost(session: Session) -> list[Row]:
    """Wall time of a training that is killed once, in mid-run, over that of one that is not; imports left out.

    Both are processes forked from this one, which has imported everything; the suite's own rule says when to save.
    """
    import repro.train.launch  # noqa: F401 - imported before the clock starts
    from repro.train.process import prepare_process

    prepare_process(1)
    _write_data(session.folder)
    ends: dict[str, bytes] = {}
    sides = {"whole": 0.0, "killed": 0.55, "whole again": 0.0}
    expected = _time(session.folder, ends, "whole", 0.0, 0.0)
    times = interleave(
        {name: partial(_time, session.folder, ends, name, share, expected) for name, share in sides.items()},
        ROUNDS,
        session.tell,
    )
    if len(set(ends.values())) != 1:
        raise NotEqualError("the killed run did not end with the weights of the unbroken one")
    detail = f"{STEPS} steps of 4,096 tokens, 4 layers, width 64; killed once, at 55 % of the time; weights bit-equal"
    return [_RESUME.answer(times, noise_of(times, "whole", "whole again"), detail)]


_RESUME = Question(
    id="P17", ratio="killed once and resumed / uninterrupted, wall time", peer="the same run, uninterrupted",
    formula=lambda t: t["killed"] / t["whole"], bar=1.10, packages=("torch", "lightning"),
)  # fmt: skip


def _write_data(folder: Path) -> None:
    from repro.data.packed import write_tokens

    ids = np.random.default_rng(0).integers(0, VOCAB, 600_000, dtype=np.uint16)
    ids[1:] = np.where(np.arange(1, ids.size) % 3 == 0, ids[:-1], ids[1:])  # something to learn
    write_tokens(folder / "train.bin", ids[:500_000], VOCAB)
    write_tokens(folder / "val.bin", ids[500_000:], VOCAB)


def _time(folder: Path, ends: dict[str, bytes], name: str, share: float, expected: float) -> float:
    """Seconds of one run to its end, killed once after `share` of the `expected` time where that is not 0."""
    own = folder / "run"
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    started = time.perf_counter()
    if share:
        process = _start(folder, own)
        process.join(share * expected)
        process.kill()
        process.join()
        if (own / "end").exists():
            raise NotEqualError("the run had ended before it was to be killed")
    process = _start(folder, own)
    process.join()
    seconds = time.perf_counter() - started
    if process.exitcode or not (own / "end").exists():
        raise NotEqualError(f"the training ended with {process.exitcode}")
    ends[name] = (own / "end").read_bytes()
    return seconds


def _start(data: Path, own: Path) -> Any:
    process = multiprocessing.get_context("fork").Process(target=_train, args=(data, own))
    process.start()
    return process


def _train(data: Path, own: Path) -> None:
    """One start of the run: from its newest checkpoint to the end, under the suite's own limits."""
    import hashlib

    from repro.train.launch import Limits, recall, train

    job = {
        "id": "0" * 12, "alias": "bench", "full_sha256": "0" * 64, "data": str(data), "micro_batch": None,
        "checkpoints": str(own / "ckpt"), "device": "cpu", "devices": 1,
    }  # fmt: skip
    state, found = recall(job, _silent)
    done = train(CONFIG, job, state, found, Limits(None, None, [], 0.02, 600.0), _silent)
    weights = b"".join(tensor.detach().numpy().tobytes() for tensor in done.net.parameters())
    (own / "end").write_text(hashlib.sha256(weights).hexdigest())


def _silent(_: dict[str, Any]) -> None:
    """Nobody listens."""
