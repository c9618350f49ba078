"""ROUGE against the installed rouge_score, the known pairs, and what must hold for any text (M04, M05, M06, M09)."""

import itertools
import json
import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rouge_score import rouge_scorer

from repro.evaluate import rouge
from repro.evaluate.rouge import CHECKED_PAIRS, DEFAULT_KINDS, KINDS, PARTS, RougeScorer, self_check, versions
from repro.evaluate.rouge_parts import TOKENIZERS, Vocabulary, lcs_length, lcs_positions, match_masks, tokenizer_named
from tests.conftest import shared_case

ROOT = Path(__file__).resolve().parents[2]
NAMES = list(DEFAULT_KINDS)
PAIRS = ROOT.parent / "shared" / "cases" / "M04" / "pairs.json"
ids = st.lists(st.integers(0, 4), max_size=40)
texts = st.lists(st.sampled_from(["a", "b", "c", "running", "runs", "\n", "...", "\n\n", "B,a", "9"]), max_size=30).map(
    " ".join
)


def table_length(left, right):
    """Length of a longest common subsequence by the plain quadratic table."""
    row = [0] * (len(right) + 1)
    for token in left:
        above = row[:]
        for j, other in enumerate(right, 1):
            row[j] = above[j - 1] + 1 if token == other else max(above[j], row[j - 1])
    return row[-1]


def farthest(ours, theirs):
    """Largest difference between two {kind: score}."""
    assert list(ours) == list(theirs)
    return max(abs(a - b) for kind in ours for a, b in zip(ours[kind], theirs[kind], strict=True))


def made_up_pairs(count, seed=20):
    rng = random.Random(seed)
    words = ["ship", "ships", "sailed", "sailing", "over", "the", "sea", "calmly", "winds", "and"]

    def text():
        return " ".join(rng.choices([*words, "\n"], k=rng.randint(0, 30)))

    return [text() for _ in range(count)], [text() for _ in range(count)]


# --- the known pairs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", json.loads(PAIRS.read_text("utf-8")) if PAIRS.is_file() else [], ids=lambda i: i["id"])
def test_m04_pairs_as_written(item):
    rights = [
        (item.get(key), on) for key, on in (("right", False), ("right_no_stemmer", False), ("right_stemmer", True))
    ]
    for right, stemmer in rights:
        if right is not None:
            scores = RougeScorer(stemmer=stemmer).score(item["hyp"], item["ref"])
            assert {kind: round(scores[kind].fmeasure, 6) for kind in right} == right
    counted = RougeScorer(stemmer=False).score_all([item["hyp"]], [item["ref"]])
    assert counted.empty_candidates == (item["hyp"] == "")
    assert counted.empty_references == 0


def test_m04_file_is_there():
    assert {item["id"] for item in json.loads(shared_case("M04/pairs.json").read_text("utf-8"))} == {
        "newline", "flat", "stem", "empty"
    }  # fmt: skip


def test_only_newlines_make_sentences():
    one = "the ice melts. rivers rise."
    scores = RougeScorer(stemmer=False).score("rivers rise. the ice melts.", one)
    assert scores["rougeLsum"] == scores["rougeL"] == pytest.approx((0.6, 0.6, 0.6))
    for other in ("\r", "\x0b", "\u2028", "\x85"):
        assert RougeScorer(stemmer=False).score(f"rivers rise{other}the ice melts", one)["rougeLsum"].recall == 0.6
    assert RougeScorer(stemmer=False).score("rivers rise\nthe ice melts", "the ice melts\nrivers rise")[
        "rougeLsum"
    ] == (1, 1, 1)


def test_short_words_are_not_stemmed():
    stemmed = RougeScorer(("rouge1",), stemmer=True)
    assert stemmed.score("toys", "toy")["rouge1"].fmeasure == 1
    assert stemmed.score("was", "wa")["rouge1"].fmeasure == 0


