"""The decoder: parity with the reference implementation, counts, groups, weights at start, and what methods change."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repro.nn.gpt import GPT, GPTConfig, count_parameters, initialise, parameter_groups, structure
from repro.nn.method_api import Method, Role, Site, load_method
from repro.nn.norms import RMSNorm
from repro.spec.load import load_configuration
from repro.spec.methods import registry
from repro.spec.paths import find_root

TINY = {"n_layer": 2, "d_model": 16, "n_head": 2, "context": 8, "vocab": 17}
METHODS = sorted(registry())
MODELS = load_configuration(find_root()).models


def build(
    method: str | Method = "pre_ln", *, seed: int = 0, bias: bool = True, tied: bool = True, **params: Any
) -> GPT:
    model = GPT(
        GPTConfig(**TINY, bias=bias, tied=tied), load_method(method, params) if isinstance(method, str) else method
    )
    initialise(model, seed)
    return model


def tokens(batch: int = 3, length: int = 8) -> Tensor:
    return torch.randint(17, (batch, length), generator=torch.Generator().manual_seed(0))


# Case T12: what is built is what was asked for.
BLOCK = "stack.blocks.*."
FINAL = "stack.final_norm: LayerNorm(16) x1"
STRUCTURES = {
    "pre_ln": [BLOCK + "attn_site.norm_in: LayerNorm(16) x2", BLOCK + "mlp_site.norm_in: LayerNorm(16) x2", FINAL],
    "post_ln": [BLOCK + "attn_site.norm_out: LayerNorm(16) x2", BLOCK + "mlp_site.norm_out: LayerNorm(16) x2", FINAL],
    "peri_ln": [
        *(BLOCK + f"{kind}_site.norm_{at}: LayerNorm(16) x2" for kind in ("attn", "mlp") for at in ("in", "out")),
        FINAL,
    ],
    "pre_qk": [
        BLOCK + "attn.q_norm: RMSNorm(16) x2",
        BLOCK + "attn.k_norm: RMSNorm(16) x2",
        BLOCK + "attn_site.norm_in: LayerNorm(16) x2",
        BLOCK + "mlp_site.norm_in: LayerNorm(16) x2",
        FINAL,
    ],
    "simplenorm": [
        *(BLOCK + f"attn.{role}.1: RMSNorm(16) x2" for role in "qkvo"),
        BLOCK + "mlp.up.1: RMSNorm(64) x2",
        BLOCK + "mlp.down.1: RMSNorm(16) x2",
        "stack.final_norm: RMSNorm(16) x1",
    ],
    "beta_skip": [],
    "no_norm": [],
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_t12_the_built_structure_is_the_methods(name: str) -> None:
    assert structure(build(name)) == STRUCTURES[name]


def test_t12_any_two_methods_differ_on_the_same_weights_and_input() -> None:
    x = tokens()
    outputs = {name: build(name)(x) for name in METHODS}
    outputs |= {f"{name}, dt 0.1": build(name, dt=0.1)(x) for name in ("pre_ln", "post_ln", "peri_ln")}
    outputs["beta_skip, beta 0.25"] = build("beta_skip", beta=0.25)(x)
    for (a, left), (b, right) in itertools.combinations(outputs.items(), 2):
        assert (left - right).abs().max() > 1e-6, (a, b)
    assert torch.allclose(build("beta_skip", beta=1.0)(x), outputs["no_norm"])


# Case T16: decay groups and counts.
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", METHODS)
def test_t16_each_parameter_is_in_one_group_and_vectors_never_decay(name: str, tied: bool) -> None:
    model = build(name, tied=tied)
    groups = parameter_groups(model, 0.1)
    torch.optim.AdamW(groups, lr=1e-3).step()
    listed = [id(p) for group in groups for p in group["params"]]
    assert len(listed) == len(set(listed))
    assert set(listed) == {id(p) for p in model.parameters()}
    named = dict(model.named_parameters())
    for group in groups:
        for parameter, parameter_name in zip(group["params"], group["names"], strict=True):
            assert named[parameter_name] is parameter
            assert (group["weight_decay"] == 0.1) == (parameter.ndim >= 2)
    counts = count_parameters(model)
    assert counts["total"] == sum({id(p): p.numel() for p in model.parameters()}.values())
    assert counts["total"] - counts["non_embedding"] == (17 * (1 if tied else 2) + 8) * 16


def test_a_method_can_spare_matrices_from_decay() -> None:
    class Spared(Method):
        no_decay = ("mix",)

        def step(self, x: Tensor, branch: Any, site: Site) -> Tensor:
            return x + branch(x) @ site.mix

        def extra(self, site: Site) -> dict[str, Tensor]:
            return {"mix": torch.eye(16)}

    decayed, spared = (group["names"] for group in parameter_groups(build(Spared()), 0.1))
    assert "stack.blocks.0.attn_site.mix" in spared
    assert not any("mix" in name for name in decayed)


def test_a_gain_is_not_decayed_however_it_is_written() -> None:
    class Written(Method):
        def step(self, x: Tensor, branch: Any, site: Site) -> Tensor:
            return x + site.row * site.one * branch(x) @ site.mix

        def extra(self, site: Site) -> dict[str, Tensor]:
            return {"row": torch.ones(1, 16), "one": torch.ones(1, 1, 1), "mix": torch.eye(16)}

    decayed, spared = (group["names"] for group in parameter_groups(build(Written()), 0.1))
    assert {name.rsplit(".", 1)[1] for name in spared if "_site." in name} == {"row", "one"}
    assert {name.rsplit(".", 1)[1] for name in decayed if "_site." in name} == {"mix"}


SIZES = {"124m": 124_439_808, "355m": 354_823_168, "774m": 774_030_080, "1558m": 1_557_611_200}


@pytest.mark.parametrize(("size", "total"), SIZES.items())
def test_public_gpt2_sizes(size: str, total: int) -> None:
    shape = MODELS[f"gpt2_{size}_public"]
    with torch.device("meta"):
        model = GPT(GPTConfig(**shape.model_dump()), load_method("pre_ln"))
    counts = count_parameters(model)
    assert counts == {"total": total, "non_embedding": total - (50257 + 1024) * shape.d_model}
    with pytest.raises(ValueError, match="meta"):
        initialise(model, 0)


@pytest.mark.parametrize("size", SIZES)
def test_nanogpts_sizes_are_the_public_ones_without_biases_and_with_a_padded_vocabulary(size: str) -> None:
    ours, public = MODELS[f"gpt2_{size}"], MODELS[f"gpt2_{size}_public"]
    assert public.model_copy(update={"vocab": 50304, "bias": False}) == ours
    with torch.device("meta"):
        model = GPT(GPTConfig(**ours.model_dump()), load_method("pre_ln"))
    d, layers = ours.d_model, ours.n_layer
    biases = layers * (2 * d + 3 * d + d + 4 * d + d) + d  # of two norms, of q, k and v, of o, up and down; final norm
    assert count_parameters(model)["total"] == SIZES[size] + (50304 - 50257) * d - biases


@pytest.mark.parametrize("name", METHODS)
def test_one_step_of_the_124m_model_starts_between_ln_v_and_one_above(name: str) -> None:
    """On a CPU, 256 tokens, for every method; without a final norm the start is at ln V within rounding."""
    shape = MODELS["gpt2_124m"]
    model = GPT(GPTConfig(**shape.model_dump()), load_method(name))
    initialise(model, 1)
    optimiser = torch.optim.AdamW(parameter_groups(model, 0.1), lr=6e-4)
    ids = torch.randint(shape.vocab, (1, 257), generator=torch.Generator().manual_seed(0))
    total, count = model.loss_sums(ids[:, :-1], ids[:, 1:])
    (total / count).backward()
    optimiser.step()
    above = float(total.detach()) / count - math.log(shape.vocab)
    assert count == 256
    assert (0 if isinstance(model.stack.final_norm, (nn.LayerNorm, RMSNorm)) else -0.01) <= above <= 1
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def reference(tied: bool) -> Any:
    """transformers' GPT-2, tiny, weights at random but not small, so that every part matters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=97, n_positions=32, n_embd=24, n_layer=3, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    config.tie_word_embeddings = tied
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def counterpart(name: str) -> str:
    """transformers' name of one of our Pre-LN parameters."""
    words = {
        "wte": "transformer.wte",
        "wpe": "transformer.wpe",
        "stack.final_norm": "transformer.ln_f",
        "head": "lm_head",
        "stack.blocks": "transformer.h",
        "attn.qkv": "attn.c_attn",
        "attn.o": "attn.c_proj",
        "attn_site.norm_in": "ln_1",
        "mlp_site.norm_in": "ln_2",
        "mlp.up": "mlp.c_fc",
        "mlp.down": "mlp.c_proj",
    }
    for ours, theirs in words.items():
        name = f".{name}".replace(f".{ours}.", f".{theirs}.")[1:]
    return name


