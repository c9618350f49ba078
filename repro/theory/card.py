"""The card of a method: what theory says of it, seen on small real stacks before any training (paper A's promise).

Rows come from the files of repro/theory/cards, found by their names: each has `PAPER` and a function
`lines(subject) -> Iterator[Line]`. A new file there is a new part of every card.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from repro.nn.foreign import Fault, told
from repro.nn.method_api import Method, load_class
from repro.nn.stack import Stack
from repro.spec.methods import MethodEntry
from repro.theory import cards
from repro.theory.nets import EMBEDDING_STD, TINY_EPS, Shape, build, embedding, make_loud

DEPTH, WIDTH, HEADS, TOKENS = 24, 32, 4, 4


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a card.

    `name`: short and unique on a card; `state` of the weights: start, scaled, adversarial; `value` None where it
    could not be told; `bound`: what no weights can exceed, None where none is known; `word`: the plain meaning.
    `headline`: also a column of the table of all methods.
    """

    name: str
    state: str
    says: str
    value: float | None
    word: str
    bound: float | None = None
    low: float | None = None
    high: float | None = None
    headline: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """The method that a card is about, and how to build with it."""

    entry: MethodEntry
    cls: type[Method]
    seed: int = 0

    def method(self, **params: object) -> Method:
        """The method with its defaults, `params` over them."""
        return self.cls(**{**self.entry.info.params, **params})

    def shape(self, layers: int = DEPTH) -> Shape:
        """Size of the stacks of a card."""
        return Shape(layers, WIDTH, HEADS)

    def start(self, draw: int = 0, layers: int = DEPTH, **params: object) -> Stack:
        """A stack with the weights of a run's start; eps as good as 0, so that no value depends on it."""
        return build(self.method(**params), self.shape(layers), self.seed + draw, eps=TINY_EPS)

    def loud(self, draw: int = 0, layers: int = DEPTH, **params: object) -> Stack:
        """A stack with weights N(0, 1/fan-in) and open gates."""
        return make_loud(self.start(draw, layers, **params), self.seed + draw)

    def stream(self, draw: int = 0, *, small: bool = False, tokens: int = TOKENS, batch: int = 1) -> Tensor:
        """What the first block reads, [batch, tokens, d]: RMS 1, or `small` as GPT-2's tables give it at start."""
        std = EMBEDDING_STD if small else 1.0
        return embedding(self.shape(), tokens, self.seed + draw, batch=batch, std=std)


Lines = Callable[[Subject], Iterator[Line]]


def parts() -> dict[str, tuple[str, Lines]]:
    """(paper, function) of every part of a card, by file name."""
    names = sorted(module.name for module in pkgutil.iter_modules(cards.__path__))
    modules = {name: importlib.import_module(f"{cards.__name__}.{name}") for name in names}
    return {name: (module.PAPER, module.lines) for name, module in modules.items()}


def card(entry: MethodEntry, seed: int = 0) -> list[dict[str, Any]]:
    """All lines of one method's card as flat rows; global generators and settings stay as they were.

    Never raises for what a method's file does wrong: a part that fails is one row with `failed` true and the
    error as its word.
    """
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), _one_thread():
        warnings.simplefilter("ignore")
        try:
            with told():
                subject = Subject(entry, load_class(entry), seed)
                subject.method()
        except Fault as fault:
            return [_row(entry, "loads", "", _failure("loads", fault), failed=True)]
        return [row for name, (paper, lines) in parts().items() for row in _rows(subject, name, paper, lines)]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Tensors this small are slower on several threads, and their numbers then depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _rows(subject: Subject, part: str, paper: str, lines: Lines) -> list[dict[str, Any]]:
    rows = []
    try:
        with told():
            for line in lines(subject):
                rows.append(_row(subject.entry, part, paper, line))
    except Fault as fault:
        rows.append(_row(subject.entry, part, paper, _failure(part, fault), failed=True))
    return rows


def _row(entry: MethodEntry, part: str, paper: str, line: Line, *, failed: bool = False) -> dict[str, Any]:
    return {
        "method": entry.name,
        "part": part,
        "paper": paper,
        "name": line.name,
        "state": line.state,
        "says": line.says,
        "value": _finite(line.value),
        "low": _finite(line.low),
        "high": _finite(line.high),
        "bound": _finite(line.bound),
        "word": line.word if failed or line.value is None or math.isfinite(line.value) else "not finite",
        "headline": line.headline,
        "failed": failed,
    }


def _failure(name: str, fault: Fault) -> Line:
    return Line(name, "", "could not be made", None, str(fault))


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
