"""Sentences with a class: what they are once read, how two splits overlap, and their token ids."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from repro.data.leakage import Hit, Overlap
from repro.spec.errors import BadDataError, problem_error, shown

UNLABELLED = -1
LEAST_WORDS = 5  # phrases of fewer words stand inside some sentence by chance


@dataclass(frozen=True, slots=True)
class Labelled:
    """One split: `sentences` [n] without blanks at their ends, `labels` int8 [n], all of them -1 where unknown."""

    name: str
    sentences: tuple[str, ...]
    labels: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.sentences)

    @property
    def positive(self) -> int:
        """How many have label 1."""
        return int((self.labels == 1).sum())

    @property
    def is_labelled(self) -> bool:
        """Whether the classes are known."""
        return bool(len(self)) and int(self.labels.min()) >= 0

    def scored(self) -> Labelled:
        """The split itself if it has labels; BadDataError if not, so that nobody scores what GLUE keeps to itself."""
        if not self.is_labelled:
            unknown = int((self.labels < 0).sum())
            message = f"{unknown} of {len(self)} items have no label, so nothing can be scored; score dev"
            raise problem_error(BadDataError, f'split "{shown(self.name)}"', "labels", message)
        return self

    def subset(self, count: int) -> Labelled:
        """`count` sentences that their hash chooses, in the split's order: the same ones whatever that order is.

        Of sentences that stand several times the first is taken first. BadDataError if there are fewer.
        """
        if not 0 < count <= len(self):
            message = f"{count} sentences asked for, 1 to {len(self)} can be had"
            raise problem_error(BadDataError, f'split "{shown(self.name)}"', "subset", message)
        keys = [hashlib.sha256(text.encode("utf-8")).digest() for text in self.sentences]
        chosen = sorted(sorted(range(len(self)), key=lambda i: (keys[i], i))[:count])
        return Labelled(self.name, tuple(self.sentences[i] for i in chosen), self.labels[chosen])


def describe(split: Labelled) -> dict[str, Any]:
    """Counts of one split: sentences, of them with label 1, different ones, and those with both labels.

    `sha256` is of the sentences and labels in their order.
    """
    first: dict[str, int] = {}
    both = {text for text, label in zip(split.sentences, split.labels.tolist(), strict=True)
            if first.setdefault(text, label) != label}  # fmt: skip
    lines = (f"{label}\t{text}\n" for text, label in zip(split.sentences, split.labels.tolist(), strict=True))
    return {
        "sentences": len(split),
        "labelled": split.is_labelled,
        "positive": split.positive,
        "different": len(first),
        "with_both_labels": len(both),
        "sha256": hashlib.sha256("".join(lines).encode("utf-8")).hexdigest(),
    }


def overlap(train: Labelled, dev: Labelled) -> dict[str, int]:
    """How much of dev was seen in training.

    `dev_exact`, `dev_folded`: dev sentences that equal a training text, exactly or but for case and blanks (the
    latter include the former): with any of them a set is refused. `train_within`: training texts of five words or
    more inside a dev sentence; reported, not mended, for published numbers are made with them.
    """
    seen, folded = set(train.sentences), [_words(text) for text in train.sentences]
    seen_folded, dev_folded = set(folded), [_words(text) for text in dev.sentences]
    spans: set[tuple[str, ...]] = set()
    for words in dev_folded:
        ends = range(LEAST_WORDS, len(words) + 1)
        spans.update(words[start:end] for end in ends for start in range(end - LEAST_WORDS + 1))
    return {
        "dev_exact": sum(text in seen for text in dev.sentences),
        "dev_folded": sum(words in seen_folded for words in dev_folded),
        "train_within": sum(words in spans for words in folded),
    }


def equal_rows(train: Labelled, dev: Labelled) -> Overlap:
    """The dev sentences that `overlap` counts, each with the first training text that it equals."""
    exact: dict[str, int] = {}
    folded: dict[tuple[str, ...], int] = {}
    for row, text in enumerate(train.sentences):
        exact.setdefault(text, row)
        folded.setdefault(_words(text), row)
    hits = []
    for row, text in enumerate(dev.sentences):
        if text in exact:
            hits.append(Hit(row, exact[text], "exact"))
        elif (words := _words(text)) in folded:
            hits.append(Hit(row, folded[words], "folded"))
    return Overlap(tuple(hits))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.casefold().split())


@dataclass(frozen=True, slots=True)
class Encoded:
    """`ids` int32 [n, length] padded at the end, `lengths` int32 [n] of what is no padding, `labels` int8 [n].

    `truncated` sentences lost tokens at their end, `tokens_lost` in all; `padding` ids were added.
    """

    ids: NDArray[np.int32]
    lengths: NDArray[np.int32]
    labels: NDArray[np.int8]
    truncated: int
    tokens_lost: int
    padding: int


def encode(split: Labelled, encoder: Callable[[str], ArrayLike], length: int, pad: int) -> Encoded:
    """Token ids of every sentence by any tokenizer; the first `length` of them are kept, `pad` fills the rest.

    Raises BadDataError for a sentence without tokens and for ids that are no whole numbers from 0 to 2**31 - 1.
    """
    if length < 1 or not 0 <= pad < 1 << 31:
        raise ValueError(f"length is at least 1 and pad an id, not {length} and {pad}")
    ids = np.full((len(split), length), pad, np.int32)
    lengths = np.empty(len(split), np.int32)
    truncated = lost = 0
    for row, text in enumerate(split.sentences):
        tokens = np.asarray(encoder(text))
        _check_tokens(split.name, row, tokens)
        kept = tokens[:length]
        ids[row, : len(kept)], lengths[row] = kept, len(kept)
        truncated += len(tokens) > length
        lost += len(tokens) - len(kept)
    return Encoded(ids, lengths, split.labels, truncated, lost, ids.size - int(lengths.sum()))


def _check_tokens(name: str, row: int, tokens: NDArray[Any]) -> None:
    fits = tokens.ndim == 1 and tokens.size and tokens.dtype.kind in "iu"
    if not fits or int(tokens.min()) < 0 or int(tokens.max()) >= 1 << 31:
        message = f"the tokenizer gave {shown(tokens.tolist())}: one row of ids from 0 on is expected"
        raise problem_error(BadDataError, f'split "{shown(name)}"', f"sentence {row + 1}", message)
