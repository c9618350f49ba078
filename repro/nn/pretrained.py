"""Weights that exist already: a GPT-2 from a local folder in Hugging Face's format, or a GPT of the suite's own.

Both become the suite's `GPT`, cut after its first blocks; hidden states equal transformers' (tested, to 1e-5). Only
JSON and safetensors are read, never a pickle, and every name and shape must be the expected one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from repro.nn.gpt import GPT, GPTConfig
from repro.nn.method_api import Branch, Method, Site
from repro.spec.errors import BadDataError, ConfigError, MissingError, Problem, problem_error, shown
from repro.spec.hashing import sha256_file, sha256_json

CONFIG, WEIGHTS = "config.json", "model.safetensors"
LONGEST_CONFIG = 1 << 20  # bytes
FLOATS = ("F64", "F32", "F16", "BF16")
Size = Annotated[int, Field(ge=1, le=10**6, strict=True)]

# The suite's name of a module -> Hugging Face's, and whether the matrix stands transposed there ([in, out]).
_THEIRS = {
    "wte": ("wte", False),
    "wpe": ("wpe", False),
    "stack.final_norm": ("ln_f", False),
    "attn_site.norm_in": ("ln_1", False),
    "attn.qkv": ("attn.c_attn", True),
    "attn.o": ("attn.c_proj", True),
    "mlp_site.norm_in": ("ln_2", False),
    "mlp.up": ("mlp.c_fc", True),
    "mlp.down": ("mlp.c_proj", True),
}
_BLOCK = re.compile(r"stack\.blocks\.(\d+)\.(.+)")
_NO_WEIGHTS = re.compile(r"h\.\d+\.attn\.(masked_)?bias|lm_head\.weight")  # causal masks, and the table once more
Names = Callable[[str], tuple[str, bool]]
Wanted = dict[str, tuple[str, bool]]  # the suite's parameter -> its name in the file, and whether it stands transposed


class PreNorm(Method):
    """x + f(LN x), GPT-2's block; with `residual` off f(LN x) alone, so that nothing passes a sub-layer by."""

    norms = ("in",)

    def __init__(self, residual: bool = True, eps: float = Method.norm_eps) -> None:
        super().__init__()
        self.residual = residual
        self.norm_eps = eps

    def step(self, x: Tensor, branch: Branch, site: Site, *_: Any) -> Tensor:
        """x [batch, tokens, d] -> the same shape."""
        made: Tensor = branch(site.norm_in(x))
        return x + made if self.residual else made


class _GPT2Config(BaseModel):
    """What of config.json decides numbers; the rest (dropout, generation, token ids) is not looked at."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    model_type: Literal["gpt2"]
    n_layer: Annotated[int, Field(ge=1, le=1000, strict=True)]
    n_embd: Size
    n_head: Size
    n_positions: Size
    vocab_size: Size
    n_inner: Size | None = None
    layer_norm_epsilon: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    activation_function: Literal["gelu_new", "gelu_pytorch_tanh"] = "gelu_new"
    scale_attn_weights: Literal[True] = True
    scale_attn_by_inverse_layer_idx: Literal[False] = False
    add_cross_attention: Literal[False] = False
    tie_word_embeddings: Literal[True] = True

    def shape(self) -> GPTConfig:
        """The suite's shape of the whole model; raises ValueError where the suite has no such GPT."""
        ratio, rest = divmod(self.n_inner or 4 * self.n_embd, self.n_embd)
        if rest:
            raise ValueError(f"n_inner {self.n_inner} is not a multiple of n_embd {self.n_embd}")
        return GPTConfig(
            self.n_layer, self.n_embd, self.n_head, self.n_positions, self.vocab_size, True, True, mlp_ratio=ratio
        )


def load_gpt2(folder: Path, layers: int, residual: bool = True) -> GPT:
    """The first `layers` blocks of the GPT-2 in `folder` (config.json, model.safetensors), its final norm and tables.

    Weights are float32, whatever the file's precision; dropout is none; the head is the token table, as in GPT-2.
    `residual` off takes the skip from both sub-layers of each block and leaves the weights as they are. Raises
    MissingError if a file is not there, ConfigError for layers that the model does not have, BadDataError for another
    model, a wrong, missing or unknown name, a wrong shape or type, a number that is not finite, a damaged file, and a
    link out of the folder; all wrong tensors are named at once.
    """
    files = _files(folder)
    config = _read_config(files[CONFIG])
    try:
        shape = config.shape()
    except ValueError as error:
        raise problem_error(BadDataError, str(files[CONFIG]), "", str(error)) from None
    return _load(files[WEIGHTS], shape, layers, PreNorm(residual, config.layer_norm_epsilon), _gpt2_name)


def load_suite_gpt(weights: Path, config: GPTConfig, layers: int, residual: bool = True) -> GPT:
    """The first `layers` blocks of a Pre-LN GPT that the suite has trained; `config` is that run's whole shape.

    `weights` is the run's file of final weights. As `load_gpt2` otherwise.
    """
    if not weights.is_file():
        raise problem_error(MissingError, str(weights), "weights", "no such file")
    return _load(weights, config, layers, PreNorm(residual), lambda name: (name, False))