# --- equal to the library -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stemmer", [False, True])
@pytest.mark.parametrize(
    ("candidate", "reference"),
    [
        *CHECKED_PAIRS,
        ("\n\n", "\n"),
        (" \t ", "word"),
        ("\n\nword\n", "word"),
        ("a", "a"),
        ("a a a a", "a a"),
        ("a b\r\nc d", "c d\r\na b"),
        ("_under_score_", "under score"),
        ("\u0130stanbul \ud800 I", "i stanbul"),  # a lower case of two characters; half a surrogate pair
        ("\U0001f600 ok", "ok \u00df"),
        ("x" * 5000, "x" * 5000),
        ("generalizations oscillators", "generally oscillate"),
        ("0 00 000 0", "000 0\n0"),
    ],
)
def test_edge_cases_equal_the_library(candidate, reference, stemmer):
    theirs = rouge_scorer.RougeScorer(NAMES, use_stemmer=stemmer).score(reference, candidate)
    assert farthest(RougeScorer(stemmer=stemmer).score(candidate, reference), theirs) == 0


def random_text(rng, alphabet):
    longest = rng.choice([1, 5, 12, 25, 50])
    blank = rng.choice([" ", " ", ", ", "  "])
    words = rng.choices(alphabet, k=rng.randint(0, longest))
    return blank.join(word + ("\n" if rng.random() < 0.15 else "") for word in words)


@pytest.mark.parametrize("stemmer", [False, True])
def test_ten_thousand_random_pairs_equal_the_library(stemmer):
    rng = random.Random(f"pairs {stemmer}")
    long = ["Relational", "relating", "hopping", "hopes", "hoped", "flies", "dies", "sky", "skies", "x1", "42", "be"]
    alphabets = [["a"], ["a", "b"], ["a", "b", "C"], list("abcdefgh"), long, long + list("abc.-")]
    ours, theirs = RougeScorer(stemmer=stemmer), rouge_scorer.RougeScorer(NAMES, use_stemmer=stemmer)
    worst = 0.0
    for _ in range(10_000):
        alphabet = rng.choice(alphabets)
        candidate, reference = random_text(rng, alphabet), random_text(rng, alphabet)
        worst = max(worst, farthest(ours.score(candidate, reference), theirs.score(reference, candidate)))
    assert worst <= 1e-12


@pytest.mark.parametrize(("size", "words"), [(150, 3), (150, 40), (300, 12)])
def test_long_texts_of_many_lines_equal_the_library(size, words):
    rng = random.Random(size + words)
    alphabet = [*(f"w{i}" for i in range(words)), "w0\n", "w1.\n"]
    for _ in range(3):
        candidate, reference = (" ".join(rng.choices(alphabet, k=size + rng.randint(0, 40))) for _ in range(2))
        theirs = rouge_scorer.RougeScorer(NAMES).score(reference, candidate)
        assert farthest(RougeScorer(stemmer=False).score(candidate, reference), theirs) <= 1e-12


def test_longer_ngrams_and_each_kind_alone_equal_the_library():
    candidates, references = made_up_pairs(40)
    for kinds in [KINDS, *((kind,) for kind in NAMES), ("rougeLsum", "rouge1"), ("rougeL", "rougeLsum")]:
        ours, theirs = RougeScorer(kinds, stemmer=True), rouge_scorer.RougeScorer(list(kinds), use_stemmer=True)
        for candidate, reference in zip(candidates, references, strict=True):
            assert farthest(ours.score(candidate, reference), theirs.score(reference, candidate)) <= 1e-12


def test_the_other_tokenizer_in_the_library_gives_the_same_scores():
    class Words:
        def tokenize(self, text):
            return TOKENIZERS["unicode_words"].words(text)

    ours = RougeScorer(stemmer=False, tokenizer="unicode_words")
    theirs = rouge_scorer.RougeScorer(NAMES, tokenizer=Words())
    for pair in itertools.product(
        ["Stra\u00dfe \u4e2d\u6587 a_b\nna\u00efve", "STRASSE a_b \u4e2d", "", "\u0391\u03a3 \u03b1\u03c3"], repeat=2
    ):
        assert farthest(ours.score(*pair), theirs.score(*pair[::-1])) <= 1e-12
    assert ours.score("STRASSE", "stra\u00dfe")["rouge1"].fmeasure == 1


