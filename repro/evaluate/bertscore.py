"""BERTScore (Zhang et al. 2020) with bert-score's own functions and an encoder that is a local folder.

What is added to the package: no name is ever looked up elsewhere, empty and cut texts are counted, each distinct
text is encoded next to texts of its own length, and every number carries the protocol that it was made under.
"""

from __future__ import annotations

import csv
import importlib.metadata
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from repro.evaluate.bertscore_encoder import (
    EMBEDDED_LAYERS,
    Encoder,
    bert_score_functions,
    embedded_encoder,
)
from repro.spec.errors import BadDataError, MissingError, problem_error, shown
from repro.spec.hashing import sha256_file, short

__all__ = [
    "EMBEDDED_LAYERS", "BertScorer", "BertScores", "Encoder", "Scores",
    "comparable", "embedded_encoder", "rankings", "shipped_baseline",
]  # fmt: skip

Array = NDArray[np.float64]
Pair = tuple[str, str]  # candidate, reference

ENCODED = 32  # texts in one call of the encoder
MATCHED = 32  # pairs in one call of the matching
KEPT = 256  # pairs whose token vectors are in memory together


@dataclass(frozen=True, slots=True)
class Scores:
    """Precision, recall and F1 of each pair, float64 [N], in the pairs' own order."""

    precision: Array
    recall: Array
    f1: Array

    def means(self) -> tuple[float, float, float]:
        """Mean precision, recall and F1 over the pairs; raises ValueError where there are none."""
        if not len(self.f1):
            raise ValueError("no pairs were scored")
        p, r, f = (math.fsum(values) / len(values) for values in (self.precision, self.recall, self.f1))
        return p, r, f

    def rescaled(self, baseline: Array) -> Scores:
        """(score - baseline) / (1 - baseline), column by column, as bert-score does it: a score of 0 falls below 0."""
        columns = (self.precision, self.recall, self.f1)
        p, r, f = ((values - base) / (1 - base) for values, base in zip(columns, baseline, strict=True))
        return Scores(p, r, f)


@dataclass(frozen=True, slots=True)
class BertScores:
    """Scores of N pairs, raw and, with a baseline, rescaled; and how many pairs were not scored in full.

    `empty`: pairs with a candidate or a reference that has no token. `weightless`: pairs one side of which has no
    idf weight, since its tokens are in every reference. Both have raw scores of 0. `cut`: pairs with a text of
    more than the stated maximum of tokens.
    """

    raw: Scores
    rescaled: Scores | None
    empty: int
    weightless: int
    cut: int

    @property
    def n(self) -> int:
        """Number of pairs, all of which count in a mean."""
        return len(self.raw.f1)