def fingerprint(folder: Path) -> str:
    """sha256 over a GPT-2 folder's configuration and weights; raises as `load_gpt2` for files that are not there."""
    return sha256_json({name: sha256_file(path) for name, path in _files(folder).items()})


def _files(folder: Path) -> dict[str, Path]:
    place = shown(str(folder))
    if not folder.is_dir():
        message = "no such folder; a pretrained model is a local folder, names are not looked up"
        raise problem_error(MissingError, place, "pretrained", message)
    files = {name: folder / name for name in (CONFIG, WEIGHTS)}
    absent = [name for name, path in files.items() if not path.is_file()]
    if absent:
        raise problem_error(MissingError, place, "pretrained", f"the folder holds no {', no '.join(absent)}")
    for name, path in files.items():
        if path.resolve().parent != folder.resolve():
            message = "is a link out of the folder; put the file itself there"
            raise problem_error(BadDataError, place, name, message)
    return files


def _read_config(path: Path) -> _GPT2Config:
    if path.stat().st_size > LONGEST_CONFIG:
        raise problem_error(BadDataError, str(path), "", f"longer than {LONGEST_CONFIG} bytes")
    try:
        return _GPT2Config.model_validate(json.loads(path.read_bytes()))
    except ValidationError as error:
        problems = [
            Problem(str(path), None, ".".join(map(str, found["loc"])), f"{found['msg']}: {shown(found['input'])}")
            for found in error.errors()
        ]
        raise BadDataError(problems) from None
    except (ValueError, RecursionError) as error:
        raise problem_error(BadDataError, str(path), "", f"is no JSON: {shown(str(error))}") from None


def _gpt2_name(name: str) -> tuple[str, bool]:
    """Hugging Face's name for a parameter of the suite's, and whether it stands transposed there."""
    module, _, kind = name.rpartition(".")
    block = _BLOCK.fullmatch(module)
    theirs, turned = _THEIRS[block[2] if block else module]
    return (f"h.{block[1]}." if block else "") + f"{theirs}.{kind}", turned and kind == "weight"


def _load(path: Path, config: GPTConfig, layers: int, method: PreNorm, names: Names) -> GPT:
    if not 1 <= layers <= config.n_layer:
        message = f"{layers} asked for, the model has {config.n_layer}: 1 to {config.n_layer} are allowed"
        raise problem_error(ConfigError, str(path), "layers", message)
    with torch.device("meta"):  # only names and shapes: nothing is drawn, and nothing is allocated for a false shape
        whole, model = GPT(config, method), GPT(replace(config, n_layer=layers), method)
    wanted = {name: names(name) for name, _ in whole.named_parameters()}
    with _opened(path) as stream:
        keys = {key.removeprefix("transformer."): key for key in stream.keys()}  # noqa: SIM118 - no mapping
        _refuse(path, _wrong_names(wanted, keys, len(stream.keys())) | _wrong_tensors(model, wanted, keys, stream))
        model.to_empty(device="cpu")
        if config.tied:
            model.head.weight = model.wte.weight
        _refuse(path, _copy(model, wanted, keys, stream))
    return model


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as stream:
            yield stream
    except SafetensorError as error:
        message = f"is no whole safetensors file: {shown(str(error))}"
        raise problem_error(BadDataError, str(path), "", message) from None


def _refuse(path: Path, faults: dict[str, str]) -> None:
    if faults:
        raise BadDataError([Problem(str(path), None, shown(name), fault) for name, fault in faults.items()])


def _wrong_names(wanted: Wanted, keys: dict[str, str], stored: int) -> dict[str, str]:
    """What the file lacks, and what it holds that is no part of the whole model."""
    expected = {theirs for theirs, _ in wanted.values()}
    unknown = {name for name in keys.keys() - expected if not _NO_WEIGHTS.fullmatch(name)}
    faults = dict.fromkeys(unknown, "is in the file but not in such a model")
    faults |= dict.fromkeys(expected - keys.keys(), "is not in the file")
    if len(keys) < stored:
        faults["transformer."] = "some names are there with and without this prefix"
    return faults


def _wrong_tensors(model: GPT, wanted: Wanted, keys: dict[str, str], stream: Any) -> dict[str, str]:
    """Shapes and types that are not the model's, read from the file's header alone."""
    faults = {}
    for name, parameter in model.named_parameters():
        theirs, turned = wanted[name]
        if theirs not in keys:
            continue
        piece = stream.get_slice(keys[theirs])
        shape, expected = list(piece.get_shape()), list(parameter.shape[::-1] if turned else parameter.shape)
        if shape != expected:
            faults[theirs] = f"has shape {shape}, {expected} is expected"
        elif piece.get_dtype() not in FLOATS:
            faults[theirs] = f"holds {piece.get_dtype()}, not one of {', '.join(FLOATS)}"
    return faults


@torch.no_grad()
def _copy(model: GPT, wanted: Wanted, keys: dict[str, str], stream: Any) -> dict[str, str]:
    """Puts the file's numbers into the model; names the tensors that hold others than finite ones."""
    faults = {}
    for name, parameter in model.named_parameters():
        theirs, turned = wanted[name]
        tensor = stream.get_tensor(keys[theirs])
        parameter.copy_(tensor.T if turned else tensor)
        if not bool(parameter.isfinite().all()):
            faults[theirs] = "holds numbers that are not finite"
    return faults
