"""A submission of others: claimed numbers must follow from the logs beside them, and nothing in it leads elsewhere.

A folder with `submission.json` (what is claimed) and `logs.json` (one entry a seed). It is data: nothing is run, no
path that it names is opened, and its claimed numbers never reach a table. Links and files that could run code when
somebody else opens them are refused, named or not.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, StringConstraints, ValidationError, field_validator

from repro.spec.errors import BadDataError, Problem, printable, problem_error, shown
from repro.spec.explain import explain
from repro.spec.fetching import is_plain
from repro.spec.model import Float, Int, Name, Strict, Text
from repro.spec.reading import read_json
from repro.stats.closeness import is_equal, perplexity_of_loss
from repro.stats.intervals import mean

MAX_BYTES = 1 << 20
MAX_PROBLEMS = 200  # of a whole submission, which can hold thousands
ENDINGS = (".json", ".csv", ".txt", ".md")  # what nothing runs on opening
DIGITS = 3  # decimals at which a claimed loss has to follow; a perplexity is held to two
Sha = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{4,64}$", strict=True)]
Seed = Annotated[Int, Field(ge=0, le=2**53)]
Loss = Annotated[Float, Field(ge=0)]
Web = Annotated[
    str, StringConstraints(pattern=r"^(https?://[A-Za-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9/?#&=+,;:@._~%-]*)?)?$")
]
Model = TypeVar("Model", bound=Strict)


class Log(Strict):
    """What one seed ended with."""

    seed: Seed
    val_loss: Loss
    config_sha: Sha


class Submission(Strict):
    """What a submission claims; names are names, links are web links, files lie in its own folder."""

    method: Name
    author: Text = ""
    link: Annotated[Web, Field(max_length=500)] = ""
    files: Annotated[list[Text], Field(max_length=1000)] = []
    note: Text = ""
    claimed_mean_val_loss: Loss | None = None
    claimed_ppl: Annotated[Float, Field(gt=0)] | None = None
    seeds: Annotated[list[Seed], Field(min_length=1, max_length=1000)]
    config_sha: Sha

    @field_validator("author", "note")
    @classmethod
    def _plain(cls, value: str) -> str:
        if printable(value) != value or set(value) & set("<>`$|"):
            raise ValueError("plain text on one line is expected, without markup")
        return value


def check_submission(folder: Path) -> Submission:
    """The submission in `folder`; raises BadDataError with every problem at once."""
    raw, rows = (_read(folder, name) for name in ("submission.json", "logs.json"))
    problems = list(_entry_problems(folder))
    submission = _valid(Submission, raw, "submission.json", problems)
    if isinstance(raw, dict):
        problems += _file_problems(folder, raw.get("files"))
    listed = rows if isinstance(rows, list) else [rows]
    logs = [_valid(Log, row, f"logs.json[{place}]", problems) for place, row in enumerate(listed)]
    if submission and all(logs):
        problems += claimed_problems(submission, [log for log in logs if log])
    if problems or submission is None:
        raise BadDataError(_capped(problems))
    return submission


def _capped(problems: list[Problem]) -> list[Problem]:
    more = len(problems) - MAX_PROBLEMS
    told = [Problem("submission.json", None, "", f"and {more} more problems")] if more > 0 else []
    return [*problems[:MAX_PROBLEMS], *told]


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


def _entry_problems(folder: Path) -> Iterator[Problem]:
    """Links, and files that may run code or that nobody can read, anywhere in the folder."""
    for at, folders, files in os.walk(folder):
        for name in sorted([*folders, *files]):
            path = Path(at) / name
            if path.is_symlink():
                yield Problem(_named(path, folder), None, "", "is a symbolic link")
            elif name in files and not name.startswith(".") and not (path.suffix in ENDINGS and path.is_file()):
                yield Problem(_named(path, folder), None, "", f"is no file that ends in {', '.join(ENDINGS)}")


def _named(path: Path, folder: Path) -> str:
    return shown(path.relative_to(folder).as_posix())


def _file_problems(folder: Path, names: Any) -> Iterator[Problem]:
    """Names that are none of a file in the folder. The names alone decide where they lead: links are refused."""
    for name in names if isinstance(names, list) else []:
        if not (isinstance(name, str) and is_plain(name) and name.endswith(ENDINGS)):
            message = f"is no plain path in the submission's folder that ends in {', '.join(ENDINGS)}"
            yield Problem("submission.json", None, "files", f"{shown(name) or repr(name)} {message}")
        elif not os.path.isfile(folder / name):
            yield Problem("submission.json", None, "files", f"{shown(name)} is not there")


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
        found.append(("claimed_mean_val_loss", f"claimed mean {_words(claimed, 3)}, logs give {_words(given, 3)}"))
    if perplexity is not None and not is_equal(_perplexity(given), perplexity, 2):
        follows = f"exp({_words(given, 3)})={_words(_perplexity(given), 2)}"
        message = f"claimed {_words(perplexity, 2)} does not follow from the logs ({follows})"
        found.append(("claimed_ppl", message))
    return [Problem("submission.json", None, key, message) for key, message in found]


def _perplexity(loss: float) -> float:
    """exp of a mean loss; infinite where no float holds it."""
    return perplexity_of_loss(loss) if loss < 700 else math.inf


def _words(number: float, decimals: int) -> str:
    """A number at the decimals that are compared; one of hundreds of digits by its size."""
    return f"{number:.{decimals}f}" if abs(number) < 1e6 else f"{number:.6g}"
