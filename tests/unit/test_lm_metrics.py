"""Metrics of language models: definitions on a few numbers, and what happens where there is no number."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from train_world import CONTEXT, config, task_of, write_data

from repro.evaluate.bertscore import shipped_baseline
from repro.evaluate.evidence import Evidence, compute
from repro.evaluate.losses import BlockLosses, bits_per_byte, ppl_exp_mean, ppl_seq_mean, ppl_word, val_loss
from repro.records.measured import Measured
from repro.records.schema import MetricValue
from repro.spec.metrics import METRICS, PROTOCOLS
from repro.train.faults import failed_fields
from repro.train.measured import metric_fields
from repro.train.module import validation_loss
from tests.shared import shared

CPU = torch.device("cpu")
LANGUAGE = {name: protocol for name, protocol in PROTOCOLS.items() if protocol.info.task == "lm"}


FUNCTIONS = {f.__name__: f for f in (val_loss, ppl_exp_mean, ppl_seq_mean, ppl_word, bits_per_byte)}


def losses(*sums: float, tokens: int = 1, text_bytes: int = 1, words: int = 1) -> BlockLosses:
    whole = np.full(len(sums), tokens, np.int64)
    sizes = (np.full(len(sums), size, np.int64) for size in (text_bytes, words))
    return BlockLosses(np.array(sums, np.float64), whole, *sizes)


def look(folder: Path, net: torch.nn.Module, tokens: int, **more: int) -> Evidence:
    """Evidence on the made-up data, whose tokens are letters from `a` on."""
    task = task_of(folder, **more)
    return Evidence(task, net, tokens, CPU, lambda ids: bytes(97 + int(i) % 26 for i in ids), folder / "fetched")


def test_case_m02_nats_a_token_and_their_perplexity() -> None:
    """360 nats over 120 tokens."""
    found = losses(*[30.0] * 12, tokens=10)
    assert (found.count, val_loss(found)) == (120, 3.0)
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


def test_case_m02_bits_a_byte() -> None:
    """360 nats over 540 bytes of text."""
    assert bits_per_byte(losses(*[30.0] * 12, tokens=10, text_bytes=45)) == pytest.approx(0.961797, abs=1e-6)


def test_case_m02_perplexity_a_word() -> None:
    """360 nats over 100 words; another unit than a token, so another protocol."""
    assert ppl_word(losses(*[72.0] * 5, tokens=24, words=20)) == pytest.approx(36.598234, abs=1e-6)
    assert METRICS["ppl_word"].unit != METRICS["ppl_exp_mean"].unit


def test_case_m01_batches_of_unequal_size() -> None:
    """100 tokens at 2.0 and 10 tokens at 4.0 are 2.18, not 3."""
    found = BlockLosses(np.array([200.0, 40.0]), *[np.array([100, 10])] * 3)
    assert val_loss(found) == pytest.approx(2.181818, abs=1e-6)
    assert ppl_exp_mean(found) == pytest.approx(8.862405, abs=1e-6)


@pytest.mark.parametrize("bad", [math.inf, math.nan, 1e6])
def test_an_overflow_is_infinity_and_no_number_in_a_record(bad: float) -> None:
    found = losses(1.0, bad)
    for name, function in FUNCTIONS.items():
        value = function(found)
        if name in ("val_loss", "bits_per_byte") and math.isfinite(bad):
            assert math.isfinite(value)
            continue
        assert not math.isfinite(value)
        metric = {"name": name, "unit": METRICS[name].unit, "protocol": METRICS[name].protocol}
        fields = metric_fields({name: metric}, Measured({name: value}, 2))
        assert fields["metrics"] == [{**metric, "value": None, "n": 2}]
        assert fields["status_detail"]["reason"] == f"{name}: no finite number"
        assert fields["status"] == "complete"
        MetricValue.model_validate(fields["metrics"][0])


def test_a_number_and_a_fault() -> None:
    metric = {"name": "val_loss", "unit": "nats/token", "protocol": "val_loss.v1"}
    assert metric_fields({"val_loss": metric}, Measured({"val_loss": 2.5}, 100, {"blocks": 4})) == {
        "status": "complete",
        "status_detail": {"step": None, "reason": None},
        "metrics": [{**metric, "value": 2.5, "n": 100}],
        "probes": {"blocks": 4},
    }
    assert failed_fields("ValueError: x") == {
        "status": "failed",
        "status_detail": {"step": None, "reason": "ValueError: x"},
    }


def test_every_metric_has_a_file_a_version_a_unit_and_a_direction() -> None:
    measured = {name: metric for name, metric in METRICS.items() if not metric.checked}
    assert {metric.family for metric in measured.values()} == PROTOCOLS.keys()
    for name, metric in measured.items():
        assert metric.protocol == f"{metric.family}.v{PROTOCOLS[metric.family].info.rules}"
        assert metric.better in ("lower", "higher", "none"), name
        assert metric.unit
        assert PROTOCOLS[metric.family].info.says


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_data(tmp_path)


@pytest.mark.parametrize("micro_batch", [1, 3, 6])
def test_no_metric_depends_on_the_batch(folder: Path, micro_batch: int) -> None:
    """Every registered metric; sums of losses to round-off, texts exactly."""
    net = task_of(folder).build()
    whole, found = look(folder, net, 400), look(folder, net, 400, micro_batch=micro_batch)
    for protocol in LANGUAGE.keys() - {"bertscore_tf", "bertscore_tf_roberta"}:
        wanted, got = compute(protocol, whole), compute(protocol, found)
        assert got.n == wanted.n
        assert got.values == pytest.approx(wanted.values, rel=1e-6)


def write_roberta(folder: Path) -> None:
    """As deep as roberta-large, as narrow as can be, with random weights."""
    from transformers import RobertaConfig, RobertaModel, RobertaTokenizer

    folder.mkdir(parents=True)
    marks = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words = {word: index for index, word in enumerate([*marks, *"abcdefghijklmnopqrstuvwxyz", "\u0120"])}
    RobertaTokenizer(vocab=words, merges=[], model_max_length=512).save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "initializer_range": 0.5}
    config = RobertaConfig(vocab_size=len(words), num_hidden_layers=24, max_position_embeddings=514, **shape)
    RobertaModel(config).save_pretrained(folder)


def test_every_protocol_makes_the_values_that_it_declares(folder: Path) -> None:
    write_roberta(folder / "fetched" / "roberta-large")
    evidence = look(folder, task_of(folder).build(), 400)
    for name, protocol in LANGUAGE.items():
        measured = compute(name, evidence)
        assert measured.values.keys() == protocol.info.values.keys()
        assert all(map(math.isfinite, measured.values.values()))
        assert measured.n > 0


def test_the_fetched_encoder_gives_the_numbers_of_the_library(folder: Path) -> None:
    """Raw and rescaled, layer 17 of roberta-large, as bert-score has them by default for English."""
    import bert_score
    from bert_score.utils import model2layers

    encoder = folder / "fetched" / "roberta-large"
    write_roberta(encoder)
    evidence = look(folder, task_of(folder).build(), 400)
    measured = compute("bertscore_tf_roberta", evidence)
    texts, layers = evidence.teacher_forced, model2layers["roberta-large"]
    named = {"model_type": str(encoder), "num_layers": layers, "device": "cpu", "nthreads": 0}
    raw = [float(values.double().mean()) for values in bert_score.score(texts.candidates, texts.references, **named)]
    assert [measured.values[f"bert_{key}_tf_roberta"] for key in ("p", "r", "f1")] == pytest.approx(raw, abs=1e-6)
    base = json.loads(_baseline_row(layers))
    rescaled = [(value - b) / (1 - b) for value, b in zip(raw, base, strict=True)]
    found = [measured.values[f"bert_{key}_tf_roberta_rescaled"] for key in ("p", "r", "f1")]
    assert found == pytest.approx(rescaled, abs=1e-5)
    assert f"layer={layers}" in measured.details["protocol"]
    assert "transformers=" in measured.details["protocol"]


def _baseline_row(layer: int) -> str:
    path = shipped_baseline("roberta-large")
    assert path is not None
    row = next(line for line in path.read_text().splitlines() if line.startswith(f"{layer},"))
    return f"[{row.partition(',')[2]}]"


def test_case_m03_measured_twice_and_after_another_run(folder: Path) -> None:
    first, other = task_of(folder).build(), task_of(folder, config(seed=2)).build()
    once = compute("val_loss", look(folder, first, 400))
    compute("val_loss", look(folder, other, 400))
    again = compute("val_loss", look(folder, first, 400))
    assert (again.values, again.n, again.details) == (once.values, once.n, once.details)
    assert once.details["standard_error"] > 0


def test_it_is_the_loss_that_training_sees(folder: Path) -> None:
    task, net = task_of(folder), task_of(folder).build()
    found = compute("val_loss", look(folder, net, 80)).values["val_loss"]
    assert found == pytest.approx(validation_loss(task, net, 80, CPU), abs=1e-6)
    assert found == pytest.approx(math.log(29), abs=0.1)


def test_teacher_forced_texts_are_the_argmax_and_the_truth(folder: Path) -> None:
    task, net = task_of(folder), task_of(folder).build()
    texts = look(folder, net, 80).teacher_forced
    inputs, targets = next(iter(task.validation_batches(80)))
    predicted = net(inputs).argmax(dim=-1)
    letters = [bytes(97 + int(i) % 26 for i in row).decode() for row in targets]
    assert texts.references[: len(letters)] == letters
    assert texts.candidates[0] == bytes(97 + int(i) % 26 for i in predicted[0]).decode()


def test_generation_is_greedy_from_fixed_prompts(folder: Path) -> None:
    net = task_of(folder).build()
    first, second = look(folder, net, 400).continued(5), look(folder, net, 400, micro_batch=1).continued(5)
    assert first == second
    assert {len(text) for text in first.candidates} == {CONTEXT - CONTEXT // 2}


def test_case_m10_the_loss_is_not_rounded_to_bf16(folder: Path) -> None:
    """Logits in bf16 are summed up in float32 and float64."""
    net = task_of(folder).build().to(torch.bfloat16)
    found = look(folder, net, 400).losses
    means = found.sums / found.tokens
    as_bf16 = torch.tensor(means).to(torch.bfloat16).double().numpy()
    assert found.sums.dtype == np.float64
    assert np.abs(means - as_bf16).max() > 1e-4
    assert val_loss(found) == pytest.approx(math.log(29), abs=0.1)


def test_case_m10_as_written() -> None:
    case = json.loads(shared("cases/M10/case.json").read_text())
    logits = torch.tensor(case["logits_exact_in_bf16"], dtype=torch.bfloat16)
    loss = torch.nn.functional.cross_entropy(logits.float(), torch.tensor(case["targets"]), reduction="none")
    assert float(loss.double().mean()) == pytest.approx(case["right_loss"], abs=case["tolerance"])
