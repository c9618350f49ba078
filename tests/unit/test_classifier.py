"""A truncated GPT as a classifier: pretrained weights against transformers itself, refusals, the head."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from repro.nn.classifier import NO_TOKEN, Classifier, start_head
from repro.nn.gpt import GPT, GPTConfig, initialise
from repro.nn.method_api import load_method
from repro.nn.pretrained import fingerprint, load_gpt2, load_suite_gpt
from repro.spec.errors import BadDataError, ConfigError, MissingError

LAYERS, WIDTH, VOCAB, POSITIONS = 3, 16, 50, 12
SHAPE = GPTConfig(LAYERS, WIDTH, 4, POSITIONS, VOCAB)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 with random weights, biases and gains, saved by transformers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=LAYERS, n_embd=WIDTH, n_head=4, n_positions=POSITIONS, vocab_size=VOCAB,
        initializer_range=0.3, layer_norm_epsilon=1e-4, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    place = tmp_path_factory.mktemp("models") / "gpt2"
    model.save_pretrained(place)
    return place


@pytest.fixture
def spoilt(folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the folder with some tensors or some of config.json changed."""

    def make(tensors: Callable[[dict[str, Tensor]], object] = bool, **config: Any) -> Path:
        stored = load_file(folder / "model.safetensors")
        tensors(stored)
        place = tmp_path / "spoilt"
        place.mkdir()
        save_file({name: tensor.contiguous() for name, tensor in stored.items()}, place / "model.safetensors")
        text = json.loads((folder / "config.json").read_text()) | config
        (place / "config.json").write_text(json.dumps({k: v for k, v in text.items() if v != "absent"}))
        return place

    return make


def tokens(batch: int = 2, length: int = 7) -> Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(1))


def streams(model: GPT, ids: Tensor) -> Iterator[Tensor]:
    """The stream after the tables, and after each block."""
    x = model.wte(ids) + model.wpe.weight[: ids.shape[1]]
    yield x
    for block in model.stack.blocks:
        x = block(x)
        yield x


@torch.no_grad()
def test_hidden_states_and_logits_are_those_of_transformers(folder: Path) -> None:
    from transformers import GPT2LMHeadModel

    theirs = GPT2LMHeadModel.from_pretrained(folder).eval()
    found = theirs(tokens(), output_hidden_states=True)
    ours = load_gpt2(folder, LAYERS)
    for mine, expected in zip(list(streams(ours, tokens()))[:LAYERS], found.hidden_states, strict=False):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-5)
    last = ours.stack(ours.wte(tokens()) + ours.wpe.weight[:7])
    torch.testing.assert_close(last, found.hidden_states[-1], rtol=0, atol=1e-5)
    torch.testing.assert_close(ours(tokens()), found.logits, rtol=0, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("layers", [1, 2])
def test_a_cut_model_is_transformers_with_fewer_layers(folder: Path, layers: int) -> None:
    from transformers import GPT2Model

    theirs = GPT2Model.from_pretrained(folder, n_layer=layers).eval()
    ours = load_gpt2(folder, layers)
    assert len(ours.stack.blocks) == layers
    last = ours.stack(ours.wte(tokens()) + ours.wpe.weight[:7])
    torch.testing.assert_close(last, theirs(tokens()).last_hidden_state, rtol=0, atol=1e-5)


@torch.no_grad()
def test_without_residual_the_weights_stay_and_only_the_branch_goes_on(folder: Path) -> None:
    plain, cut = load_gpt2(folder, LAYERS), load_gpt2(folder, LAYERS, residual=False)
    for (name, one), (other_name, other) in zip(plain.named_parameters(), cut.named_parameters(), strict=True):
        assert name == other_name
        assert torch.equal(one, other)
    x = next(streams(cut, tokens()))
    block = cut.stack.blocks[0]
    middle = block.attn(block.attn_site.norm_in(x))
    torch.testing.assert_close(block(x), block.mlp(block.mlp_site.norm_in(middle)))
    assert not torch.allclose(block(x), plain.stack.blocks[0](x))


@torch.no_grad()
def test_the_files_of_a_bare_model_with_masks_and_half_precision_read_alike(
    folder: Path, spoilt: Callable[..., Path]
) -> None:
    def as_published(stored: dict[str, Tensor]) -> None:
        for name in list(stored):
            stored[name.removeprefix("transformer.")] = stored.pop(name).half()
        for layer in range(LAYERS):
            stored[f"h.{layer}.attn.bias"] = torch.ones(1, 1, POSITIONS, POSITIONS)
        stored["lm_head.weight"] = stored["wte.weight"].clone()

    ours = load_gpt2(spoilt(as_published), LAYERS)
    for mine, expected in zip(ours.parameters(), load_gpt2(folder, LAYERS).parameters(), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-6)


def _rename(stored: dict[str, Tensor]) -> None:
    stored["transformer.h.0.attn.c_atn.weight"] = stored.pop("transformer.h.0.attn.c_attn.weight")


def _turn(stored: dict[str, Tensor]) -> None:
    stored["transformer.h.1.mlp.c_fc.weight"] = stored["transformer.h.1.mlp.c_fc.weight"].T


def _no_number(stored: dict[str, Tensor]) -> None:
    stored["transformer.wpe.weight"][3, 2] = math.inf


def _whole(stored: dict[str, Tensor]) -> None:
    stored["transformer.ln_f.bias"] = torch.zeros(WIDTH, dtype=torch.int64)


def _twice(stored: dict[str, Tensor]) -> None:
    stored["ln_f.bias"] = torch.zeros(WIDTH)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_rename, ["h.0.attn.c_attn.weight: is not in the file", "c_atn.weight: is in the file but not"]),
        (_turn, ["h.1.mlp.c_fc.weight: has shape [64, 16], [16, 64] is expected"]),
        (_no_number, ["wpe.weight: holds numbers that are not finite"]),
        (_whole, ["ln_f.bias: holds I64"]),
        (_twice, ["with and without this prefix"]),
    ],
)
def test_tensors_that_are_not_a_gpt2s_are_refused(
    spoilt: Callable[..., Path], change: Callable[[dict[str, Tensor]], object], words: list[str]
) -> None:
    with pytest.raises(BadDataError) as refusal:
        load_gpt2(spoilt(change), LAYERS)
    assert all(word in str(refusal.value) for word in words)


