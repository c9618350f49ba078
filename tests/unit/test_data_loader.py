"""The loader: one global order, however it is shared out, and nanoGPT's random windows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.data import packed
from repro.data.loader import Loader, Order
from repro.data.order import random_starts
from repro.data.packed import TokenFile, write_tokens

COUNT, CONTEXT = 1000, 8


@pytest.fixture(scope="module", params=["held", "on disk"])
def tokens(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TokenFile:
    path = tmp_path_factory.mktemp("loader") / "train.bin"
    write_tokens(path, np.arange(COUNT), COUNT)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "on disk":
            patch.setattr(packed, "IN_MEMORY_BYTES", 0)
        return TokenFile.open(path)


def inputs(loader: Loader, steps: range) -> list[list[int]]:
    return [row for step in steps for x, _ in loader.micro_batches(step) for row in x.tolist()]


ORDERS: list[Order] = ["epochs", "random_windows"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("ranks", "accumulation"), [(1, 1), (1, 4), (2, 1), (2, 2), (4, 3), (12, 1), (3, 4)])
def test_any_number_of_processes_and_micro_batches_sees_one_order(
    tokens: TokenFile, order: Order, ranks: int, accumulation: int
) -> None:
    alone = Loader(tokens, CONTEXT, 12, seed=3, order=order)
    for step in (0, 5, 10**6):
        shares = [
            list(Loader(tokens, CONTEXT, 12, 3, order, rank, ranks, accumulation).micro_batches(step))
            for rank in range(ranks)
        ]
        for x_or_y in (0, 1):
            joined = [shares[rank][part][x_or_y] for part in range(accumulation) for rank in range(ranks)]
            assert np.array_equal(np.concatenate(joined), next(alone.micro_batches(step))[x_or_y])


def test_an_epoch_takes_every_block_once_whatever_a_step_takes(tokens: TokenFile) -> None:
    blocks = tokens.blocks(CONTEXT)
    for per_step in (1, 4, blocks):
        rows = inputs(Loader(tokens, CONTEXT, per_step, seed=1), range(blocks // per_step))
        assert len({row[0] for row in rows}) == len(rows) == blocks // per_step * per_step
    assert Counter(row[0] for row in inputs(Loader(tokens, CONTEXT, 4, 1), range(blocks))) == {
        block * CONTEXT: 4 for block in range(blocks)
    }


def test_targets_are_inputs_one_on(tokens: TokenFile) -> None:
    for order in ORDERS:
        x, y = next(Loader(tokens, CONTEXT, 6, 0, order).micro_batches(9))
        assert x.shape == y.shape == (6, CONTEXT)
        assert x.dtype == y.dtype == np.int64
        assert np.array_equal(y, x + 1)


def test_random_windows_are_uniform_over_all_starts(tokens: TokenFile) -> None:
    """Chi-squared of 20,000 starts over 20 cells: 19 degrees of freedom, and nanoGPT's range, ends included."""
    starts = random_starts(5, 0, 20_000, 209, CONTEXT)
    assert (starts.min(), starts.max()) == (0, 200)
    counts = np.bincount(starts * 20 // 201, minlength=20)
    widths = np.bincount(np.arange(201) * 20 // 201)
    expected = 20_000 * widths / 201
    assert ((counts - expected) ** 2 / expected).sum() < 44  # 0.999 of such draws
    assert len(np.unique(random_starts(5, 1, 1000, 10**9, CONTEXT))) > 990


@given(st.integers(0, 2**62), st.integers(0, 10**9), st.integers(1, 40))
def test_windows_depend_on_seed_and_place_alone(seed: int, step: int, per_step: int) -> None:
    whole = random_starts(seed, step, per_step, 10**10, 1024)
    single = [int(random_starts(seed, step * per_step + place, 1, 10**10, 1024)[0]) for place in range(per_step)]
    assert whole.tolist() == single
    assert ((whole >= 0) & (whole < 10**10 - 1024)).all()


def test_seeds_and_orders_differ(tokens: TokenFile) -> None:
    first = {
        (seed, order): inputs(Loader(tokens, CONTEXT, 6, seed, order), range(3)) for seed in (0, 1) for order in ORDERS
    }
    assert len({str(rows) for rows in first.values()}) == 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"order": "shuffled"},
        {"rank": 2, "ranks": 2},
        {"per_step": 7, "ranks": 2},
        {"per_step": 6, "accumulation": 4},
        {"per_step": 0},
        {"context": 0},
        {"accumulation": 0},
    ],
)
def test_what_cannot_be_shared_out_is_refused(tokens: TokenFile, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"order must|no process|no multiple"):
        Loader(**{"tokens": tokens, "context": CONTEXT, "per_step": 8, "seed": 0} | wrong)


@pytest.mark.parametrize("starts", [[-1], [992], [0, 10**9]])
def test_a_window_that_is_not_there(tokens: TokenFile, starts: list[int]) -> None:
    assert tokens.windows([991], CONTEXT)[1].tolist() == [list(range(992, 1000))]
    with pytest.raises(IndexError, match=r"within 0\.\.991"):
        tokens.windows(starts, CONTEXT)


def test_a_file_shorter_than_a_window(tmp_path: Path) -> None:
    write_tokens(tmp_path / "t.bin", np.arange(8), 256)
    with TokenFile.open(tmp_path / "t.bin") as short, pytest.raises(ValueError, match="no block to draw from"):
        next(Loader(short, CONTEXT, 1, 0, "random_windows").micro_batches(0))


# -- the ratios that measure it --------------------------------------------------------------------


def test_a_loader_that_loses_tokens_is_not_timed(tmp_path: Path) -> None:
    from repro.bench import loading
    from repro.bench.measure import NotEqualError

    ids = loading._ids(loading.BATCH * loading.CONTEXT * 3 + 1, 4)
    for make in (loading._ours, loading._nanogpt):
        loading._expect_an_epoch("whole", make(tmp_path, ids), ids)
    stuck = loading._nanogpt(tmp_path, ids)
    with pytest.raises(NotEqualError, match="stuck: an epoch does not hold the tokens"):
        loading._expect_an_epoch("stuck", lambda step: stuck(0), ids)


def test_a_lower_bar_is_a_lower_bar() -> None:
    from repro.bench import loading
    from repro.bench.measure import Row

    def row(median: float | None, noise: float | None) -> Row:
        return Row("P5", "r", median, median, 0.0, None, None, "p", {}, noise=noise)

    assert loading.at_least(row(10.0, 0.0), 10.0).ok is True
    assert loading.at_least(row(9.9, 0.02), 10.0).ok is False
    assert loading.at_least(row(9.5, 0.08), 10.0).ok is True
    assert loading.at_least(row(9.0, 0.5), 10.0).ok is False  # no noise excuses more than a tenth
    assert loading.at_least(row(None, None), 10.0).ok is False


def test_an_absent_peer_is_neither_passed_nor_failed() -> None:
    from repro.bench.loading import _litdata

    found = _litdata()
    assert (found.ok, found.median) == (None, None)
    assert found.detail.startswith(("not installed", "installed, but"))
