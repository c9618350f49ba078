"""What a paper reports, as data: one claim with its source, its decision rule, and what would falsify it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from repro.spec.errors import ConfigError, Problem, ReproError, shown, suggest
from repro.spec.hashing import sha256_json
from repro.spec.load import Configuration
from repro.spec.metrics import METRICS, values_of
from repro.spec.model import Float, Int, Name, Strict, Text
from repro.spec.paths import Root
from repro.spec.reading import Document, read_yaml, validate

PAPERS = ("a", "b", "c", "d")
PAPER_FILES = tuple(f"paper_{letter}" for letter in PAPERS)
SCALES = ("smoke", "desk", "proxy", "paper")  # from the smallest to the paper's own
VIEWS = ("diverged", "lr_tolerance")  # worked out from the records; every other metric is a value of a protocol
UNKNOWN = "unknown"

ClaimId = Annotated[str, StringConstraints(pattern=r"^[A-D]-[CTE]\d{1,3}[a-z]?$", strict=True)]
Counts = Annotated[list[Annotated[Int, Field(ge=0)]], Field(min_length=2, max_length=2)]
Positive = Annotated[Float, Field(gt=0)]
Some = Annotated[str, StringConstraints(min_length=1, max_length=2000, strict=True)]

# Kinds that a test of this release can decide. The others may be written down with `not_planned`.
TESTS: dict[str, tuple[str, ...]] = {
    "rate": ("fisher",),
    "ordering": ("signed_rank",),
    "difference": ("tost",),
    "value": ("tost",),
    "ratio": ("sign",),
}
NEEDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "rate": (("a", "b"),),
    "ordering": (("rank",),),
    "difference": (("value",), ("comparable",)),
    "value": (("value",),),
    "ratio": (("low",), ("low", "high")),
    "bound": (("high",), ("low",)),
    "exact": (("value",),),
}


def _word_for(word: str, meaning: dict[str, Any] | None) -> BeforeValidator:
    """Lets one word stand for a value, so that a file can say `none` and the code sees one type."""
    return BeforeValidator(lambda value: meaning if value == word else value)


class Source(Strict):
    """Where the statement was read, and how far that reading can be trusted."""

    paper: Some
    where: Some
    provenance: Literal["seed", "paper", "code", "secondary", "derived"]


class Arm(Strict):
    """One method of a comparison; `params` are those that tell it from the method's other cells."""

    method: Name
    params: dict[Name, Any] = {}

    @property
    def label(self) -> str:
        """`peri_ln dt=0.1`."""
        return " ".join([self.method, *(f"{key}={value}" for key, value in self.params.items())])


AnArm = Annotated[Arm, BeforeValidator(lambda value: {"method": value} if isinstance(value, str) else value)]


class Selector(Strict):
    """Cells of one experiment by base names: `a` against `b`, or against each of `others`."""

    experiment: Name
    a: AnArm
    b: AnArm | None = None
    others: list[AnArm] = []
    model: Name | None = None
    weight_decay: Float | None = None

    @property
    def axes(self) -> dict[str, Any]:
        """Values of the grid that the claim speaks about."""
        return {key: value for key in ("model", "weight_decay") if (value := getattr(self, key)) is not None}

    @property
    def arms(self) -> dict[str, Arm]:
        """All arms by role: a, b, or a, other1, other2 ..."""
        rest = [self.b] if self.b else self.others
        names = ["b"] if self.b else [f"other{place}" for place in range(1, len(rest) + 1)]
        return {"a": self.a, **dict(zip(names, rest, strict=True))}


class Reported(Strict):
    """The paper's number: counts [events, runs] per arm, a value, a range, a rank, or a plain statement."""

    known: bool = True
    a: Counts | None = None
    b: Counts | None = None
    value: Float | None = None
    low: Positive | None = None
    high: Positive | None = None
    rank: Literal[1] | None = None
    comparable: Literal[True] | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """Names of what is reported."""
        names = ("a", "b", "value", "low", "high", "rank", "comparable")
        return tuple(name for name in names if getattr(self, name) is not None)

    @property
    def counts(self) -> tuple[list[int], list[int]]:
        """Counts of both arms; raises ValueError for a claim of another kind."""
        if self.a is None or self.b is None:
            raise ValueError("no counts are reported")
        return self.a, self.b

    @model_validator(mode="after")
    def _counts(self) -> Self:
        if any(pair and not (pair[0] <= pair[1] > 0) for pair in (self.a, self.b)):
            raise ValueError("counts are [events, runs] with at most as many events as runs")
        if not self.known and self.given:
            raise ValueError("a number that is given is known")
        return self


class Margin(Strict):
    """What counts as the same: a distance in `unit`, or none."""

    value: Positive | None = None
    unit: Text = ""


class Setting(Strict):
    """The paper's own setting, `unknown` where it is not told; what differs from ours is named in the verdict."""

    model: Some
    data: Some
    tokens: Annotated[Annotated[Int, Field(gt=0)] | None, _word_for(UNKNOWN, None)] = None


