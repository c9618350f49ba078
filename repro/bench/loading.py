"""P5, P6 and P15: loading batches, going on at a late step, and memory while an 18 GB file is read."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repro.bench.measure import NotEqualError, Question, Row, Times, absent, interleave, noise_of, versions_of
from repro.bench.registry import Session, ratio

BATCH, CONTEXT, VOCAB = 12, 1024, 50257
TOKENS = 50_000_000  # 100 MB of 16-bit ids: too many for memory caches of the processor, in the page cache
BATCHES, ROUNDS = 40, 30
LATE, FIRSTS = 1_000_000, 10
SPARSE_TOKENS = 9_035_582_198  # of nanoGPT's OpenWebText: 18 GB of 16-bit ids
MAX_MB = 200.0
Batches = Callable[[int], Iterator[tuple[Any, Any]]]


def timed(work: Callable[[], object]) -> float:
    """Seconds of wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _ids(count: int, seed: int = 0) -> NDArray[np.uint16]:
    return np.random.default_rng(seed).integers(0, VOCAB, count, dtype=np.uint16)


def _token_file(folder: Path, ids: NDArray[Any]) -> Any:
    from repro.data.packed import TokenFile, write_tokens

    path = folder / f"tokens-{ids.size}.bin"
    if not path.exists():
        write_tokens(path, ids, VOCAB)
    return TokenFile.open(path)


# -- P5: loaders -----------------------------------------------------------------------------------


@ratio("P5", "tokens per second of the loader against others", ("torch", "datasets"))
def loader_speed(session: Session) -> list[Row]:
    """Seconds for the same number of batches of torch tensors; each other loader divided by ours."""
    import torch

    torch.set_num_threads(1)
    ids = _ids(TOKENS)
    small = _ids(BATCH * CONTEXT * 60 + 1, 1)
    for name, make in _LOADERS.items():
        _expect_an_epoch(name, make(session.folder, small), small)
    sides = {name: make(session.folder, ids) for name, make in _LOADERS.items()}
    sides["ours again"] = sides["ours"]
    steps = dict.fromkeys(sides, 0)

    def take(name: str) -> float:
        first = steps[name]
        steps[name] += BATCHES
        batches = sides[name]
        return timed(lambda: [next(batches(step)) for step in range(first, first + BATCHES)])

    for name in sides:  # warm: page cache, allocator, lazy imports
        take(name)
    times = interleave({name: partial(take, name) for name in sides}, ROUNDS, session.tell)
    noise = noise_of(times, "ours", "ours again")
    detail = (
        f"{BATCHES} batches of {BATCH} x {CONTEXT} a time, 100 MB; an epoch's tokens equal for all; page cache warm"
    )
    rows = [question.answer(times, noise, f"{detail}; {where}") for question, where in _QUESTIONS]
    return [
        at_least(rows[0], 10.0),
        at_least(rows[1], 10.0),
        at_least(rows[2], 6.0),
        at_least(rows[3], 6.0),
        _litdata(),
    ]


def _share(times: Mapping[str, float], peer: str, ours: str) -> float:
    return times[peer] / times[ours]


def _question(words: str, peer: str, ours: str, packages: tuple[str, ...]) -> Question:
    return Question("P5", words, peer, partial(_share, peer=peer, ours=ours), None, "ratio", ("numpy", *packages))


_QUESTIONS = (
    (
        _question("nanoGPT get_batch / ours, time a batch (at least 10)", "nanogpt", "ours", ("torch",)),
        "ours holds a file of this size in memory",
    ),
    (
        _question("nanoGPT get_batch / ours from a kept map (at least 10)", "nanogpt", "ours on disk", ("torch",)),
        "ours takes rows from a map that is kept, as it does of files above 128 MiB",
    ),
    (
        _question("HF datasets, torch format / ours, time a batch (at least 6)", "datasets", "ours", ("datasets",)),
        "ours holds a file of this size in memory",
    ),
    (
        _question(
            "HF datasets, torch format / ours from a kept map (at least 6)", "datasets", "ours on disk", ("datasets",)
        ),
        "ours takes rows from a map that is kept, as it does of files above 128 MiB",
    ),
)


