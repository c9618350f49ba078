"""Names, units and directions of the metrics; their code lies in repro.evaluate."""

from __future__ import annotations

from dataclasses import dataclass

from repro.spec.rules import RULES


@dataclass(frozen=True, slots=True)
class Metric:
    """One protocol: what it is called, its unit, which way is better, and one line on what is computed."""

    name: str
    unit: str
    better: str  # "lower" or "higher"
    says: str

    @property
    def protocol(self) -> str:
        """Name with its rules version: numbers are comparable within one protocol only."""
        return f"{self.name}.v{RULES[self.name]}"


_ALL = (
    Metric(
        "val_loss", "nats/token", "lower", "sum of token losses over their count, float64, over fixed validation blocks"
    ),
    Metric("ppl_exp_mean", "1", "lower", "exp of val_loss"),
    Metric("ppl_seq_mean", "1", "lower", "mean over blocks of exp(mean token loss of the block)"),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
