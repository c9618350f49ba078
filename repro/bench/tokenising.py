"""P8: tokenising to file against tiktoken alone, equal ids asserted first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from repro.bench.loading import at_least, timed
from repro.bench.measure import NotEqualError, Question, Row, interleave, noise_of
from repro.bench.registry import Session, ratio

TEXTS, TEXT_LINES, ROUNDS = 1500, 50, 7
END_OF_TEXT = 50256


@ratio("P8", "tokenising to file against tiktoken alone", ("tiktoken",))
def tokenising(session: Session) -> list[Row]:
    """Tokens per second on one core: from a .jsonl to a finished shard, and to finished data, over tiktoken's own."""
    from repro.data.tokenise import tokenizer

    texts = list(_real_texts())
    coder: Any = tokenizer("gpt2")
    source = session.folder / "texts" / "docs.jsonl"
    source.parent.mkdir(exist_ok=True)
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    raw = [coder.encoding.encode_ordinary(text) for text in texts]
    _expect_equal_ids(session.folder, raw)
    numbers = iter(range(1_000_000))
    sides = {
        "tiktoken": lambda: timed(lambda: [coder.encoding.encode_ordinary(text) for text in texts]),
        "shard": lambda: _shard(session.folder, coder),
        "whole": lambda: _prepared(session.folder, next(numbers))[0],
        "tiktoken again": lambda: timed(lambda: [coder.encoding.encode_ordinary(text) for text in texts]),
    }
    times = interleave(sides, ROUNDS, session.tell)
    noise = noise_of(times, "tiktoken", "tiktoken again")
    detail = f"{sum(map(len, raw))} ids equal to tiktoken's"
    shard = _TO_SHARD.answer(times, noise, f"{detail}; read, hashed, encoded, checked, written and forced to disk")
    whole = _TO_DATA.answer(times, noise, f"{detail}; with merging, and the overlap check on what was written")
    return [at_least(shard, 0.7), whole]


_TO_SHARD = Question(
    id="P8", ratio=".jsonl to shard / tiktoken, tokens per second (at least 0.7)", peer="tiktoken encode_ordinary",
    formula=lambda t: t["tiktoken"] / t["shard"], bar=None, packages=("tiktoken",),
)  # fmt: skip
_TO_DATA = Question(
    id="P8", ratio=".jsonl to prepared data / tiktoken, tokens per second", peer="tiktoken encode_ordinary",
    formula=lambda t: t["tiktoken"] / t["whole"], bar=None, packages=("tiktoken",),
)  # fmt: skip


def _real_texts() -> Iterator[str]:
    """Documents of some kilobytes of English: lines of the documentation that comes with Python, drawn at random."""
    from pydoc_data.topics import topics

    lines = [line for _, text in sorted(topics.items()) for line in text.splitlines() if len(line) > 20]
    draw = np.random.default_rng(0)
    for number in range(TEXTS):
        yield "\n".join([str(number), *(lines[place] for place in draw.integers(0, len(lines), TEXT_LINES))])


def _root_and_source(folder: Path, name: str) -> tuple[Any, Any]:
    from repro.spec.data import DataSource
    from repro.spec.paths import Root

    fields = {"kind": "folder", "title": "bench", "licence": "PSF", "path": str(folder / "texts"), "tokenizer": "gpt2"}
    split = {"validation": 0.02, "curve_tokens": 2, "final_tokens": 2}
    return Root(folder / name), DataSource.model_validate(fields | split)


def _shard(folder: Path, coder: Any) -> float:
    """Seconds of what one worker does, reading included."""
    from repro.data.shards import tokenise_unit
    from repro.data.sources import read_units

    root, source = _root_and_source(folder, "shards")
    place = folder / "shards"
    place.mkdir(exist_ok=True)

    def work() -> None:
        for unit in read_units(root, "bench", source, []):
            tokenise_unit(place, unit, coder, source.validation)

    return timed(work)


def _prepared(folder: Path, number: int) -> tuple[float, Path]:
    """Seconds of the whole preparation by one process, into a place that is empty."""
    from repro.data.prepare import prepare
    from repro.spec.data import digest

    root, source = _root_and_source(folder, f"root-{number}")
    key = digest(source, root)
    made: list[Path] = []
    seconds = timed(lambda: made.append(prepare(root, "bench", source, key, workers=1)))
    return seconds, made[0]


def _expect_equal_ids(folder: Path, raw: list[list[int]]) -> None:
    """NotEqualError unless the files hold exactly tiktoken's ids of every document."""
    from repro.data.packed import TokenFile

    _, place = _prepared(folder, -1)
    found = [
        tuple(ids.tolist())
        for split in ("train", "val")
        for ids in TokenFile.open(place / f"{split}.bin").documents(END_OF_TEXT)
    ]
    if sorted(found) != sorted(map(tuple, raw)):
        raise NotEqualError("the files do not hold tiktoken's ids")
