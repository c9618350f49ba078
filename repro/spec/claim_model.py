"""What a paper reports, as data: one claim with its source, its decision rule, and what would falsify it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from repro.spec.hashing import sha256_json, short
from repro.spec.metrics import METRICS
from repro.spec.model import Bool, Float, Int, Name, Strict, Text

SCALES = ("smoke", "desk", "proxy", "paper")  # from the smallest to the paper's own
STEPS_SHARE = "steps_share"  # of the steps after which `a` has the training loss that `b` ends at
VIEWS = (
    "diverged",
    "lr_tolerance",
    STEPS_SHARE,
)  # worked out from the records; every other metric is a value of a protocol
UNKNOWN = "unknown"
THEORY = "theory"  # stands for a setting: the statement names no data and no training
EVERY_RUN = "every_run"  # no statistics: the statement must hold in each run

ClaimId = Annotated[str, StringConstraints(pattern=r"^[A-D]-[CTE]\d{1,3}[a-z]?$", strict=True)]
Counts = Annotated[list[Annotated[Int, Field(ge=0)]], Field(min_length=2, max_length=2)]
Positive = Annotated[Float, Field(gt=0)]
Some = Annotated[str, StringConstraints(min_length=1, max_length=2000, strict=True)]
ArmAxis = Literal["layers", "heads", "residual", "control"]
Provenance = Literal["seed", "paper", "code", "secondary", "derived"]

# Which test may decide which kind, what the kind may report, and how many arms it compares (None: any number).
TESTS: dict[str, tuple[str, ...]] = {
    "rate": ("fisher",),
    "ordering": ("signed_rank",),
    "difference": ("tost", "t", "sign"),
    "value": ("tost", "t"),
    "ratio": ("sign", "tost"),
    "bound": (EVERY_RUN,),
    "exact": (EVERY_RUN,),
}
NEEDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "rate": (("a", "b"),),
    "ordering": (("rank",), ("chain",)),
    "difference": (("value",), ("comparable",), ("low",), ("high",)),
    "value": (("value",), ("low",), ("high",)),
    "ratio": (("low",), ("high",), ("low", "high"), ("value",), ("comparable",)),
    "bound": (("high",), ("low",), ("low", "high")),
    "exact": (("value",),),
}
ARMS: dict[str, tuple[int, int | None]] = {
    "rate": (2, 2),
    "ordering": (2, None),
    "difference": (2, 2),
    "value": (1, 1),
    "ratio": (2, 2),
    "bound": (1, None),
    "exact": (1, None),
}


def _word_for(word: str, meaning: dict[str, Any] | None) -> BeforeValidator:
    """Lets one word stand for a value, so that a file can say `none` and the code sees one type."""
    return BeforeValidator(lambda value: meaning if value == word else value)


def _true(value: bool) -> bool:
    if not value:
        raise ValueError("only true is allowed: leave the key out otherwise")
    return value


# `Literal[True]` would take 1 for it, and `Literal[1]` true.
Yes = Annotated[Bool, AfterValidator(_true), Field(json_schema_extra={"const": True})]
First = Annotated[Int, Field(ge=1, le=1, json_schema_extra={"const": 1})]


class Source(Strict):
    """Where the statement was read, and how far that reading can be trusted."""

    paper: Some
    where: Some
    provenance: Provenance


class Row(Strict):
    """One reported number or statement as it was found, by its place: experiment | model | variant | metric."""

    row: Some
    value: Some  # text, so that the digits stay as they were printed
    provenance: Provenance
    n: Annotated[Int, Field(ge=1)] | None = None
    spread: Text = ""


class Arm(Strict):
    """One method or check of a comparison; `params` and `axes` are those that tell it from the method's other cells.

    `axes` are points of an experiment's own grid that are no parameter of the method.
    """

    method: Name
    params: dict[Name, Any] = {}
    axes: dict[ArmAxis, Bool | Int | Name] = {}

    @property
    def label(self) -> str:
        """`peri_ln dt=0.1`, `pre_ln layers=6 residual=True`."""
        named = (*self.params.items(), *self.axes.items())
        return " ".join([self.method, *(f"{key}={value}" for key, value in named)])


AnArm = Annotated[Arm, BeforeValidator(lambda value: {"method": value} if isinstance(value, str) else value)]


class Selector(Strict):
    """Cells of one experiment by base names: `a` against `b`, or against each of `others`.

    `rate` takes the lowest or highest learning rate of the grid; without it, an experiment with tuning seeds gives
    each method the rate that is chosen on them.
    """

    experiment: Name
    a: AnArm
    b: AnArm | None = None
    others: list[AnArm] = []
    model: Name | None = None
    weight_decay: Float | None = None
    rate: Literal["lowest", "highest"] | None = None

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
    """The paper's number: counts [events, runs] per arm, a value, a range, a rank, a chain, or a plain statement.

    `digits` are the decimals that are printed, `sd` and `n` the paper's own spread and runs; `given_as` says that
    the value is a perplexity where we measure a loss, or the other way round.
    """

    known: Bool = True
    a: Counts | None = None
    b: Counts | None = None
    value: Float | None = None
    low: Float | None = None
    high: Float | None = None
    rank: First | None = None
    chain: Yes | None = None
    comparable: Yes | None = None
    digits: Annotated[Int, Field(ge=0, le=12)] | None = None
    sd: Positive | None = None
    n: Annotated[Int, Field(ge=1)] | None = None
    given_as: Literal["perplexity", "loss"] | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """Names of what is reported."""
        names = ("a", "b", "value", "low", "high", "rank", "chain", "comparable")
        return tuple(name for name in names if getattr(self, name) is not None)

    @property
    def counts(self) -> tuple[list[int], list[int]]:
        """Counts of both arms; raises ValueError for a claim of another kind."""
        if self.a is None or self.b is None:
            raise ValueError("no counts are reported")
        return self.a, self.b

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if any(pair and not (pair[0] <= pair[1] > 0) for pair in (self.a, self.b)):
            raise ValueError("counts are [events, runs] with at most as many events as runs")
        if not self.known and self.given:
            raise ValueError("a number that is given is known")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError("low lies below high")
        if self.sd is not None and (self.n is None or self.n < 2):
            raise ValueError("a spread needs n, the paper's number of runs, of at least 2")
        if self.value is None and (self.digits, self.sd, self.given_as) != (None, None, None):
            raise ValueError("digits, sd and given_as describe a value")
        if self.given_as == "perplexity" and not (self.value or 0.0) > 0:
            raise ValueError("a perplexity is above 0")
        return self


class Margin(Strict):
    """What counts as the same: a distance in `unit` (`ulp`: of float64 at the reported value), or none."""

    value: Positive | None = None
    unit: Text = ""


class Setting(Strict):
    """The paper's own setting, `unknown` where it is not told; what differs from ours is named in the verdict.

    `protocol`, `eval_tokens` and `selection` (which evaluation is reported) matter where a number is compared.
    """

    model: Some
    data: Some
    tokens: Annotated[Annotated[Int, Field(gt=0)] | None, _word_for(UNKNOWN, None)] = None
    protocol: Some = UNKNOWN
    eval_tokens: Annotated[Annotated[Int, Field(gt=0)] | None, _word_for(UNKNOWN, None)] = None
    selection: Literal["final", "best", "unknown"] = "unknown"


class Decide(Strict):
    """How the claim is decided, fixed before any run."""

    test: Literal["fisher", "signed_rank", "tost", "t", "sign", "every_run"]
    alternative: Literal["two-sided", "less", "greater"] | None = None
    alpha: Annotated[Float, Field(gt=0, le=0.1)] | None = None
    planned_n: Annotated[Int, Field(ge=2, le=1000)]
    extension: Annotated[Int, Field(ge=2, le=1000)] | None = None
    selection: Literal["final"] = "final"  # the best of many looks at the reported split is too good by chance
    decided_at: Literal["smoke", "desk", "proxy", "paper"]
    family: Name

    @property
    def error(self) -> float:
        """Alpha of the whole decision; 0 where nothing is left to chance."""
        return self.alpha or 0.0

    @property
    def price(self) -> int:
        """By how much each p value is multiplied: 2 for a second look, and 2 where a test is asked from both sides.

        A one-sided test is asked twice, for the claim and against it, and either word would be wrong where nothing
        differs: together they may cost alpha, so each has half of it.
        """
        looks, sides = 2 if self.extension else 1, 1 if self.alternative in (None, "two-sided") else 2
        return looks * sides

    @property
    def level(self) -> float:
        """Alpha of one look at one side."""
        return self.error / self.price

    def decided_by(self, scale: str) -> bool:
        """Whether runs of this scale may say `reproduced`; smaller ones only support or contradict."""
        return SCALES.index(scale) >= SCALES.index(self.decided_at)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.extension is not None and self.extension <= self.planned_n:
            raise ValueError("extension is the total after the second look, so larger than planned_n")
        stated = [name for name in ("alternative", "alpha", "extension") if getattr(self, name) is not None]
        if self.test == EVERY_RUN and stated:
            raise ValueError(f"{EVERY_RUN} leaves nothing to chance, so there is no {', no '.join(stated)}")
        if self.test != EVERY_RUN and (self.alternative is None or self.alpha is None):
            raise ValueError(f"alternative and alpha are needed for {self.test}")
        return self


# What decides, so that a change after the first run must show; the words around it may be mended at any time.
RULE = ("kind", "metric", "cells", "reported", "margin", "setting", "tolerance", "decide", "falsified_if", "reading")


class Claim(Strict):
    """One statement of one paper, with all that a verdict on it needs.

    `reading: derived` marks a sharp form that was worked out here; `rows` are the reported numbers behind it.
    """

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
    setting: Annotated[Setting | None, _word_for(THEORY, None)]
    tolerance: Annotated[Float, Field(ge=1, le=10)] | None = None
    decide: Decide | None
    falsified_if: Some
    reading: Literal["paper", "derived"] = "paper"
    rows: list[Row] = []
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
    def shares_alpha(self) -> bool:
        """Whether the claim takes part in its family's correction: it is planned, and its test can err by chance."""
        return self.testable and self.decide is not None and self.decide.test != EVERY_RUN

    @property
    def is_numeric(self) -> bool:
        """Whether a number of the paper is compared, which takes the paper's own protocol."""
        return self.reported.value is not None or self.kind == "value"

    @property
    def sha256(self) -> str:
        """Hash of the whole entry: a margin or a number changed afterwards shows."""
        return sha256_json(self.model_dump())

    @property
    def rule(self) -> dict[str, str]:
        """Short hash of each part that decides."""
        parts = self.model_dump(include=set(RULE))
        return {name: short(sha256_json(parts[name])) for name in RULE}


