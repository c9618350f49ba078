"""The training loop: order of data, gradients, limits, divergence, resumption; real Trainer, tiny models."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from train_world import CONTEXT, SEQUENCES, FakeTrainer, config, run, same_bits, task_of, weights, write_data

from repro.nn.method_api import Method
from repro.spec.errors import MissingError
from repro.train.callbacks import Curve, Throughput
from repro.train.launch import make_trainer
from repro.train.module import StepStream, Training, validation_loss
from repro.train.outcome import speed_fields
from repro.train.process import find_device, prepare_process
from repro.train.schedule import learning_rate
from repro.train.state import PROBE_EVERY, PROBED, TrainState, probe_steps
from repro.train.world import World

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    prepare_process(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_data(tmp_path / "data")


# Order
def seen(stream: StepStream) -> list[tuple[int, ...]]:
    """First and last token of each sequence, in the order of training."""
    return [tuple(row.tolist()) for batches in stream for inputs, _ in batches for row in inputs]


def test_case_t01_a_stopped_and_resumed_run_sees_what_the_unbroken_one_sees(tmp_path: Path) -> None:
    """Eight blocks, one a step, two epochs, a stop after step 3: the same order, every block exactly twice."""
    folder = write_data(tmp_path, train_tokens=8 * CONTEXT + 1)
    settings = config(tokens_per_step=CONTEXT, steps=16)
    whole = seen(StepStream(task_of(folder, settings), 0, 16))
    again = seen(StepStream(task_of(folder, settings), 0, 3)) + seen(StepStream(task_of(folder, settings), 3, 16))
    assert whole == again
    assert set(Counter(whole).values()) == {2}
    assert set(whole[:8]) == set(whole[8:])
    assert whole[:8] != whole[8:], "another order in each epoch"


def test_case_t07_windows_run_over_the_ends_of_epochs(tmp_path: Path) -> None:
    """Ten blocks an epoch, four a step, two epochs: five steps and twenty micro-batches, every block twice."""
    folder = write_data(tmp_path, train_tokens=10 * CONTEXT + 1)
    settings = config(tokens_per_step=4 * CONTEXT, steps=5)
    stream = list(StepStream(task_of(folder, settings, micro_batch=1), 0, 5))
    assert (len(stream), sum(map(len, stream))) == (5, 20)
    assert set(Counter(seen(StepStream(task_of(folder, settings, 1), 0, 5))).values()) == {2}


@pytest.mark.parametrize("micro_batch", [None, 1, 2, 3, 6, 100])
def test_micro_batches_cut_a_step_but_change_nothing_of_it(folder: Path, micro_batch: int | None) -> None:
    task = task_of(folder, micro_batch=micro_batch)
    batches = task.step_batches(5)
    assert sum(targets.numel() for _, targets in batches) == SEQUENCES * CONTEXT
    assert max(len(inputs) for inputs, _ in batches) == min(micro_batch or SEQUENCES, SEQUENCES)
    whole = task_of(folder).step_batches(5)[0]
    assert torch.equal(torch.cat([inputs for inputs, _ in batches]), whole[0])
    assert torch.equal(torch.cat([targets for _, targets in batches]), whole[1])
    assert torch.equal(whole[0][:, 1:], whole[1][:, :-1]), "targets are the next tokens"


def test_a_micro_batch_that_does_not_cut_a_step_evenly_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="6 sequences a step are no multiple of the micro-batch, 4"):
        task_of(folder, micro_batch=4)


def test_random_windows_are_an_order_of_their_own_and_a_function_of_seed_and_step(folder: Path) -> None:
    windows = task_of(folder, config(order="random_windows"))
    first, again = windows.step_batches(3)[0], task_of(folder, config(order="random_windows")).step_batches(3)[0]
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], task_of(folder).step_batches(3)[0][0])
    assert torch.equal(first[0][:, 1:], first[1][:, :-1]), "targets are the next tokens"
    assert not torch.equal(first[0], windows.step_batches(4)[0][0])


def test_the_stream_reads_nothing_of_the_steps_before_its_start(folder: Path) -> None:
    asked: list[int] = []
    task: Any = SimpleNamespace(step_batches=asked.append)
    stream = StepStream(task, 10**6, 10**6 + 3)
    assert len(stream) == len(list(stream)) == 3
    assert asked == [10**6, 10**6 + 1, 10**6 + 2]


# Gradients
def trained_step(folder: Path, micro_batch: int | None, clip: float = 1e9) -> Training:
    """One step by plain SGD of rate 0, so that the gradients can be looked at."""
    module = Training(
        task_of(folder, micro_batch=micro_batch), config(optimizer=config()["optimizer"] | {"clip": clip}), TrainState()
    )
    optimizer = torch.optim.SGD(module.net.parameters(), lr=0.0)
    module.optimizers = lambda *_, **__: optimizer  # type: ignore[method-assign,assignment]
    module.manual_backward = lambda loss: loss.backward()  # type: ignore[method-assign,assignment]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    module.config["optimizer"]["lr"] = 0.0
    module.training_step(module.task.step_batches(0), 0)
    return module


def test_gradients_and_loss_are_the_same_for_every_cutting(folder: Path) -> None:
    """Case T08 on the real module: summed over all micro-batches, divided once by the step's tokens."""
    one = trained_step(folder, None)
    for micro_batch in (1, 2, 3):
        other = trained_step(folder, micro_batch)
        assert float(other.last_loss) == pytest.approx(float(one.last_loss), rel=1e-6)  # type: ignore[arg-type]
        assert float(other.last_norm) == pytest.approx(float(one.last_norm), rel=1e-5)  # type: ignore[arg-type]
        for mine, theirs in zip(one.net.parameters(), other.net.parameters(), strict=True):
            assert torch.allclose(mine.grad, theirs.grad, rtol=1e-4, atol=1e-7)  # type: ignore[arg-type]