def test_every_stem_is_the_librarys():
    from rouge_score import tokenizers

    rng = random.Random(4)
    ends = [
        "",
        "s",
        "es",
        "ies",
        "ied",
        "sses",
        "ing",
        "eed",
        "ed",
        "ational",
        "iveness",
        "ly",
        "ement",
        "ion",
        "e",
        "ll",
    ]
    words = sorted({"".join(rng.choices("aeiousty9", k=rng.randint(0, 4))) + end for end in ends for _ in range(200)})
    theirs = tokenizers.DefaultTokenizer(use_stemmer=True)
    stemmed = [theirs.tokenize(word) for word in words if word]
    assert all(len(found) == 1 for found in stemmed)  # a stem is never empty
    same = Vocabulary(stemmer=True).ids([word for word in words if word])
    assert len(set(zip(same, map(tuple, stemmed), strict=True))) == len(set(same)) == len(set(map(tuple, stemmed)))


# --- what holds for any text ----------------------------------------------------------------------------------


@given(ids, ids)
@example([0] * 200, [0] * 70)
@example(list(range(100)), list(range(99, -1, -1)))
def test_length_by_bits_is_the_tables(left, right):
    assert lcs_length(left, right) == lcs_length(right, left) == table_length(left, right)


@given(ids, ids)
def test_positions_by_bits_are_those_of_the_librarys_way_back(left, right):
    found = lcs_positions(match_masks(left), len(left), right)
    theirs = rouge_scorer.lcs_ind(left, right)
    assert found == sum(1 << i for i in theirs)


@settings(max_examples=200)
@given(texts, texts, st.booleans())
def test_scores_are_shares_and_swapping_the_sides_swaps_precision_and_recall(one, two, stemmer):
    scorer = RougeScorer(("rouge1", "rouge2", "rouge3", "rougeL", "rougeLsum"), stemmer=stemmer)
    forth, back = scorer.score(one, two), scorer.score(two, one)
    for kind, score in forth.items():
        assert all(type(value) is float and 0 <= value <= 1 for value in score)
        assert min(score[:2]) - 1e-12 <= score.fmeasure <= max(score[:2]) + 1e-12
        if kind != "rougeLsum":  # the union runs over the reference's lines only, so it has a side
            assert score == (back[kind].recall, back[kind].precision, pytest.approx(back[kind].fmeasure, abs=1e-12))
    assert forth["rouge1"].recall >= max(forth["rougeL"].recall, forth["rougeLsum"].recall) - 1e-12


@given(texts, st.booleans())
def test_a_text_is_all_of_itself(text, stemmer):
    scorer = RougeScorer(stemmer=stemmer)
    words = len(TOKENIZERS["rouge_score"].words(text))
    right = {"rouge1": words > 0, "rouge2": words > 1, "rougeL": words > 0, "rougeLsum": words > 0}
    assert {kind: score.fmeasure for kind, score in scorer.score(text, text).items()} == right


# --- many pairs -----------------------------------------------------------------------------------------------

SCORING = """
import json, socket, sys
def refuse(*args, **kwargs):
    raise OSError("no network here")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from repro.evaluate.rouge import RougeScorer
scores = RougeScorer(stemmer=True).score_all(*json.load(sys.stdin))
items = {kind: {part: [v.hex() for v in map(float, values)] for part, values in parts.items()}
         for kind, parts in scores.items.items()}
means = {kind: [v.hex() for v in score] for kind, score in scores.means().items()}
print(json.dumps([items, means, scores.empty_candidates, scores.empty_references]))
"""