Found = Iterator[tuple[tuple[str, ...], str]]  # (key path, message)


def misfits(claim: Claim) -> Found:
    """What does not fit together within one claim."""
    if claim.testable:
        for key in ("cells", "decide"):
            if getattr(claim, key) is None:
                yield (key,), "may only be null with not_planned, which says why, or where nothing is reported"
    reported = claim.reported
    if reported.known and reported.given not in NEEDS[claim.kind]:
        wanted = " or ".join(", ".join(names) for names in NEEDS[claim.kind])
        yield ("reported",), f"kind {claim.kind} reports {wanted}, or not_reported"
    if claim.kind == "ratio" and any(number is not None and number <= 0 for number in (reported.low, reported.high)):
        yield ("reported",), "a ratio is above 0"
    if (claim.margin.value is None) != (claim.margin_source is None):
        yield ("margin",), "a margin and its margin_source go together"
    if (claim.tolerance is None) == (claim.metric == "lr_tolerance"):
        yield ("tolerance",), "goes with metric lr_tolerance, and only with it"
    if reported.a and reported.b and reported.a[0] * reported.b[1] == reported.b[0] * reported.a[1]:
        yield ("reported",), "two equal rates say no direction"
    if reported.known and claim.decide and claim.cells:
        yield from _undecidable(claim, claim.decide, len(claim.cells.arms))


