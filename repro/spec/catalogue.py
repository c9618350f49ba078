"""Named things that experiments refer to: models, devices, tiers, and the settings of one installation."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, RootModel, StringConstraints, model_validator

from repro.spec.experiment import Once, Rates
from repro.spec.model import Bool, Float, Int, Name, Strict, Text

Small = Annotated[Int, Field(ge=1, le=10**6)]
# What may reach sbatch: no blank, no quote, no shell sign.
SiteWord = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.,][A-Za-z0-9_.,-]{0,63}$", strict=True)]


GPU_MICRO_BATCH = 8  # sequences of 1,024 tokens that a 124M model and its logits fit beside on any listed device


class ModelSpec(Strict):
    """Shape of a decoder-only Transformer; `context` and `vocab` in tokens, `d_model` in numbers a token."""

    n_layer: Small
    n_head: Small
    d_model: Small
    context: Small
    vocab: Annotated[Int, Field(ge=2, le=10**7)]
    bias: Bool = False
    tied: Bool = True

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.d_model % self.n_head:
            raise ValueError(f"d_model {self.d_model} is not a multiple of n_head {self.n_head}")
        return self


class Models(RootModel[dict[Name, ModelSpec]]):
    """config/models.yaml."""


class Device(Strict):
    """Peak speed of one accelerator by its exact name, FLOP/s by precision, with the source of the figures."""

    peak: dict[Literal["fp32", "bf16"], Annotated[Float, Field(gt=0)]]
    memory_gb: Annotated[Float, Field(gt=0)]
    source: Text


class Hardware(RootModel[dict[Text, Device]]):
    """config/hardware.yaml; there is no default entry, an unknown device has no MFU."""


class TierWork(Strict):
    """What a tier fixes for any kind of work: seeds, and how the work is laid on machines."""

    seeds: Small | None = None
    threads: Annotated[Int, Field(ge=1, le=256)] = 1
    device: Literal["cpu", "gpu"] = "gpu"
    devices: Annotated[Int, Field(ge=1, le=1)] = 1
    nodes: Annotated[Int, Field(ge=1, le=1)] = 1
    chunk: Annotated[Int, Field(ge=1, le=10_000)] = 1
    wall_minutes: Annotated[Int, Field(ge=1, le=100_000)] | None = None

    def sized(self, model: str) -> str:
        """Name of the model that runs in place of `model`."""
        return model

    def stand_in(self, data: str) -> str:
        """Name of the source that is used in place of `data`."""
        return data


class TierTask(TierWork):
    """What a tier may replace for one task. A key that is not here cannot be replaced.

    `lr_grid` stands in for the grid of an experiment that chooses its rate on tuning seeds; a grid of one rate
    leaves nothing to choose, and plans no tuning run. Of any other grid `lr_points` rates are kept, both ends first.
    Models of `without` are not trained at this tier, and its tables say so. `devices` train one run together, on
    `nodes` nodes; `micro_batch` is for each of them, so that neither changes a number beyond round-off.
    """

    devices: Annotated[Int, Field(ge=1, le=4096)] = 1
    nodes: Annotated[Int, Field(ge=1, le=1024)] = 1

    model: dict[Name, Name] = {}
    without: Annotated[list[Name], Once] = []
    data: dict[Name, Name] | Name = {}
    tokens: Annotated[Int, Field(gt=0)] | None = None
    batch_tokens: Small | None = None
    lr_scale: Annotated[Float, Field(gt=0)] = 1.0
    lr_grid: Rates | None = None
    lr_points: Small | None = None
    tuning_seeds: Annotated[Int, Field(ge=0, le=100)] | None = None
    precision: Literal["fp32", "bf16"] | None = None
    validations: Annotated[Int, Field(ge=4, le=100)] | None = None  # a record's curve has 200 points
    micro_batch: Small | None = None

    @model_validator(mode="after")
    def _devices_fit(self) -> Self:
        if self.devices % self.nodes:
            raise ValueError(f"devices, {self.devices}, are no multiple of nodes, {self.nodes}")
        if self.devices > 1 and self.chunk > 1:
            raise ValueError(f"chunk must be 1 where a run has several devices, not {self.chunk}")
        return self

    def sized(self, model: str) -> str:
        """Name of the model that runs in place of `model`."""
        return self.model.get(model, model)

    def sequences_at_once(self, sequences: int) -> int:
        """Micro-batch of a step of `sequences`: as set, else all of them on a CPU and GPU_MICRO_BATCH on a GPU."""
        return min(self.micro_batch or (sequences if self.device == "cpu" else GPU_MICRO_BATCH), sequences)

    def stand_in(self, data: str) -> str:
        """The source that is used in place of `data`; one name stands in for every source."""
        return self.data if isinstance(self.data, str) else self.data.get(data, data)


class TierForecast(TierWork):
    """What a tier replaces in forecasts; they always run on a CPU."""

    device: Literal["cpu"] = "cpu"
    chunk: Annotated[Int, Field(ge=1, le=10_000)] = 20
    data: dict[Name, Name] = {}
    steps: Annotated[Int, Field(ge=1)] | None = None
    windows: Annotated[Int, Field(ge=2)] | None = None


class TierFlow(TierWork):
    """What a tier replaces in mean-field flows; they always run on a CPU."""

    device: Literal["cpu"] = "cpu"
    chunk: Annotated[Int, Field(ge=1, le=10_000)] = 20
    layers: list[Small] | None = None
    heads: list[Small] | None = None
    steps: Annotated[Int, Field(ge=1)] | None = None


class TierClassify(TierWork):
    """What a tier replaces in classifications and in the pretraining before them; they always run on a CPU."""

    device: Literal["cpu"] = "cpu"
    chunk: Annotated[Int, Field(ge=1, le=10_000)] = 20
    data: dict[Name, Name] = {}
    model: dict[Name, Name] = {}
    depths: list[Small] | None = None
    sentences: Annotated[Int, Field(ge=2)] | None = None
    epochs: Small | None = None
    pretrain_steps: Annotated[Int, Field(ge=1)] | None = None

    def sized(self, model: str) -> str:
        """Name of the model that is pretrained in place of `model`."""
        return self.model.get(model, model)

    def stand_in(self, data: str) -> str:
        """Name of the source that is used in place of `data`."""
        return self.data.get(data, data)


class TierChecks(TierWork):
    """What a tier replaces in theory checks: {check: {parameter: value}}; they always run on a CPU."""

    device: Literal["cpu"] = "cpu"
    chunk: Annotated[Int, Field(ge=1, le=10_000)] = 20
    params: dict[Name, dict[Name, Any]] = {}


class Tier(Strict):
    """One scale at which every experiment can run."""

    title: Text = ""
    lm: TierTask = TierTask()
    forecast: TierForecast = TierForecast()
    flow: TierFlow = TierFlow()
    classify: TierClassify = TierClassify()
    check: TierChecks = TierChecks()


class Tiers(RootModel[dict[Literal["smoke", "desk", "proxy", "paper"], Tier]]):
    """config/tiers.yaml."""


class SlurmSite(Strict):
    """Names that only the user's cluster knows; all optional."""

    account: SiteWord | None = None
    partition: SiteWord | None = None
    qos: SiteWord | None = None


class Suite(Strict):
    """config/suite.yaml: the only file that a user has to edit."""

    tier: Literal["smoke", "desk", "proxy", "paper"] = "smoke"
    experiments: Annotated[list[Name], Field(min_length=1)] | None = None
    planning_device: Text
    slurm: SlurmSite = SlurmSite()
    checkpoint_overhead: Annotated[Float, Field(gt=0, lt=1)] = 0.02
    checkpoint_seconds: Annotated[Float, Field(gt=0)] = 600.0
    keep_weights: Literal["all", "first_seed", "none"] = "all"
    keep_failed_checkpoints: Bool = True
    same_failure_limit: Annotated[Float, Field(gt=0, le=1)] = 0.5
