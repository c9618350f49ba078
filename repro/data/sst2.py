"""SST-2 in two variants that are not the same task, and the 200 review sentences that ship with gensim.

GLUE's (`sst2`): 67,349 training *phrases*, 872 dev and 1,821 test sentences, the latter without labels. The original
(`sst2_trees`): whole sentences, 6,920 / 872 / 1,821, all with labels, cut out of the treebank. A number from
one says nothing of the other, so they have names, files and digests of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate

import numpy as np

from repro.data.labelled import UNLABELLED, Labelled
from repro.data.leakage import document_hash, is_validation
from repro.data.rawlines import Faults, RawLines
from repro.spec.errors import shown

_LABELS = {"0": 0, "1": 1, "-1": UNLABELLED}
_COLUMNS = {"sentence", "label", "index"}
_ROOT = {"0": 0, "1": 0, "3": 1, "4": 1}  # 2 is neutral: not in this task
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_LEAF = re.compile(r"\([0-4] ([^\s()]+)\)")
_SHAPE = re.compile(r"\([0-4] (?:\([0-4] |[^\s()]+|\) ?)*+")
_BRACKETS = {"-LRB-": "(", "-RRB-": ")"}
Row = tuple[str, int]


def read_glue(lines: RawLines, split: str) -> Labelled:
    """A tab-separated file with the columns sentence, label and index in any order; quotes are plain characters.

    Without the column label, or with -1 in all of it, the split is unlabelled. Raises BadDataError with all wrong
    lines (the first 100): another number of fields, no such label, labels for a part only, no text, control
    characters, not UTF-8, and whatever `RawLines` refuses.
    """
    numbered = _texts(lines)
    _, first = next(numbered, (0, ""))
    header = first.split("\t")
    if "sentence" not in header or len(set(header)) < len(header) or not set(header) <= _COLUMNS:
        lines.faults.stop(1, f"{shown(first)} is not made of sentence, label, index", "header")
    labelled = _gather(lines.faults, split, numbered, partial(_glue_row, header))
    known = labelled.labels >= 0
    if known.any() and not known.all():
        lines.faults.stop(None, f"{int((~known).sum())} of {len(known)} rows have no label: all or none", "label")
    return labelled


def _glue_row(header: list[str], text: str) -> Row:
    fields = text.split("\t")
    if len(fields) != len(header):
        raise ValueError(f"{len(fields)} fields, the header has {len(header)}")
    row = dict(zip(header, fields, strict=True))
    label = row.get("label", "-1")
    if label not in _LABELS:
        raise ValueError(f"label {shown(label)} is none of {', '.join(_LABELS)}")
    return row["sentence"].strip(" "), _LABELS[label]


def read_trees(lines: RawLines, split: str) -> Labelled:
    """The treebank's bracketed trees, one a line: the root's label is the sentence's, leaves are its words.

    Labels 0 and 1 are negative, 3 and 4 positive; neutral sentences (2) are left out, as in the original task.
    Raises as `read_glue`.
    """
    return _gather(lines.faults, split, _texts(lines), _tree)


def _tree(text: str) -> Row | None:
    """Words and label of one tree; None if it is neutral."""
    depths = list(accumulate((sign == "(") - (sign == ")") for sign in text if sign in "()"))
    is_one_tree = text.endswith(")") and depths[-1] == 0 and min(depths[:-1]) > 0
    words = _LEAF.findall(text)
    if not is_one_tree or not _SHAPE.fullmatch(text) or not words:
        raise ValueError("is no tree such as (3 (2 It) (4 works))")
    label = _ROOT.get(text[1])
    return None if label is None else (" ".join(_BRACKETS.get(word, word) for word in words), label)


def read_polarity(lines: RawLines, validation: float) -> dict[str, Labelled]:
    """gensim's file, `__label__neg` or `__label__pos` before each sentence, in cp1252: train and dev.

    A sentence's hash alone decides in which split it lies. Raises as `read_glue`.
    """
    both = _gather(lines.faults, "all", _texts(lines, "cp1252"), _polarity_row)
    held = np.array([is_validation(document_hash(text), validation) for text in both.sentences])
    found = {}
    for split, mask in (("train", ~held), ("dev", held)):
        if not mask.any():
            lines.faults.stop(None, f"no sentence for {split} among {len(both)}: more are needed")
        found[split] = Labelled(split, tuple(both.sentences[i] for i in np.flatnonzero(mask)), both.labels[mask])
    return found


def _polarity_row(text: str) -> Row:
    label, _, sentence = text.partition(" ")
    if label not in ("__label__neg", "__label__pos"):
        raise ValueError(f"begins with {shown(label)}, __label__neg or __label__pos is expected")
    return sentence.strip(" "), int(label == "__label__pos")


def _texts(lines: RawLines, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """Lines as text; one that is none is noted and left out."""
    for number, line in lines:
        try:
            text = line.decode(encoding)
        except UnicodeDecodeError as error:
            lines.faults.add(number, "", f"not {encoding} at byte {error.start} of the line")
            continue
        if control := _CONTROL.search(text):
            lines.faults.add(number, "", f"holds the control character U+{ord(control.group()):04X}")
            continue
        yield number, text


def _gather(
    faults: Faults, split: str, numbered: Iterator[tuple[int, str]], parse: Callable[[str], Row | None]
) -> Labelled:
    """All rows of one split; BadDataError with every problem, or for a split without rows."""
    sentences: list[str] = []
    labels: list[int] = []
    for number, text in numbered:
        try:
            row = parse(text)
            if row and not row[0]:
                raise ValueError("has no text")
        except ValueError as error:
            faults.add(number, "", str(error))
            continue
        if row:
            sentences.append(row[0])
            labels.append(row[1])
    faults.check()
    if not sentences:
        faults.stop(None, "holds no sentence")
    return Labelled(split, tuple(sentences), np.array(labels, np.int8))