def at_least(row: Row, bar: float) -> Row:
    """A lower bar; noise lowers it as it widens an upper one."""
    from repro.bench.measure import allowed

    ok = row.median is not None and row.median >= bar * bar / allowed(bar, row.noise or 0.0)
    return replace(row, bar=bar, ok=ok, at_least=True)


def _litdata() -> Row:
    """litdata brings another torch, so the suite does not install it; here it is told where it is absent."""
    missing = absent(["litdata"])
    detail = f"not installed: {', '.join(missing)}" if missing else "installed, but needs an environment of its own"
    row = Row(
        "P5", "litdata / ours (at least 4)", None, None, None, 4.0, None, "litdata", versions_of([]), detail=detail
    )
    return replace(row, at_least=True)


def _ours(folder: Path, ids: NDArray[Any]) -> Batches:
    import torch

    from repro.data.loader import Loader

    loader = Loader(_token_file(folder, ids), CONTEXT, BATCH, seed=0)
    return lambda step: ((torch.from_numpy(x), torch.from_numpy(y)) for x, y in loader.micro_batches(step))


def _nanogpt(folder: Path, ids: NDArray[Any]) -> Batches:
    """Opens the memory map at every batch and cuts each row by itself, as nanoGPT's get_batch does.

    Its starts are random; here they are a permutation of blocks, so that an epoch can be compared.
    """
    import torch

    path = folder / f"raw-{ids.size}.bin"
    ids.tofile(path)
    order = np.random.default_rng(0).permutation((ids.size - 1) // CONTEXT)

    def batches(step: int) -> Iterator[tuple[Any, Any]]:
        data = np.memmap(path, dtype=np.uint16, mode="r")
        blocks = np.take(order, np.arange(step * BATCH, (step + 1) * BATCH), mode="wrap")
        starts = torch.from_numpy(blocks * CONTEXT)
        x = torch.stack([torch.from_numpy(data[i : i + CONTEXT].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + CONTEXT].astype(np.int64)) for i in starts])
        yield x, y

    return batches


def _datasets(folder: Path, ids: NDArray[Any]) -> Batches:
    """Packed rows in an Arrow file, indexed with torch formatting."""
    import datasets  # type: ignore[import-untyped]

    datasets.disable_progress_bars()
    count = (ids.size - 1) // CONTEXT
    place = folder / f"arrow-{ids.size}"
    if not place.exists():
        rows = np.lib.stride_tricks.sliding_window_view(ids, CONTEXT + 1)[::CONTEXT][:count]
        features = datasets.Features({"ids": datasets.List(datasets.Value("uint16"), length=CONTEXT + 1)})

        def examples() -> Iterator[dict[str, Any]]:
            for row in rows:
                yield {"ids": row}

        made = datasets.Dataset.from_generator(examples, features=features, cache_dir=str(folder / "cache"))
        made.save_to_disk(str(place))
    table = datasets.load_from_disk(str(place)).with_format("torch")
    order = np.random.default_rng(0).permutation(count)

    def batches(step: int) -> Iterator[tuple[Any, Any]]:
        wanted = np.take(order, np.arange(step * BATCH, (step + 1) * BATCH), mode="wrap")
        rows = table[wanted.tolist()]["ids"].long()
        yield rows[:, :-1], rows[:, 1:]

    return batches


def _ours_on_disk(folder: Path, ids: NDArray[Any]) -> Batches:
    from repro.data import packed

    held, packed.IN_MEMORY_BYTES = packed.IN_MEMORY_BYTES, 0
    try:
        return _ours(folder, ids)
    finally:
        packed.IN_MEMORY_BYTES = held


_LOADERS: dict[str, Callable[[Path, NDArray[Any]], Batches]] = {
    "ours": _ours,
    "ours on disk": _ours_on_disk,
    "nanogpt": _nanogpt,
    "datasets": _datasets,
}


def _expect_an_epoch(name: str, batches: Batches, ids: NDArray[Any]) -> None:
    """NotEqualError unless inputs and targets of an epoch hold every token exactly as often as the file."""
    steps = (ids.size - 1) // CONTEXT // BATCH
    seen = [next(batches(step)) for step in range(steps)]
    for part, wanted in ((0, ids[:-1]), (1, ids[1:])):
        found = np.concatenate([pair[part].numpy().reshape(-1) for pair in seen])
        if not np.array_equal(np.bincount(found, minlength=VOCAB), np.bincount(wanted, minlength=VOCAB)):
            raise NotEqualError(f"{name}: an epoch does not hold the tokens of the file")


