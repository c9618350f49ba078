"""What a record is, and the rules across its fields; the same for ours and for those of others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from repro.spec.checks import CHECKS, Check
from repro.spec.errors import Problem, shown
from repro.spec.explain import explain
from repro.spec.hashing import sha256_json, short
from repro.spec.metrics import PROTOCOLS, Protocol
from repro.spec.model import Bool, Digest, Float, Int, Name, Strict, Text
from repro.spec.values import ValueInfo

SCHEMA = 1
MAX_POINTS = 200
ROWS = ("rows", "layers", "curves", "spectra", "paths")  # of probes: what figures are made of
LARGEST = 1e100  # of a number; its square is still one
RETRYABLE = ("failed", "oom", "timeout")

ShortId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$", strict=True)]
Alias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_./@+-]{1,200}$", strict=True)]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.,:;*+=/() -]{0,200}$", strict=True)]
Count = Annotated[Int, Field(ge=0)]
Seconds = Annotated[Float, Field(ge=0)]
Series = Annotated[list[Float | None], Field(max_length=MAX_POINTS)]


class StatusDetail(Strict):
    """Where a run ended and why; None where there is nothing to say."""

    step: Count | None = None
    reason: Text | None = None


class MetricValue(Strict):
    """One number with its unit, the count it was made of, and its protocol; null if it is no finite number."""

    name: Name
    value: Float | None
    unit: Word
    n: Count
    protocol: Word


class Curve(Strict):
    """Losses against tokens: mean, lowest and highest training loss since the last point; nats a token.

    `lr` is the learning rate of the last step; records of before 2026-11-30 have none.
    """

    tokens: Annotated[list[Count], Field(max_length=MAX_POINTS)] = []
    train_loss: Series = []
    train_min: Series = []
    train_max: Series = []
    val_loss: Series = []
    lr: Series = []

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        if len({len(series) for series in (self.tokens, self.train_loss, self.val_loss)}) > 1:
            raise ValueError("tokens, train_loss and val_loss must have one length")
        if any(later <= earlier for earlier, later in zip(self.tokens, self.tokens[1:], strict=False)):
            raise ValueError("tokens must grow")
        return self


class Budget(Strict):
    """Planned and seen training tokens."""

    tokens_planned: Count
    tokens_seen: Count
    steps: Count
    tokens_per_step: Count


class Speed(Strict):
    """Median over steps without evaluation; MFU is null where the exact device has no entry."""

    tokens_per_second: Float | None = None
    mfu: Annotated[Float, Field(ge=0, le=1)] | None = None
    flops_formula: Word | None = None
    peak_entry: Word | None = None


class Time(Strict):
    """Seconds: whole run, in training steps, in validation, compiling, waiting."""

    wall: Seconds
    train: Seconds = 0.0
    eval: Seconds = 0.0
    compile: Seconds = 0.0
    wait: Seconds = 0.0


class DataUsed(Strict):
    """Fingerprint of one split: its tokens, or rows of what is no text, which has no tokenizer."""

    name: Name
    split: Literal["train", "val", "dev", "test"]
    sha256: Digest
    tokens: Count
    tokenizer_sha256: Digest | None


class Code(Strict):
    """Where the code came from; `dirty` means changes outside results/ and scratch/."""

    git_commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")] | None
    dirty: Bool | None
    source_sha256: Digest


class Environment(Strict):
    """What the run ran on, in words that name no machine and no person."""

    python: Word
    packages: dict[Word, Word]
    lock_sha256: Digest | None
    device: Word
    device_count: Annotated[Int, Field(ge=1)]
    precision: Word
    compiled: Bool
    threads: Annotated[Int, Field(ge=1)]
    deterministic: Bool


class RecordModel(Strict):
    """One finished run. See docs/decisions/004-records.md for why each rule is here."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    id: ShortId
    full_sha256: Digest
    alias: Alias
    origin: Literal["self", "community", "support"]
    kind: Literal["train", "check", "eval"]
    of: ShortId | None = None
    supersedes: Word | None = None
    paper: Literal["a", "b", "c", "d"] | None = None
    experiments: list[Name]
    tracks: list[Name]
    tier: Literal["smoke", "desk", "proxy", "paper"]
    method: Name | None
    params: dict[Name, Any]
    seed: Count | None
    config: dict[str, Any]
    config_sha256: Digest
    method_sha256: Digest | None
    rules_version: dict[Name, Annotated[Int, Field(ge=1)]]
    status: Literal["complete", "diverged", "failed", "timeout", "oom"]
    status_detail: StatusDetail
    metrics: list[MetricValue] = []
    curve: Curve | None = None
    probes: dict[str, Any] = {}
    budget: Budget | None = None
    speed: Speed | None = None
    time: Time
    attempts: Annotated[Int, Field(ge=1)]
    resumes: Count
    data: list[DataUsed]
    weights_sha256: Digest | None = None
    learned: Bool | None = None
    structure: Annotated[list[Word], Field(max_length=2000)] = []
    code: Code
    environment: Environment
    created: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    sha256: Digest

    @model_validator(mode="after")
    def _identity_follows(self) -> Self:
        if sha256_json(self.config) != self.full_sha256 or self.config_sha256 != self.full_sha256:
            raise ValueError("full_sha256 and config_sha256 do not follow from config")
        if short(self.full_sha256) != self.id:
            raise ValueError("id does not follow from full_sha256")
        if self.kind == "train":
            stated = {"name": self.method, "params": self.params, "sha256": self.method_sha256}
            if self.config.get("method") != stated or self.config.get("seed") != self.seed:
                raise ValueError("method, params, method_sha256 or seed differ from config")
        if self.kind == "check":
            stated = {"name": self.method, "params": self.params}
            protocol = f"{self.method}.v{self.rules_version.get(str(self.method))}"
            if self.config.get("check") != stated or self.config.get("seed") != self.seed:
                raise ValueError("method, params or seed differ from config")
            if self.rules_version != self.config.get("rules") or any(m.protocol != protocol for m in self.metrics):
                raise ValueError(f"rules_version differs from config, or metrics of another check than {protocol}")
        if self.kind == "eval":
            protocol = f"{self.config.get('protocol')}.v{self.config.get('rules')}"
            kinds = {"protocol": str, "rules": int, "tokens": int}
            if any(type(self.config.get(key)) is not kind for key, kind in kinds.items()):
                raise ValueError("config needs protocol (text), rules and tokens (integers)")
            if short(str(self.config.get("of"))) != self.of or self.config.get("weights") != self.weights_sha256:
                raise ValueError("of or weights_sha256 differ from config")
            if any(metric.protocol != protocol for metric in self.metrics):
                raise ValueError(f"metrics of another protocol than {protocol}")
        return self

    @model_validator(mode="after")
    def _arithmetic_holds(self) -> Self:
        problems = [*_budget_problems(self), *_status_problems(self), *_number_problems(self), *_probe_problems(self)]
        problems += _date_problems(self)
        if problems:
            raise ValueError("; ".join(problems))
        return self


