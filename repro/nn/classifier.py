"""Sentence classification by a GPT cut after its first blocks: a linear head on the last token's hidden state."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repro.nn.gpt import GPT
from repro.nn.initial import initialise

NO_TOKEN = -1  # fills up a batch behind the shorter sentences; attention is causal, so nothing reads it


class Classifier(nn.Module):
    """`body` without its language head, and a head for `classes`; all of it trains.

    `start_head(classifier, seed)` draws the head; the body keeps the weights that it came with.
    """

    def __init__(self, body: GPT, classes: int = 2) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"{classes} classes leave nothing to tell apart")
        self.context = body.config.context
        self.wte, self.wpe, self.stack = body.wte, body.wpe, body.stack
        self.classify = nn.Linear(body.config.d_model, classes)

    def hidden(self, tokens: Tensor) -> Tensor:
        """tokens [batch, tokens] -> what the head reads, [batch, tokens, d]; NO_TOKEN is read as token 0."""
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(f"{length} tokens do not fit into a context of {self.context}")
        found: Tensor = self.stack(self.wte(tokens.clamp(min=0)) + self.wpe.weight[:length])
        return found

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, classes] at each sentence's last token.

        tokens [batch, tokens]: sentences from the left, NO_TOKEN after their ends. Raises ValueError for a sentence
        without a token, for NO_TOKEN inside one, and beyond the context.
        """
        there = tokens != NO_TOKEN
        lengths = there.sum(1)
        if not bool(there[:, 0].all()) or bool((there[:, 1:] & ~there[:, :-1]).any()):
            raise ValueError("every sentence needs a token, and NO_TOKEN may stand after its last one only")
        rows = torch.arange(len(tokens), device=tokens.device)
        logits: Tensor = self.classify(self.hidden(tokens)[rows, lengths - 1])
        return logits

    def loss_sums(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        """Sum over sentences of the cross-entropy in nats (float32), and their number; targets [batch] of classes."""
        return F.cross_entropy(self(inputs).float(), targets.long(), reduction="sum"), targets.numel()

    def errors(self, inputs: Tensor, targets: Tensor) -> int:
        """Number of sentences whose likeliest class is not the target."""
        return int((self(inputs).argmax(-1) != targets).sum())


def start_head(classifier: Classifier, seed: int) -> None:
    """Draws the head for `seed`, keyed by its name as all weights of the suite are; its biases are 0."""
    initialise(nn.ModuleDict({"classify": classifier.classify}), seed)