def test_all_wrong_tensors_are_named_at_once(spoilt: Callable[..., Path]) -> None:
    def change(stored: dict[str, Tensor]) -> None:
        for part in (_rename, _turn, _whole):
            part(stored)

    with pytest.raises(BadDataError) as refusal:
        load_gpt2(spoilt(change), LAYERS)
    assert len(refusal.value.problems) == 4


def test_a_configuration_of_a_huge_model_allocates_nothing(spoilt: Callable[..., Path]) -> None:
    with pytest.raises(BadDataError, match="has shape"):
        load_gpt2(spoilt(n_embd=10**6, vocab_size=10**6), LAYERS)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"model_type": "llama"}, "model_type"),
        ({"activation_function": "relu"}, "activation_function"),
        ({"n_embd": "16"}, "n_embd"),
        ({"n_layer": "absent"}, "n_layer"),
        ({"n_layer": 10**9}, "n_layer"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"n_inner": 17}, "n_inner"),
        ({"n_head": 3}, "n_head"),
        ({"layer_norm_epsilon": 0}, "layer_norm_epsilon"),
    ],
)
def test_another_kind_of_model_is_refused(spoilt: Callable[..., Path], config: dict[str, Any], word: str) -> None:
    with pytest.raises(BadDataError, match=word):
        load_gpt2(spoilt(**config), 1)


@pytest.mark.parametrize("layers", [0, -1, LAYERS + 1])
def test_layers_that_are_not_there_are_refused(folder: Path, layers: int) -> None:
    with pytest.raises(ConfigError, match=r"1 to 3 are allowed"):
        load_gpt2(folder, layers)


def test_absent_files_and_pickles_are_no_model(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such folder"):
        load_gpt2(tmp_path / "nowhere", 1)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"never read")
    with pytest.raises(MissingError, match=r"no model\.safetensors"):
        load_gpt2(tmp_path, 1)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b"\x10\x00\x00\x00\x00\x00\x00\x00{}"),
        ("model.safetensors", b""),
        ("config.json", b"{"),
        ("config.json", b"[" * 100_000),
        ("config.json", b"[1]"),
        ("config.json", b"\xff\xfe"),
        ("config.json", b" " * (1 << 20) + b"{}"),
    ],
)
def test_damaged_files_are_refused(spoilt: Callable[..., Path], name: str, content: bytes) -> None:
    place = spoilt()
    (place / name).write_bytes(content)
    with pytest.raises(BadDataError, match=name.replace(".", r"\.")):
        load_gpt2(place, 1)


def test_weights_cut_short_are_refused(spoilt: Callable[..., Path]) -> None:
    path = spoilt() / "model.safetensors"
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(BadDataError, match="no whole safetensors file"):
        load_gpt2(path.parent, 1)


def test_a_link_out_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    with pytest.raises(BadDataError, match="link out of the folder"):
        load_gpt2(tmp_path, 1)


def test_loading_draws_nothing_and_the_fingerprint_follows_the_files(folder: Path, spoilt: Callable[..., Path]) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    load_gpt2(folder, 2)
    assert torch.equal(before, torch.get_rng_state())
    assert fingerprint(folder) == fingerprint(folder)
    assert fingerprint(spoilt(n_ctx=1)) != fingerprint(folder)