def test_m05_two_processes_at_once_agree_to_the_last_digit_without_network_or_home(tmp_path):
    tmp_path.chmod(0o555)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", SCORING],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "HOME": str(tmp_path), "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
        )
        for seed in ("1", "2")
    ]
    pairs = json.dumps(made_up_pairs(50))
    printed = [child.communicate(pairs, timeout=120)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert printed[0] == printed[1]
    assert list(tmp_path.iterdir()) == []
    here = RougeScorer(stemmer=True).score_all(*made_up_pairs(50))
    assert json.loads(printed[0])[1] == {kind: [v.hex() for v in score] for kind, score in here.means().items()}


def test_m05_the_order_of_the_pairs_changes_no_mean():
    candidates, references = made_up_pairs(50)
    scorer = RougeScorer(stemmer=False)
    before = scorer.score_all(candidates, references)
    for seed in range(5):
        order = random.Random(seed).sample(range(50), 50)
        after = scorer.score_all([candidates[i] for i in order], [references[i] for i in order])
        assert after.means() == before.means()
        assert np.array_equal(after.items["rougeL"]["recall"], before.items["rougeL"]["recall"][order])


def test_item_scores_are_kept_in_order_and_empty_texts_are_counted_within_the_mean():
    candidates, references = ["a b", "", " ... ", "c d"], ["a c", "x", "y", ""]
    scorer = RougeScorer(("rouge1", "rougeL"), stemmer=False)
    scores = scorer.score_all(iter(candidates), iter(references))
    assert (scores.pairs, scores.empty_candidates, scores.empty_references) == (4, 2, 1)
    assert {kind: tuple(parts) for kind, parts in scores.items.items()} == {"rouge1": PARTS, "rougeL": PARTS}
    for kind, part in itertools.product(scores.items, PARTS):
        values = scores.items[kind][part]
        assert (values.dtype, values.shape) == (np.float64, (4,))
        one_by_one = [getattr(scorer.score(*pair)[kind], part) for pair in zip(candidates, references, strict=True)]
        assert values.tolist() == one_by_one
        assert scores.mean(kind, part) == math.fsum(one_by_one) / 4
    assert scores.mean("rouge1") == 0.125


# --- refusals and the self-check ------------------------------------------------------------------------------


def test_a_candidate_that_the_tokenizer_empties_is_an_empty_one_and_scores_zero():
    emptied = ["\u00e9", "\u043c\u0438\u0440", "\u4e2d\u6587"]
    scorer = RougeScorer(stemmer=True)
    scores = scorer.score_all([*emptied, "fine"], ["fine"] * 4)
    assert (scores.empty_candidates, scores.empty_references) == (3, 0)
    assert scores.items["rougeL"]["fmeasure"].tolist() == [0, 0, 0, 1]
    assert scores.mean("rouge1") == 0.25
    for text in emptied:
        assert set(scorer.score(text, "fine").values()) == {(0, 0, 0)}


def test_references_that_the_tokenizer_empties_count_as_empty_and_are_refused_where_there_is_no_other():
    scorer = RougeScorer(stemmer=False)
    scores = scorer.score_all(["a", "a", "a"], ["a", "a", "\u043c\u0438\u0440"])
    assert (scores.empty_references, scores.mean("rouge1")) == (1, 2 / 3)
    with pytest.raises(ValueError, match=r"leaves nothing of 2 texts .*use tokenizer 'unicode_words'"):
        scorer.score_all(["a", "a"], ["", "\u043c\u0438\u0440"])
    with pytest.raises(ValueError, match=r"reference: tokenizer 'rouge_score'"):
        scorer.score("a", "\u00e9")
    wide = RougeScorer(stemmer=False, tokenizer="unicode_words")
    assert wide.score("\u043c\u0438\u0440 \u0438 \u0442\u0440\u0443\u0434", "\u041c\u0438\u0440")["rouge1"].recall == 1
    assert scorer.score("\u4e2d\u6587 ok", "ok")["rouge1"].recall == 1
    assert scorer.score("\u20ac \u2014 \U0001f600", "ok")["rouge1"].recall == 0  # signs, no letters: only empty


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="unknown kind of ROUGE 'rougeLSum'; did you mean \"rougeLsum\""):
        RougeScorer(("rougeLSum",), stemmer=False)
    with pytest.raises(ValueError, match="unknown kind of ROUGE 'rouge0'"):
        RougeScorer(("rouge0",), stemmer=False)
    with pytest.raises(ValueError, match="unknown kind"):
        RougeScorer((), stemmer=False)
    with pytest.raises(ValueError, match=r"unknown tokenizer 'unicode'.*known: rouge_score, unicode_words"):
        RougeScorer(stemmer=False, tokenizer="unicode")
    scorer = RougeScorer(stemmer=False)
    with pytest.raises(ValueError, match="2 candidates for 1 references"):
        scorer.score_all(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="0 candidates"):
        scorer.score_all([], [])
    with pytest.raises(TypeError, match="candidates: a list of texts"):
        scorer.score_all("ab", ["a", "b"])
    with pytest.raises(TypeError, match="reference 0: a text is needed, not NoneType"):
        scorer.score_all(["a"], [None])


