"""Metrics of language models: definitions on a few numbers, and what happens where there is no number."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from train_world import CONTEXT, config, task_of, write_data

from repro.evaluate.lm import PROTOCOLS, BlockLosses, block_losses, evaluate, ppl_exp_mean, ppl_seq_mean, val_loss
from repro.records.schema import MetricValue
from repro.spec.metrics import METRICS
from repro.spec.rules import RULES
from repro.train.child import failed_fields, metric_fields
from repro.train.module import validation_loss

CPU = torch.device("cpu")


def losses(*sums: float, tokens: int = 1) -> BlockLosses:
    return BlockLosses(np.array(sums, np.float64), tokens)


def test_case_m02_nats_a_token_and_their_perplexity() -> None:
    """360 nats over 120 tokens."""
    found = losses(*[30.0] * 12, tokens=10)
    assert (found.tokens, val_loss(found)) == (120, 3.0)
    assert ppl_exp_mean(found) == pytest.approx(20.085537, abs=1e-6)


def test_case_m01_the_mean_is_over_tokens_and_never_over_batches_plus_one() -> None:
    assert val_loss(losses(*[33.0] * 4, tokens=10)) == pytest.approx(3.3, abs=1e-12)
    assert val_loss(losses(2.0, 4.0)) == 3.0


def test_the_two_perplexities_are_two_protocols() -> None:
    """exp of the mean loss, and mean over sequences of exp(mean loss): 7.39 and 15.2 on losses 1 and 3."""
    found = losses(10.0, 30.0, tokens=10)
    assert ppl_exp_mean(found) == pytest.approx(math.exp(2.0))
    assert ppl_seq_mean(found) == pytest.approx((math.e + math.e**3) / 2)
    assert METRICS["ppl_exp_mean"].protocol != METRICS["ppl_seq_mean"].protocol


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20), st.integers(1, 50))
def test_the_mean_over_sequences_is_never_the_lower_one(sums: list[float], tokens: int) -> None:
    found = losses(*sums, tokens=tokens)
    assert ppl_seq_mean(found) >= ppl_exp_mean(found) * (1 - 1e-12)
    assert ppl_exp_mean(found) == pytest.approx(math.exp(val_loss(found)))
    assert val_loss(found) == pytest.approx(sum(sums) / (len(sums) * tokens), abs=1e-12)


@pytest.mark.parametrize("bad", [math.inf, math.nan, 1e6])
def test_an_overflow_is_infinity_and_no_number_in_a_record(bad: float) -> None:
    found = losses(1.0, bad)
    for name, protocol in PROTOCOLS.items():
        value = protocol(found)
        if name == "val_loss" and math.isfinite(bad):
            assert value == pytest.approx((1 + bad) / 2)
            continue
        assert not math.isfinite(value)
        metric = {"name": name, "unit": METRICS[name].unit, "protocol": METRICS[name].protocol}
        fields = metric_fields(metric, value, 2)
        assert fields["metrics"] == [{**metric, "value": None, "n": 2}]
        assert fields["status_detail"]["reason"] == f"{name} is no finite number"
        assert fields["status"] == "complete"
        MetricValue.model_validate(fields["metrics"][0])


def test_a_number_and_a_fault() -> None:
    metric = {"name": "val_loss", "unit": "nats/token", "protocol": "val_loss.v1"}
    assert metric_fields(metric, 2.5, 100) == {
        "status": "complete",
        "status_detail": {"step": None, "reason": None},
        "metrics": [{**metric, "value": 2.5, "n": 100}],
    }
    assert failed_fields("ValueError: x") == {
        "status": "failed",
        "status_detail": {"step": None, "reason": "ValueError: x"},
    }


def test_every_metric_has_code_a_version_a_unit_and_a_direction() -> None:
    assert METRICS.keys() == PROTOCOLS.keys()
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.protocol == f"{name}.v{RULES[name]}"
        assert metric.better in ("lower", "higher")
        assert metric.unit
        assert metric.says


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_data(tmp_path)


@pytest.mark.parametrize("micro_batch", [1, 3, 6])
def test_the_published_loss_does_not_depend_on_the_batch(folder: Path, micro_batch: int) -> None:
    net = task_of(folder).build()
    names = list(PROTOCOLS)
    whole = evaluate(names, task_of(folder), net, 400, CPU)
    found = evaluate(names, task_of(folder, micro_batch=micro_batch), net, 400, CPU)
    for name in names:
        assert found[name][0] == pytest.approx(whole[name][0], abs=1e-6 if name == "val_loss" else 1e-4)
        assert found[name][1] == whole[name][1] == 400
    assert evaluate(["val_loss"], task_of(folder), net, 400, CPU) == {"val_loss": whole["val_loss"]}


def test_it_is_the_loss_that_training_sees(folder: Path) -> None:
    task, net = task_of(folder), task_of(folder).build()
    assert val_loss(block_losses(task, net, 80, CPU)) == pytest.approx(validation_loss(task, net, 80, CPU), abs=1e-6)
    assert val_loss(block_losses(task, net, 80, CPU)) == pytest.approx(math.log(29), abs=0.1)


def test_blocks_are_summed_apart_in_double_precision(folder: Path) -> None:
    found = block_losses(task_of(folder), task_of(folder).build(), 400, CPU)
    assert (found.sums.dtype, found.sums.shape, found.tokens_per_block) == (np.float64, (50,), CONTEXT)


def test_case_m10_the_loss_is_not_rounded_to_bf16(folder: Path) -> None:
    """Logits in bf16 are summed up in float32 and float64."""
    net = task_of(folder).build().to(torch.bfloat16)
    found = block_losses(task_of(folder, config()), net, 400, CPU)
    as_bf16 = torch.tensor(found.sums / CONTEXT).to(torch.bfloat16).double().numpy()
    assert np.abs(found.sums / CONTEXT - as_bf16).max() > 1e-4
    assert val_loss(found) == pytest.approx(math.log(29), abs=0.1)