class BertScorer:
    """BERTScore of pairs under one protocol: an encoder, idf weights or none, a baseline or none.

    With `idf`, weights come from the references of the scored set. A baseline is bert-score's table
    (`LAYER,P,R,F`); raises MissingError if the file is not there, BadDataError if it has no row for the layer.
    """

    def __init__(self, encoder: Encoder, idf: bool = False, baseline: Path | None = None) -> None:
        self.encoder = encoder
        self.idf = idf
        self.baseline = None if baseline is None else _baseline(baseline, encoder.layers)
        self._baseline_sha256 = "" if baseline is None else sha256_file(baseline)

    def protocol(self, rescaled: bool = False) -> str:
        """All that changes a score, in one line; scores are comparable if these lines are equal."""
        if rescaled and self.baseline is None:
            raise ValueError("there are no rescaled scores without a baseline")
        scale = f"rescaled-{short(self._baseline_sha256)}" if rescaled else "raw"
        versions = [f"{name}={importlib.metadata.version(name)}" for name in ("bert-score", "transformers")]
        parts = [
            f"encoder={short(self.encoder.fingerprint)}",
            f"layer={self.encoder.layers}",
            f"idf={'references' if self.idf else 'no'}",
            f"scale={scale}",
            f"max_tokens={self.encoder.max_tokens}",
            *versions,
        ]
        return f"bertscore({','.join(parts)})"

    def score_all(self, candidates: Sequence[str], references: Sequence[str]) -> BertScores:
        """Scores of the pairs (candidates[i], references[i]); equal pairs are scored once.

        The order of the pairs changes nothing. Raises BadDataError for lists of unequal length, for what is no
        text, and for an encoder whose vectors are not finite.
        """
        pairs = _pairs(candidates, references)
        lengths = self.encoder.lengths(sorted({text for pair in pairs for text in pair}))
        bare = len(self.encoder.tokenizer.encode("", add_special_tokens=True))
        # bert-score sets a text of exactly two tokens to 0, whatever number of special tokens there is.
        empty = {text for text, length in lengths.items() if length <= bare or length == 2}
        full = {pair for pair in pairs if empty.isdisjoint(pair)}
        scored = self._score(sorted(full, key=lambda pair: _place(pair, lengths)), self._weights(references), lengths)
        weightless = {pair for pair, values in scored.items() if values is None}
        table = np.array([scored.get(pair) or (0.0, 0.0, 0.0) for pair in pairs], dtype=np.float64).reshape(-1, 3)
        raw = Scores(*table.T.copy())
        return BertScores(
            raw=raw,
            rescaled=None if self.baseline is None else raw.rescaled(self.baseline),
            empty=sum(not empty.isdisjoint(pair) for pair in pairs),
            weightless=sum(pair in weightless for pair in pairs),
            cut=sum(max(lengths[text] for text in pair) > self.encoder.max_tokens for pair in pairs),
        )

    def _weights(self, references: Sequence[str]) -> dict[int, float]:
        if self.idf and references:
            weights: dict[int, float] = bert_score_functions().get_idf_dict(
                references, self.encoder.tokenizer, nthreads=0
            )
            return weights
        special = (self.encoder.tokenizer.sep_token_id, self.encoder.tokenizer.cls_token_id)
        return defaultdict(lambda: 1.0, dict.fromkeys(special, 0.0))

    def _score(
        self, pairs: list[Pair], weights: dict[int, float], lengths: dict[str, int]
    ) -> dict[Pair, tuple[float, ...] | None]:
        """(P, R, F1) of each pair; None where a side has no weight. Vectors of `KEPT` pairs are held at a time."""
        scored: dict[Pair, tuple[float, ...] | None] = {}
        for start in range(0, len(pairs), KEPT):
            kept = pairs[start : start + KEPT]
            texts = sorted({text for pair in kept for text in pair}, key=lambda text: (lengths[text], text))
            vectors = self._encode(texts, weights)
            for first in range(0, len(kept), MATCHED):
                batch = kept[first : first + MATCHED]
                scored.update(zip(batch, self._match(batch, vectors), strict=True))
        return scored

    def _encode(self, texts: list[str], weights: dict[int, float]) -> dict[str, tuple[Any, Any]]:
        """Token vectors [tokens, width] and weights [tokens] of each text."""
        model, found = self.encoder.model, {}
        for start in range(0, len(texts), ENCODED):
            batch = texts[start : start + ENCODED]
            vectors, mask, weight = bert_score_functions().get_bert_embedding(
                batch, model, self.encoder.tokenizer, weights, device=model.device
            )
            for row, text in enumerate(batch):
                length = int(mask[row].sum())
                found[text] = (vectors[row, :length], weight[row, :length].to(model.device))
        return found

    def _match(self, batch: list[Pair], vectors: dict[str, tuple[Any, Any]]) -> list[tuple[float, ...] | None]:
        """Greedy matching (equations 1 to 3 of the paper) of a batch of pairs."""
        sides = [_padded([vectors[text] for text in side]) for side in zip(*batch, strict=True)]
        weightless = torch.stack([(weight.sum(dim=1) <= 0) for _, _, weight in sides]).any(dim=0).tolist()
        candidates, references = sides
        values = torch.stack(bert_score_functions().greedy_cos_idf(*references, *candidates), dim=-1).double().tolist()
        rows: list[tuple[float, ...] | None] = []
        for pair, row, without in zip(batch, values, weightless, strict=True):
            if not without and not all(map(math.isfinite, row)):
                message = f'the encoder gives no finite score for "{shown(pair[0])}"'
                raise problem_error(BadDataError, short(self.encoder.fingerprint), "encoder", message)
            rows.append(None if without else tuple(row))
        return rows


