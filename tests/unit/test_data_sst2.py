"""Sentences with labels: both variants of SST-2, gensim's, splits without labels (case D13), token ids."""

from __future__ import annotations

import collections
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.data.labelled import Labelled, describe, encode, overlap
from repro.data.rawlines import RawLines, wheel_file
from repro.data.sst2 import read_glue, read_polarity, read_trees
from repro.data.tokenise import tokenizer
from repro.evaluate.accuracy import accuracy
from repro.spec.errors import BadDataError
from tests.shared import shared

HEAD = "sentence\tlabel\n"


def glue(tmp_path: Path, text: str | bytes, name: str = "train") -> Labelled:
    path = tmp_path / f"{name}.tsv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_glue(RawLines(path, path.name), name)


def problems(tmp_path: Path, text: str | bytes) -> list[str]:
    with pytest.raises(BadDataError) as caught:
        glue(tmp_path, text)
    return str(caught.value).split("\n")


def labelled(*rows: tuple[str, int], name: str = "train") -> Labelled:
    return Labelled(name, tuple(text for text, _ in rows), np.array([label for _, label in rows], np.int8))


def test_d13_the_test_split_is_refused_and_dev_is_scored() -> None:
    read = {
        split: read_glue(RawLines(shared(f"cases/D13/{split}.tsv"), f"{split}.tsv"), split) for split in ("dev", "test")
    }
    assert "dev.tsv works on 3 items" in json.loads(shared("cases/D13/expected.json").read_text("utf-8"))["right"]
    with pytest.raises(BadDataError, match='split "test": labels: 2 of 2 items have no label') as caught:
        read["test"].scored()
    assert caught.value.exit_code == 65
    dev = read["dev"].scored()
    result = accuracy(np.array([1, 0, 0]), dev.labels, dev.name)
    assert (result.n, result.correct, result.split) == (3, 2, "dev")
    assert dev.sentences == ("a bright little film", "dull from the first minute", "nobody will regret it")


@pytest.mark.parametrize(
    ("split", "rows", "positive"), [("train", 67_349, 37_569), ("dev", 872, 444), ("test", 1_821, None)]
)
def test_the_official_files(split: str, rows: int, positive: int | None) -> None:
    path = shared(f"data/sst2/{split}.tsv.gz")
    part = read_glue(RawLines(path, path.name), split)
    assert len(part) == rows
    assert all(text == text.strip() for text in part.sentences)
    if positive is None:
        assert not part.is_labelled
        return
    assert part.scored().positive == positive
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:  # quotes are plain characters
        plain = [line.rstrip("\n").split("\t") for line in stream][1:]
    assert list(part.sentences) == [text.rstrip(" ") for text, _ in plain]
    assert part.labels.tolist() == [int(label) for _, label in plain]


def test_shares_of_labels_and_overlap_of_the_official_files() -> None:
    train, dev = (read_glue(RawLines(shared(f"data/sst2/{split}.tsv.gz"), split), split) for split in ("train", "dev"))
    assert round(train.positive / len(train), 5) == 0.55783
    assert describe(train) | {"sha256": ""} == {
        "sentences": 67_349, "labelled": True, "positive": 37_569, "different": 66_978, "with_both_labels": 5,
        "sha256": "",
    }  # fmt: skip
    in_dev = set(dev.sentences)
    assert overlap(train, dev)["dev_exact"] == sum(text in in_dev for text in set(train.sentences)) == 0
    long = [text for text in train.sentences if len(text.split()) >= 5]
    padded = [f" {text} " for text in dev.sentences]
    few = [text for text in long[::40] if any(f" {text} " in sentence for sentence in padded)]
    assert overlap(labelled(*((text, 0) for text in long[::40])), dev)["train_within"] == len(few)


def test_overlap_counts_what_training_has_seen_of_dev() -> None:
    train = labelled(
        ("a b c d e", 1), ("A  b C d e", 1), ("good", 1), ("whole sentence", 0), ("c d e f x", 0)
    )  # fmt: skip
    dev = labelled(("x a b c d e f good", 1), ("whole sentence", 0), ("WHOLE sentence", 0), name="dev")
    assert overlap(train, dev) == {"dev_exact": 1, "dev_folded": 2, "train_within": 2}


def test_gensims_sentences_are_split_by_hash_alone() -> None:
    path = wheel_file("gensim", "gensim/test/test_data/pang_lee_polarity.cor")
    parts = read_polarity(RawLines(path, path.name), 0.25)
    assert sum(len(part) for part in parts.values()) == 200
    assert sum(part.positive for part in parts.values()) == 100
    assert not set(parts["train"].sentences) & set(parts["dev"].sentences)
    lines = path.read_text("cp1252").splitlines()
    assert collections.Counter((line[12:].strip(), int(line.startswith("__label__pos"))) for line in lines) == (
        collections.Counter(row for p in parts.values() for row in zip(p.sentences, p.labels.tolist(), strict=True))
    )


def test_the_split_by_hash_does_not_depend_on_order(tmp_path: Path) -> None:
    lines = [f"__label__{'pos' if i % 2 else 'neg'} caf\xe9 number {i}" for i in range(50)]
    found = []
    for order in (lines, lines[::-1]):
        path = tmp_path / "s.cor"
        path.write_bytes("\n".join(order).encode("cp1252"))
        found.append({name: set(part.sentences) for name, part in read_polarity(RawLines(path, "s"), 0.3).items()})
    assert found[0] == found[1]
    assert "caf\xe9 number 0" in found[0]["train"] | found[0]["dev"]
    path.write_bytes(b"__label__pos one\n")
    with pytest.raises(BadDataError, match="no sentence for"):
        read_polarity(RawLines(path, "s"), 0.3)
    path.write_bytes(b"__label__neutral one\n")
    with pytest.raises(BadDataError, match="s:1: begins with __label__neutral"):
        read_polarity(RawLines(path, "s"), 0.3)


