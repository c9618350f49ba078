"""What the missing runs of a plan will cost, by experiment: said before anything of it is started."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from repro.plan import Run
from repro.spec.lines import aligned

HEAD = ("experiment", "runs", "GPUs a run", "longest run, minutes", "GPU hours")


def price_rows(missing: Iterable[Run]) -> Iterator[tuple[str, ...]]:
    """A row an experiment that needs an accelerator, and their sum; a run counts for the first that plans it."""
    found: dict[str, list[Run]] = {}
    for run in missing:
        if run.cost.device == "gpu":
            found.setdefault(run.experiments[0], []).append(run)
    for name, runs in sorted(found.items()):
        yield _row(name, runs)
    if len(found) > 1:
        yield _row("all", [run for runs in found.values() for run in runs])


def _row(name: str, runs: list[Run]) -> tuple[str, ...]:
    gpus = max(run.cost.devices for run in runs)
    longest, hours = max(run.cost.minutes for run in runs), sum(run.cost.gpu_hours for run in runs)
    return name, str(len(runs)), str(gpus), f"{longest:.0f}", f"{hours:.1f}"


def price_lines(missing: Iterable[Run]) -> list[str]:
    """The same as aligned lines of text; empty where no accelerator is needed."""
    rows = list(price_rows(missing))
    return aligned(rows, HEAD) if rows else []