class Sums(nn.Module):
    """One parameter whose gradient per token a batch names."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(1.0))


class PerToken:
    """Batches as case T08 gives them: (gradient per token, number of tokens) as tensors."""

    rate = 0.01

    def __init__(self, cutting: list[tuple[float, int]]) -> None:
        self.cutting = cutting

    def build(self) -> nn.Module:
        return Sums()

    def step_batches(self, _step: int) -> list[Any]:
        return [(torch.full((n,), g), torch.zeros(n)) for g, n in self.cutting]

    def rows(self, _step: int) -> None:
        return None

    def validation_batches(self, _tokens: int) -> Iterator[Any]:
        yield from self.step_batches(0)

    def loss_sums(self, model: Any, batch: Any) -> tuple[torch.Tensor, int]:
        return (model.w * batch[0]).sum(), batch[1].numel()

    def before_training(self, model: nn.Module) -> None:
        pass

    def after_step(self, model: nn.Module) -> None:
        pass


TOKENS = [1.0] * 10 + [0.1] * 100


@pytest.mark.parametrize(
    "cutting",
    [[(1.0, 10), (0.1, 100)], [(0.1, 100), (1.0, 10)], [(g, 1) for g in TOKENS], [(1.0, 10), *[(0.1, 10)] * 10]],
)
def test_case_t08_each_token_counts_alike(cutting: list[tuple[float, int]]) -> None:
    task: Any = PerToken(cutting)
    module = Training(task, config(), TrainState())
    module.config["optimizer"] = {"lr": 0.0, "clip": 1e9}
    optimizer = torch.optim.SGD(module.net.parameters(), lr=0.0)
    module.optimizers = lambda *_, **__: optimizer  # type: ignore[method-assign,assignment]
    module.manual_backward = lambda loss: loss.backward()  # type: ignore[method-assign,assignment]
    module.training_step(task.step_batches(0), 0)
    assert float(module.net.w.grad) == pytest.approx(0.181818, abs=1e-6)  # type: ignore[arg-type,union-attr]


def test_case_m01_validation_is_a_sum_over_a_count() -> None:
    """100 tokens of mean 2.0 and 10 of mean 4.0: 2.181818, not 3.0."""
    task: Any = PerToken([(2.0, 100), (4.0, 10)])
    loss = validation_loss(task, task.build(), 110, CPU)
    assert loss == pytest.approx(2.181818, abs=1e-6)
    assert math.exp(loss) == pytest.approx(8.862405, abs=2e-6)
    equal: Any = PerToken([(3.3, 25)] * 4)
    assert validation_loss(equal, equal.build(), 100, CPU) == pytest.approx(3.3)


def test_gradients_are_clipped_to_their_bound(folder: Path) -> None:
    free, bound = trained_step(folder, None), trained_step(folder, None, clip=1e-3)
    norm = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in bound.net.parameters()]))  # type: ignore[union-attr]
    assert float(norm) == pytest.approx(1e-3, rel=1e-3)
    assert float(bound.last_norm) == pytest.approx(float(free.last_norm)), "what is kept is the norm before clipping"  # type: ignore[arg-type]


@pytest.mark.parametrize("micro_batch", [1, 2, 6])
def test_validation_does_not_depend_on_the_batch_and_disturbs_nothing(folder: Path, micro_batch: int) -> None:
    """Case M03."""
    net = task_of(folder).build()
    whole = validation_loss(task_of(folder), net, 320, CPU)
    net.train()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for _ in range(2):
        found = validation_loss(task_of(folder, micro_batch=micro_batch), net, 320, CPU)
        assert found == pytest.approx(whole, abs=1e-6)
    assert net.training
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in net.parameters())
    net.eval()
    validation_loss(task_of(folder), net, 320, CPU)
    assert not net.training


def test_validation_blocks_are_fixed_distinct_and_spread_over_the_file(folder: Path) -> None:
    def blocks(tokens: int, micro_batch: int | None = None) -> list[tuple[int, ...]]:
        batches = task_of(folder, micro_batch=micro_batch).validation_batches(tokens)
        return [tuple(row.tolist()) for inputs, _ in batches for row in inputs]

    assert blocks(80) == blocks(80, 1) == blocks(80, 3)
    assert len(blocks(80)) == 10
    assert len(blocks(10**9)) == 50, "no more than there are, each once"
    assert len(blocks(1)) == 1
    whole = blocks(10**9)
    assert [whole.index(block) for block in blocks(80)] == list(range(0, 50, 5))


# The real Trainer
def test_a_run_has_a_curve_by_step_and_ends_where_it_was_planned(folder: Path) -> None:
    done, events = run(folder, config())
    state = done.state
    assert (state.status, state.step, state.tokens[-1]) == (None, 12, 12 * SEQUENCES * CONTEXT)
    assert [event["step"] for event in events if event["event"] == "step"] == list(range(1, 13))
    assert len(state.val_history) == 4
    assert [loss is not None for loss in state.val_loss] == [step % 3 == 0 for step in range(1, 13)]
    assert state.start_val_loss == pytest.approx(math.log(29), abs=0.1)
    assert state.val_history[-1] < state.start_val_loss
    assert len(state.step_seconds) == 12
    assert state.wall_seconds >= state.train_seconds > 0


def test_every_step_has_the_rate_of_the_schedule_whatever_the_micro_batch(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case T17 in the loop."""
    settings = config()
    rates: dict[int | None, list[float]] = {}
    step = torch.optim.AdamW.step
    for micro_batch in (None, 1, 3):
        rates[micro_batch] = []

        def noted(optimizer: Any, *words: Any, kept: list[float] = rates[micro_batch], **more: Any) -> Any:
            kept.append(optimizer.param_groups[0]["lr"])
            return step(optimizer, *words, **more)

        monkeypatch.setattr(torch.optim.AdamW, "step", noted)
        run(folder, settings, micro_batch=micro_batch)
    wanted = [learning_rate(number, 12, 0.01, settings["schedule"]) for number in range(12)]
    assert rates == {None: wanted, 1: wanted, 3: wanted}


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(folder: Path) -> None:
    one, two = run(folder, config())[0], run(folder, config())[0]
    assert same_bits(weights(one), weights(two))
    assert one.state.curve() == two.state.curve()
    other = run(folder, config(seed=4))[0]
    assert not same_bits(weights(one), weights(other))


