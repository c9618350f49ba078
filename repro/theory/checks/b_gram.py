"""B-T2, B-T2': smallest eigenvalue of the attention's tangent kernel for the paper's families and for controls."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from repro.records.measured import Measured
from repro.theory.ntk_injectivity import (
    draw_heads,
    first_queries,
    full_features,
    gram,
    heads_in_domain,
    independence,
    shrink_into_domain,
    triangular,
    v_features,
)
from repro.theory.token_laws import Laws, all_laws, query_tokens

INFO = {
    "title": "Smallest eigenvalue of the attention kernel",
    "says": "V-part and full kernel are injective on the four families and singular on the negative controls",
    "ref": "paper_b",
    "rules": 1,
    "seconds": 5.0,
    "memory_gb": 2.0,
    "params": {"dims": [2, 3, 4], "measures": [2, 4, 6], "tokens": 6, "heads": 160, "scale": 2.0, "draws": 1},
    "values": {
        "b_gram_family": {"unit": "1", "better": "higher"},
        "b_gram_control": {"unit": "1", "better": "lower"},
        "b_gram_orders": {"unit": "decades", "better": "higher"},
        "b_full_family": {"unit": "1", "better": "higher"},
        "b_full_control": {"unit": "1", "better": "lower"},
        "b_full_orders": {"unit": "decades", "better": "higher"},
        "b_gram_disagreements": {"unit": "1", "better": "lower"},
        "b_gram_open": {"unit": "1", "better": "lower"},
        "b_gram_plain_share": {"unit": "1", "better": "higher"},
    },
}
ORDERS = 6.0  # decades between a family and the controls that count as told apart
POINTS = 1000  # arguments for the independence beside each Gram


def run(params: dict[str, Any], seed: int) -> Measured:
    """Smallest eigenvalues over dimensions, numbers of measures and of shared query tokens."""
    rows = []
    for dim, count, draw in itertools.product(params["dims"], params["measures"], range(params["draws"])):
        rng = np.random.default_rng([seed, dim, count, draw])
        for laws in all_laws(rng, dim, count, params["tokens"]):
            rows += [{**row, "draw": draw} for row in _rows(laws, params, dim, rng)]
    families = [row for row in rows if row["role"] == "family"]
    singular = [row for row in rows if row["expected_singular"] and row["role"] == "control"]
    opened = [row["v_fine"] for row in rows if row["expected_singular"] and row["role"] == "open"]
    judged = [row for row in rows if row["role"] != "open" and (row["queries"] > 1 or row["role"] == "family")]
    wrong = [row for row in judged if (row["v_fine"] > row["v_fine_floor"]) != (row["ratio"] > row["ratio_floor"])]
    values = {
        "b_gram_family": min(row["v_fine"] for row in families),
        "b_gram_control": max(row["v_fine"] for row in singular),
        "b_gram_orders": _orders(families, singular, "v"),
        "b_full_family": min(row["full_fine"] for row in families),
        "b_full_control": max(row["full_fine"] for row in singular),
        "b_full_orders": _orders(families, singular, "full"),
        "b_gram_disagreements": float(len(wrong)),
        "b_gram_open": max(opened, default=math.nan),
        "b_gram_plain_share": sum(row["told_apart_plain"] for row in families) / len(families),
    }
    return Measured(values, len(rows), {"rows": rows, "violations": wrong})


def _orders(families: list[dict[str, Any]], singular: list[dict[str, Any]], part: str) -> float:
    """Decades from the smallest family to the largest control, none of which counts as below its round-off."""
    control = max(max(row[f"{part}_fine"], row[f"{part}_fine_floor"]) for row in singular)
    return math.log10(min(row[f"{part}_fine"] for row in families) / control)


def _rows(laws: Laws, params: dict[str, Any], dim: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """One row for each number of query tokens, which are the first of one list."""
    numbers = sorted({1, 2, dim, dim + 1})
    queries = query_tokens(rng, dim, numbers[-1])
    heads = draw_heads(rng, params["heads"], dim, dim, params["scale"])
    heads = heads_in_domain(laws.measures, heads, queries)
    parts = {
        "v": triangular(v_features(laws.measures, heads, queries)),
        "full": triangular(full_features(laws.measures, heads, queries)),
    }
    xi = shrink_into_domain(laws.measures, params["scale"] * rng.standard_normal((POINTS, dim)))
    found = independence(laws.measures, xi)
    count = len(laws.measures)
    rows = []
    for number in numbers:
        row: dict[str, Any] = {
            "laws": laws.name,
            "role": laws.role,
            "dim": dim,
            "measures": count,
            "queries": number,
            "expected_singular": number >= laws.singular_from
            if laws.role == "control"
            else laws.role == "open" and number > dim,
            "ratio": found.value,
            "ratio_floor": found.floor,
        }
        for part, factor in parts.items():
            row |= _part(part, first_queries(factor, count, numbers[-1], number))
        row["told_apart_plain"] = row["v_plain"] > 10**ORDERS * row["v_plain_floor"]
        rows.append(row)
    return rows


def _part(part: str, factor: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    found = gram(factor)
    return {
        f"{part}_plain": found.plain.value,
        f"{part}_plain_floor": found.plain.floor,
        f"{part}_fine": found.fine.value,
        f"{part}_fine_floor": found.fine.floor,
    }
