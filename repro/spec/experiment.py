"""What one experiment is: the file a paper's sweep is written in."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from repro.spec.model import Bool, Digest, Float, Int, Name, Strict, Text


def _listed(value: object) -> object:
    """A single value is a grid of one."""
    return value if isinstance(value, list) else [value]


def _once(values: list[Any]) -> list[Any]:
    """No value stands twice, or one cell would be two."""
    doubled = [value for place, value in enumerate(values) if value in values[:place]]
    if doubled:
        raise ValueError(f"names {doubled[0]} twice")
    return values


Once = AfterValidator(_once)
Rate = Annotated[Float, Field(gt=0, le=100)]
Decay = Annotated[Float, Field(ge=0, le=10)]
Rates = Annotated[
    list[Rate], BeforeValidator(_listed, json_schema_input_type=Rate | list[Rate]), Field(min_length=1), Once
]
Decays = Annotated[
    list[Decay], BeforeValidator(_listed, json_schema_input_type=Decay | list[Decay]), Field(min_length=1), Once
]
Names = Annotated[
    list[Name], BeforeValidator(_listed, json_schema_input_type=Name | list[Name]), Field(min_length=1), Once
]
Fraction = Annotated[Float, Field(ge=0, lt=1)]


class Optimizer(Strict):
    """AdamW after Loshchilov & Hutter; a list of learning rates or decays is a grid."""

    name: Literal["adamw"]
    lr: Rates
    weight_decay: Decays
    betas: Annotated[list[Fraction], Field(min_length=2, max_length=2)] = [0.9, 0.95]
    eps: Annotated[Float, Field(gt=0, lt=1)] = 1e-8
    clip: Annotated[Float, Field(gt=0)] = 1.0


class Schedule(Strict):
    """Learning rate as a pure function of the optimiser step: linear warm-up, then `shape` down to `final`."""

    shape: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: Fraction = 0.03
    final: Annotated[Float, Field(ge=0, le=1)] = 0.1


class MethodChoice(Strict):
    """A method by name, with the parameters that differ from the method's own defaults."""

    name: Text
    params: dict[Name, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        """`pre_ln` and `{name: peri_ln, dt: 0.1}` are the two ways to write it."""
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, dict) and "params" not in value:
            named = {"name": value["name"]} if "name" in value else {}
            return named | {"params": {key: v for key, v in value.items() if key != "name"}}
        return value


class Sweep(Strict):
    """What every experiment says, whatever it trains or checks."""

    name: Name
    title: Text = ""
    paper: Literal["a", "b", "c", "d"] | None = None
    seeds: Annotated[Int, Field(ge=1, le=1000)]
    assumptions: list[Text] = []

    @property
    def takes_all(self) -> bool:
        """Whether every registered method of the track takes part: what a leaderboard is made of."""
        return False


class LmExperiment(Sweep):
    """A sweep of language models: (model x optimiser grid x methods) cells, each run once a seed.

    `order` "epochs" takes every block once an epoch, "random_windows" windows anywhere with replacement, as nanoGPT.
    `figures` are drawn beside the loss curves: moments and gradient norms by layer, the loss against what is swept.
    With `tuning_seeds` a rate of the grid is chosen for each method on runs of other seeds than those reported.
    """

    task: Literal["lm"]
    model: Names
    data: Name
    tokens: Annotated[Int, Field(gt=0, le=10**15)]
    batch_tokens: Annotated[Int, Field(gt=0, le=10**9)]
    optimizer: Optimizer
    schedule: Schedule = Schedule()
    precision: Literal["fp32", "bf16"] = "fp32"
    order: Literal["epochs", "random_windows"] = "epochs"
    methods: Annotated[list[MethodChoice], Field(min_length=1)] | None = None
    tuning_seeds: Annotated[Int, Field(ge=0, le=100)] = 0
    metrics: Annotated[list[Name], Field(min_length=1), Once]
    validations: Annotated[Int, Field(ge=4, le=100)] = 10
    figures: Annotated[list[Literal["moments", "gradients", "sweep"]], Once] = []

    @property
    def takes_all(self) -> bool:
        """Whether the experiment leaves the choice of methods open."""
        return self.methods is None

    @model_validator(mode="after")
    def _grid_to_choose_from(self) -> Self:
        if self.tuning_seeds and len(self.optimizer.lr) < 2:
            raise ValueError("tuning_seeds choose among the rates of optimizer.lr, which names one only")
        return self