def test_a_run_does_not_depend_on_what_ran_before_it_in_the_process(folder: Path) -> None:
    alone = run(folder, config())[0]
    run(folder, config("peri_ln", seed=9, steps=3))
    torch.rand(1000)
    assert same_bits(weights(run(folder, config())[0]), weights(alone))


@pytest.mark.parametrize("stops", [(1,), (5,), (11,), (2, 3, 8)])
def test_a_stopped_run_goes_on_to_the_same_bits(folder: Path, stops: tuple[int, ...]) -> None:
    unbroken = run(folder, config())[0]
    for stop in stops:
        done, _ = run(folder, config(), stop_at=stop)
        assert (done.state.status, done.state.step) == ("stopped", stop)
    done, events = run(folder, config())
    assert events[0] == {"event": "start", "step": stops[-1], "steps": 12}
    assert [event["step"] for event in events[1:]] == list(range(stops[-1] + 1, 13))
    assert same_bits(weights(done), weights(unbroken))
    assert done.state.curve() == unbroken.state.curve()
    assert done.state.val_history == unbroken.state.val_history
    assert done.state.start_val_loss == unbroken.state.start_val_loss


def test_a_signal_after_the_last_step_lets_the_run_end(folder: Path) -> None:
    done, _ = run(folder, config(), stop_at=12)
    assert (done.state.status, done.state.step) == (None, 12)


