"""GPT-2's decoder around a method: learned positions, causal attention, tied or untied head, no dropout."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from repro.nn.anatomy import count_parameters, parameter_groups, structure
from repro.nn.initial import initialise
from repro.nn.method_api import Method
from repro.nn.stack import Stack

__all__ = ["GPT", "GPTConfig", "count_parameters", "initialise", "parameter_groups", "structure"]


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """Shape of the model; `context` and `vocab` in tokens, hidden width of the MLP = mlp_ratio * d_model."""

    n_layer: int
    d_model: int
    n_head: int
    context: int
    vocab: int
    bias: bool = False
    tied: bool = True
    mlp_ratio: int = 4

    def __post_init__(self) -> None:
        """Raises ValueError for sizes below 1 and for heads that do not divide the width."""
        sizes = (self.n_layer, self.d_model, self.n_head, self.context, self.vocab, self.mlp_ratio)
        if min(sizes) < 1:
            raise ValueError(f"every size must be at least 1: {self}")
        if self.d_model % self.n_head:
            raise ValueError(f"d_model {self.d_model} is not a multiple of n_head {self.n_head}")


class GPT(nn.Module):
    """Language model. `initialise(model, seed)` gives it the weights of a run; before, they are torch's own."""

    def __init__(self, config: GPTConfig, method: Method) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab, config.d_model)
        self.wpe = nn.Embedding(config.context, config.d_model)
        hidden = config.mlp_ratio * config.d_model
        self.stack = Stack(method, config.n_layer, config.d_model, config.n_head, hidden, config.bias)
        self.head = nn.Linear(config.d_model, config.vocab, bias=False)
        if config.tied:
            self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [batch, tokens] of integers -> logits [batch, tokens, vocab]; ValueError beyond the context."""
        length = tokens.shape[1]
        if length > self.config.context:
            raise ValueError(f"{length} tokens do not fit into a context of {self.config.context}")
        return self.head(self.stack(self.wte(tokens) + self.wpe.weight[:length]))

    def loss_sums(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        """Sum over all positions of the cross-entropy in nats (float32), and the number of positions.

        Sums and counts, not means: batches of unequal size and several devices then add up exactly.
        """
        logits = self(tokens)
        loss = F.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.reshape(-1), reduction="sum")
        return loss, targets.numel()
