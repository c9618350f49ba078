"""Paper D's single layer on windows of a series: full-batch gradient descent, one step size for all betas and seeds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from repro.data.series import Prepared, permuted_targets, persistence_residual
from repro.data.sets import load_series
from repro.evaluate.series_evidence import SeriesEvidence
from repro.nn.initial import initialise
from repro.nn.kernel import common_step
from repro.nn.single_layer import SingleLayer, SingleLayerConfig, draw_weights
from repro.records.store import replace_text
from repro.spec.hashing import sha256_json, short
from repro.spec.paths import Root
from repro.train.tasks import Batch


class Forecast:
    """Next step at all positions of windows of standardised rows; the run's seed draws windows and weights.

    Every step sees all training windows, and so does the validation during training: the claim is about descent on
    the training loss. Held-out windows are measured at the end.
    """

    def __init__(self, config: dict[str, Any], folder: Path, micro_batch: int | None = None) -> None:
        self.config, self.root = config, Root(folder.parents[2])
        self.series = load_series(self.root, config["data"])
        self.inputs, self.targets = self._windows(int(config["seed"]))
        self.rate = self._step() * self.targets.numel()  # of the mean over all numbers, as `loss_sums` is divided

    def _windows(self, seed: int) -> Batch:
        """Inputs and targets [windows, length, d] in float64, targets as the run's control wants them."""
        chosen = self.config["windows"]
        inputs, targets = self.series.windows("train", chosen["length"]).draw(chosen["count"], seed).arrays()
        if self.config["control"] == "permuted":
            targets = permuted_targets(targets, seed)
        elif self.config["control"] == "persistence":
            targets = persistence_residual(inputs, targets)
        return torch.from_numpy(inputs.copy()), torch.from_numpy(targets.copy())

    def _shape(self, beta: float) -> SingleLayerConfig:
        model = self.config["model"]
        width = self.inputs.shape[-1]
        return SingleLayerConfig(width, model["d_qk"], model["hidden"], beta, model["skip"], model["start"])

    def _step(self) -> float:
        """0.5 / the largest kernel eigenvalue at start over all betas and seeds of the experiment; kept on disk."""
        rule = self.config["optimizer"]["lr"]
        key = {name: self.config[name] for name in ("model", "data", "windows", "rules")} | {"rule": rule}
        path = self.root.scratch / "cache" / "steps" / f"{short(sha256_json(key))}.json"
        if path.is_file():
            return float(json.loads(path.read_text("utf-8"))["step"])
        step = common_step(self._problems(rule), tolerance=1e-4)
        replace_text(path, json.dumps({"step": step}) + "\n")
        return step

    def _problems(self, rule: dict[str, Any]) -> Iterator[tuple[Any, Tensor, Any]]:
        for seed in rule["seeds"]:
            inputs, _ = self._windows(seed)
            for beta in rule["betas"]:
                shape = self._shape(beta)
                yield draw_weights(shape, seed), inputs, shape.form()

    def build(self) -> nn.Module:
        """The layer with the weights of its seed, which do not depend on beta."""
        layer = SingleLayer(self._shape(self.config["method"]["params"]["beta"]))
        initialise(layer, self.config["seed"])
        return layer

    def step_batches(self, step: int) -> list[Batch]:
        """All windows, every step."""
        return [(self.inputs, self.targets)]

    def rows(self, step: int) -> None:
        """All there is, each time."""

    def validation_batches(self, tokens: int) -> Iterator[Batch]:
        """All training windows."""
        yield self.inputs, self.targets

    def loss_sums(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """Half the summed squared errors, and the count of numbers."""
        sums: tuple[Tensor, int] = model.loss_sums(*batch)  # type: ignore[operator]
        return sums

    def before_training(self, model: nn.Module) -> None:
        """Nothing."""

    def after_step(self, model: nn.Module) -> None:
        """Nothing."""

    def evidence(self, net: nn.Module, device: torch.device) -> SeriesEvidence:
        """The trained layer, its training windows, and every held-out window once."""
        return SeriesEvidence(net, (self.inputs, self.targets), self._held_out())

    def _held_out(self) -> tuple[Tensor, Tensor]:
        prepared: Prepared = self.series
        inputs, targets = prepared.windows("test", self.config["windows"]["length"]).arrays()
        if self.config["control"] == "persistence":
            targets = persistence_residual(inputs, targets)
        return torch.from_numpy(inputs.copy()), torch.from_numpy(targets.copy())
