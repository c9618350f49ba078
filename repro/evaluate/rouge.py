"""ROUGE-N, ROUGE-L and ROUGE-Lsum (Lin, 2004), equal to the package rouge_score but without its quadratic loops.

The installed rouge_score stays the measure: `self_check` compares both on fixed texts before anything is scored.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from repro.evaluate.rouge_parts import (
    Ids,
    Vocabulary,
    lcs_length,
    ngram_counts,
    overlap,
    tokenizer_named,
    union_hits,
)
from repro.spec.errors import suggest

KINDS = (*(f"rouge{n}" for n in range(1, 10)), "rougeL", "rougeLsum")
DEFAULT_KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
DRIFT = 1e-6  # more than this away from the package is another metric


class Score(NamedTuple):
    """Shares within [0, 1]: of the candidate's units, of the reference's units, and their harmonic mean."""

    precision: float
    recall: float
    fmeasure: float


PARTS = Score._fields
ZERO = Score(0.0, 0.0, 0.0)


def _score(hits: int, candidate: int, reference: int) -> Score:
    """From a count of common units and the counts on each side; nothing in common, or nothing at all, is zero."""
    if not hits:
        return ZERO
    precision, recall = hits / candidate, hits / reference
    return Score(precision, recall, 2 * precision * recall / (precision + recall))


@dataclass
class _Text:
    """A text as ids: its lines that have words, and all words in a row."""

    lines: list[Ids]
    ids: Ids = field(init=False)
    _counts: dict[int, Counter[Hashable]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ids = self.lines[0] if len(self.lines) == 1 else [token for line in self.lines for token in line]

    def counts(self, n: int) -> Counter[Hashable]:
        if n not in self._counts:
            self._counts[n] = ngram_counts(self.ids, n)
        return self._counts[n]


@dataclass(frozen=True, slots=True)
class PairScores:
    """Scores of N pairs: `items[kind][part]` is float64 [N] in the order given; parts are those of `Score`.

    A text is empty where the tokenizer finds no word in it; its pair scores 0 and stays within the means.
    """

    items: dict[str, dict[str, NDArray[np.float64]]]
    pairs: int
    empty_candidates: int
    empty_references: int

    def mean(self, kind: str, part: str = "fmeasure") -> float:
        """Plain mean over the pairs, summed without rounding, so that no order of the pairs changes it."""
        return math.fsum(self.items[kind][part]) / self.pairs

    def means(self) -> dict[str, Score]:
        """Means of all parts of each kind."""
        return {kind: Score(*(self.mean(kind, part) for part in PARTS)) for kind in self.items}


class RougeScorer:
    """Scores candidates against references; equal to rouge_score's scorer with tokenizer "rouge_score".

    `kinds`: rouge1 to rouge9 (n-grams), rougeL (longest common subsequence of the texts), rougeLsum (union of
    those of lines: sentences are what stands between newlines, nothing else splits them). `stemmer`: Porter, for
    words of more than three characters. `tokenizer`: "rouge_score" (lower case, runs of a-z and 0-9) or
    "unicode_words" (case-folded runs of letters and digits of any script). ValueError for any other name.
    """

    def __init__(self, kinds: Sequence[str] = DEFAULT_KINDS, *, stemmer: bool, tokenizer: str = "rouge_score") -> None:
        for kind in kinds or ["(none)"]:
            if kind not in KINDS:
                raise ValueError(f"unknown kind of ROUGE {kind!r}{suggest(kind, KINDS)}")
        self.kinds = tuple(dict.fromkeys(kinds))
        self.stemmer = stemmer
        self.tokenizer = tokenizer
        self._tokenizer = tokenizer_named(tokenizer)
        self._vocabulary = Vocabulary(stemmer)
        self._by_line = "rougeLsum" in kinds

    def score(self, candidate: str, reference: str) -> dict[str, Score]:
        """{kind: score} of one pair, not preceded by `self_check`.

        TypeError for what is no text; ValueError for a reference with letters of which the tokenizer leaves nothing:
        every candidate would score 0 against it. Such a candidate is an empty one and scores 0.
        """
        pair = self._read(candidate, "candidate"), self._read(reference, "reference")
        self._refuse_foreign([reference], pair[1:])
        return self._compare(*pair)

    def score_all(self, candidates: Iterable[str], references: Iterable[str]) -> PairScores:
        """Scores of pairs, candidate i with reference i, after `self_check`.

        A reference of which the tokenizer leaves nothing counts as empty; ValueError where it leaves nothing of all of
        them, for no pairs, and for unequal numbers of texts; TypeError for what is no text, with its number counted
        from 0; RuntimeError where `self_check` fails.
        """
        given, wanted = _texts(candidates, "candidates"), _texts(references, "references")
        if len(given) != len(wanted) or not given:
            raise ValueError(f"{len(given)} candidates for {len(wanted)} references; there must be as many, and some")
        self_check()
        table = np.zeros((len(given), len(self.kinds), len(PARTS)))
        read = [self._read(text, "candidate", row) for row, text in enumerate(given)]
        true = [self._read(text, "reference", row) for row, text in enumerate(wanted)]
        self._refuse_foreign(wanted, true)
        for row, pair in enumerate(zip(read, true, strict=True)):
            table[row] = list(self._compare(*pair).values())
        empty = [sum(not text.ids for text in side) for side in (read, true)]
        items = {
            kind: {part: table[:, column, index].copy() for index, part in enumerate(PARTS)}
            for column, kind in enumerate(self.kinds)
        }
        return PairScores(items, len(given), *empty)

    def _read(self, text: str, side: str, row: int | None = None) -> _Text:
        place = side if row is None else f"{side} {row}"
        if not isinstance(text, str):
            raise TypeError(f"{place}: a text is needed, not {type(text).__name__}")
        lines = map(self._tokenizer.words, text.split("\n") if self._by_line else [text])
        return _Text([self._vocabulary.ids(words) for words in lines if words])

    def _refuse_foreign(self, texts: Sequence[str], read: Sequence[_Text]) -> None:
        """A poor model may write anything; references without a word say that the tokenizer is the wrong one."""
        if not any(one.ids for one in read) and any(map(str.isalpha, "".join(texts))):
            raise ValueError(
                f"reference: tokenizer {self.tokenizer!r} leaves nothing of {len(read)} texts with letters, so every"
                f" score would be 0; use tokenizer {self._tokenizer.alternative!r}"
            )

    def _compare(self, candidate: _Text, reference: _Text) -> dict[str, Score]:
        scores: dict[str, Score] = {}
        for kind in self.kinds:
            if kind == "rougeL":
                scores[kind] = _longest(candidate, reference)
            elif kind == "rougeLsum":
                scores[kind] = _longest_by_line(candidate, reference, scores.get("rougeL"))
            else:
                scores[kind] = _ngrams(candidate, reference, int(kind[5:]))
        return scores


def _texts(texts: Iterable[str], name: str) -> list[str]:
    if isinstance(texts, (str, bytes)):
        raise TypeError(f"{name}: a list of texts is needed, not one text")
    return list(texts)


def _ngrams(candidate: _Text, reference: _Text, n: int) -> Score:
    hits = overlap(candidate.counts(n), reference.counts(n))
    return _score(hits, len(candidate.ids) - n + 1, len(reference.ids) - n + 1)


def _longest(candidate: _Text, reference: _Text) -> Score:
    return _score(lcs_length(candidate.ids, reference.ids), len(candidate.ids), len(reference.ids))


def _longest_by_line(candidate: _Text, reference: _Text, whole: Score | None) -> Score:
    """`whole` is rougeL where that is known: with one line on each side both are the same."""
    if len(candidate.lines) == len(reference.lines) == 1:
        return whole or _longest(candidate, reference)
    return _score(union_hits(reference.lines, candidate.lines), len(candidate.ids), len(reference.ids))


# (candidate, reference): order, lines, repeats, stems, no words, case and signs; in "c d" / "d c c" the choice between
# common subsequences of equal length changes the union, in "once" only clipping keeps the score from passing 1.
CHECKED_PAIRS: tuple[tuple[str, str], ...] = (
    ("the cat lay on a warm mat", "a cat was lying on the mat"),
    ("so it goes\nand then it ends", "and then it ends\nso it goes"),
    ("so it goes and then it ends", "and then it ends so it goes"),
    ("b b a c\n\nc a b\n", "a b c b\na a b c c"),
    ("c d\nd", "d c c"),
    ("once", "once\nonce"),
    ("x y x y x", "y x y x y\nx x y"),
    ("he relates relational conditions happily", "she related the conditional relations, happier"),
    ("skies dying tied ties", "sky die tie tying"),
    ("no no no no", "no"),
    ("Don't STOP: 3.14 isn't 3,14!", "don t stop 3 14 isn t 3 14"),
    ("na\u00efve \u212aelvin caf\u00e9s", "naive kelvin cafe"),
    ("", "something"),
    ("something", ""),
    ("", ""),
    ("...\n--", "a few words"),
)


@cache
def self_check() -> int:
    """Compares `RougeScorer.score` with the installed rouge_score; returns how many numbers were compared.

    Runs once in a process. RuntimeError, with the pair and both numbers, where one is more than 1e-6 off.
    """
    from rouge_score import rouge_scorer  # type: ignore[import-untyped]  # late: takes seconds to import

    compared = 0
    for stemmer in (False, True):
        ours = RougeScorer(DEFAULT_KINDS, stemmer=stemmer)
        theirs = rouge_scorer.RougeScorer(list(DEFAULT_KINDS), use_stemmer=stemmer)
        for candidate, reference in CHECKED_PAIRS:
            scores = ours.score(candidate, reference)
            compared += _agree(scores, theirs.score(reference, candidate), (candidate, reference), stemmer)
    return compared


def _agree(ours: dict[str, Score], theirs: dict[str, Any], pair: tuple[str, str], stemmer: bool) -> int:
    for kind in DEFAULT_KINDS:
        for part in PARTS:
            own, other = float(getattr(ours[kind], part)), float(getattr(theirs[kind], part))
            if not abs(own - other) <= DRIFT:  # so that a NaN is a deviation, too
                raise RuntimeError(
                    f"ROUGE self-check failed, nothing was scored: {kind} {part}, stemmer {'on' if stemmer else 'off'},"
                    f" candidate {pair[0]!r}, reference {pair[1]!r}: {own!r} here, {other!r} by"
                    f" rouge_score {metadata.version('rouge-score')}"
                )
    return len(DEFAULT_KINDS) * len(PARTS)


def versions() -> dict[str, str]:
    """Package -> version: the one that fixes what the scores mean, and the one that stems."""
    return {name: metadata.version(name) for name in ("rouge-score", "nltk")}
