"""The Hamiltonian over LN outputs is bounded, with a closed form; over Pre-LN's weights it is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from repro.nn.method_api import load_method
from repro.nn.stack import Block
from repro.records.measured import Measured
from repro.theory import hamiltonian
from repro.theory.nets import Shape, build, embedding, make_loud, numbers
from repro.theory.sensitivity import slope

INFO = {
    "title": "Hamiltonian over the ellipsoid of LN outputs",
    "says": "LN outputs lie on an ellipsoid (eps = 0), so sup <p, f> = <p, beta> + sqrt(d) ||Gamma p|| is finite",
    "ref": "paper_a",
    "rules": 1,
    "seconds": 1.0,
    "memory_gb": 2.0,
    "params": {
        "ellipsoid_width": 1600,
        "width": 64,
        "draws": 5,
        "steps": 60,
        "factors": [1.0, 10.0, 100.0, 1000.0],
    },
    "values": {
        "a_hamiltonian_ellipsoid_error": {"unit": "1", "better": "lower"},
        "a_hamiltonian_sup_error": {"unit": "1", "better": "lower"},
        "a_hamiltonian_centred_error": {"unit": "1", "better": "lower"},
        "a_hamiltonian_rms_error": {"unit": "1", "better": "lower"},
        "a_hamiltonian_peri_ratio": {"unit": "1", "better": "none"},
        "a_hamiltonian_ray_slope_pre": {"unit": "1", "better": "none"},
        "a_hamiltonian_ray_slope_peri": {"unit": "1", "better": "none"},
    },
}


def _norm(name: str, width: int, generator: torch.Generator) -> nn.Module:
    """A norm of the suite with eps = 0, gains N(1, 1/4) and, where it has one, biases N(0, 1/4)."""
    method = load_method(name)
    method.norm_eps = 0.0
    norm = method.norm(width, True).double()
    with torch.no_grad():
        for key, value in norm.named_parameters():
            value.copy_(0.5 * torch.randn(width, dtype=torch.float64, generator=generator) + float(key == "weight"))
    return norm


def _affine(norm: nn.Module) -> tuple[Tensor, Tensor]:
    gain = norm.get_parameter("weight").detach()
    shift = dict(norm.named_parameters()).get("bias", torch.zeros_like(gain))
    return gain, shift.detach()


def _draw(params: dict[str, Any], draw: int, seed: int) -> dict[str, float]:
    """Relative distances between closed forms and the maxima that search finds, in one draw."""
    generator = torch.Generator().manual_seed(numbers(seed, draw))
    wide, width = params["ellipsoid_width"], params["width"]

    def vector(d: int = width) -> Tensor:
        return torch.randn(d, dtype=torch.float64, generator=generator)

    norm = _norm("peri_ln", wide, generator)
    outputs = norm(torch.stack([10 ** float(k) * vector(wide) for k in range(-3, 4)]))
    row = {"draw": float(draw), "ellipsoid": hamiltonian.ellipsoid_error(outputs, *_affine(norm))}
    p, layer, rms = vector(), _norm("peri_ln", width, generator), _norm("simplenorm", width, generator)
    whole = hamiltonian.supremum(p, *_affine(layer))
    centred = hamiltonian.supremum(p, *_affine(layer), centred=True)
    free = hamiltonian.supremum(p, *_affine(rms))
    row["sup"] = abs(hamiltonian.highest_on_ellipsoid(p, *_affine(layer), vector()) / whole - 1)
    row["centred"] = abs(hamiltonian.highest_of_norm(p, layer, vector()) / centred - 1)
    row["rms"] = abs(hamiltonian.highest_of_norm(p, rms, vector()) / free - 1)
    return row | dict(_of_blocks(params, p, numbers(seed, draw, 1)))


def _of_blocks(params: dict[str, Any], p: Tensor, key: int) -> Iterator[tuple[str, float]]:
    """Over the weights of real MLP sub-layers: how near Peri-LN comes to its supremum, and both along a ray."""
    shape = Shape(1, params["width"], 4)
    x = embedding(shape, 1, key)
    for name in ("pre_ln", "peri_ln"):
        block = make_loud(build(load_method(name), shape, key, eps=0.0), key).blocks[0]
        assert isinstance(block, Block)
        yield f"ray_{name}", slope(params["factors"], hamiltonian.along_ray(block, p, x, params["factors"]))
        if name == "peri_ln":
            ones = torch.ones_like(p)
            limit = hamiltonian.supremum(p, ones, 0 * ones, centred=True)
            yield "peri_ratio", hamiltonian.highest_over_weights(block, p, x, params["steps"]) / limit


def run(params: dict[str, Any], seed: int) -> Measured:
    """Largest errors over draws; the largest <p, f> of Peri-LN over its supremum; slopes along a ray of weights."""
    rows = [_draw(params, draw, seed) for draw in range(params["draws"])]
    most = {key: max(row[key] for row in rows) for key in rows[0]}
    values = {
        "a_hamiltonian_ellipsoid_error": most["ellipsoid"],
        "a_hamiltonian_sup_error": most["sup"],
        "a_hamiltonian_centred_error": most["centred"],
        "a_hamiltonian_rms_error": most["rms"],
        "a_hamiltonian_peri_ratio": most["peri_ratio"],
        "a_hamiltonian_ray_slope_pre": sum(row["ray_pre_ln"] for row in rows) / len(rows),
        "a_hamiltonian_ray_slope_peri": sum(row["ray_peri_ln"] for row in rows) / len(rows),
    }
    return Measured(values, len(rows), {"rows": rows})
