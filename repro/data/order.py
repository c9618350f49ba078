"""The order in which blocks are drawn: a pure function of (seed, position), without state.

Position p is the p-th draw of a training, counted over all devices from 0. It falls into epoch p // n, and
within an epoch the n blocks come in the order of a keyed Feistel permutation of 0..n-1. So nothing has to be
stored to resume, step 10**9 costs what step 0 costs, and the order does not depend on how draws are cut into
steps.

The network works on the smallest power of two that holds n; what it maps outside of 0..n-1 is mapped again
until it falls inside ("cycle walking": J. Black and P. Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA
2002). The numbers are part of every result: a change here needs a new rules version for `train`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8  # an even number, so that both halves are back at their own width
WINDOW = 4096  # positions computed together: numpy's cost a call is spread over them

Words = NDArray[np.uint64]
Indices = NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


def _mix(words: Words) -> Words:
    """Finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection of 64-bit words, any shape."""
    words = (words ^ (words >> _S30)) * _MIX_A
    words = (words ^ (words >> _S27)) * _MIX_B
    return words ^ (words >> _S31)


def _round_keys(seed: int, epochs: Words) -> Words:
    """One key a round and position, [ROUNDS, N], from the seed and each position's epoch [N]."""
    base = _mix(_mix(np.array([seed], np.uint64) + _GOLDEN))  # twice: else seed and epoch could change places
    epoch_keys = _mix(base ^ _mix(epochs + _GOLDEN))
    rounds = np.arange(1, ROUNDS + 1, dtype=np.uint64)[:, None]
    return _mix(epoch_keys + rounds * _GOLDEN)


def _feistel(values: Words, keys: Words, bits: int) -> Words:
    """One pass of the network over values [N] of `bits` bits; a bijection for each column of `keys`."""
    left_bits, right_bits = bits // 2, bits - bits // 2
    left, right = values >> np.uint64(right_bits), values & np.uint64((1 << right_bits) - 1)
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & np.uint64((1 << left_bits) - 1))
        left_bits, right_bits = right_bits, left_bits
    return (left << np.uint64(right_bits)) | right


def _permute(values: Words, keys: Words, n: int) -> Indices:
    """Where each of values [N] in 0..n-1 stands in the permutation of its column of keys."""
    bits = (n - 1).bit_length()
    result = _feistel(values, keys, bits)
    outside = np.flatnonzero(result >= n)
    while outside.size:  # ends: repeating a bijection comes back to the start, which is inside
        result[outside] = _feistel(result[outside], keys[:, outside], bits)
        outside = outside[result[outside] >= n]
    return result.astype(np.int64)


@lru_cache(maxsize=8)
def _window(seed: int, number: int, n: int) -> Indices:
    """Blocks at positions number*WINDOW ... +WINDOW-1, read only; kept so that small steps share its cost."""
    first = number * WINDOW
    positions = np.uint64(first) + np.arange(WINDOW, dtype=np.uint64)
    epochs, values = np.divmod(positions, np.uint64(n))
    blocks = _permute(values, _round_keys(seed, epochs), n)
    blocks.setflags(write=False)
    return blocks


def _check(seed: int, start: int, stop: int, n: int) -> None:
    if not 0 <= seed < 1 << 63:
        raise ValueError(f"seed must be within 0..2**63-1, not {seed}")
    if n < 1:
        raise ValueError(f"no block to draw from (n_blocks = {n})")
    if not 0 <= start <= stop < 1 << 62:
        raise ValueError(f"positions must be within 0..2**62-1, not {start}..{stop}")


def blocks_between(seed: int, start: int, stop: int, n: int) -> Indices:
    """Block numbers, int64 [stop - start], at positions start ... stop-1 of the order over `n` blocks."""
    _check(seed, start, stop, n)
    pieces = [
        _window(seed, number, n)[max(0, start - number * WINDOW) : stop - number * WINDOW]
        for number in range(start // WINDOW, -(-stop // WINDOW))
    ]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)


def block_order(seed: int, position: int, n: int) -> int:
    """The block at one position: place `position % n` in the permutation of epoch `position // n`."""
    return int(blocks_between(seed, position, position + 1, n)[0])


def step_blocks(seed: int, step: int, per_step: int, n_blocks: int) -> Indices:
    """Blocks, int64 [per_step], that optimiser step `step` (from 0) draws over all devices.

    Within an epoch no block comes twice; a step that passes the end of an epoch goes on in the next one. The
    result depends on (seed, step * per_step ... + per_step - 1, n_blocks) only. Raises ValueError for a seed,
    step or count out of range.
    """
    if per_step < 1:
        raise ValueError(f"per_step must be at least 1, not {per_step}")
    return blocks_between(seed, step * per_step, (step + 1) * per_step, n_blocks)


def random_starts(seed: int, step: int, per_step: int, tokens: int, context: int) -> Indices:
    """First tokens, int64 [per_step], of windows drawn with replacement, as nanoGPT does (train.py, get_batch).

    Each is uniform over 0 ... tokens - context - 1 and a pure function of (seed, step * per_step + its place), so
    it can be resumed as `step_blocks` can. A remainder is taken of 64 bits: its bias is below tokens / 2**64.
    """
    count = tokens - context
    if per_step < 1:
        raise ValueError(f"per_step must be at least 1, not {per_step}")
    _check(seed, step * per_step, (step + 1) * per_step, count)
    positions = np.uint64(step * per_step) + np.arange(per_step, dtype=np.uint64)
    key = _mix(_mix(np.array([seed], np.uint64) + _GOLDEN) ^ _MIX_B)  # not the keys of the permutation
    words = _mix(_mix(positions * _GOLDEN + key) ^ key)
    return (words % np.uint64(count)).astype(np.int64)


def permutation(seed: int, epoch: int, n: int) -> NDArray[Any]:
    """The whole order of one epoch, int64 [n]: for tests and reports; training never makes it."""
    return blocks_between(seed, epoch * n, (epoch + 1) * n, n)
