"""What a classifier starts from: a GPT-2 in a folder, or a small GPT that the suite pretrains itself, once.

The pretraining is a training like any other, of the one module, fixed by its configuration alone; its weights lie
under `scratch/cache/pretrained/`, and whoever asks first makes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from repro.data.manifest import data_folder, load_manifest
from repro.data.prepare import prepare
from repro.data.tokenise import Tokenizer, prepared_tokenizer, tokenizer
from repro.nn.gpt import GPT, GPTConfig
from repro.nn.pretrained import fingerprint, load_gpt2, load_suite_gpt
from repro.records.schema import finite
from repro.records.store import replace_text
from repro.spec.data import DataSource
from repro.spec.data import digest as source_digest
from repro.spec.errors import BadDataError, CannotWriteError, MissingError, problem_error
from repro.spec.hashing import canonical, sha256_file, sha256_json, short
from repro.spec.load import load_configuration
from repro.spec.paths import Root
from repro.spec.reading import read_json
from repro.train.launch import Limits, recall, train
from repro.train.outcome import save_weights

CHECKPOINT_SHARE, CHECKPOINT_LONGEST = 0.02, 600.0  # of the time, and seconds: as a run's own by default
MAX_NOTE_BYTES = 1 << 16


@dataclass(frozen=True)
class Start:
    """`body(layers, residual=...)` makes the cut model with its weights; `words` say in a record what it is."""

    words: str
    coder: Tokenizer
    body: Callable[..., GPT]


def start_of(root: Root, config: dict[str, Any]) -> Start:
    """The start that a run's `pretrained` names; our own is pretrained now if it is not there.

    Raises MissingError (no such folder), BadDataError (folder or weights are not the pinned ones), and what
    preparing the text raises.
    """
    if config["origin"] == "folder":
        return _theirs(root.scratch / "fetched" / config["folder"], config)
    run = config["run"]
    weights, sha256 = own_weights(root, run)
    model = run["model"]
    coder = prepared_tokenizer(data_folder(root, run["data"]), load_manifest(root, run["data"]))
    words = f"own GPT, {model['n_layer']} layers, width {model['d_model']}, {run['steps']} steps, {short(sha256)}"
    return Start(words, coder, partial(load_suite_gpt, weights, GPTConfig(**model)))


def _theirs(folder: Path, config: dict[str, Any]) -> Start:
    found = fingerprint(folder)
    if found != config["sha256"]:
        message = f"holds {found}, {config['sha256']} is pinned"
        raise problem_error(BadDataError, f"scratch/fetched/{folder.name}", "pretrained.sha256", message)
    return Start(f"{folder.name} {short(found)}", tokenizer("gpt2"), partial(load_gpt2, folder))


def own_weights(root: Root, run: dict[str, Any]) -> tuple[Path, str]:
    """File and sha256 of the weights that `run`, a language model's whole configuration, ends with.

    A whole file is used as it is; one that is not what its note says is made again. Two processes may ask at once:
    one trains, the other waits. A stopped pretraining goes on where it was.
    """
    key = sha256_json(run)
    path = root.scratch / "cache" / "pretrained" / f"{short(key)}.safetensors"
    with _lock(root, path):
        sha256 = _noted(path)
        if sha256 is None:
            data = _text(root, run["data"])
            sha256 = _pretrain(run, key, data, path)
    return path, sha256


@contextlib.contextmanager
def _lock(root: Root, path: Path) -> Iterator[None]:
    """One process at a time; the kernel lets go when a process dies."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise problem_error(CannotWriteError, root.shown(path.parent), "", f"{error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _noted(path: Path) -> str | None:
    """The hash of whole weights; None where something is missing or is not what was written."""
    note = path.with_suffix(".json")
    if not (path.is_file() and note.is_file()):
        return None
    stated = read_json(note, MAX_NOTE_BYTES).get("sha256")
    return str(stated) if stated == sha256_file(path) else None


def _text(root: Root, digest: str) -> Path:
    """The prepared text, made now if need be: a workflow knows of the sentences only."""
    folder = data_folder(root, digest)
    if (folder / "manifest.json").is_file():
        return folder
    sources = load_configuration(root).sources
    for name, source in sources.items():
        if isinstance(source, DataSource) and source_digest(source, root) == digest:
            return prepare(root, name, source, digest, workers=1)
    raise problem_error(MissingError, f"scratch/data/{folder.name}", "pretrained", "no source of this digest is known")


def _pretrain(run: dict[str, Any], key: str, data: Path, path: Path) -> str:
    """Trains, writes weights and then the note that vouches for them; ValueError if the training diverges."""
    checkpoints = path.with_suffix(".ckpt")
    job = {
        "id": short(key),
        "alias": f"pretraining {short(key)}",
        "full_sha256": key,
        "data": str(data),
        "micro_batch": run["micro_batch"],
        "checkpoints": str(checkpoints),
        "device": "cpu",
        "devices": 1,
    }
    state, found = recall(job, _silent)
    done = train(run, job, state, found, Limits(None, None, [], CHECKPOINT_SHARE, CHECKPOINT_LONGEST), _silent)
    if done.state.status is not None:
        raise ValueError(f"the pretraining {done.state.status}: {done.state.reason}")
    sha256 = save_weights(done.net, path)
    note = {"sha256": sha256, "val_loss": finite(done.state.val_history[-1]), "config": run}
    replace_text(path.with_suffix(".json"), canonical(note) + "\n")
    shutil.rmtree(checkpoints, ignore_errors=True)
    return sha256


def _silent(_event: dict[str, Any]) -> None:
    """The events are those of the run that waits for this."""