def as_ours(name: str, theirs: Tensor) -> Tensor:
    """transformers keeps the maps of a block the other way round."""
    turned = any(part in name for part in ("attn.qkv", "attn.o", "mlp.")) and theirs.ndim == 2
    return theirs.T if turned else theirs


@pytest.mark.parametrize("tied", [True, False])
def test_pre_ln_is_gpt2(tied: bool) -> None:
    theirs = reference(tied)
    ours = GPT(GPTConfig(3, 24, 4, 32, 97, bias=True, tied=tied), load_method("pre_ln", {"dt": 1.0}))
    weights = dict(theirs.named_parameters())
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(as_ours(name, weights[counterpart(name)]))
    assert count_parameters(ours)["total"] == sum(p.numel() for p in theirs.parameters())
    x = torch.randint(97, (4, 32), generator=torch.Generator().manual_seed(1))
    total, count = ours.loss_sums(x[:, :-1], x[:, 1:])
    assert count == 4 * 31
    loss = theirs(input_ids=x, labels=x).loss
    assert abs(float((total / count - loss).detach())) <= 1e-5
    (total / count).backward()
    loss.backward()
    for name, parameter in ours.named_parameters():
        difference = (parameter.grad - as_ours(name, weights[counterpart(name)].grad)).abs().max()
        assert difference <= 1e-4, name


