"""What one experiment is: the file a paper's sweep is written in."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from repro.spec.model import Float, Int, Name, Strict, Text


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


class Experiment(Strict):
    """A sweep: (model x optimiser grid x methods) cells, each run once a seed."""

    name: Name
    title: Text = ""
    paper: Literal["a", "b", "c", "d"] | None = None
    task: Literal["lm"]
    model: Names
    data: Name
    tokens: Annotated[Int, Field(gt=0, le=10**15)]
    batch_tokens: Annotated[Int, Field(gt=0, le=10**9)]
    optimizer: Optimizer
    schedule: Schedule = Schedule()
    precision: Literal["fp32", "bf16"] = "fp32"
    methods: Annotated[list[MethodChoice], Field(min_length=1)] | None = None
    seeds: Annotated[Int, Field(ge=1, le=1000)]
    metrics: Annotated[list[Name], Field(min_length=1), Once]
    validations: Annotated[Int, Field(ge=4, le=100)] = 10
    assumptions: list[Text] = []
