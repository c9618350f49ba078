"""Sources that are no running text: measured series and labelled sentences, and the digest that names them.

As for text, the digest is known before the data exist wherever something is pinned; only a file of one's own,
with nothing pinned, has to be there when a plan is made.
"""

from __future__ import annotations

import os
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from repro.spec.errors import BadDataError, MissingError, problem_error
from repro.spec.fetching import Fetch
from repro.spec.hashing import sha256_file, sha256_json
from repro.spec.model import Digest, Float, Int, Name, Strict, Text
from repro.spec.paths import Root, is_inside

RULES_SETS = 1  # raised when a change of the preparation changes numbers
JENA_VARIABLES = (
    "p (mbar)", "T (degC)", "Tpot (K)", "Tdew (degC)", "rh (%)", "VPmax (mbar)", "VPact (mbar)", "VPdef (mbar)",
    "sh (g/kg)", "H2OC (mmol/mol)", "rho (g/m**3)", "wv (m/s)", "max. wv (m/s)", "wd (deg)",
)  # fmt: skip
SERIES_KINDS = ("jena", "pvlib_weather")
LABELLED_KINDS = ("sst2", "sst2_trees", "gensim_sentences")
LABELLED_SPLITS = ("train", "dev", "test")
# Name of the file of each split, as it is published; `.gz` behind it or a .zip around it will do as well.
PATTERNS: dict[str, dict[str, str]] = {
    "jena": {"series": "*.csv"},
    "sst2": {split: f"{split}.tsv" for split in LABELLED_SPLITS},
    "sst2_trees": {split: f"{split}.txt" for split in LABELLED_SPLITS},
}
_PART = "[A-Za-z0-9_-][A-Za-z0-9_.-]*"  # no dot in front, so no way up
WheelFile = Annotated[str, StringConstraints(pattern=f"^{_PART}(/{_PART})*$", max_length=300)]
FilePath = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,1000}$")]
Fraction = Annotated[Float, Field(gt=0, lt=1)]


class _SetSource(Strict):
    """What both have: a file of an installed package, or a fetched or local file or folder and what is pinned of it.

    `sha256` is of the package's file. `pinned` holds counts, and hashes of unpacked files, checked at preparation;
    it decides the digest, so what `fetch` says (addresses, hashes of archives) may change without new runs.
    """

    title: Text
    licence: Text
    dist: Name | None = None
    file: WheelFile | None = None
    sha256: Digest | None = None
    path: FilePath | None = None
    pinned: dict[Name, Text | Int] = {}
    fetch: Fetch | None = None

    def check_origin(self, kind: str) -> None:
        """ValueError where it is not said what the data are."""
        if kind in PATTERNS:
            if not (self.pinned or self.path):
                raise ValueError(f"kind {kind} needs pinned or path")
            if self.fetch:
                suffixes = {f".{pattern.rsplit('.', 1)[-1]}" for pattern in PATTERNS[kind].values()}
                self.fetch.check_names([*(end + packed for end in suffixes for packed in ("", ".gz")), ".zip"])
        elif not (self.dist and self.file and self.sha256):
            raise ValueError(f"kind {kind} needs dist, file, sha256")
        elif self.fetch:
            raise ValueError(f"kind {kind} is not fetched: fetch does not belong here")


class SeriesSource(_SetSource):
    """A measured series: rows on a grid of `step_minutes`, the first `train` of them for training, then `validation`.

    `variables` None takes the 14 of Jena, or the 14 of the embedded weather.
    """

    kind: Literal["jena", "pvlib_weather"]
    variables: Annotated[list[Text], Field(min_length=1, max_length=100)] | None = None
    step_minutes: Annotated[Int, Field(ge=1, le=1440)] = 60
    train: Fraction = 0.7
    validation: Fraction = 0.1

    @model_validator(mode="after")
    def _whole(self) -> Self:
        self.check_origin(self.kind)
        if self.train + self.validation >= 1:
            raise ValueError(f"train {self.train} and validation {self.validation} leave nothing to test on")
        if self.variables and len(set(self.variables)) < len(self.variables):
            raise ValueError("a variable stands twice in variables")
        return self


class LabelledSource(_SetSource):
    """Sentences with a class; `sst2` is GLUE's variant (phrases, test without labels), `sst2_trees` the original one.

    `validation` is the fraction held out by hash where the source comes without splits.
    """

    kind: Literal["sst2", "sst2_trees", "gensim_sentences"]
    validation: Annotated[Float, Field(gt=0, lt=0.5)] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        self.check_origin(self.kind)
        if (self.validation is None) == (self.kind == "gensim_sentences"):
            raise ValueError("validation is for kind gensim_sentences, which comes without splits, and for no other")
        return self


SetSource = SeriesSource | LabelledSource


def set_path(name: str, source: SetSource) -> str:
    """Where the files of a fetched or local source are looked for, relative to the root."""
    return source.path or f"scratch/fetched/{name}"


def set_files(root: Root, name: str, source: SetSource) -> dict[str, Path]:
    """The file of each split (or of the series): as it is, gzipped, or the zip archive that holds it.

    Raises MissingError where nothing is there, BadDataError for more than one candidate, for a link that leads
    out of the folder and for what is no regular file.
    """
    place = set_path(name, source)
    folder = root.path / place
    if os.path.isfile(folder):  # unlike Path.is_file, False for a name that is too long
        return dict.fromkeys(PATTERNS[source.kind], folder)
    mend = f"put its files into {place}"
    if not source.path:
        mend = f"run: repro data fetch {name} (or {mend})"
    if not os.path.isdir(folder):
        raise problem_error(MissingError, place, "", f"{name} is not here; {mend}")
    return {part: _one_file(folder, place, pattern, mend) for part, pattern in PATTERNS[source.kind].items()}


def _one_file(folder: Path, place: str, pattern: str, mend: str) -> Path:
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    found = [name for name in names if fnmatch(name, pattern) or fnmatch(name, f"{pattern}.gz")]
    found = found or [name for name in names if name.endswith(".zip")]
    if not found:
        raise problem_error(MissingError, place, "", f"holds no {pattern}, {pattern}.gz or .zip; {mend}")
    if len(found) > 1:
        raise problem_error(BadDataError, place, "", f"holds several files for {pattern}: {', '.join(found[:5])}")
    path = folder / found[0]
    if not is_inside(path, folder):
        raise problem_error(BadDataError, place, found[0], "is a link that leads out of the folder")
    if not path.is_file():  # a pipe would wait for ever
        raise problem_error(BadDataError, place, found[0], "is no regular file")
    return path


def set_digest(source: SetSource, root: Root) -> str:
    """sha256 that names the prepared set; MissingError where nothing is pinned and the file is not there."""
    fields = source.model_dump(exclude={"title", "licence", "dist", "file", "sha256", "path", "pinned", "fetch"})
    if isinstance(source, SeriesSource) and source.variables is None:
        fields["variables"] = JENA_VARIABLES if source.kind == "jena" else None
    return sha256_json({**fields, **_origin(source, root), "rules": RULES_SETS})


def _origin(source: SetSource, root: Root) -> dict[str, object]:
    if source.kind not in PATTERNS:
        return {"sha256": source.sha256}
    if source.pinned:
        return {"pinned": source.pinned}
    try:
        files = {part: sha256_file(path) for part, path in set_files(root, str(source.path), source).items()}
    except OSError as error:
        message = f"cannot be read ({error.strerror})"
        raise problem_error(BadDataError, str(source.path), "", message) from None
    return {"files": files}