def _undecidable(claim: Claim, decide: Decide, arms: int) -> Found:
    """Why the test cannot decide the claim."""
    if decide.test not in TESTS[claim.kind]:
        yield ("decide", "test"), f"{decide.test} does not decide kind {claim.kind}: {', '.join(TESTS[claim.kind])}"
    elif decide.test == "tost" and not {"value", "comparable"} & set(claim.reported.given):
        yield ("decide", "test"), "tost decides a value or comparable; a low or high end takes t or sign"
    elif decide.test in ("t", "sign") and not {"low", "high"} & set(claim.reported.given):
        yield ("decide", "test"), f"{decide.test} decides a low or a high end; a value takes tost"
    if decide.test == "tost" and claim.margin.value is None:
        yield ("margin",), "an equivalence test needs a margin"
    if claim.margin.unit == "ulp" and claim.kind != "exact":
        yield ("margin",), "is counted in ulp for kind exact only"
    yield from _wrong_side(claim, decide)
    least, most = ARMS[claim.kind]
    if arms < least or (most is not None and arms > most):
        yield ("cells",), f"kind {claim.kind} cannot be decided with {arms} arms"
    if (claim.kind == "rate") != (claim.metric == "diverged"):
        yield ("metric",), "kind rate and metric diverged go together"
    if claim.metric == STEPS_SHARE and (claim.kind != "bound" or arms != 2):
        yield ("metric",), f"{STEPS_SHARE} is a bound on how soon `a` is where `b` ends: two arms"
    if claim.metric == "lr_tolerance" and (claim.kind != "ratio" or decide.test != "sign" or not claim.reported.low):
        yield ("metric",), "lr_tolerance is a ratio with a low end, decided by sign"


def _wrong_side(claim: Claim, decide: Decide) -> Found:
    """An alternative that is not what the claim says."""
    side, metric = decide.alternative, METRICS.get(claim.metric)
    if decide.test == "tost" and side != "two-sided":
        yield ("decide", "alternative"), "is two-sided for an equivalence test"
    if claim.kind == "ordering" and side == "two-sided":
        yield ("decide", "alternative"), "kind ordering says a direction: less or greater"
    elif claim.kind == "ordering" and metric and {"less": "lower", "greater": "higher"}.get(str(side)) != metric.better:
        yield ("decide", "alternative"), f"rank 1 is the best, and {metric.better} is better for {claim.metric}"
    if decide.test in ("t", "sign"):
        wanted = "greater" if claim.reported.low is not None else "less"
        if side != wanted:
            yield ("decide", "alternative"), f"is {wanted} for what is reported"
