"""Values that a hand-written text states: a copied title or assumption outlives the number that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from repro.spec.errors import Problem
from repro.spec.experiment import ClassifyExperiment, Experiment, LmExperiment
from repro.spec.reading import Document

_WORD = r"(?<![a-z])(?:(?P<lr>lr|learning[ _-]?rate)|(?P<wd>wd|weight[ _-]?decay)|(?P<dt>dt))"
_BETWEEN = r"(?:[ _]*[:=]|[ _]+(?:of|is)(?=[ _]))?[ _]*"
_NUMBER = r"(?P<number>(?>(?:\.\d+|\d+(?:\.\d+)?)(?:e[-+]?\d+)?))(?! ?[%x×])"  # `lr 10x`, `lr 5 %` name no value
_STATED = re.compile(_WORD + _BETWEEN + _NUMBER, re.IGNORECASE)


def title_warnings(experiment: Experiment, document: Document) -> list[Problem]:
    """Titles and assumptions that state a value which the experiment does not have."""
    have = _have(experiment)
    texts: list[tuple[tuple[str | int, ...], str]] = [(("title",), experiment.title)]
    texts += [(("assumptions", place), text) for place, text in enumerate(experiment.assumptions)]
    return [
        Problem(*document.place(path), str(path[0]), f"says {word} {number}, the experiment has {have[key]}")
        for path, text in texts
        for key, word, number in _stated(text)
        if have.get(key) and float(number) not in have[key]
    ]


def _stated(text: str) -> Iterator[tuple[str, str, str]]:
    """(key, word, number) of each value that a text names."""
    for match in _STATED.finditer(text):
        number = match["number"]
        yield from ((key, word, number) for key, word in match.groupdict().items() if word and key != "number")


def _have(experiment: Experiment) -> dict[str, list[float]]:
    """Values by key; none where the experiment has no such thing, or leaves it to the methods."""
    if isinstance(experiment, LmExperiment):
        dt = [float(choice.params["dt"]) for choice in experiment.methods or [] if "dt" in choice.params]
        return {"lr": experiment.optimizer.lr, "wd": experiment.optimizer.weight_decay, "dt": dt}
    if isinstance(experiment, ClassifyExperiment):
        first = [] if experiment.pretrained.lr is None else [experiment.pretrained.lr]
        return {"lr": [*experiment.optimizer.lr, *first], "wd": experiment.optimizer.weight_decay}
    return {}
