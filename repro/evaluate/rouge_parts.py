"""What ROUGE is made of: tokenizers, interned words, n-gram overlap, and longest common subsequences by bits.

Longest common subsequences: Crochemore, Iliopoulos, Pinzon, Reid (2001) and Hyyro (2004). One row of the
dynamic-programming table is one Python integer, so that a row costs four operations on integers and not a loop.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from repro.spec.errors import suggest

Ids = list[int]
STEMMED_FROM = 4  # characters; shorter words are left as they are, in the library as well


class Tokenizer(NamedTuple):
    """A named way to cut one text into words; `alternative` is the one to name where this one finds no word."""

    words: Callable[[str], list[str]]
    alternative: str


_ASCII = re.compile("[a-z0-9]+")
_UNICODE = re.compile(r"\w+")

# Both cut at every newline, so that the words of a text are the words of its lines.
# unicode_words: Python's \w takes letters, digits and "_" of any script, but no combining marks; a script written
# without blanks gives one word for each stretch between punctuation.
TOKENIZERS: dict[str, Tokenizer] = {
    "rouge_score": Tokenizer(lambda text: _ASCII.findall(text.lower()), "unicode_words"),
    "unicode_words": Tokenizer(lambda text: _UNICODE.findall(text.casefold()), "rouge_score"),
}


def tokenizer_named(name: str) -> Tokenizer:
    """The tokenizer of that name; ValueError with the known names otherwise."""
    if name not in TOKENIZERS:
        raise ValueError(f"unknown tokenizer {name!r}{suggest(name, TOKENIZERS)}")
    return TOKENIZERS[name]


class Vocabulary(dict[str, int]):
    """word -> id, filled as words are met; with stemming, words of one Porter stem share one id.

    Porter's steps never take a whole word away, so no stem is empty.
    """

    def __init__(self, stemmer: bool) -> None:
        super().__init__()
        self._stems: dict[str, int] = {}
        self._stem: Callable[[str], str] | None = _porter() if stemmer else None

    def __missing__(self, word: str) -> int:
        stem = self._stem(word) if self._stem and len(word) >= STEMMED_FROM else word
        found = self[word] = self._stems.setdefault(stem, len(self._stems))
        return found

    def ids(self, words: Sequence[str]) -> Ids:
        """Ids of words, in order."""
        return list(map(self.__getitem__, words))


@cache
def _porter() -> Callable[[str], str]:
    """One stemmer for all scorers of a process, which remembers its answers: a stem takes longer than all else."""
    # Late: the package takes seconds to import and is of use with stemming only.
    from nltk.stem import porter  # type: ignore[import-untyped]

    return lru_cache(maxsize=1 << 20)(porter.PorterStemmer().stem)


def ngram_counts(ids: Ids, n: int) -> Counter[Hashable]:
    """How often each run of n ids occurs; empty where there are fewer than n."""
    if n == 1:
        return Counter(ids)
    return Counter(zip(*(ids[start:] for start in range(n)), strict=False))


def overlap(left: Counter[Hashable], right: Counter[Hashable]) -> int:
    """Size of the intersection of two multisets."""
    both = left.keys() & right.keys()
    return sum(map(min, map(left.__getitem__, both), map(right.__getitem__, both)))


def match_masks(ids: Ids) -> dict[int, int]:
    """id -> integer whose bit i is set where `ids[i]` is that id."""
    masks: dict[int, int] = {}
    bit = 1
    for token in ids:
        masks[token] = masks.get(token, 0) | bit
        bit <<= 1
    return masks


def lcs_length(left: Ids, right: Ids) -> int:
    """Length of a longest common subsequence, in O(min * max / 30) digit operations."""
    both = set(left).intersection(right)  # what only one side has can be in no common subsequence
    rows, columns = sorted(([t for t in left if t in both], [t for t in right if t in both]), key=len)
    masks = match_masks(columns)
    state = (1 << len(columns)) - 1
    for token in rows:
        matched = state & masks[token]
        state = (state + matched) | (state - matched)
    # Each carry out of the table is one more common token; carries pile up as ones above it.
    return state.bit_length() - len(columns)


def lcs_positions(masks: dict[int, int], length: int, other: Ids) -> int:
    """Bits at the positions, within a sequence given by its masks, of one longest common subsequence with `other`.

    Of several longest ones it is the one that rouge_score's way back through the table finds: from the ends, take
    a match where there is one; else drop `other`'s last token where the value above is smaller than here; else
    drop the sequence's last. Bit i of a state is cleared where the table grows from row i to row i + 1.
    """
    if masks.keys().isdisjoint(other):
        return 0
    rows = [masks.get(token, 0) for token in other]
    state = (1 << length) - 1
    states = []
    for row in rows:
        matched = state & row
        state = (state + matched) | (state - matched)
        states.append(state)
    return _walk_back(rows, states, length)


def _walk_back(rows: list[int], states: list[int], length: int) -> int:
    picked, below = 0, (1 << length) - 1
    for row, state in zip(reversed(rows), reversed(states), strict=True):
        # The way up ends at the first position that matches or at which this token made the table grow.
        stops = (row | ~state) & below
        if not stops:
            break
        top = 1 << (stops.bit_length() - 1)
        if row & top:
            picked |= top
            below = top - 1
        else:
            below = 2 * top - 1
    return picked


def union_hits(reference: list[Ids], candidate: list[Ids]) -> int:
    """Tokens of the union of longest common subsequences of each reference line with all candidate lines.

    Lin (2004), section 3.2; a token counts at most as often as the whole candidate has it.
    """
    found: dict[int, int] = {}
    for line in reference:
        masks = match_masks(line)
        union = 0
        for other in candidate:
            union |= lcs_positions(masks, len(line), other)
        for token, mask in masks.items():
            if hits := (mask & union).bit_count():
                found[token] = found.get(token, 0) + hits
    there = Counter(token for line in candidate for token in line)
    return sum(min(hits, there[token]) for token, hits in found.items())
