"""A-T2: weights that grow with depth make Pre-LN's state grow exponentially; Peri-LN does not notice them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repro.nn.method_api import WEIGHT_STD, load_method
from repro.nn.stack import Block
from repro.records.measured import Measured
from repro.theory.growth import Walk, exponent, rate_per_block, together, walk
from repro.theory.nets import (
    EMBEDDING_STD,
    Shape,
    ascend,
    block_sublayers,
    build,
    embedding,
    final_state,
    layer_by_layer,
    linears,
    make_loud,
    numbers,
    rms,
    scale_linear,
)

INFO = {
    "title": "Growth of the hidden state under Pre-LN",
    "says": "With the output weights of block i times rho^i Pre-LN grows like rho^i, Peri-LN stays as it was",
    "ref": "paper_a",
    "rules": 1,
    "seconds": 4.0,
    "memory_gb": 2.0,
    "params": {"layers": 24, "width": 128, "tokens": 16, "draws": 8, "rho": 1.2, "ascent_steps": 20},
    "values": {
        "a_prenorm_growth_pre_base": {"unit": "1", "better": "none"},
        "a_prenorm_growth_pre_scaled": {"unit": "1", "better": "none"},
        "a_prenorm_growth_peri_base": {"unit": "1", "better": "none"},
        "a_prenorm_growth_peri_scaled": {"unit": "1", "better": "none"},
        "a_prenorm_growth_factor_pre": {"unit": "1", "better": "none"},
        "a_prenorm_growth_rate_pre_over_log_rho": {"unit": "1", "better": "none"},
        "a_prenorm_growth_change_peri": {"unit": "1", "better": "lower"},
        "a_prenorm_growth_exponent_pre_fixed_norm": {"unit": "1", "better": "lower"},
    },
}


@torch.no_grad()
def _flat_weights(block: Block, generator: torch.Generator) -> None:
    """GPT-2's 0.02 in every map, those to the stream too: no factor of depth beside rho."""
    for linear in linears(block):
        linear.weight.normal_(0.0, WEIGHT_STD, generator=generator)


def _pairs(params: dict[str, Any], seed: int) -> dict[str, tuple[Walk, Walk]]:
    """Walks of both methods through the same draw: as drawn, and with block i's output weights times rho^i."""
    shape = Shape(params["layers"], params["width"], 4)
    generator = torch.Generator().manual_seed(seed)
    x = embedding(shape, params["tokens"], seed, std=EMBEDDING_STD)
    rules = {name: load_method(name) for name in ("pre_ln", "peri_ln")}
    walks = {name: (Walk(rule, x, None), Walk(rule, x, None)) for name, rule in rules.items()}
    for block in layer_by_layer(rules["peri_ln"], shape, seed):  # which has Pre-LN's norms too
        _flat_weights(block, generator)
        together([before for before, _ in walks.values()], block)
        for part in block_sublayers(block):
            scale_linear(part.last_linear(), params["rho"] ** part.site.layer)
        together([scaled for _, scaled in walks.values()], block)
    return walks


def _worst_of_same_size(params: dict[str, Any], seed: int) -> Walk:
    """Pre-LN with the worst directions that ascent finds for weights of unchanged norms."""
    shape = Shape(params["layers"], 32, 4)
    stack = make_loud(build(load_method("pre_ln"), shape, seed), seed)
    x = embedding(shape, 4, seed, std=EMBEDDING_STD)

    def size() -> Tensor:
        return rms(final_state(stack, x)).log().mean()

    weights = [linear.weight for linear in linears(stack.blocks)]
    for _ in ascend(size, list(weights), params["ascent_steps"], 0.1, keep_norm=True):
        continue
    return walk(stack, x, None)


def run(params: dict[str, Any], seed: int) -> Measured:
    """Mean absolute value of x_D before and after, the rate over the upper half of the depth, and a control."""
    draws = [numbers(seed, draw) for draw in range(params["draws"])]
    drawn = [_pairs(params, draw) for draw in draws]
    pairs = {name: [walks[name] for walks in drawn] for name in drawn[0]}
    mean = {
        (name, which): sum(pair[which].rows[-1]["mean_abs"] for pair in found) / len(found)
        for name, found in pairs.items()
        for which in (0, 1)
    }
    log_rho = float(torch.tensor(params["rho"], dtype=torch.float64).log())
    rates = [rate_per_block(scaled.curve("mean_abs")) / log_rho for _, scaled in pairs["pre_ln"]]
    changes = [
        abs(b / a - 1)
        for before, after in pairs["peri_ln"]
        for a, b in zip(before.curve("mean_abs"), after.curve("mean_abs"), strict=True)
    ]
    worst = _worst_of_same_size(params, seed)
    values = {
        "a_prenorm_growth_pre_base": mean["pre_ln", 0],
        "a_prenorm_growth_pre_scaled": mean["pre_ln", 1],
        "a_prenorm_growth_peri_base": mean["peri_ln", 0],
        "a_prenorm_growth_peri_scaled": mean["peri_ln", 1],
        "a_prenorm_growth_factor_pre": mean["pre_ln", 1] / mean["pre_ln", 0],
        "a_prenorm_growth_rate_pre_over_log_rho": sum(rates) / len(rates),
        "a_prenorm_growth_change_peri": max(changes),
        "a_prenorm_growth_exponent_pre_fixed_norm": exponent([worst.curve("mean_abs")]).value,
    }
    return Measured(values, len(draws), {"rows": _rows(pairs)})


def _rows(pairs: dict[str, list[tuple[Walk, Walk]]]) -> list[dict[str, Any]]:
    """Moments by layer of the first draw."""
    return [
        {"method": name, "weights": weights, **row}
        for name, found in pairs.items()
        for weights, made in zip(("as drawn", "rho^i"), found[0], strict=True)
        for row in made.rows
    ]