@pytest.fixture
def fresh_check():
    self_check.cache_clear()
    yield
    self_check.cache_clear()


def test_the_self_check_compares_every_kind_part_and_option_once(fresh_check, monkeypatch):
    assert self_check() == len(CHECKED_PAIRS) * 2 * len(DEFAULT_KINDS) * len(PARTS)
    monkeypatch.setattr(rouge, "_agree", None)
    assert self_check() > 0  # a second call does not compare again


def raised_by(amount, score):
    """`score`, with `amount` on each number that it returns."""

    def wrong(self, *pair):
        return {kind: type(found)(*(value + amount for value in found)) for kind, found in score(self, *pair).items()}

    return wrong


@pytest.mark.parametrize("whose", [RougeScorer, rouge_scorer.RougeScorer], ids=["ours", "the package's"])
@pytest.mark.parametrize("amount", [0.001, -2e-6, math.nan])
def test_m06_a_scorer_that_drifts_is_stopped_before_any_scoring(fresh_check, monkeypatch, whose, amount):
    monkeypatch.setattr(whose, "score", raised_by(amount, whose.score))
    monkeypatch.setattr(np, "zeros", None)  # the table of scores is made after the check
    said = (
        r"self-check failed, nothing was scored: rouge1 .*candidate '.+', reference '.+': \S+ here, \S+ by rouge_score"
    )
    with pytest.raises(RuntimeError, match=said):
        RougeScorer(stemmer=True).score_all(["a"], ["a"])
    with pytest.raises(RuntimeError, match=said):  # a failure is not remembered as done
        self_check()


def test_m06_rounding_is_no_drift_and_the_package_is_named(fresh_check, monkeypatch):
    monkeypatch.setattr(rouge_scorer.RougeScorer, "score", raised_by(1e-9, rouge_scorer.RougeScorer.score))
    assert RougeScorer(stemmer=False).score_all(["a"], ["a"]).mean("rouge1") == 1
    assert versions()["rouge-score"].startswith("0.1.")
    assert set(versions()) == {"rouge-score", "nltk"}


def test_nothing_else_is_a_tokenizer_by_default():
    assert RougeScorer(stemmer=False).tokenizer == "rouge_score"
    assert tokenizer_named("unicode_words").words("\u00c9t\u00e9, \u4e2d\u6587!") == ["\u00e9t\u00e9", "\u4e2d\u6587"]


def test_long_texts_are_scored_many_times_faster_than_by_the_library():
    """A guard against the quadratic loop's return; the bars themselves are measured by the benchmark."""
    rng = random.Random(5)
    one, two = (" ".join(f"w{int(rng.paretovariate(0.7)) % 500}" for _ in range(size)) for size in (300, 120))
    kinds = ["rouge1", "rouge2", "rougeL"]
    ours, theirs = RougeScorer(kinds, stemmer=False), rouge_scorer.RougeScorer(kinds)
    assert farthest(ours.score(one, two), theirs.score(two, one)) <= 1e-12
    spent = {"ours": [], "theirs": []}
    for _ in range(5):
        for name, score in (("ours", lambda: ours.score(one, two)), ("theirs", lambda: theirs.score(two, one))):
            start = time.perf_counter()
            score()
            spent[name].append(time.perf_counter() - start)
    assert min(spent["theirs"]) > 5 * min(spent["ours"])
