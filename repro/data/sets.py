"""Measured series and labelled sentences, from the source's files to `scratch/data/<digest>/` and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repro.data.arrays import Arrays, load_arrays, load_set_manifest, publish, write_arrays
from repro.data.jena import read_jena, read_tmy3
from repro.data.labelled import Labelled, describe, equal_rows, overlap
from repro.data.manifest import MANIFEST
from repro.data.pins import PINS, Pins, read_pins
from repro.data.rawlines import Faults, RawLines, check_count, check_sha256, wheel_file
from repro.data.series import Prepared, Scaler, Series, Split, prepare_series
from repro.data.sst2 import read_glue, read_polarity, read_trees
from repro.spec.errors import BadDataError, Problem, problem_error
from repro.spec.hashing import sha256_file, short
from repro.spec.paths import Root
from repro.spec.reading import read_json
from repro.spec.sets import (
    JENA_VARIABLES,
    PATTERNS,
    LabelledSource,
    SeriesSource,
    SetSource,
    set_digest,
    set_files,
    set_path,
)


def prepare_set(root: Root, name: str, source: SetSource, digest: str) -> Path:
    """The folder with the prepared set, made now if it is not there whole; the same bytes on every machine.

    Raises MissingError (source not there), BadDataError (it is not what is pinned, or holds what cannot be read,
    with file and line; it changed since the digest was taken), CannotWriteError (disk full or read only).
    """
    fill = _fill_series if isinstance(source, SeriesSource) else _fill_labelled
    folder = publish(root, digest, partial(_checked_fill, root, name, source, digest, fill))
    check_prepared(root, name, source, digest)
    return folder


def check_prepared(root: Root, name: str, source: SetSource, digest: str) -> None:
    """What is asked of a set, where it was made before that was asked; raises BadDataError.

    No dev sentence in training; files that are what a manifest beside them says. Files of which something is pinned
    are not looked at: they may be deleted once they are prepared.
    """
    if isinstance(source, LabelledSource):
        load_labelled(root, digest)
    if source.kind in PATTERNS and not source.pinned:
        _check_pins(root, set_path(name, source), set(set_files(root, name, source).values()))
        _check_documents(root, set_path(name, source), load_set_manifest(root, digest))


def _checked_fill(root: Root, name: str, source: SetSource, digest: str, fill: Any, place: Path) -> None:
    fill(root, name, source, digest, place)
    _check_documents(root, set_path(name, source), read_json(place / MANIFEST))
    found = set_digest(source, root)
    if found != digest:
        message = f"digest is {short(found)} and was {short(digest)} when the plan was made: the source changed"
        raise problem_error(BadDataError, "config/data.yaml", name, message)


def _raw_files(root: Root, name: str, source: SetSource) -> dict[str, RawLines]:
    """What is to be read, by split; a package's file has the name `package`."""
    if source.kind not in PATTERNS:
        path = wheel_file(str(source.dist), str(source.file))
        return {"package": RawLines(path, f"package {source.dist}: {path.name}")}
    patterns = PATTERNS[source.kind]
    files = set_files(root, name, source)
    _check_pins(root, set_path(name, source), set(files.values()))
    return {part: RawLines(path, root.shown(path), patterns[part]) for part, path in files.items()}


def _check_pins(root: Root, place: str, files: set[Path]) -> None:
    """What a manifest.json beside the files says of them, as fetching has noted it; BadDataError with all faults."""
    folder = root.path / place
    pins = _pins(folder, place)
    if pins is None:
        return
    stated = {folder / name: sha256 for name, sha256 in pins.sha256.items()}
    problems = []
    for path in sorted(files | stated.keys()):
        file = f"{root.shown(folder)}/{path.relative_to(folder)}"
        if path not in stated:
            problems.append(Problem(file, None, "", f"is not named in {PINS} beside it"))
        elif not path.is_file():
            problems.append(Problem(file, None, "", f"is missing; {PINS} beside it names it"))
        elif (found := sha256_file(path)) != stated[path]:
            problems.append(
                Problem(file, None, "sha256", f"is {found}, {stated[path]} is pinned: altered or cut short")
            )
    if problems:
        raise BadDataError(problems)


def _pins(folder: Path, place: str) -> Pins | None:
    return read_pins(folder, place) if folder.is_dir() else None


def _check_documents(root: Root, place: str, manifest: dict[str, Any]) -> None:
    """The number of rows or of sentences of all splits, where a manifest.json beside the files says it."""
    pins = _pins(root.path / place, place)
    splits = manifest["splits"].values()
    found = manifest["report"].get("rows_in") or sum(split.get("sentences", 0) for split in splits)
    faults = Faults(f"{place}/{PINS}")
    check_count(faults, "documents", found, pins.documents if pins else None)
    faults.check()


def read_series(root: Root, name: str, source: SeriesSource) -> tuple[Series, dict[str, str]]:
    """All rows as they stand in the source, and its file's hash; compared with what is pinned of it."""
    (raw,) = _raw_files(root, name, source).values()
    if source.kind == "jena":
        series = read_jena(raw, source.variables or JENA_VARIABLES)
    else:
        series = read_tmy3(raw, source.variables)
    check_sha256(raw.faults, raw.sha256, source.sha256 or source.pinned.get("sha256"))
    duplicates = len(series.times) - len(np.unique(series.times))
    check_count(raw.faults, "rows", len(series.times), source.pinned.get("rows"))
    check_count(raw.faults, "duplicates", duplicates, source.pinned.get("duplicates"))
    raw.faults.check()
    return series, {"series": raw.sha256}