def test_trees_of_the_original_variant(tmp_path: Path) -> None:
    path = tmp_path / "dev.txt"
    path.write_text(
        "(3 (2 It) (4 (2 's) (4 (2 -LRB-) (4 lovely) (2 -RRB-))))\n(2 (2 so) (2 so))\n"
        "(0 (2 Dull) (2 .))\n(1 (1 a) (2 b))\n"
    )
    part = read_trees(RawLines(path, "dev.txt"), "dev")
    assert part.sentences == ("It 's ( lovely )", "Dull .", "a b")
    assert part.labels.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    "line", ["", "plain text", "(3 (2 a)", "(3 (2 a)))", "(7 (2 a))", "(3 (2 a)) (3 b)", "(3 )", "(3 (2 a)) b", "))((",
             "a(3 b)", "(3", "(" * 5000, "(3 " * 5000 + "a" + ")" * 5000 + "("],
)  # fmt: skip
def test_what_is_no_tree_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "dev.txt"
    path.write_text(f"(3 (2 a) (2 b))\n{line}\n(3 (2 a) (2 b))\n\n")
    with pytest.raises(BadDataError, match=r"^dev\.txt:2: is no tree"):
        read_trees(RawLines(path, "dev.txt"), "dev")


def test_all_bad_lines_are_named_at_once(tmp_path: Path) -> None:
    found = problems(tmp_path, HEAD.encode() + b"ok\t1\nno label\n \t0\nx\t2\ny\t01\na\tb\t1\n\xff\t1\nz\x1b[2J\t1\n")
    assert [line.split(":")[1] for line in found] == ["3", "4", "5", "6", "7", "8", "9"]
    assert "1 fields, the header has 2" in found[0]
    assert "has no text" in found[1]
    assert "label 2 is none of 0, 1, -1" in found[2]
    assert "control character U+001B" in found[6]
    assert all(line.isprintable() for line in found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not made of sentence, label, index"),
        ("text\tlabel\nx\t1\n", "is not made of sentence, label, index"),
        ("sentence\tsentence\nx\ty\n", "is not made of"),
        (HEAD, "holds no sentence"),
        (HEAD + "x\t1\ny\t-1\n", "1 of 2 rows have no label: all or none"),
        (HEAD + "x" * 70_000 + "\t1\n", "train.tsv:2: longer than 65536 bytes"),
        (HEAD + "x\0\t1\n", "train.tsv:2: holds byte 0"),
    ],
)
def test_files_that_are_not_glues(tmp_path: Path, text: str, said: str) -> None:
    assert said in problems(tmp_path, text)[0]


def test_quotes_and_blanks_inside_are_left_alone(tmp_path: Path) -> None:
    part = glue(tmp_path, 'label\tsentence\n1\t"quoted  text \n0\tit\'s "fine" \n')
    assert part.sentences == ('"quoted  text', 'it\'s "fine"')
    assert part.labels.tolist() == [1, 0]


def test_a_subset_is_chosen_by_hash_and_keeps_the_order() -> None:
    rows = [(f"sentence {i}", i % 2) for i in range(100)]
    part, back = labelled(*rows).subset(30), labelled(*rows[::-1]).subset(30)
    assert set(part.sentences) == set(back.sentences)
    assert list(part.sentences) == [text for text, _ in rows if text in set(part.sentences)]
    assert set(labelled(*rows).subset(10).sentences) < set(part.sentences)
    for count in (0, 101):
        with pytest.raises(BadDataError, match="1 to 100 can be had"):
            labelled(*rows).subset(count)


def test_a_sentence_with_both_labels_is_counted() -> None:
    told = describe(labelled(("a", 1), ("a", 0), ("a", 0), ("b", 1), ("b", 1)))
    assert (told["different"], told["with_both_labels"], told["positive"]) == (2, 1, 3)


def test_token_ids_are_padded_and_cut_with_counts() -> None:
    part = labelled(("ab", 1), ("abcdef", 0), ("abcd", 1))
    made = encode(part, tokenizer("bytes").encode, 4, pad=0)
    assert made.ids.tolist() == [[97, 98, 0, 0], [97, 98, 99, 100], [97, 98, 99, 100]]
    assert made.lengths.tolist() == [2, 4, 4]
    assert (made.truncated, made.tokens_lost, made.padding) == (1, 2, 2)
    assert made.labels.tolist() == [1, 0, 1]


@given(st.lists(st.text("aé漢😀 ", min_size=1), min_size=1, max_size=8), st.integers(1, 12))
def test_lengths_say_what_is_no_padding(texts: list[str], length: int) -> None:
    part = labelled(*((text, 1) for text in texts))
    made = encode(part, tokenizer("bytes").encode, length, pad=7)
    for text, ids, count in zip(texts, made.ids, made.lengths.tolist(), strict=True):
        assert bytes(ids[:count].astype(np.uint8)) == text.encode()[:length]
        assert (ids[count:] == 7).all()
    assert made.tokens_lost == sum(max(0, len(text.encode()) - length) for text in texts)


@pytest.mark.parametrize("tokens", [[], [-1], [1 << 31], [1.5], [[1]], "no ids"])
def test_a_tokenizer_that_gives_no_ids_is_refused(tokens: object) -> None:
    with pytest.raises(BadDataError, match='split "train": sentence 1: the tokenizer gave'):
        encode(labelled(("a", 1)), lambda _: tokens, 4, 0)


def test_a_length_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="length is at least 1"):
        encode(labelled(("a", 1)), lambda _: [1], 0, 0)
