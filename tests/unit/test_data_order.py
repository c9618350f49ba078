"""The order of blocks is a permutation an epoch and a pure function of (seed, position)."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.data import order
from repro.data.order import block_order, blocks_between, permutation, step_blocks

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
SEEDS = st.integers(0, 2**63 - 1)


def slow_mix(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & MASK
    return word ^ (word >> 31)


def slow_block(seed: int, position: int, n: int) -> int:
    """The same order in plain Python integers, written apart from the code under test."""
    epoch, value = divmod(position, n)
    base = slow_mix(slow_mix((seed + GOLDEN) & MASK))
    epoch_key = slow_mix(base ^ slow_mix((epoch + GOLDEN) & MASK))
    keys = [slow_mix((epoch_key + number * GOLDEN) & MASK) for number in range(1, 9)]
    bits = (n - 1).bit_length()
    while True:
        a, b = bits // 2, bits - bits // 2
        left, right = value >> b, value & ((1 << b) - 1)
        for key in keys:
            left, right = right, left ^ (slow_mix(right ^ key) & ((1 << a) - 1))
            a, b = b, a
        value = (left << b) | right
        if value < n:
            return value


@pytest.mark.parametrize(
    ("arguments", "blocks"),
    [
        ((0, 0, 10, 10), [0, 9, 8, 1, 5, 6, 4, 2, 7, 3]),
        ((7, 3, 6, 1000), [880, 277, 318, 693, 696, 661]),
        ((2**63 - 1, 5, 4, 3), [1, 1, 2, 0]),
        ((42, 12, 7, 5000), [2555, 4828, 3810, 1690, 2568, 398, 3072]),
        (
            (1234, 10**9, 8, 8_820_000),
            [4619218, 4157193, 6749428, 2497468, 5413420, 5607774, 5315343, 5076120],
        ),
    ],
)
def test_golden_values_that_every_stored_result_rests_on(
    arguments: tuple[int, int, int, int], blocks: list[int]
) -> None:
    assert step_blocks(*arguments).tolist() == blocks


def test_golden_hash_of_a_whole_epoch() -> None:
    data = permutation(1, 0, 5000).astype("<i8").tobytes()
    assert hashlib.sha256(data).hexdigest() == "2b00fb0eb9bb7fd009b5148c5ff86718896fe4aeb72438f845653b9298609275"
    assert block_order(5, 10**12, 4_000_000_000) == 2515804273


@settings(deadline=None, max_examples=200)
@given(SEEDS, st.integers(0, 2**50), st.integers(1, 2**40))
def test_equals_the_slow_reference(seed: int, position: int, n: int) -> None:
    assert block_order(seed, position, n) == slow_block(seed, position, n)


@settings(deadline=None, max_examples=100)
@given(SEEDS, st.integers(0, 10**6), st.integers(1, 5000))
def test_every_block_once_an_epoch(seed: int, epoch: int, n: int) -> None:
    assert np.array_equal(np.sort(permutation(seed, epoch, n)), np.arange(n))


def test_every_block_once_for_all_small_counts() -> None:
    for n in range(1, 140):
        assert np.array_equal(np.sort(permutation(3, 1, n)), np.arange(n)), n


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.integers(1, 700), st.integers(0, 3000), st.lists(st.integers(1, 900), min_size=1, max_size=6))
def test_the_cut_into_steps_does_not_matter(seed: int, n: int, start: int, cuts: list[int]) -> None:
    ends = np.cumsum([start, *cuts]).tolist()
    pieces = [blocks_between(seed, a, b, n) for a, b in pairwise(ends)]
    whole = blocks_between(seed, start, ends[-1], n)
    assert np.array_equal(np.concatenate(pieces), whole)
    per_step = cuts[0]
    assert np.array_equal(step_blocks(seed, 3, per_step, n), blocks_between(seed, 3 * per_step, 4 * per_step, n))


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(1, 60), st.integers(1, 200), st.integers(0, 500))
def test_steps_run_on_across_epochs(seed: int, n: int, per_step: int, step: int) -> None:
    blocks = step_blocks(seed, step, per_step, n)
    expected = [
        int(permutation(seed, position // n, n)[position % n])
        for position in range(step * per_step, (step + 1) * per_step)
    ]
    assert blocks.tolist() == expected


def test_draws_of_whole_epochs_are_balanced() -> None:
    drawn = np.concatenate([step_blocks(11, step, 12, 101) for step in range(101)])  # 12 epochs
    assert set(Counter(drawn.tolist()).values()) == {12}


def elements_mapped(monkeypatch: pytest.MonkeyPatch, step: int) -> int:
    """How many values went through the network for one step, with nothing kept from before."""
    order._window.cache_clear()
    count = 0
    original = order._feistel

    def counting(values: Any, keys: Any, bits: int) -> Any:
        nonlocal count
        count += values.size
        return original(values, keys, bits)

    with monkeypatch.context() as patch:
        patch.setattr(order, "_feistel", counting)
        step_blocks(5, step, 480, 8_820_000)
    order._window.cache_clear()
    return count


def test_a_late_step_costs_what_the_first_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = [elements_mapped(monkeypatch, step) for step in (0, 10**3, 10**6, 10**9, 10**12)]
    # at most two windows, each value mapped 2**24 / 8.82e6 = 1.9 times on average
    assert max(costs) <= 2 * order.WINDOW * 2.2
    assert len(order._window(5, 3, 8_820_000)) == order.WINDOW


def test_seeds_and_epochs_give_different_orders() -> None:
    orders = [tuple(permutation(seed, epoch, 50).tolist()) for seed in range(30) for epoch in range(30)]
    assert len(set(orders)) == 900  # in particular, seed and epoch cannot change places


@pytest.mark.parametrize(("n", "orders"), [(2, 2), (3, 6), (4, 24)])
def test_small_counts_use_all_orders_evenly(n: int, orders: int) -> None:
    seen = Counter(tuple(permutation(seed, epoch, n).tolist()) for seed in range(60) for epoch in range(40))
    assert len(seen) == orders
    expected = 2400 / orders
    chi2 = sum((count - expected) ** 2 / expected for count in seen.values())
    assert chi2 < orders - 1 + 4 * (2 * (orders - 1)) ** 0.5


def test_places_look_uniform_and_unlike_the_file() -> None:
    n = 997
    places = np.array([permutation(seed, 0, n) for seed in range(300)])
    means = places.mean(axis=0) / (n - 1)
    assert abs(means - 0.5).max() < 5 * (1 / 12 / 300) ** 0.5
    neighbours = np.mean(np.diff(places, axis=1) == 1)
    assert neighbours == pytest.approx(1 / n, abs=5 * (1 / n / places.size) ** 0.5)


@pytest.mark.parametrize(
    ("seed", "step", "per_step", "n"),
    [
        (-1, 0, 1, 5),
        (2**63, 0, 1, 5),
        (0, -1, 1, 5),
        (0, 0, 0, 5),
        (0, 0, -3, 5),
        (0, 0, 1, 0),
        (0, 2**62, 1, 5),
    ],
)
def test_numbers_out_of_range_are_refused(seed: int, step: int, per_step: int, n: int) -> None:
    with pytest.raises(ValueError, match=r"must be|no block"):
        step_blocks(seed, step, per_step, n)


def test_a_result_may_be_changed_without_changing_the_order() -> None:
    first = step_blocks(0, 0, 8, 100)
    kept = first.copy()
    first[:] = -1
    assert np.array_equal(step_blocks(0, 0, 8, 100), kept)
    assert blocks_between(0, 5, 5, 100).size == 0