# -- P6: resuming ----------------------------------------------------------------------------------


@ratio("P6", "first batch at step 1,000,000 against step 0", ("numpy",))
def late_start(session: Session) -> list[Row]:
    """Seconds for a new loader and its first batch, with nothing kept from before; the file is open already.

    Opening it takes the hash of all its bytes, whatever the step, and would hide what depends on the step.
    """
    tokens = _token_file(session.folder, _ids(TOKENS))
    _expect_same_order(tokens)
    places = {"start": 0, "late": LATE, "start again": 0}
    times = interleave(
        {name: partial(_first_batches, tokens, step) for name, step in places.items()}, ROUNDS, session.tell
    )
    detail = f"{FIRSTS} new loaders a time; the batch at the late step equals that of a loader that walked there"
    return [_LATE.answer(times, noise_of(times, "start", "start again"), detail)]


_LATE = Question(
    id="P6", ratio=f"first batch at step {LATE} / at step 0", peer="the same loader at step 0",
    formula=lambda t: t["late"] / t["start"], bar=1.5, packages=("numpy",),
)  # fmt: skip


def _first_batches(tokens: Any, step: int) -> float:
    from repro.data import order
    from repro.data.loader import Loader

    def first() -> object:
        order._window.cache_clear()  # a process that starts has none
        return next(Loader(tokens, CONTEXT, BATCH, seed=1).micro_batches(step))

    return timed(lambda: [first() for _ in range(FIRSTS)])


def _expect_same_order(tokens: Any) -> None:
    """NotEqualError unless jumping to a step gives what walking to it gives, in the epoch of the late step too."""
    from repro.data.loader import Loader

    loader, single = Loader(tokens, CONTEXT, BATCH, seed=1), Loader(tokens, CONTEXT, 1, seed=1)
    for step in (0, 341, LATE):
        walked = [int(single.rows(step * BATCH + place)[0]) for place in range(BATCH)]
        if loader.rows(step).tolist() != walked:
            raise NotEqualError(f"step {step} depends on how it is reached")


# -- P15: memory -----------------------------------------------------------------------------------

_READER = """
import re, sys
from pathlib import Path
from repro.data.loader import Loader
from repro.data.packed import TokenFile
def peak():  # not getrusage: its maximum starts at the memory of the process that started this one
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
before = peak()
tokens = TokenFile.open(Path(sys.argv[1]), verify=False)
for order in ("epochs", "random_windows"):
    loader, total = Loader(tokens, 1024, 12, seed=0, order=order), 0
    for step in range(4000):
        for x, y in loader.micro_batches(step * 997):
            total += int(x[0, 0]) + x.size
print(peak() - before, total, before)
"""


@ratio("P15", "peak memory above imports while a sparse file of 18 GB is read", ("numpy",))
def loader_memory(session: Session) -> list[Row]:
    """MB that a process grows by while it reads 8,000 batches from all over the file, in both orders."""
    from repro.data.packed import TokenHeader, write_marker

    folder = session.folder / "sparse"
    folder.mkdir(exist_ok=True)
    path = folder / "train.bin"
    header = TokenHeader(2, SPARSE_TOKENS, VOCAB, "0" * 64)
    with open(path, "wb") as stream:
        stream.write(header.pack())
        stream.truncate(header.file_bytes)
    write_marker(folder, [(path.name, header.sha256)])
    times: Times = {"grown": []}
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", _READER, str(path)],
            capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        if done.returncode:
            raise NotEqualError(f"the reader ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
        grown, total, _ = done.stdout.split()
        if int(total) != 4000 * BATCH * CONTEXT:
            raise NotEqualError("the reader did not read all batches")
        times["grown"].append(float(grown))
    detail = "MB of resident memory, 8,000 batches of 12 x 1,024"
    return [_MEMORY.answer(times, None, detail)]


_MEMORY = Question(
    id="P15", ratio="peak memory above imports, 18 GB sparse file", peer="-",
    formula=lambda t: t["grown"], bar=MAX_MB, unit="MB", packages=("numpy",),
)  # fmt: skip