class Decide(Strict):
    """How the claim is decided, fixed before any run."""

    test: Literal["fisher", "signed_rank", "tost", "sign"]
    alternative: Literal["two-sided", "less", "greater"]
    alpha: Annotated[Float, Field(gt=0, le=0.1)]
    planned_n: Annotated[Int, Field(ge=2, le=1000)]
    extension: Annotated[Int, Field(ge=2, le=1000)] | None = None
    decided_at: Literal["smoke", "desk", "proxy", "paper"]
    family: Name

    @property
    def level(self) -> float:
        """Alpha of one look: halved where the claim allows itself a second one."""
        return self.alpha / 2 if self.extension else self.alpha

    def decided_by(self, scale: str) -> bool:
        """Whether runs of this scale may say `reproduced`; smaller ones only support or contradict."""
        return SCALES.index(scale) >= SCALES.index(self.decided_at)

    @model_validator(mode="after")
    def _extension_adds(self) -> Self:
        if self.extension is not None and self.extension <= self.planned_n:
            raise ValueError("extension is the total after the second look, so larger than planned_n")
        return self


class Claim(Strict):
    """One statement of one paper, with all that a verdict on it needs."""

    id: ClaimId
    says: Some
    source: Source
    kind: Literal["value", "difference", "ordering", "ratio", "rate", "bound", "exact"]
    metric: Name
    cells: Selector | None
    not_planned: Some | None = None
    reported: Annotated[Reported, _word_for("not_reported", {"known": False})]
    margin: Annotated[Margin, _word_for("none", {})]
    margin_source: Literal["assumption", "paper"] | None = None
    setting: Setting
    tolerance: Annotated[Float, Field(ge=1, le=10)] | None = None
    decide: Decide | None
    falsified_if: Some
    note: Text = ""
    assumptions: list[Some] = []

    @property
    def paper(self) -> str:
        """Letter of the paper, lower case."""
        return self.id[0].lower()

    @property
    def family(self) -> str:
        """Family of the correction; a claim that nothing decides is a family of its own."""
        return self.decide.family if self.decide else f"alone_{self.id}"

    @property
    def testable(self) -> bool:
        """Whether this release plans the cells that the claim speaks about."""
        return self.not_planned is None and self.reported.known

    @property
    def sha256(self) -> str:
        """Hash of the whole entry: a margin or a number changed afterwards shows."""
        return sha256_json(self.model_dump())


Found = Iterator[tuple[tuple[str, ...], str]]  # (key path, message)


def _misfits(claim: Claim) -> Found:
    """What does not fit together within one claim."""
    if claim.not_planned is None and claim.reported.known:
        for key in ("cells", "decide"):
            if getattr(claim, key) is None:
                yield (key,), "may only be null with not_planned, which says why, or where nothing is reported"
    if claim.reported.known and claim.reported.given not in NEEDS[claim.kind]:
        wanted = " or ".join(", ".join(names) for names in NEEDS[claim.kind])
        yield ("reported",), f"kind {claim.kind} reports {wanted}, or not_reported"
    if (claim.margin.value is None) != (claim.margin_source is None):
        yield ("margin",), "a margin and its margin_source go together"
    if (claim.tolerance is None) == (claim.metric == "lr_tolerance"):
        yield ("tolerance",), "goes with metric lr_tolerance, and only with it"
    a, b = claim.reported.a, claim.reported.b
    if a and b and a[0] * b[1] == b[0] * a[1]:
        yield ("reported",), "two equal rates say no direction"
    if claim.testable and claim.decide and claim.cells:
        yield from _undecidable(claim, claim.decide, len(claim.cells.arms))


def _undecidable(claim: Claim, decide: Decide, arms: int) -> Found:
    """Why the test cannot decide the claim."""
    if decide.test not in TESTS.get(claim.kind, ()):
        known = ", ".join(TESTS.get(claim.kind, ())) or "none in this release, so say under not_planned why"
        yield ("decide", "test"), f"{decide.test} does not decide kind {claim.kind}: {known}"
    if decide.test == "tost" and claim.margin.value is None:
        yield ("margin",), "an equivalence test needs a margin"
    if decide.test == "tost" and decide.alternative != "two-sided":
        yield ("decide", "alternative"), "is two-sided for an equivalence test"
    if claim.kind in ("ordering", "ratio") and decide.alternative == "two-sided":
        yield ("decide", "alternative"), f"kind {claim.kind} says a direction: less or greater"
    metric = METRICS.get(claim.metric)
    if claim.kind == "ordering" and metric and (decide.alternative == "less") != (metric.better == "lower"):
        yield ("decide", "alternative"), f"rank 1 is the best, and {metric.better} is better for {claim.metric}"
    for kind, view in (("rate", "diverged"), ("ratio", "lr_tolerance")):
        if (claim.kind == kind) != (claim.metric == view) and claim.metric in (*VIEWS, *METRICS):
            yield ("metric",), f"kind {kind} and metric {view} go together"
    if (claim.kind == "value") != (arms == 1) or (claim.kind != "ordering" and arms > 2):
        yield ("cells",), f"kind {claim.kind} cannot be decided with {arms} arms"


