"""What is recorded: a look at all record files, quick because unchanged files are not read again.

The cache under scratch/ holds what a plan needs of each file; it can be deleted at any time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from repro.records.agreement import Sightings, disagreements, sightings
from repro.records.retries import read_retries
from repro.records.schema import RETRYABLE, record_problems
from repro.records.store import attempt_of, place, record_path, replace_text
from repro.spec.errors import BadDataError, CannotWriteError, Problem, ReproError
from repro.spec.hashing import around, sha256_json, sha256_text, short, stamp
from repro.spec.metrics import METRICS, PROTOCOLS
from repro.spec.paths import Root
from repro.spec.reading import read_json

MAX_RECORD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One record file, in short."""

    path: str
    id: str
    kind: str
    of: str | None
    status: str
    attempt: int
    weights: str | None
    saw: Sightings


KEPT = len(fields(Entry)) - 1  # of an entry, in the cache; its path is the key


def entry_of(path: str, raw: dict[str, Any], attempt: int) -> Entry:
    """What the index keeps of a record."""
    return Entry(path, *_kept(raw, attempt))


def _kept(raw: dict[str, Any], attempt: int) -> list[Any]:
    of, weights = raw.get("of"), raw.get("weights_sha256")
    return [raw["id"], raw["kind"], of, raw["status"], attempt, weights, sightings(raw)]


class Record:
    """One record, read when it is first asked for."""

    def __init__(self, folder: Path, entry: Entry) -> None:
        self.folder, self.entry = folder, entry

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / self.entry.path

    @cached_property
    def raw(self) -> dict[str, Any]:
        """The whole JSON object."""
        return dict(read_json(self.path, MAX_RECORD_BYTES))

    @property
    def id(self) -> str:
        """Short id."""
        return self.entry.id

    @property
    def status(self) -> str:
        """complete, diverged, failed, timeout or oom."""
        return self.entry.status

    @property
    def seed(self) -> int | None:
        """Seed of a training."""
        value = self.raw["seed"]
        return None if value is None else int(value)

    def value(self, name: str) -> float | None:
        """The metric called `name`, or None where the record has no finite number for it."""
        for metric in self.raw.get("metrics", []):
            if metric["name"] == name:
                return None if metric["value"] is None else float(metric["value"])
        return None


def eval_config(run_full_sha256: str, weights_sha256: str, metric: str, tokens: int) -> dict[str, Any]:
    """What an eval record's id covers: the run and its very weights, the protocol with options and rules, the tokens.

    A run that is trained again elsewhere can end with other weights: then it is measured again, and nothing mixes.
    """
    whose = {"kind": "eval", "of": run_full_sha256, "weights": weights_sha256}
    return {**whose, "protocol": metric, "tokens": tokens, **_fixed(metric)}


def _fixed(metric: str) -> dict[str, Any]:
    info = PROTOCOLS[metric].info
    return {"rules": info.rules, "options": info.options}


def eval_id(run_full_sha256: str, weights_sha256: str, metric: str, tokens: int) -> str:
    """Short id of an eval record: that of `eval_config`, whose text but for run and weights is made once."""
    head, tail = _eval_text(metric, tokens, PROTOCOLS[metric].info.rules)
    return short(sha256_text(f'{head}"{run_full_sha256}"{tail}"{weights_sha256}"}}'))


@cache
def _eval_text(metric: str, tokens: int, _rules: int) -> tuple[str, str]:
    """Canonical text before the run's hash, and between it and the weights' hash, which comes last."""
    config = eval_config("", "", metric, tokens)
    head, tail = around({key: value for key, value in config.items() if key not in ("of", "weights")}, "of")
    return head, tail.removesuffix("}") + ',"weights":'