def test_loss_sums_are_sums_and_add_up_over_pieces() -> None:
    model, x = build(), tokens(6)
    total, count = model.loss_sums(x[:, :-1], x[:, 1:])
    assert (count, total.dtype, total.ndim) == (42, torch.float32, 0)
    mean = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    assert torch.allclose(total / count, mean)
    pieces = [model.loss_sums(part[:, :-1], part[:, 1:]) for part in (x[:1], x[1:3], x[3:])]
    assert torch.allclose(sum(piece for piece, _ in pieces), total)
    assert sum(number for _, number in pieces) == count


def test_shapes_that_make_no_model_are_refused() -> None:
    with pytest.raises(ValueError, match="n_head"):
        GPTConfig(2, 16, 3, 8, 17)
    with pytest.raises(ValueError, match="at least 1"):
        GPTConfig(0, 16, 2, 8, 17)
    with pytest.raises(ValueError, match="9 tokens do not fit"):
        build()(tokens(1, 9))


def test_draws_depend_on_seed_and_place_only() -> None:
    torch.manual_seed(1)
    first = build(seed=3)
    torch.manual_seed(2)
    second = build(seed=3)
    for (name, a), b in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b), name
    other = build(seed=4)
    assert not torch.equal(first.wte.weight, other.wte.weight)
    assert torch.equal(build(tied=False).wte.weight, build(tied=True).wte.weight)
    matrices = [p for p in first.parameters() if p.ndim == 2]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(matrices, 2) if a.shape == b.shape)
    assert first.stack.final_norm.weight.eq(1).all()
    assert all(p.eq(0).all() for name, p in first.named_parameters() if name.endswith("bias"))


@pytest.mark.parametrize("name", METHODS)
def test_methods_share_the_draws_of_what_they_share(name: str) -> None:
    model, baseline = build(name, bias=False), build("pre_ln", bias=False)
    assert torch.equal(model.wte.weight, baseline.wte.weight)
    for ours, theirs in zip(model.stack.blocks, baseline.stack.blocks, strict=True):
        for roles in (("qkv", "q", "k", "v"), ("o",), ("up",), ("down",)):
            joined = [
                torch.cat([w for r, m in b.maps().items() if r in roles for w in matrices(m)]) for b in (ours, theirs)
            ]
            assert torch.equal(*joined), roles


def matrices(module: nn.Module) -> list[Tensor]:
    return [linear.weight for linear in module.modules() if isinstance(linear, nn.Linear)]


def test_standard_deviations_at_start() -> None:
    model = GPT(GPTConfig(8, 64, 4, 32, 256, bias=True, tied=False), load_method("pre_ln"))
    initialise(model, 0)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            to_stream = name.endswith(("attn.o.weight", "mlp.down.weight"))
            wanted = 0.02 / 16**0.5 if to_stream else 0.02
            assert float(parameter.detach().std()) == pytest.approx(wanted, rel=0.06), name


class DeepNorm(Method):
    """N((2L)^(1/4) x + f(x)), Xavier with gain (8L)^(-1/4) on v, o and MLP (Wang et al. 2022)."""

    norms = ("out",)
    split_qkv = True

    def weight_std(self, linear: nn.Linear, role: Role, layer: int, depth: int) -> float:
        gain = 1.0 if role in ("q", "k") else (8 * depth) ** -0.25
        return gain * (2 / (linear.in_features + linear.out_features)) ** 0.5

    def step(self, x: Tensor, branch: Any, site: Site) -> Tensor:
        return site.norm_out(torch.add(branch(x), x, alpha=(2 * site.depth) ** 0.25))


