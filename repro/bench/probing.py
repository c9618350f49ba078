"""P18: what the probes of layers cost a training, which must end in the same bits with them and without.

Seconds are those of the processor: a step on one thread waits for nothing, and the cost is smaller than what other
jobs of a machine do to wall time.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from repro.bench.measure import NotEqualError, Question, Row, Times, interleave, noise_of
from repro.bench.registry import Session, ratio
from repro.plan import build_plan

if TYPE_CHECKING:
    from repro.train.launch import Finished

ROUNDS = 8
EVERY = 50  # steps of a long run of which one is probed
PROBED = 2  # of a short run: the first step, which warms up and is not counted, and the last
BAR = 1.05
BLOCKS = 400  # of made-up text
_PACKAGES = ("torch", "lightning")


@dataclass(frozen=True, slots=True)
class Size:
    """A short training: its steps, and what takes the place of the desk tier's setting."""

    words: str
    steps: int
    changes: Mapping[str, Any]


# Copying all weights costs most beside few tokens a step, so the wide model gets few.
WIDE = {"n_layer": 2, "n_head": 12, "d_model": 768, "context": 64, "vocab": 256}
SIZES = (Size("tier desk", 10, {}), Size("width of GPT-2", 4, {"model": WIDE, "tokens_per_step": 512}))


@ratio("P18", "a training with probes / without", _PACKAGES)
def probes_cost(session: Session) -> list[Row]:
    """Seconds of short runs: with the probes that every run has, without, and without again."""
    return [row for size in SIZES for row in measure(session, size)]


def measure(session: Session, size: Size, rounds: int = ROUNDS) -> list[Row]:
    """The cost of one probed step in 50 with its bar, then of a probed step alone."""
    import torch

    importlib.import_module("repro.train.launch")  # first: Lightning sets its loggers when it is imported
    from repro.train.process import prepare_process

    config = config_of(session, size)
    job = _job(session, config)
    sides = {"with": True, "without": False, "without again": False}
    clocks = {name: partial(lambda probed: train(config, job, probed)[1], probed) for name, probed in sides.items()}
    prepare_process(1)
    try:
        expect_equal(train(config, job, probed=True)[0], train(config, job, probed=False)[0])
        return answers(interleave(clocks, rounds, session.tell), size)
    finally:
        torch.set_deterministic_debug_mode("default")  # as other ratios find it


def answers(times: Times, size: Size) -> list[Row]:
    """Both rows; the spread of the A/A pair is scaled as the cost is."""
    counted = size.steps - 1
    detail = f"loss curves and end weights bit-equal; {counted} steps of CPU time, the last one probed, cost scaled"
    noise, rows = noise_of(times, "without again", "without"), []
    for what, every, bar in ((f"one step in {EVERY} probed / none", EVERY, BAR), ("a probed step / another", 1, None)):
        cost = partial(_cost, scale=counted / every)
        question = Question("P18", f"{size.words}: {what}", "no probes", cost, bar, packages=_PACKAGES)
        rows.append(question.answer(times, noise * counted / every, detail))
    return rows


def _cost(times: Mapping[str, float], scale: float) -> float:
    return 1.0 + (times["with"] / times["without"] - 1.0) * scale


def config_of(session: Session, size: Size) -> dict[str, Any]:
    """A language model's configuration as the desk tier plans it, but for its length and `size.changes`."""
    plan = build_plan(session.root, "desk", experiments=["lm_leaderboard"], methods=["peri_ln"])
    planned = next(iter(plan.runs.values())).config
    validation = {"times": 1, "tokens": 1}  # one block
    return {**planned, "steps": size.steps, "validation": validation, **size.changes}


def _job(session: Session, config: dict[str, Any]) -> dict[str, Any]:
    """What a worker would be given; the text is random bytes, and no checkpoint is due."""
    from repro.data.packed import write_tokens

    context, vocab = config["model"]["context"], config["model"]["vocab"]
    for name in ("train", "val"):
        ids = np.random.default_rng(0).integers(0, vocab, BLOCKS * context + 1, dtype=np.uint16)
        write_tokens(session.folder / f"{name}.bin", ids, vocab)
    return {
        "id": "bench",
        "alias": "bench",
        "full_sha256": "",
        "data": str(session.folder),
        "micro_batch": None,
        "checkpoints": str(session.folder / "checkpoints"),
        "device": "cpu",
        "devices": 1,
    }


def train(config: dict[str, Any], job: dict[str, Any], probed: bool) -> tuple[Finished, float]:
    """One run by the suite's own training loop; CPU seconds of all its steps but the first."""
    from repro.train import launch
    from repro.train.state import TrainState

    ends: list[float] = []

    def report(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            ends.append(time.process_time())

    limits = launch.Limits(None, None, [], checkpoint_share=1e-9, checkpoint_longest=math.inf)
    with _probes(probed):
        finished = launch.train(config, job, TrainState(), None, limits, report)
    return finished, ends[-1] - ends[0]


@contextmanager
def _probes(wanted: bool) -> Iterator[None]:
    """Takes the probes away: nothing that a user can set does, since every run has them."""
    module: Any = importlib.import_module("repro.train.module")
    known = module.probe_steps
    if not wanted:
        module.probe_steps = lambda _steps: set()
    try:
        yield
    finally:
        module.probe_steps = known


def expect_equal(probed: Finished, plain: Finished) -> None:
    """NotEqualError unless one run has rows of its layers, the other none, and all else is the same to the bit."""
    import torch

    seen = {row["step"] for row in probed.state.layers}
    if len(seen) != PROBED or plain.state.layers:
        raise NotEqualError(f"{len(seen)} steps are probed in the one run, {len(plain.state.layers)} rows in the other")
    if probed.state.curve() != plain.state.curve() or probed.state.val_history != plain.state.val_history:
        raise NotEqualError("the loss curve of a run with probes differs from one without")
    theirs = plain.net.state_dict()
    changed = [name for name, value in probed.net.state_dict().items() if not torch.equal(value, theirs[name])]
    if changed:
        raise NotEqualError(f"weights differ with probes and without: {', '.join(changed[:3])}")
