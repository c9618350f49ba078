"""What metrics of forecasts are made of: one trained net, its training windows and the held-out ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor, nn

from repro.evaluate.forecast import Batch, ForecastErrors, forecast_errors

AT_ONCE = 256  # windows in one pass of the net


class SeriesEvidence:
    """Windows as (inputs, targets), [windows, length, d] each, in the standardised units of the training rows."""

    def __init__(self, net: nn.Module, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> None:
        self.net, self.train, self.test = net, train, test
        net.eval()

    @torch.no_grad()
    def _batches(self, windows: tuple[Tensor, Tensor]) -> Iterator[Batch]:
        inputs, targets = windows
        for start in range(0, len(inputs), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            yield self.net(inputs[part]).numpy(), targets[part].numpy()

    @cached_property
    def fitted(self) -> ForecastErrors:
        """Errors on the training windows."""
        return forecast_errors(self._batches(self.train), len(self.train[0]))

    @cached_property
    def held_out(self) -> ForecastErrors:
        """Errors on the held-out windows, each once."""
        return forecast_errors(self._batches(self.test), len(self.test[0]))

    @cached_property
    def persistence(self) -> ForecastErrors:
        """Errors on the held-out windows of the forecast that nothing changes."""
        inputs, targets = self.test
        return forecast_errors([(inputs.numpy(), targets.numpy())], len(inputs))