@dataclass(frozen=True)
class Known:
    """Names that claims may refer to: metrics by experiment, parameters by method, base models."""

    experiments: Mapping[str, Iterable[str]]
    methods: Mapping[str, Iterable[str]]
    models: Iterable[str]


def known_names(configuration: Configuration) -> Known:
    """The names of one checkout."""
    return Known(
        {name: values_of(experiment.metrics) for name, experiment in configuration.experiments.items()},
        {name: entry.info.params for name, entry in configuration.methods.items()},
        configuration.models,
    )


def family_sha256(claims: Iterable[Claim], family: str) -> str:
    """Hash over a family's claims: a claim added or dropped afterwards shows."""
    return sha256_json(sorted(claim.sha256 for claim in claims if claim.family == family))


def claim_files(root: Root) -> list[Path]:
    """Claim files in name order."""
    return sorted((root.config / "claims").glob("*.yaml"))


def load_claims(root: Root, known: Known) -> list[Claim]:
    """All claims of config/claims; raises ConfigError with every problem of every file."""
    problems: list[Problem] = []
    claims: dict[str, Claim] = {}
    for path in claim_files(root):
        problems += _read_into(claims, path, root.shown(path), known)
    if problems:
        raise ConfigError(problems)
    return list(claims.values())


def check_claims(path: Path, file: str, known: Known) -> list[Claim]:
    """The claims of one file, wherever it lies; raises ConfigError with every problem, `file` in the messages."""
    claims: dict[str, Claim] = {}
    if problems := _read_into(claims, path, file, known):
        raise ConfigError(problems)
    return list(claims.values())


def _read_into(claims: dict[str, Claim], path: Path, file: str, known: Known) -> list[Problem]:
    """Adds a file's good claims to `claims` by id; returns its problems."""
    problems: list[Problem] = []
    for entry in _entries(path, file, problems):
        try:
            claim = validate(Claim, entry)
        except ReproError as error:
            problems += error.problems
            continue
        problems += _entry_problems(claim, entry, path, claims, known)
        claims.setdefault(claim.id, claim)
    return problems


def _entries(path: Path, file: str, problems: list[Problem]) -> Iterator[Document]:
    """Each entry of one file with the lines of its keys; a file that is no list adds a problem instead."""
    try:
        document = read_yaml(path, file)
    except ReproError as error:
        problems += error.problems
        return
    if not isinstance(document.value, list):
        problems.append(Problem(document.file, 1, "", "a list of claims is expected"))
        return
    for index, value in enumerate(document.value):
        places = {keys[1:]: place for keys, place in document.places.items() if keys[:1] == (index,)}
        yield Document(document.file, value, places)


def _entry_problems(claim: Claim, entry: Document, path: Path, taken: Iterable[str], known: Known) -> Iterator[Problem]:
    """An id that stands twice or in another paper's file, parts that do not fit, and names that nothing is known by."""
    found: list[tuple[tuple[str, ...], str]] = []
    if claim.id in taken:
        found.append((("id",), f"{claim.id} stands twice"))
    if path.stem in PAPER_FILES and path.stem != f"paper_{claim.paper}":
        found.append((("id",), f"{claim.id} belongs in paper_{claim.paper}.yaml"))
    for keys, message in [*found, *_misfits(claim), *_unknown_names(claim, known)]:
        yield Problem(*entry.place(keys), ".".join(keys), message)


def _unknown_names(claim: Claim, known: Known) -> Found:
    if claim.not_planned is None and claim.metric not in (*VIEWS, *METRICS):
        yield ("metric",), f"{shown(claim.metric)} is not known{suggest(claim.metric, (*VIEWS, *METRICS))}"
    if claim.cells is None:
        return
    experiment = claim.cells.experiment
    if experiment not in known.experiments:
        yield ("cells", "experiment"), f"{experiment} is not known{suggest(experiment, known.experiments)}"
    elif claim.not_planned is None and claim.metric in METRICS and claim.metric not in known.experiments[experiment]:
        names = suggest(claim.metric, known.experiments[experiment])
        yield ("metric",), f"{claim.metric} is not measured by {experiment}{names}"
    if claim.cells.model is not None and claim.cells.model not in known.models:
        yield ("cells", "model"), f"{claim.cells.model} is not known{suggest(claim.cells.model, known.models)}"
    for role, arm in claim.cells.arms.items():
        key = role if role in ("a", "b") else "others"
        if arm.method not in known.methods:
            yield ("cells", key), f"{arm.method} is not known{suggest(arm.method, known.methods)}"
            continue
        for param in arm.params:
            if param not in known.methods[arm.method]:
                names = suggest(param, known.methods[arm.method])
                yield ("cells", key), f"{arm.method} has no parameter {param}{names}"
