"""Writes tests/golden/losses.json: five optimiser steps of each registered method on fixed tokens.

A change of code that moves these numbers moves all results: raise RULES["train"] in repro/spec/rules.py, say why
in CHANGELOG.md, and write the file anew. `python tools/golden.py --diff` shows what moved and writes nothing.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from repro.data.packed import write_tokens
from repro.spec.methods import registry, resolve
from repro.train.launch import Limits, train
from repro.train.process import prepare_process
from repro.train.state import TrainState

FILE = Path(__file__).resolve().parents[1] / "tests" / "golden" / "losses.json"
STEPS, CONTEXT, SEQUENCES, VOCAB = 5, 16, 4, 61


def write_data(folder: Path) -> None:
    """Token files [train 4000, val 600] by a formula: no generator of a library, whose stream may change."""
    place = np.arange(4600, dtype=np.int64)
    ids = (place * place * 31 + place * 7 + place // 5) % VOCAB
    write_tokens(folder / "train.bin", ids[:4000], VOCAB)
    write_tokens(folder / "val.bin", ids[4000:], VOCAB)


def configuration(name: str) -> dict[str, Any]:
    """A run's configuration, small, with every part that decides numbers."""
    _, params = resolve(name, {}, registry())
    return {
        "task": "lm",
        "model": {"n_layer": 2, "n_head": 2, "d_model": 32, "context": CONTEXT, "vocab": VOCAB},
        "method": {"name": name, "params": params},
        "validation": {"times": STEPS, "tokens": 320},
        "optimizer": {
            "name": "adamw", "lr": 0.01, "weight_decay": 0.1, "betas": [0.9, 0.95], "eps": 1e-8, "clip": 1.0,
        },
        "schedule": {"shape": "cosine", "warmup": 0.4, "final": 0.1},
        "steps": STEPS,
        "tokens_per_step": SEQUENCES * CONTEXT,
        "precision": "fp32",
        "threads": 1,
        "seed": 7,
    }  # fmt: skip


def losses(name: str, folder: Path) -> dict[str, list[float | None]]:
    """Training loss of each step and validation loss before the first and after each, in nats a token."""
    job = {
        "id": "golden", "alias": name, "full_sha256": "0" * 64, "data": str(folder), "micro_batch": 2,
        "checkpoints": str(folder / "ckpt"), "device": "cpu", "devices": 1,
    }  # fmt: skip
    limits = Limits(deadline=None, wall=None, stop=[], checkpoint_share=0.01, checkpoint_longest=1e9)
    state = train(configuration(name), job, TrainState(), None, limits, lambda _: None).state
    return {"train": list(state.train_loss), "val": [state.start_val_loss, *state.val_loss]}


def all_losses() -> dict[str, dict[str, list[float | None]]]:
    """Those of every registered method."""
    prepare_process(1)
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        return {name: losses(name, Path(folder)) for name in sorted(registry())}


def main() -> None:
    """Writes the file, or shows what would move."""
    new = all_losses()
    if "--diff" not in sys.argv[1:]:
        FILE.write_text(json.dumps(new, indent=1) + "\n", "utf-8")
        return
    old = json.loads(FILE.read_text("utf-8")) if FILE.is_file() else {}
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            print(f"{name}\n  was {old.get(name)}\n  is  {new.get(name)}")


if __name__ == "__main__":
    main()