def test_a_deadline_saves_and_stops_and_a_wall_limit_ends_the_run(folder: Path) -> None:
    done, _ = run(folder, config(), deadline=time.time() - 1)
    assert (done.state.status, done.state.step) == ("stopped", 1)
    assert run(folder, config(), deadline=time.time() + 3600)[0].state.status is None
    done, _ = run(write_data(folder / "other"), config(), wall=1e-9)
    assert (done.state.status, done.state.step) == ("timeout", 1)
    assert "wall limit of 1e-09 s passed at step 1" in str(done.state.reason)


def test_checkpoints_are_saved_as_often_as_their_cost_allows(folder: Path) -> None:
    run(folder, config(), checkpoint_share=1.0, checkpoint_longest=0.0)
    assert [path.name for path in sorted((folder / "ckpt").glob("*.pt"))] == ["step-000000011.pt", "step-000000012.pt"]
    run(write_data(folder / "other"), config(), checkpoint_longest=1e9, checkpoint_share=1e-9)
    assert not (folder / "other" / "ckpt").exists()


def test_the_trainer_has_nothing_of_its_own_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case W04: a Slurm allocation around us never sets the world size."""
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    trainer = make_trainer(config(), "cpu", World(), [])
    assert (trainer.world_size, trainer.max_epochs, trainer.loggers) == (1, 1, [])
    assert trainer.checkpoint_callback is None
    assert trainer.progress_bar_callback is None
    assert not torch.is_grad_enabled() or torch.are_deterministic_algorithms_enabled()


def test_a_device_that_is_not_there_is_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case W03."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("cpu") == CPU
    with pytest.raises(MissingError, match="the plan says gpu and none is visible") as caught:
        find_device("gpu")
    assert caught.value.exit_code == 69


# Divergence
def with_losses(monkeypatch: pytest.MonkeyPatch, losses: dict[int, float]) -> None:
    """Replaces the training loss of some steps."""
    real = Training.training_step

    def changed(module: Training, batches: Any, index: int) -> None:
        real(module, batches, index)
        if module.state.step in losses:
            module.last_loss = torch.tensor(losses[module.state.step])

    monkeypatch.setattr(Training, "training_step", changed)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_case_t14_a_loss_that_is_no_number_ends_the_run_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    with_losses(monkeypatch, {5: bad})
    done, events = run(folder, config())
    assert (done.state.status, done.state.reason, done.state.step) == ("diverged", "non-finite loss at step 5", 5)
    assert done.state.tokens == [step * SEQUENCES * CONTEXT for step in range(1, 6)]
    assert [loss is None for loss in done.state.train_loss] == [False] * 4 + [True]
    assert max(event.get("step", 0) for event in events) == 5


def test_a_gradient_that_is_no_number_ends_it_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = nn.utils.clip_grad_norm_
    calls = iter(range(100))
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", lambda p, c: real(p, c) * (math.nan if next(calls) == 3 else 1))
    done, _ = run(folder, config())
    assert (done.state.status, done.state.reason) == ("diverged", "non-finite gradient at step 4")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_validation_loss_that_is_no_number_ends_it_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    """A finite training loss beside it must not make a dead run look healthy."""
    values = iter([3.4, 3.2, bad, 3.0, 2.9, 2.8])
    monkeypatch.setattr("repro.train.callbacks.validation_loss", lambda *_: next(values))
    done, _ = run(folder, config())
    assert (done.state.status, done.state.reason) == ("diverged", "non-finite validation loss at step 6")
    assert done.state.val_history == [3.2]
    assert done.state.val_loss[-1] is None


def test_a_finite_run_is_never_stopped_early_and_is_judged_at_its_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([3.4, 2.0, 9.0, 9.0, 9.0])
    monkeypatch.setattr("repro.train.callbacks.validation_loss", lambda *_: next(values))
    done, _ = run(folder, config())
    assert (done.state.status, done.state.step) == ("diverged", 12)
    assert done.state.reason == "the last three validation losses exceed 1.5 x the best (9 against 2)"


def test_losses_that_wait_on_a_device_are_read_by_their_own_steps() -> None:
    """On an accelerator losses are looked at every few steps; the step that is named is the one that failed."""
    state = TrainState(step=7)
    curve = Curve(config(), state, lambda _: None)
    curve.pending = [torch.tensor([3.0, 1.0]), torch.tensor([math.nan, 1.0]), torch.tensor([2.0, math.inf])]
    trainer: Any = FakeTrainer()
    curve.read(trainer)
    assert (trainer.should_stop, state.reason) == (True, "non-finite loss at step 6")
    assert curve.pending == []


def test_a_run_on_an_accelerator_loses_no_loss_when_it_is_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There losses wait on the device; those of the last steps before a checkpoint are taken into it."""
    unbroken = run(folder, config())[0].state.curve()
    monkeypatch.setattr(Curve, "_due", lambda curve, _: curve.state.step % 3 == 0)
    monkeypatch.setattr("repro.train.callbacks.curve_steps", lambda *_: [3, 6, 9, 12])
    whole = run(folder, config())[0].state.curve()
    run(folder, config(), stop_at=5)
    again = run(folder, config())[0].state.curve()
    assert again == whole
    assert whole["train_loss"] == pytest.approx([sum(unbroken["train_loss"][n : n + 3]) / 3 for n in range(0, 12, 3)])


