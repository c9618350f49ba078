"""Sensitivity, differences of inputs and the Hamiltonian against dense and hand-made numbers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from repro.nn.method_api import load_method
from repro.theory import hamiltonian
from repro.theory.nets import Shape, Sublayer, build, embedding, make_loud, sublayers
from repro.theory.sensitivity import local_sensitivity, slope, spectral_norm
from repro.theory.uncertainty import passed_on, reach_of_differences, wasserstein

SHAPE = Shape(1, 8, 2)


def part(name: str, kind: int) -> Sublayer:
    return sublayers(make_loud(build(load_method(name), SHAPE, 1, eps=0.0), 1))[kind]


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("name", ["pre_ln", "peri_ln", "post_ln", "simplenorm", "beta_skip"])
def test_power_iteration_finds_the_norm_of_the_dense_jacobian(name: str, kind: int) -> None:
    sub, x = part(name, kind), embedding(SHAPE, 3, 0)
    dense = torch.autograd.functional.jacobian(lambda z: sub(z)[0], x).reshape(24, 24)
    wanted = float(torch.linalg.matrix_norm(dense - torch.eye(24, dtype=torch.float64), 2))
    assert local_sensitivity(sub, x) == pytest.approx(wanted, rel=1e-5)


def test_a_start_along_the_null_direction_of_a_scale_invariant_map_is_left() -> None:
    x = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert spectral_norm(lambda z: z / z.norm(), x) == pytest.approx(1 / float(x.norm()), rel=1e-9)
    assert spectral_norm(lambda z: 0 * z, x) == 0.0


def test_slopes() -> None:
    assert slope([1, 4, 16], [2, 8, 32]) == pytest.approx(1)
    assert slope([1, 4, 16], [3, 3, 3]) == pytest.approx(0)
    assert math.isnan(slope([1, 2], [0, 1]))


@given(st.integers(2, 5), st.integers(0, 1000), st.sampled_from([1, 2]))
@settings(max_examples=20, deadline=None)
def test_wasserstein_is_the_cheapest_of_all_pairings(size: int, seed: int, order: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (torch.from_numpy(rng.normal(size=(size, 2, 3))) for _ in range(2))
    costs = [
        float(np.mean([float((a[i] - b[j]).norm()) ** order for i, j in enumerate(places)]))
        for places in itertools.permutations(range(size))
    ]
    assert wasserstein(a, b, order) == pytest.approx(min(costs) ** (1 / order), rel=1e-12)


def test_wasserstein_of_a_shift_is_its_length_and_of_unequal_sets_an_error() -> None:
    a = torch.randn(9, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert wasserstein(a, a + 0.01) == pytest.approx(0.01 * math.sqrt(6))
    assert wasserstein(a, a.flip(0)) == 0.0
    with pytest.raises(ValueError, match="one shape"):
        wasserstein(a, a[:3])


def test_the_bound_on_differences_by_hand() -> None:
    stack = make_loud(build(load_method("peri_ln", {"dt": 0.5}), Shape(3, 8, 2), 0, eps=0.0), 0)
    with torch.no_grad():
        stack.blocks[1].mlp_site.norm_out.weight[2] = -3.0  # type: ignore[union-attr,index]
    assert reach_of_differences(sublayers(stack), 8) == pytest.approx(2 * math.sqrt(8) * 0.5 * (5 + 3))
    x = embedding(SHAPE, 2, 0, batch=6)
    passed = passed_on(stack, x, x + 1)
    assert 0 < passed.pairs <= 1
    assert 0 < passed.laws <= 1
    assert passed.amplification > 0
    with pytest.raises(ValueError, match="does not end in a norm"):
        reach_of_differences(sublayers(build(load_method("pre_ln"), SHAPE, 0)), 8)


def vectors(seed: int, d: int = 6) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p, gain, shift, start = (torch.randn(d, dtype=torch.float64, generator=generator) for _ in range(4))
    return p, gain, shift, start


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_no_output_of_a_norm_passes_the_closed_forms_and_search_reaches_them(seed: int) -> None:
    p, gain, shift, start = vectors(seed)
    norm = torch.nn.LayerNorm(6, eps=0.0, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.copy_(gain)
        norm.bias.copy_(shift)
    whole, centred = (hamiltonian.supremum(p, gain, shift, centred=c) for c in (False, True))
    assert centred <= whole * (1 + 1e-12) if whole > 0 else centred <= whole + 1e-9
    outputs = norm(torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
    assert float((outputs @ p).max()) <= centred + 1e-9
    assert hamiltonian.ellipsoid_error(outputs, gain, shift) < 1e-9
    assert hamiltonian.highest_on_ellipsoid(p, gain, shift, start) == pytest.approx(whole, rel=1e-6, abs=1e-6)


def test_the_hamiltonian_of_pre_ln_has_no_bound_along_a_ray_that_of_peri_ln_has() -> None:
    p, _, _, _ = vectors(0, 8)
    x = embedding(SHAPE, 1, 0)
    for name, wanted in (("pre_ln", [1.0, 10.0, 100.0]), ("peri_ln", [1.0, 1.0, 1.0])):
        block = make_loud(build(load_method(name), SHAPE, 0, eps=0.0), 0).blocks[0]
        found = hamiltonian.along_ray(block, p, x, [1.0, 10.0, 100.0])  # type: ignore[arg-type]
        assert [value / found[0] for value in found] == pytest.approx(wanted)