@pytest.fixture
def trained(tmp_path: Path) -> tuple[GPT, Path]:
    """A GPT of the suite's own and its file of final weights."""
    model = GPT(SHAPE, load_method("pre_ln"))
    initialise(model, 4)
    path = tmp_path / "final.safetensors"
    save_file({name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}, path)
    return model, path


@torch.no_grad()
def test_a_gpt_of_the_suite_is_cut_in_the_same_way(trained: tuple[GPT, Path]) -> None:
    model, path = trained
    torch.testing.assert_close(load_suite_gpt(path, SHAPE, LAYERS)(tokens()), model(tokens()))
    cut = load_suite_gpt(path, SHAPE, 2)
    torch.testing.assert_close(list(streams(cut, tokens()))[-1], list(streams(model, tokens()))[2])
    assert cut.head.weight is cut.wte.weight
    without = load_suite_gpt(path, SHAPE, 2, residual=False)
    assert not torch.allclose(without(tokens()), cut(tokens()))


def test_weights_of_another_shape_are_no_gpt_of_the_suite(trained: tuple[GPT, Path], tmp_path: Path) -> None:
    _, path = trained
    with pytest.raises(BadDataError, match="has shape"):
        load_suite_gpt(path, GPTConfig(LAYERS, WIDTH, 4, POSITIONS, VOCAB + 1), 2)
    with pytest.raises(BadDataError, match="is not in the file"):
        load_suite_gpt(path, GPTConfig(LAYERS + 1, WIDTH, 4, POSITIONS, VOCAB), 2)
    with pytest.raises(MissingError):
        load_suite_gpt(tmp_path / "nothing.safetensors", SHAPE, 2)


def classifier(residual: bool = True, seed: int = 0) -> Classifier:
    method = load_method("pre_ln")
    body = GPT(SHAPE, method)
    initialise(body, seed)
    found = Classifier(body)
    start_head(found, seed)
    return found


def padded(*lengths: int) -> Tensor:
    rows = tokens(len(lengths), max(lengths))
    for row, length in zip(rows, lengths, strict=True):
        row[length:] = NO_TOKEN
    return rows


@torch.no_grad()
def test_the_head_reads_the_last_token_whatever_stands_behind_it() -> None:
    model = classifier()
    batch = padded(3, 7, 1)
    for row, logits in zip(batch, model(batch), strict=True):
        alone = row[row != NO_TOKEN][None]
        torch.testing.assert_close(logits, model(alone)[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(logits, model.classify(model.hidden(alone)[0, -1]), rtol=1e-5, atol=1e-6)


def test_losses_and_errors_add_up_over_batches() -> None:
    model = classifier()
    batch, labels = padded(3, 7, 1, 5), torch.tensor([0, 1, 1, 0], dtype=torch.int8)
    whole, count = model.loss_sums(batch, labels)
    parts = [model.loss_sums(batch[i : i + 2], labels[i : i + 2]) for i in (0, 2)]
    assert count == sum(part[1] for part in parts) == 4
    torch.testing.assert_close(whole, parts[0][0] + parts[1][0])
    mean = nn.functional.cross_entropy(model(batch), labels.long())
    torch.testing.assert_close(whole / count, mean)
    assert model.errors(batch, labels) == int((model(batch).argmax(1) != labels).sum())


def test_every_parameter_but_those_of_the_language_head_trains() -> None:
    model = classifier()
    model.loss_sums(padded(3, 7), torch.tensor([0, 1]))[0].backward()  # type: ignore[no-untyped-call]
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    assert all(bool(parameter.grad.any()) for parameter in model.parameters() if parameter.grad is not None)


def test_the_head_starts_by_seed_and_leaves_the_body_alone() -> None:
    one, same, other = classifier(), classifier(), classifier()
    start_head(other, 1)
    assert torch.equal(one.classify.weight, same.classify.weight)
    assert not torch.equal(one.classify.weight, other.classify.weight)
    assert torch.equal(one.wte.weight, other.wte.weight)
    assert not bool(one.classify.bias.any())


@pytest.mark.parametrize(
    "batch",
    [
        torch.full((1, 3), NO_TOKEN),
        torch.tensor([[NO_TOKEN, 1, 2]]),
        torch.tensor([[1, NO_TOKEN, 2]]),
        torch.zeros((1, POSITIONS + 1), dtype=torch.int64),
    ],
)
def test_batches_without_a_last_token_or_too_long_are_refused(batch: Tensor) -> None:
    with pytest.raises(ValueError, match=r"needs a token|do not fit"):
        classifier()(batch)


def test_one_class_is_no_choice() -> None:
    with pytest.raises(ValueError, match="nothing to tell apart"):
        Classifier(GPT(SHAPE, load_method("pre_ln")), classes=1)