@dataclass
class Index:
    """All records by id, latest attempt last; files that cannot be trusted stand in `problems` only."""

    root: Root
    records: dict[str, list[Record]] = field(default_factory=dict)
    community: dict[str, list[Record]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    # Validation tokens of each planned run's measurements; numbers made of other tokens are another protocol's.
    final_tokens: dict[str, int] = field(default_factory=dict)
    retries: dict[str, int] = field(default_factory=dict)  # attempts that are to be superseded, by id
    refused: dict[str, str] = field(default_factory=dict)  # Slurm's words for planned runs whose job it did not take
    _unlike: list[Record] = field(default_factory=list)
    _evals: dict[str, dict[str, Record]] | None = None

    def latest(self, identity: str) -> Record | None:
        """Latest attempt of an id, or None."""
        found = self.records.get(identity)
        return found[-1] if found else None

    train = latest

    def settled(self, identity: str) -> Record | None:
        """The record that stands: the latest attempt, but none while a failure is to be tried again."""
        record = self.latest(identity)
        return None if record is None or self.superseded(identity) else record

    def is_refused(self, identity: str) -> bool:
        """Whether nothing is recorded of a run because its job could not be submitted."""
        return identity in self.refused and self.latest(identity) is None

    def superseded(self, identity: str) -> int:
        """How many attempts do not count any more, since another one was asked for."""
        record = self.latest(identity)
        again = record is not None and record.status in RETRYABLE and self.retries.get(identity) == record.entry.attempt
        return self.attempts(identity) if again else 0

    def evals(self, run_id: str) -> dict[str, Record]:
        """Latest eval records of one run by protocol: of its recorded weights, under current rules and options."""
        if self._evals is None:
            self._evals = {}
            standing = [attempts[-1] for attempts in self.records.values() if attempts[-1].entry.kind == "eval"]
            for record in self._alike([record for record in standing if self._is_current(record)]):
                self._evals.setdefault(str(record.entry.of), {})[record.raw["config"]["protocol"]] = record
        return self._evals.get(run_id, {})

    def unlike(self) -> list[Record]:
        """Measured by another encoder or other packages than most (`protocol` in the probes): not counted."""
        self.evals("")
        return self._unlike

    def _alike(self, records: list[Record]) -> Iterator[Record]:
        """Records without those that are `unlike`: the line that most of a protocol state stands, of two the newer."""
        lines: dict[str, dict[str, list[Record]]] = {}
        for record in records:
            line = str(record.raw["probes"].get("protocol"))
            lines.setdefault(record.raw["config"]["protocol"], {}).setdefault(line, []).append(record)
        for parts in lines.values():
            stands = max(parts.values(), key=lambda part: (len(part), max(record.raw["created"] for record in part)))
            self._unlike += [record for part in parts.values() if part is not stands for record in part]
            yield from stands

    def _is_current(self, record: Record) -> bool:
        """Whether an eval record speaks of the weights, the protocol and the tokens that count now."""
        config, run = record.raw["config"], self.latest(str(record.entry.of))
        name, tokens = config.get("protocol"), self.final_tokens.get(str(record.entry.of))
        if run is None or name not in PROTOCOLS or not _fixed(name).items() <= config.items():
            return False
        return config.get("weights") == run.entry.weights and tokens in (None, config.get("tokens"))

    def attempts(self, identity: str) -> int:
        """Number of records of one id."""
        return len(self.records.get(identity, []))

    def refuse_problems(self) -> None:
        """Raises BadDataError if any record file is not what it says."""
        if self.problems:
            raise BadDataError(self.problems)


def load_index(root: Root) -> Index:
    """Looks at every record file; a file is read and checked again only if its size or time changed."""
    index = Index(root, retries=read_retries(root))
    known_files = _read_cache(root)
    fresh: dict[str, Any] = {}
    others = root.community.relative_to(root.path).as_posix() + "/"
    for name, state in _files(root):
        known = known_files.get(name)
        seen = stamp(state)
        if known is None or known[0] != seen:
            known = [seen, *_examine(root, root.path / name)]
        if isinstance(known[1], list):
            fresh[name] = known
            entry = Entry(name, *known[1])
            kept = (index.community if name.startswith(others) else index.records).setdefault(entry.id, [])
            if all(
                record.entry.attempt != entry.attempt for record in kept
            ):  # what is committed comes first and stands
                kept.append(Record(root.path, entry))
        else:
            index.problems += known[2]
    for attempts in index.records.values():
        attempts.sort(key=lambda record: record.entry.attempt)
        index.problems += chain_problems([record.entry for record in attempts])
    index.problems += _measured_problems(index)
    _set_aside(index)
    if fresh != known_files:
        _keep_cache(root, fresh)
    return index


def _measured_problems(index: Index) -> list[Problem]:
    """Only a complete run can be measured; what was measured before the run was trained again is merely old."""
    problems = []
    for attempts in index.records.values():
        entry = attempts[-1].entry
        run = index.latest(entry.of) if entry.of else None
        if run is None or run.status == "complete":
            continue
        if attempts[-1].raw["created"] >= run.raw["created"]:
            problems.append(Problem(entry.path, None, "of", f"measures {entry.of}, which is {run.status}"))
    return problems


def _set_aside(index: Index) -> None:
    """Takes records out that saw other data than most of their like: a problem, and in no number."""
    every = [record.entry for attempts in index.records.values() for record in attempts]
    for entry, message in disagreements(every):
        index.problems.append(Problem(entry.path, None, "data", message))
        index.records[entry.id] = [kept for kept in index.records[entry.id] if kept.entry is not entry]
    index.records = {identity: attempts for identity, attempts in index.records.items() if attempts}


def chain_problems(attempts: list[Entry]) -> list[Problem]:
    """A later attempt needs the one before it, which must have failed: superseding a result would be selection."""
    statuses = {entry.attempt: entry.status for entry in attempts}
    problems = []
    for entry in attempts:
        before = statuses.get(entry.attempt - 1, "missing")
        if entry.attempt and before not in RETRYABLE:
            message = f"attempt {entry.attempt} follows a {before} record; only {', '.join(RETRYABLE)} may be retried"
            problems.append(Problem(entry.path, None, "supersedes", message))
    return problems


def _files(root: Root) -> Iterator[tuple[str, os.stat_result]]:
    """Name below the root and state of each record file, in order; plain text, since a campaign has many."""
    for folder in (root.records, root.scratch_records):
        yield from _below(str(folder), folder.relative_to(root.path).as_posix())


def _below(folder: str, name: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        found = sorted(os.scandir(folder), key=lambda item: item.name)
    except FileNotFoundError:
        return
    for item in found:
        if item.is_symlink():  # a linked folder too: records that nobody looks at would be made again
            yield f"{name}/{item.name}", item.stat(follow_symlinks=False)
        elif item.is_dir(follow_symlinks=False):
            yield from _below(item.path, f"{name}/{item.name}")
        elif item.name.endswith(".json") and not item.name.startswith("."):
            yield f"{name}/{item.name}", item.stat(follow_symlinks=False)


def _examine(root: Root, path: Path) -> list[Any]:
    """[what an Entry holds but the path] of a good file, or [None, problems]."""
    name = root.shown(path) if not path.is_symlink() else path.relative_to(root.path).as_posix()
    if path.is_symlink():
        return [None, [Problem(name, None, "", "is a symbolic link")]]
    try:
        raw = read_json(path, MAX_RECORD_BYTES, name)
    except ReproError as error:
        return [None, error.problems]
    problems = record_problems(raw, name)
    attempt = attempt_of(path)
    problems = problems or place_problems(root, path, raw, attempt)
    return [None, problems] if problems else [_kept(raw, attempt)]


def place_problems(root: Root, path: Path, raw: dict[str, Any], attempt: int) -> list[Problem]:
    """A file's place and name follow from its record."""
    name, folder = root.shown(path), path.parents[1]
    known = folder in (root.records, root.community, root.scratch_records)
    if known and folder != root.community and folder != place(root, raw["tier"]):
        return [Problem(name, None, "tier", f"records of tier {raw['tier']} do not belong in this folder")]
    if known and (folder == root.community) == (raw["origin"] == "self"):
        return [Problem(name, None, "origin", f"{raw['origin']} does not belong in this folder")]
    if not known or path != record_path(folder, raw["id"], attempt):
        return [Problem(name, None, "id", f"place and name of the file do not follow from the id {raw['id']}")]
    before = record_path(folder, raw["id"], attempt - 1).name if attempt else None
    if raw.get("supersedes") != before:
        return [Problem(name, None, "supersedes", f"must be {before or 'null'} in a file of this name")]
    return []


def _cache_path(root: Root) -> Path:
    return root.scratch / "cache" / "records.json"


@cache
def _cache_key() -> str:
    """Hash of the record modules and of what is measured: a stricter rule checks every file again."""
    folder = Path(__file__).parent
    rules = [(folder / name).read_text("utf-8") for name in ("schema.py", "index.py", "agreement.py")]
    return sha256_json([*rules, repr(sorted(METRICS.items()))])


def _keep_cache(root: Root, files: dict[str, Any]) -> None:
    """A cache that cannot be written costs time, not the command."""
    with suppress(CannotWriteError):
        replace_text(_cache_path(root), json.dumps({"version": _cache_key(), "files": files}))


def _read_cache(root: Root) -> dict[str, Any]:
    try:
        content = json.loads(_cache_path(root).read_text("utf-8"))
        files = dict(content["files"]) if content["version"] == _cache_key() else {}
        return {name: known for name, known in files.items() if _is_whole(known)}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}


def _is_whole(known: Any) -> bool:
    """Whether a line of the cache has the form that we write: what is edited or cut is looked up anew."""
    return len(known) == 2 and len(known[1]) == KEPT and isinstance(known[1][-1], dict)