class LayerScale(Method):
    """x + lam * f(N x), lam learned, 0.1 at start; and a norm of its own inside the MLP."""

    norms = ("in",)

    def extra(self, site: Site) -> dict[str, Tensor | nn.Module]:
        return {"lam": torch.full((site.d_model,), 0.1), "inner": RMSNorm(site.d_model)}

    def step(self, x: Tensor, branch: Any, site: Site) -> Tensor:
        return x + site.lam * site.inner(branch(site.norm_in(x)))


def test_a_method_sets_its_own_weights_at_start() -> None:
    model = build(DeepNorm())
    q, v = (float(model.stack.blocks[1].attn.get_submodule(role).weight.detach().std()) for role in "qv")
    assert v / q == pytest.approx(16**-0.25, rel=0.15)
    scaled = build(LayerScale())
    site = scaled.stack.blocks[0].mlp_site
    with torch.no_grad():
        site.lam.fill_(5.0)
    initialise(scaled, 0)
    assert site.lam.tolist() == pytest.approx([0.1] * 16)
    assert "stack.blocks.*.mlp_site.lam: Parameter(16) x2" in structure(scaled)
    assert "stack.blocks.*.mlp_site.inner: RMSNorm(16) x2" in structure(scaled)


class Gated(Method):
    """x + (W x + b) f(N x), with a map of the method's own whose weights start at zero."""

    norms = ("in",)

    def extra(self, site: Site) -> dict[str, Tensor | nn.Module]:
        gate, mixer = nn.Linear(site.d_model, 1), nn.Linear(site.d_model, site.d_model)
        nn.init.zeros_(gate.weight)
        nn.init.ones_(gate.bias)
        return {"gate": gate, "mixer": mixer}

    def step(self, x: Tensor, branch: Any, site: Site) -> Tensor:
        return x + site.gate(x) * site.mixer(branch(site.norm_in(x)))


def test_modules_of_a_methods_own_start_as_it_makes_them_and_from_the_seed() -> None:
    torch.manual_seed(1)
    first = build(Gated())
    torch.manual_seed(2)
    second = build(Gated())
    sites = [model.stack.blocks[1].attn_site for model in (first, second)]
    assert sites[0].gate.weight.eq(0).all()
    assert sites[0].gate.bias.eq(1).all()
    assert torch.equal(sites[0].mixer.weight, sites[1].mixer.weight)
    assert not torch.equal(sites[0].mixer.weight, first.stack.blocks[0].attn_site.mixer.weight)
    assert not torch.equal(sites[0].mixer.weight, build(Gated(), seed=1).stack.blocks[1].attn_site.mixer.weight)


def test_a_misspelt_hook_is_refused() -> None:
    for wrong in ("nroms", "norm_kinds", "final_nrom", "qknorm"):
        with pytest.raises(TypeError, match="did you mean"):
            type("Wrong", (Method,), {wrong: ("in",)})
    with pytest.raises(NotImplementedError, match="must define step"):
        build(Method())(tokens())


def test_a_norm_that_was_not_asked_for_is_no_identity() -> None:
    class Greedy(Method):
        norms = ("in",)

        def step(self, x: Tensor, branch: Any, site: Site) -> Tensor:
            return site.norm_out(x + branch(x))

    with pytest.raises(AttributeError, match="norm_out"):
        build(Greedy())(tokens())


def test_rms_norm_equals_torchs_and_its_derivatives_are_right() -> None:
    norm = RMSNorm(6).double()
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-1, 2, 6))
    x = torch.randn(2, 3, 6, dtype=torch.double, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.allclose(norm(x), F.rms_norm(x, (6,), norm.weight, 1e-5), rtol=1e-12)
    norm(x).square().sum().backward()
    ours = x.grad.clone(), norm.weight.grad.clone()
    x.grad = norm.weight.grad = None
    F.rms_norm(x, (6,), norm.weight, 1e-5).square().sum().backward()
    assert torch.allclose(ours[0], x.grad, rtol=1e-12)
    assert torch.allclose(ours[1], norm.weight.grad, rtol=1e-12)
    assert torch.autograd.gradcheck(lambda z: norm(z), x)
    assert torch.autograd.gradgradcheck(lambda z: norm(z), x)
    vector = x.detach()[0, 0].requires_grad_()
    assert torch.autograd.gradcheck(lambda z: norm(z), vector)


def test_rms_norm_computes_wide_and_keeps_the_type() -> None:
    x = (torch.randn(4, 256, generator=torch.Generator().manual_seed(0)) * 100).bfloat16()
    norm = RMSNorm(256)
    exact = F.rms_norm(x.double(), (256,))
    assert (norm.bfloat16()(x).double() - exact).abs().max() < 0.02
    assert norm(x).dtype == torch.bfloat16