def _number_problems(record: RecordModel) -> list[str]:
    """Metrics that are not what their protocol or check makes; of another rules version nothing is known here."""
    maker: Protocol | Check | None = None
    if record.kind == "eval":
        maker = PROTOCOLS.get(str(record.config.get("protocol")))
    elif record.kind == "check":
        maker = CHECKS.get(str(record.method))
    elif record.metrics:
        return ["a training has no metrics: each has a record of its own"]
    if maker is None or any(metric.protocol != maker.id for metric in record.metrics):
        return []
    names, made = sorted(metric.name for metric in record.metrics), sorted(maker.info.values)
    if record.metrics and names != made:
        return [f"metrics are {', '.join(names)}; {maker.id} makes {', '.join(made)}"]
    return [problem for metric in record.metrics for problem in _value_problems(metric, maker.info.values[metric.name])]


def _value_problems(metric: MetricValue, info: ValueInfo) -> Iterator[str]:
    if metric.unit != info.unit:
        yield f"{metric.name} is in {metric.unit}, {metric.protocol} in {info.unit}"
    if metric.n < 1:
        yield f"{metric.name} is made of no items (n is {metric.n})"
    if metric.value is not None and not info.holds(metric.value):
        yield f"{metric.name} is {metric.value:g}, outside {info.span}"
    if metric.value is not None and finite(metric.value) is None:
        yield f"{metric.name} is {metric.value:g}: what is beyond {LARGEST:g} is written as null"


