"""A submission of others: claimed numbers must follow from the logs beside them, and nothing in it leads elsewhere.

A folder with `submission.json` (what is claimed) and `logs.json` (one entry a seed). It is data: nothing is run, no
path that it names is opened, and its claimed numbers never reach a table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, StringConstraints, ValidationError, field_validator

from repro.spec.errors import BadDataError, Problem, printable, problem_error, shown
from repro.spec.explain import explain
from repro.spec.model import Float, Int, Name, Strict, Text
from repro.spec.paths import is_inside
from repro.spec.reading import read_json
from repro.stats.closeness import is_equal, perplexity_of_loss
from repro.stats.intervals import mean

MAX_BYTES = 1 << 20
DIGITS = 3  # decimals at which a claimed loss has to follow; a perplexity is held to two
Sha = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{4,64}$", strict=True)]
Seed = Annotated[Int, Field(ge=0)]
Model = TypeVar("Model", bound=Strict)


class Log(Strict):
    """What one seed ended with."""

    seed: Seed
    val_loss: Float
    config_sha: Sha


class Submission(Strict):
    """What a submission claims; names are names, links are web links, files lie in its own folder."""

    method: Name
    author: Text = ""
    link: Text = ""
    files: Annotated[list[Text], Field(max_length=1000)] = []
    note: Text = ""
    claimed_mean_val_loss: Float | None = None
    claimed_ppl: Annotated[Float, Field(gt=0)] | None = None
    seeds: Annotated[list[Seed], Field(min_length=1, max_length=1000)]
    config_sha: Sha

    @field_validator("author", "note")
    @classmethod
    def _plain(cls, value: str) -> str:
        if printable(value) != value or set(value) & set("<>`$|"):
            raise ValueError("plain text on one line is expected, without markup")
        return value

    @field_validator("link")
    @classmethod
    def _web(cls, value: str) -> str:
        if value and not value.startswith(("https://", "http://")):
            raise ValueError("a link starts with https:// or http://")
        return value


def check_submission(folder: Path) -> Submission:
    """The submission in `folder`; raises BadDataError with every problem at once."""
    raw, rows = (_read(folder, name) for name in ("submission.json", "logs.json"))
    problems: list[Problem] = []
    submission = _valid(Submission, raw, "submission.json", problems)
    if isinstance(raw, dict):
        problems += _files_outside(folder, raw.get("files"))
    listed = rows if isinstance(rows, list) else [rows]
    logs = [_valid(Log, row, f"logs.json[{place}]", problems) for place, row in enumerate(listed)]
    if submission and all(logs):
        problems += claimed_problems(submission, [log for log in logs if log])
    if problems or submission is None:
        raise BadDataError(problems)
    return submission


def _read(folder: Path, name: str) -> Any:
    path = folder / name
    if path.is_symlink():
        raise problem_error(BadDataError, name, "", "is a symbolic link")
    return read_json(path, MAX_BYTES, name)


def _valid(model: type[Model], raw: Any, file: str, problems: list[Problem]) -> Model | None:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        for keys, message in explain(model, error, raw):
            problems.append(Problem(file, None, shown(".".join(str(key) for key in keys)), message))
        return None


def _files_outside(folder: Path, names: Any) -> Iterator[Problem]:
    """Paths that would be read outside the folder, links included."""
    for name in names if isinstance(names, list) else []:
        text = str(name)[:1000]
        inside = not Path(text).is_absolute() and "\0" not in text and is_inside(folder / text, folder)
        if not inside:
            yield Problem("submission.json", None, "files", f"{shown(text)} lies outside the submission's folder")


def claimed_problems(submission: Submission, logs: list[Log]) -> list[Problem]:
    """Where claimed numbers do not follow from the logs, and where the logs are of something else."""
    found = []
    alien = [log.seed for log in logs if log.config_sha != submission.config_sha]
    found += [("config_sha", f"seed {seed} ran another configuration") for seed in alien]
    ran = sorted(log.seed for log in logs)
    if ran != sorted(set(submission.seeds)):
        found.append(("seeds", f"claimed are {shown(submission.seeds)}, logs are of {shown(ran)}"))
    given = mean([log.val_loss for log in logs]) if logs else math.nan
    claimed, perplexity = submission.claimed_mean_val_loss, submission.claimed_ppl
    if claimed is not None and not is_equal(given, claimed, DIGITS):
        found.append(("claimed_mean_val_loss", f"claimed mean {claimed:.3f}, logs give {given:.3f}"))
    if perplexity is not None and not is_equal(_perplexity(given), perplexity, 2):
        message = f"claimed {perplexity:.2f} does not follow from the logs (exp({given:.3f})={_perplexity(given):.2f})"
        found.append(("claimed_ppl", message))
    return [Problem("submission.json", None, key, message) for key, message in found]


def _perplexity(loss: float) -> float:
    """exp of a mean loss; infinite where no float holds it."""
    return perplexity_of_loss(loss) if loss < 700 else math.inf
