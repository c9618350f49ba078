"""Golden numbers of every metric: one fixed net on one fixed text. A protocol that changes them needs a new version."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from repro.evaluate.evidence import Evidence, compute
from repro.nn.gpt import GPT, GPTConfig
from repro.nn.method_api import load_method
from repro.spec.metrics import PROTOCOLS
from tests.unit.train_world import VOCAB, task_of, write_data

GOLDEN = Path(__file__).with_name("metrics.json")


class Guess(nn.Module):
    """Logits by a formula of the last token: nothing is drawn, so no version of torch can move a number."""

    def forward(self, ids: Tensor) -> Tensor:
        """[B, T] tokens to [B, T, V] logits."""
        classes = torch.arange(VOCAB)
        return torch.cos((ids[..., None] * 7 + classes * 3) % 11).float() * 2


def letters(ids: list[int]) -> bytes:
    """Two of three tokens are one of two letters, the others blanks: words that come again."""
    return bytes(32 if int(i) % 3 == 0 else 97 + int(i) % 2 for i in ids)


def formula_gpt() -> nn.Module:
    """A GPT whose weights are a formula: for what looks into the layers."""
    model = GPT(GPTConfig(3, 16, 2, 8, VOCAB), load_method("pre_ln", {}))
    with torch.no_grad():
        for shift, parameter in enumerate(model.parameters()):
            place = torch.arange(parameter.numel(), dtype=torch.float64)
            parameter.copy_((0.3 * torch.cos(place * 0.7 + shift)).reshape(parameter.shape))
    return model


def values(folder: Path) -> dict[str, float]:
    """All values by protocol id and name, but for the encoder that has to be fetched."""
    evidence = Evidence(task_of(write_data(folder)), Guess(), 400, torch.device("cpu"), letters)
    layered = Evidence(task_of(folder), formula_gpt(), 400, torch.device("cpu"), letters)
    chosen = [name for name, protocol in PROTOCOLS.items() if not protocol.info.needs and protocol.info.task == "lm"]
    return {
        f"{PROTOCOLS[name].id} {value}": number
        for name in chosen
        for value, number in compute(name, layered if name == "hidden" else evidence).values.items()
    }


def test_every_metric_gives_its_golden_numbers(tmp_path: Path) -> None:
    found, wanted = values(tmp_path), json.loads(GOLDEN.read_text())
    assert found.keys() == wanted.keys()
    assert found == pytest.approx(wanted, abs=2e-6)
    assert all(math.isfinite(value) for value in found.values())
