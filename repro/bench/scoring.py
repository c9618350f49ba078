"""P7: our ROUGE against the package rouge_score, equal scores asserted first."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

from repro.bench.measure import NotEqualError, Question, Row, interleave, noise_of
from repro.bench.registry import Session, ratio

ROUNDS, PAIRS = 7, 30
SIZES = ((60, 60, 1 / 5), (300, 120, 1 / 15))  # words of candidate and reference; ours must take at most this share
KINDS = ("rouge1", "rouge2", "rougeL")
Texts = list[tuple[str, str]]


@ratio("P7", "ROUGE-1, -2 and -L: ours against rouge_score", ("rouge-score",))
def rouge_seconds(session: Session) -> list[Row]:
    """Seconds for the same pairs, with and without stemmer, as ours / the package's."""
    return [_row(session, *size, stemmer=stemmer) for size in SIZES for stemmer in (False, True)]


def pairs(candidate: int, reference: int, count: int, seed: int = 0) -> Texts:
    """Made-up texts of words with English endings, so that the stemmer has work."""
    draw = random.Random(seed)  # noqa: S311 - made-up text, no secret
    stems = ["".join(draw.choices("abcdefghilmnoprstu", k=draw.randint(2, 7))) for _ in range(400)]
    words = [stem + draw.choice(("", "s", "ed", "ing", "ly", "ation")) for stem in stems]
    return [
        (" ".join(draw.choices(words, k=candidate)), " ".join(draw.choices(words, k=reference))) for _ in range(count)
    ]


def _row(session: Session, candidate: int, reference: int, bar: float, stemmer: bool) -> Row:
    from rouge_score import rouge_scorer  # type: ignore[import-untyped]

    from repro.evaluate.rouge import RougeScorer

    texts = pairs(candidate, reference, PAIRS)
    peer = rouge_scorer.RougeScorer(list(KINDS), use_stemmer=stemmer)
    ours = RougeScorer(KINDS, stemmer=stemmer)
    for made, true in texts:
        expect_equal(ours.score(made, true), peer.score(true, made))
    sides = {
        "ours": lambda: _timed(lambda: [RougeScorer(KINDS, stemmer=stemmer).score(*pair) for pair in texts]),
        "peer": lambda: _timed(lambda: [peer.score(true, made) for made, true in texts]),
        "ours again": lambda: _timed(lambda: [RougeScorer(KINDS, stemmer=stemmer).score(*pair) for pair in texts]),
    }
    times = interleave(sides, ROUNDS, session.tell)
    words = f"{candidate} x {reference} words, {'with' if stemmer else 'no'} stemmer"
    question = Question(
        "P7", f"ROUGE, {words}: ours / rouge_score", "rouge_score", _share, bar, "ratio", ("rouge-score",)
    )
    return question.answer(times, noise_of(times, "ours", "ours again"), f"{PAIRS} pairs equal to 1e-12")


def expect_equal(
    ours: Mapping[str, tuple[float, float, float]], peer: Mapping[str, tuple[float, float, float]]
) -> None:
    """NotEqualError unless all scores of one pair agree to 1e-12."""
    for kind in KINDS:
        if any(abs(a - b) > 1e-12 for a, b in zip(ours[kind], peer[kind], strict=True)):
            raise NotEqualError(f"{kind}: {tuple(ours[kind])} against {tuple(peer[kind])}")


def _share(times: Mapping[str, float]) -> float:
    return times["ours"] / times["peer"]


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