def _pairs(candidates: Sequence[str], references: Sequence[str]) -> list[Pair]:
    if len(candidates) != len(references):
        message = f"{len(candidates)} candidates but {len(references)} references"
        raise problem_error(BadDataError, "bertscore", "references", message)
    for key, texts in (("candidates", candidates), ("references", references)):
        wrong = [index for index, text in enumerate(texts) if not isinstance(text, str)]
        if wrong:
            raise problem_error(BadDataError, "bertscore", key, f"item {wrong[0]} is no text")
    return list(zip(candidates, references, strict=True))


def _place(pair: Pair, lengths: dict[str, int]) -> tuple[int, str, int, str]:
    """Where a pair comes in the work: like lengths together, and a reference's candidates one after the other."""
    candidate, reference = pair
    return lengths[reference], reference, lengths[candidate], candidate


def _padded(rows: Sequence[tuple[Any, Any]]) -> tuple[Any, Any, Any]:
    """Vectors, mask and weights of a batch; padded with 2 as in bert-score, since a zero vector has no direction."""
    vectors = pad_sequence([vector for vector, _ in rows], batch_first=True, padding_value=2.0)
    weights = pad_sequence([weight for _, weight in rows], batch_first=True)
    lengths = torch.tensor([len(weight) for _, weight in rows], device=vectors.device)
    return vectors, torch.arange(vectors.shape[1], device=vectors.device) < lengths.unsqueeze(1), weights


def shipped_baseline(name: str, language: str = "en") -> Path | None:
    """The baseline file that bert-score ships for an encoder of this name, such as `roberta-large`; None without."""
    folder = Path(str(importlib.metadata.distribution("bert-score").locate_file("bert_score/rescale_baseline")))
    known = {path.stem: path for path in (folder / language).glob("*.tsv")}
    return known.get(name)


def _baseline(path: Path, layers: int) -> Array:
    """P, R and F of one layer, float64 [3]."""
    if not path.is_file():
        raise problem_error(MissingError, shown(str(path)), "baseline", "no such file")
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            rows = {int(row["LAYER"]): [float(row[name]) for name in "PRF"] for row in csv.DictReader(stream)}
        row = rows[layers]
    except (KeyError, TypeError, ValueError, csv.Error):  # UnicodeDecodeError is a ValueError
        message = f"no table LAYER,P,R,F with a row for layer {layers}"
        raise problem_error(BadDataError, shown(str(path)), "baseline", message) from None
    if not all(math.isfinite(value) and value < 1 for value in row):
        raise problem_error(BadDataError, shown(str(path)), "baseline", "a baseline is a number below 1")
    return np.array(row, dtype=np.float64)


def comparable(first: str | None, second: str | None) -> bool:
    """Whether numbers of two protocols may stand in one ranking: both are named, and they are the same."""
    return bool(first) and first == second


def rankings(rows: Iterable[tuple[str, float, str | None]]) -> dict[str, list[str]]:
    """{protocol: names, best first} of rows (name, score, protocol), higher being better.

    Raises BadDataError for a row without a protocol or with a score that is not finite.
    """
    groups: dict[str, list[tuple[float, str]]] = {}
    for name, score, protocol in rows:
        if not comparable(protocol, protocol) or not math.isfinite(score):
            what = "score is not finite" if protocol else "row has no protocol: it cannot be ranked"
            raise problem_error(BadDataError, shown(name), "protocol", f"the {what}")
        groups.setdefault(str(protocol), []).append((-score, name))
    return {protocol: [name for _, name in sorted(group)] for protocol, group in groups.items()}
