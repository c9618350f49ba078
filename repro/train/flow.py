"""Paper B's finite mean-field Transformer, trained by gradient descent in small steps of the gradient flow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repro.evaluate.flow_evidence import FlowEvidence
from repro.theory.adjoint import tangent_kernel
from repro.theory.gradient_flow import Problem, perturbed
from repro.theory.mean_field import Sizes, TokenMeasures, flow, gaussian_heads
from repro.theory.mean_field_model import MeanFieldTransformer, risk_loss
from repro.train.tasks import Batch


class Flow:
    """Targets are outputs of a perturbed net, so that the risk at start is small and a risk of 0 exists.

    A step lasts `step_share` / the largest eigenvalue of the tangent kernel at start; gradients are multiplied by
    L M, as the metric of conditional transport asks. Tokens and teacher are the seed's, for all depths and widths.
    """

    def __init__(self, config: dict[str, Any], folder: Path, micro_batch: int | None = None) -> None:
        self.config, model = config, config["model"]
        seed, dim = int(config["seed"]), model["dim"]
        drawn = np.random.default_rng(seed).standard_normal((model["sequences"], model["tokens"], dim))
        measures = TokenMeasures.uniform(drawn)
        own = np.random.default_rng([seed, model["layers"], model["heads"]])
        self.start = gaussian_heads(own, model["layers"], model["heads"], Sizes(dim, dim, model["attention"]))
        teacher = perturbed(np.random.default_rng([seed, 0]), self.start, model["perturbation"])
        self.problem = Problem(measures, flow(measures, teacher)[-1])
        kernel = tangent_kernel(measures, self.start, flow(measures, self.start))
        time = config["optimizer"]["lr"]["step_share"] / float(np.linalg.eigvalsh(kernel.full)[-1])
        self.rate = time * model["layers"] * model["heads"]
        self.batch: Batch = (torch.from_numpy(measures.points.copy()), torch.from_numpy(self.problem.targets.copy()))

    def build(self) -> nn.Module:
        """The net with the heads of its seed."""
        model = self.config["model"]
        net = MeanFieldTransformer(model["layers"], model["heads"], model["dim"])
        net.load(self.start)
        return net

    def step_batches(self, step: int) -> list[Batch]:
        """All sequences, every step."""
        return [self.batch]

    def rows(self, step: int) -> None:
        """All there is, each time."""

    def validation_batches(self, tokens: int) -> Iterator[Batch]:
        """All sequences: the theorem is about the risk that is minimised."""
        yield self.batch

    def loss_sums(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """The risk times the count that it is divided by, and that count."""
        points, targets = batch
        return risk_loss(model(points), targets) * targets.numel(), targets.numel()

    def before_training(self, model: nn.Module) -> None:
        """Nothing."""

    def after_step(self, model: nn.Module) -> None:
        """Nothing."""

    def evidence(self, net: nn.Module, device: torch.device) -> FlowEvidence:
        """The trained net and what it was to learn."""
        if not isinstance(net, MeanFieldTransformer):
            raise TypeError("a flow trains a MeanFieldTransformer")
        return FlowEvidence(net, self.problem, self.start)
