"""The inequality of A-T1 tried on one method in four states of its weights: start, scaled, trained, adversarial."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repro.nn.gpt import GPT, GPTConfig, initialise
from repro.nn.method_api import Method
from repro.nn.stack import Block, Stack
from repro.theory.growth import Law, Slack, Walk, disturb_block, draw_block, log_bound, together, walk
from repro.theory.nets import (
    EMBEDDING_STD,
    Shape,
    ascend,
    build,
    embedding,
    final_state,
    make_loud,
    numbers,
    rms,
    set_eps,
    sublayers,
)

VOCAB = 64
RATE = 0.05  # of a parameter's size, a step
MAX_ROWS = 700


@dataclass(frozen=True, slots=True)
class Passage:
    """One walk: in which state the weights were, of which method, at which width and draw."""

    state: str
    label: str
    width: int
    draw: int
    walk: Walk

    def rows(self) -> list[dict[str, Any]]:
        """Moments by layer, as rows of a table or figure."""
        head = {"state": self.state, "method": self.label, "width": self.width, "draw": self.draw}
        return [head | {key: _short(value) for key, value in row.items()} for row in self.walk.rows]


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def heads_of(width: int) -> int:
    """Heads of size 64 as in GPT-2; one for less."""
    return max(1, width // 64)


def start_and_scaled(
    methods: dict[str, tuple[Method, Law | None]], layers: int, width: int, tokens: int, draw: int, seed: int
) -> Iterator[Passage]:
    """Walks of all `methods` through the same weights at start, then of the bounded ones through scaled ones.

    One block in memory stands for all layers; the first method builds it and must have the norms of the others.
    """
    generator = torch.Generator().manual_seed(numbers(seed, width, draw))
    rule = next(iter(methods.values()))[0]
    with torch.random.fork_rng(devices=[]):
        block = Block(rule, 0, layers, width, heads_of(width), 4 * width, True).double()
    set_eps(block, 0.0)
    shape = Shape(layers, width, heads_of(width))
    x = embedding(shape, tokens, numbers(seed, width, draw, 1), std=EMBEDDING_STD)
    plain = {label: Walk(method, x, law) for label, (method, law) in methods.items()}
    scaled = {label: Walk(method, x, law) for label, (method, law) in methods.items() if law}
    for layer in range(layers):
        draw_block(block, layer, layers, generator)
        together([*plain.values()], block)
        disturb_block(block, generator)
        together([*scaled.values()], block)
    for state, walks in (("start", plain), ("scaled", scaled)):
        for label, made in walks.items():
            yield Passage(state, label, width, draw, made)


def token_rows(batch: int, length: int, seed: int) -> Tensor:
    """Token ids [batch, length] with something to learn: each is 3 times the last one plus a little noise."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.empty(batch, length, dtype=torch.long)
    rows[:, 0] = torch.randint(VOCAB, (batch,), generator=generator)
    for place in range(1, length):
        noise = torch.randint(3, (batch,), generator=generator)
        rows[:, place] = (3 * rows[:, place - 1] + noise) % VOCAB
    return rows


def stack_and_input(model: nn.Module, tokens: Tensor) -> tuple[Stack, Tensor]:
    """The stack inside any model and what it reads for these tokens, [batch, tokens, d]; ValueError without one."""
    found = [module for module in model.modules() if isinstance(module, Stack)]
    if not found:
        raise ValueError("the model holds no stack of blocks")
    seen: list[Tensor] = []
    handle = found[0].register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0].detach()))
    try:
        with torch.no_grad():
            model(tokens)
    finally:
        handle.remove()
    return found[0], seen[0]


def network_walk(model: nn.Module, tokens: Tensor, law: Law | None) -> Walk:
    """A walk through any model in float64, trained or not, with the bound of `law` beside it."""
    stack, x = stack_and_input(model, tokens)
    return walk(stack, x, law)


def trained(method: Method, layers: int, width: int, steps: int, seed: int) -> tuple[GPT, Tensor, list[float]]:
    """A small decoder after some steps on sequences with a rule in them; its tokens; its losses before each step.

    Steps along the normalised gradient of each parameter, gains and biases too: far larger ones than a real
    training takes, so that weights and gains leave their start at once.
    """
    config = GPTConfig(layers, width, heads_of(width), 16, VOCAB, bias=True)
    with torch.random.fork_rng(devices=[]):
        model = GPT(config, method)
    initialise(model, seed)
    model.double()
    rows = token_rows(4, 17, seed)

    def gain() -> Tensor:
        loss, count = model.loss_sums(rows[:, :-1], rows[:, 1:])
        return -loss / count

    losses = [-value for value in ascend(gain, list(model.parameters()), steps, RATE)]
    return model, rows[:, :-1], losses


def adversarial(method: Method, law: Law, shape: Shape, steps: int, seed: int) -> tuple[Stack, Tensor]:
    """Weights, gains and biases from ascent on the mean over tokens of log(RMS / bound); the stack and its input."""
    stack = make_loud(build(method, shape, seed, bias=True, eps=0.0), seed)
    x = embedding(shape, 4, seed)
    parts = sublayers(stack)

    def closeness() -> Tensor:
        return (rms(final_state(stack, x)).log() - log_bound(stack, x, law, parts)).mean()

    for _ in ascend(closeness, list(stack.blocks.parameters()), steps, RATE):
        continue
    return stack, x


def slack_of(passages: Sequence[Passage], state: str | None = None) -> Slack:
    """The largest ratios over all passages, or those of one state; violations carry their passage."""
    total = Slack()
    for passage in passages:
        if state is None or passage.state == state:
            head = {"state": passage.state, "method": passage.label, "width": passage.width, "draw": passage.draw}
            seen = passage.walk.slack
            total.add(Slack(seen.rms, seen.mean, seen.variance, [head | item for item in seen.violations]))
    return total


def rows_of(passages: Sequence[Passage]) -> list[dict[str, Any]]:
    """Rows of the first draws, as many as a record should hold."""
    return [row for passage in passages if passage.draw == 0 for row in passage.rows()][:MAX_ROWS]