def _probe_problems(record: RecordModel) -> list[str]:
    rows = {key: record.probes[key] for key in ROWS if key in record.probes}
    wrong = [key for key, value in rows.items() if not isinstance(value, list) or not all(map(_is_row, value))]
    return [f"probes.{key} is no list of objects" for key in wrong]


def _is_row(value: Any) -> bool:
    return isinstance(value, dict)


def _date_problems(record: RecordModel) -> list[str]:
    try:
        time.strptime(record.created, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return [f"created is no date: {record.created}"]
    return []


def _budget_problems(record: RecordModel) -> list[str]:
    """Tokens, steps and seconds that cannot belong together."""
    budget, spent, speed = record.budget, record.time, record.speed
    found = []
    if spent.train + spent.eval > spent.wall * 1.01 + 0.5:
        found.append("time.train + time.eval is more than time.wall")
    if budget is None:
        return [*found, "a training needs a budget"] if record.kind == "train" else found
    if record.kind == "train":
        steps, rest = divmod(budget.tokens_planned, budget.tokens_per_step or 1)
        stated = [record.config.get("steps"), record.config.get("tokens_per_step")]
        if rest or stated != [steps, budget.tokens_per_step]:
            found.append("budget is not what config plans")
    if budget.tokens_seen != budget.steps * budget.tokens_per_step:
        found.append("budget.tokens_seen is not steps * tokens_per_step")
    if budget.tokens_seen > budget.tokens_planned:
        found.append("more tokens seen than planned")
    rate = speed.tokens_per_second if speed else None
    if rate and record.resumes == 0 and budget.steps >= 20 and rate * spent.wall < 0.5 * budget.tokens_seen:
        found.append("speed.tokens_per_second * time.wall is less than half of the tokens seen")
    return found


def _status_problems(record: RecordModel) -> list[str]:
    """What a status promises."""
    found = []
    if record.kind == "train" and record.status == "complete":
        if record.budget and record.budget.tokens_seen != record.budget.tokens_planned:
            found.append("complete, but not all planned tokens were seen")
        curve = record.curve or Curve()
        if None in curve.train_loss or curve.tokens[-1:] != [record.budget.tokens_seen if record.budget else None]:
            found.append("complete, but the curve is not finite to its end")
        if record.weights_sha256 is None:
            found.append("complete, but weights_sha256 is null")
    if record.kind == "eval" and (record.of is None or (record.status == "complete") != bool(record.metrics)):
        found.append("an eval record names its run in `of`, and has metrics exactly if it is complete")
    if record.kind == "check" and (record.status == "complete") != bool(record.metrics):
        found.append("a check has metrics exactly if it is complete")
    if record.kind != "eval" and record.of is not None:
        found.append("only an eval record has `of`")
    if record.status != "complete" and not record.status_detail.reason:
        found.append(f"{record.status} without a reason")
    if record.resumes > 0 and record.attempts < 2:
        found.append("resumed, but attempts is 1")
    return found


def sealed(record: dict[str, Any]) -> dict[str, Any]:
    """`record` with `sha256`, the hash of its canonical JSON without that key."""
    body = {key: value for key, value in record.items() if key != "sha256"}
    return body | {"sha256": sha256_json(body)}


def finite(value: float | None) -> float | None:
    """JSON has no NaN and no infinity: they become null, as does what nothing can be reckoned with any more."""
    return None if value is None or not abs(value) <= LARGEST else float(value)


def record_problems(raw: Any, file: str) -> list[Problem]:
    """Every problem of one record; empty if it may be trusted to be what it says."""
    if not isinstance(raw, dict):
        return [Problem(file, None, "", "a record is a JSON object")]
    problems = []
    try:
        RecordModel.model_validate(raw)
    except ValidationError as error:
        problems = [
            Problem(file, None, shown(".".join(str(part) for part in path)), message)
            for path, message in explain(RecordModel, error, raw)
        ]
    try:
        if sealed(raw)["sha256"] != raw.get("sha256"):
            problems.append(
                Problem(file, None, "sha256", "does not match the record: it was changed after it was written")
            )
    except (ValueError, RecursionError):
        problems.append(Problem(file, None, "", "holds a number that is not JSON"))
    return problems