class ForecastExperiment(Sweep):
    """A sweep of paper D's single layer over residual coefficients and controls, by full-batch gradient descent.

    `step_share` times one over the largest kernel eigenvalue at start, over all betas and seeds, is the step of all.
    """

    task: Literal["forecast"]
    data: Name
    d_qk: Annotated[Int, Field(ge=1, le=10**5)]
    hidden: Annotated[Int, Field(ge=1, le=10**6)]
    start: Literal["inverse_d_qk", "unit"] = "inverse_d_qk"
    skip: Literal["both", "attention"] = "both"
    betas: Annotated[list[Annotated[Float, Field(ge=0, le=1)]], Field(min_length=1), Once]
    controls: Annotated[list[Literal["none", "permuted", "persistence"]], Field(min_length=1), Once] = ["none"]
    length: Annotated[Int, Field(ge=2, le=10_000)] = 24
    windows: Annotated[Int, Field(ge=2, le=10**6)] = 64
    steps: Annotated[Int, Field(ge=1, le=10**7)]
    metrics: Annotated[list[Name], Field(min_length=1), Once]
    validations: Annotated[Int, Field(ge=4, le=100)] = 10


class FlowExperiment(Sweep):
    """A sweep of paper B's finite model over depth and width, by gradient descent in small steps of the flow."""

    task: Literal["flow"]
    layers: Annotated[list[Annotated[Int, Field(ge=1, le=4096)]], Field(min_length=1), Once]
    heads: Annotated[list[Annotated[Int, Field(ge=1, le=4096)]], Field(min_length=1), Once]
    sequences: Annotated[Int, Field(ge=1, le=1000)] = 3
    tokens: Annotated[Int, Field(ge=1, le=1000)] = 3
    dim: Annotated[Int, Field(ge=1, le=1000)] = 3
    attention: Annotated[Float, Field(gt=0)] = 2.0
    perturbation: Annotated[Float, Field(gt=0)] = 0.1
    step_share: Annotated[Float, Field(gt=0, lt=2)] = 0.5
    steps: Annotated[Int, Field(ge=1, le=10**7)]
    metrics: Annotated[list[Name], Field(min_length=1), Once]
    validations: Annotated[Int, Field(ge=4, le=100)] = 10


class Pretrained(Strict):
    """Weights to start from: a GPT that the suite trains itself on `data`, or the GPT-2 in a folder of scratch/fetched.

    `model` is the whole shape before it is cut; of a folder it tells the plan how large it is, and `sha256` pins what
    is in it (`repro.nn.pretrained.fingerprint`), since other weights are another experiment.
    """

    model: Name
    data: Name | None = None
    steps: Annotated[Int, Field(ge=1, le=10**7)] | None = None
    batch_tokens: Annotated[Int, Field(ge=1, le=10**6)] | None = None
    lr: Rate | None = None
    folder: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,80}$", strict=True)] | None = None
    sha256: Digest | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        own, theirs = ("data", "steps", "batch_tokens", "lr"), ("folder", "sha256")
        given = {key for key in (*own, *theirs) if getattr(self, key) is not None}
        if given not in (set(own), set(theirs)):
            raise ValueError(f"needs either {', '.join(own)} (a GPT of our own) or {', '.join(theirs)} (a GPT-2)")
        return self


class ClassifyExperiment(Sweep):
    """A sweep of paper D's classification of sentences by a pretrained GPT cut to `depths` blocks, skips on or off.

    The same `sentences` of the training split serve all seeds, which draw the head and the order; `context` is the
    number of tokens kept of a sentence, `batch` the sentences of one step.
    """

    task: Literal["classify"]
    data: Name
    pretrained: Pretrained
    depths: Annotated[list[Annotated[Int, Field(ge=1, le=1000)]], Field(min_length=1), Once]
    residuals: Annotated[list[Bool], Field(min_length=1), Once] = [True, False]
    sentences: Annotated[Int, Field(ge=2, le=10**7)]
    context: Annotated[Int, Field(ge=1, le=10**5)]
    epochs: Annotated[Int, Field(ge=1, le=10_000)]
    batch: Annotated[Int, Field(ge=1, le=10**5)]
    optimizer: Optimizer
    schedule: Schedule = Schedule()
    metrics: Annotated[list[Name], Field(min_length=1), Once]
    validations: Annotated[Int, Field(ge=4, le=100)] = 10

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if len(self.optimizer.lr) > 1 or len(self.optimizer.weight_decay) > 1:
            raise ValueError("optimizer takes one lr and one weight_decay here: nothing chooses among several")
        return self


class CheckExperiment(Sweep):
    """A sweep of one theory check: a cell for each point of `grid`, drawn once a seed."""

    task: Literal["check"]
    check: Name
    params: dict[Name, Any] = {}
    grid: dict[Name, Annotated[list[Any], Field(min_length=1), Once]] = {}

    @property
    def metrics(self) -> list[str]:
        """The check is its own protocol."""
        return [self.check]


Experiment = LmExperiment | ForecastExperiment | FlowExperiment | ClassifyExperiment | CheckExperiment
KINDS: dict[str, Any] = {
    "lm": LmExperiment,
    "forecast": ForecastExperiment,
    "flow": FlowExperiment,
    "classify": ClassifyExperiment,
    "check": CheckExperiment,
}