def read_labelled(root: Root, name: str, source: LabelledSource) -> tuple[dict[str, Labelled], dict[str, str]]:
    """All splits of the source, and their files' hashes; compared with what is pinned of them."""
    raws = _raw_files(root, name, source)
    if source.kind == "gensim_sentences":
        raw = raws["package"]
        splits = read_polarity(raw, float(source.validation or 0))
        check_sha256(raw.faults, raw.sha256, source.sha256)
    else:
        read = read_glue if source.kind == "sst2" else read_trees
        splits = {split: read(raw, split) for split, raw in raws.items()}
        for split, raw in raws.items():
            check_sha256(raw.faults, raw.sha256, source.pinned.get(f"{split}_sha256"))
    _check_pinned(root.shown(root.path / (source.path or name)), splits, source)
    return splits, {part: raw.sha256 for part, raw in raws.items()}


def _check_pinned(file: str, splits: dict[str, Labelled], source: LabelledSource) -> None:
    """Counts of sentences and of positive ones, and labels where training and scores need them."""
    faults = Faults(file)
    for split, part in splits.items():
        check_count(faults, split, len(part), source.pinned.get(split))
        check_count(faults, f"{split}_positive", part.positive, source.pinned.get(f"{split}_positive"))
        if split != "test" and not part.is_labelled:
            faults.add(None, split, "has no labels")
    faults.check()


def _fill_series(root: Root, name: str, source: SeriesSource, digest: str, place: Path) -> None:
    series, origin = read_series(root, name, source)
    fractions = {"train": source.train, "val": source.validation}
    file = root.shown(root.path / set_path(name, source)) if source.kind in PATTERNS else f"package {source.dist}"
    prepared = prepare_series(series, source.step_minutes * 60, fractions, file)
    arrays: Arrays = {}
    splits = {}
    for split, part in prepared.splits.items():
        own = {"times": part.series.times, "values": part.series.values, "blocks": part.blocks}
        arrays |= {f"{split}_{key}": array for key, array in own.items()}
        splits[split] = {"rows": len(part.series.times), "sha256": _arrays_sha256(own)}
    report = {
        **prepared.report,
        "step": prepared.step,
        "scaler": {
            "columns": list(prepared.scaler.columns),
            "mean": prepared.scaler.mean.tolist(),
            "sd": prepared.scaler.sd.tolist(),
        },
    }
    fields = {"form": "series", "source": name, "digest": digest, "origin": origin, "splits": splits, "report": report}
    write_arrays(place, arrays, fields)


def _arrays_sha256(arrays: Arrays) -> str:
    """One hash of arrays in their order, shapes included."""
    total = hashlib.sha256()
    for array in arrays.values():
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def load_series(root: Root, digest: str) -> Prepared:
    """A prepared series, every byte checked; raises MissingError or BadDataError."""
    manifest, arrays = load_arrays(root, digest)
    _check_form(manifest, "series")
    report = manifest["report"]
    scaler = report["scaler"]
    columns = tuple(scaler["columns"])
    splits = {
        split: Split(Series(arrays[f"{split}_times"], arrays[f"{split}_values"], columns), arrays[f"{split}_blocks"])
        for split in manifest["splits"]
    }
    return Prepared(splits, Scaler(columns, np.array(scaler["mean"]), np.array(scaler["sd"])), report["step"], report)


def _fill_labelled(root: Root, name: str, source: LabelledSource, digest: str, place: Path) -> None:
    splits, origin = read_labelled(root, name, source)
    _refuse_overlap(f"source {name}", splits)
    arrays: Arrays = {}
    for split, part in splits.items():
        texts = [text.encode("utf-8") for text in part.sentences]
        arrays[f"{split}_text"] = np.frombuffer(b"".join(texts), np.uint8)
        arrays[f"{split}_ends"] = np.cumsum([len(text) for text in texts], dtype=np.int64)
        arrays[f"{split}_labels"] = part.labels
    fields = {
        "form": "labelled",
        "source": name,
        "digest": digest,
        "origin": origin,
        "splits": {split: describe(part) for split, part in splits.items()},
        "report": {"overlap": overlap(splits["train"], splits["dev"])},
    }
    write_arrays(place, arrays, fields)


def load_labelled(root: Root, digest: str) -> tuple[dict[str, Labelled], dict[str, Any]]:
    """The splits of a prepared set by name, and its manifest, every byte checked; raises as `load_series`.

    A set with dev sentences in its training text is refused too (BadDataError): older preparations published it.
    """
    manifest, arrays = load_arrays(root, digest)
    _check_form(manifest, "labelled")
    splits = {
        split: Labelled(split, _sentences(arrays[f"{split}_text"], arrays[f"{split}_ends"]), arrays[f"{split}_labels"])
        for split in manifest["splits"]
    }
    if manifest["report"].get("overlap", {}).get("dev_folded"):
        _refuse_overlap(f"source {manifest['source']}", splits)
    return splits, manifest


def _refuse_overlap(file: str, splits: Mapping[str, Labelled]) -> None:
    """Whoever trains on a dev sentence scores what was learned by heart."""
    found = equal_rows(splits["train"], splits["dev"])
    if found.hits:
        raise BadDataError(found.problems(file, "sentence"))


def _sentences(text: NDArray[np.uint8], ends: NDArray[np.int64]) -> tuple[str, ...]:
    data, bounds = text.tobytes(), [0, *ends.tolist()]
    return tuple(data[start:end].decode("utf-8") for start, end in pairwise(bounds))


def _check_form(manifest: dict[str, Any], form: str) -> None:
    if manifest["form"] != form:
        raise problem_error(BadDataError, manifest["source"], "form", f"is {manifest['form']}, {form} is expected")