def test_a_stop_does_not_hide_a_divergence_that_waits_on_the_device(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_losses(monkeypatch, {4: math.nan})
    monkeypatch.setattr(Curve, "_due", lambda *_: False)
    monkeypatch.setattr("repro.train.callbacks.curve_steps", lambda *_: [12])
    done, _ = run(folder, config(), stop_at=5)
    assert (done.state.status, done.state.reason) == ("diverged", "non-finite loss at step 4")


def test_the_speed_is_a_median_over_the_whole_run(folder: Path) -> None:
    state = TrainState()
    clock = Throughput(config(steps=60_000), state)
    for state.step in range(1, 60_001):
        clock.on_train_batch_start()
        clock.on_train_batch_end()
    assert len(state.step_seconds) == 1000
    assert clock.stride == 60


@pytest.mark.parametrize(("peak", "mfu"), [(1e12, 0.5), (1e11, None), (None, None)])
def test_mfu_is_null_without_the_device_or_above_one(
    monkeypatch: pytest.MonkeyPatch, peak: float | None, mfu: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A device")
    peaks = {"A device": {"fp32": peak}} if peak else {"Another device": {"fp32": 1e12}}
    order = {"device": "gpu", "devices": 1, "peaks": peaks, "flops_per_token": 5e8, "flops_formula": "f"}
    found = speed_fields(TrainState(step_seconds=[0.9, 1.0, 1.1]), config(tokens_per_step=1000), order)
    assert (found["tokens_per_second"], found["mfu"]) == (1000.0, mfu)
    assert found["peak_entry"] == ("A device" if peak else None)


# Hooks of a method
def test_the_runner_calls_what_a_method_declares(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(
        Method, "before_training", lambda _, model, tokens: calls.append(("before", tuple(tokens.shape)))
    )
    monkeypatch.setattr(Method, "after_step", lambda _, model: calls.append("after"))
    run(folder, config(), stop_at=3)
    assert calls == [("before", (SEQUENCES, CONTEXT)), *["after"] * 3]
    calls.clear()
    run(folder, config())
    assert calls == ["after"] * 9, "what was done before training is in the checkpoint"


def test_weights_that_a_method_sets_after_a_step_are_what_is_trained_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bound(_: Method, model: nn.Module) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.01, 0.01)

    monkeypatch.setattr(Method, "after_step", bound)
    done, _ = run(folder, config())
    assert max(float(parameter.abs().max()) for parameter in done.net.parameters()) <= 0.01


def test_points_of_the_curve_grow(folder: Path) -> None:
    tokens = run(folder, config(steps=7))[0].state.tokens
    assert all(one < other for one, other in pairwise(tokens))


# Probes
def test_layers_are_probed_at_fixed_steps_and_change_no_bit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(steps=104)
    done, _ = run(folder, settings)
    rows = done.state.layers
    assert [(row["step"], row["layer"]) for row in rows] == [(s, n) for s in (1, 50, 100, 104) for n in range(3)]
    assert all(row[name] > 0 for row in rows for name in ("mean_abs", "entry_variance", "grad_norm", "update_ratio"))
    monkeypatch.setattr("repro.train.module.probe_steps", lambda steps: set())
    plain, _ = run(write_data(folder.parent / "plain"), settings)
    assert plain.state.layers == []
    assert same_bits(weights(plain), weights(done))


def test_a_stopped_run_has_the_rows_of_the_unbroken_one(folder: Path) -> None:
    settings = config(steps=60)
    unbroken, _ = run(folder, settings)
    broken = write_data(folder.parent / "broken")
    run(broken, settings, stop_at=50)
    assert run(broken, settings)[0].state.layers == unbroken.state.layers


@pytest.mark.parametrize("steps", [1, 2, 49, 50, 51, 293, 6000, 60_000])
def test_a_record_holds_rows_of_few_steps_with_both_ends(steps: int) -> None:
    found = probe_steps(steps)
    assert {1, steps} <= found <= set(range(1, steps + 1))
    assert len(found) <= PROBED
    assert all(step % PROBE_EVERY == 0 for step in found - {1, steps})


def test_case_t01_a_record_tells_which_rows_were_read_and_at_which_rates(tmp_path: Path) -> None:
    """A running hash of the rows in their order: equal over stops and micro-batches, other for another seed."""
    whole = run(write_data(tmp_path / "whole"), config(steps=6))[0]
    folder = write_data(tmp_path / "parts")
    run(folder, config(steps=6), stop_at=3, micro_batch=1)
    parts = run(folder, config(steps=6), micro_batch=2)[0]
    other = run(write_data(tmp_path / "other"), config(steps=6, seed=9))[0]
    assert whole.state.samples == parts.state.samples != other.state.samples
    said = ""
    for step in range(6):
        said = hashlib.sha256(said.encode() + whole.task.rows(step).tobytes()).hexdigest()
    assert whole.state.samples == said
    assert parts.state.lr == whole.state.lr
    last = learning_rate(5, 6, config()["optimizer"]["lr"], config()["schedule"])
    assert whole.state.lr[-1] == last
