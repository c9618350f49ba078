"""Figures of paper A from rows by layer: of its checks, or of the probes of trainings. No screen, no global state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from repro.report.escape import plain
from repro.report.figures import DASHES, PALETTE, PANEL_INCHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
# What is drawn, its name on the axis, and the row's key of its bound.
MOMENTS = (
    ("mean_abs", "mean absolute value", "mean_abs_bound"),
    ("entry_variance", "variance over entries", "variance_bound"),
)
BOUND_COLOUR = "#555555"
LEGEND_COLUMNS = 3


def moments(rows: Sequence[Row], title: str = "Hidden state by layer") -> Figure:
    """Mean absolute value and variance of the hidden state after each block, with the bounds of A-T1.

    `rows`: "method", "layer", the two moments and, where a bound is known, "mean_abs_bound", "variance_bound".
    Several rows of one method and layer (seeds, draws) are a line through their mean and a band from smallest to
    largest, or, where rows are "apart" since a planned seed is lost, a thin line for each "seed"; rows without a number
    are left out. Bounds are dotted, in their method's colour.
    """
    figure, panels = _panels([name for _, name, _ in MOMENTS], title)
    styles = _styles(rows)
    for axes, (key, _, bound) in zip(panels, MOMENTS, strict=True):
        for method, style in styles.items():
            own = [row for row in rows if row["method"] == method]
            _lines(axes, own, key, style)
            limits = {layer: fmean(found) for layer, found in _by_layer(own, bound).items()}
            axes.plot(list(limits), list(limits.values()), color=style[0], linestyle=":", linewidth=1.0, alpha=0.8)
        _finish(axes, drawn=bool(_by_layer(rows, key)))
    known = any(row.get(bound) is not None for row in rows for *_, bound in MOMENTS)
    _legend(figure, styles, "upper bound (A-T1), same colour" if known else None)
    return figure


def gradients(rows: Sequence[Row], title: str = "Gradient norm by layer") -> Figure:
    """Norm of the gradient of each block's parameters; rows with "method", "layer", "grad_norm".

    Lines and bands as in `moments`.
    """
    figure, (axes,) = _panels(["norm of the gradient"], title)
    inside = blocks(rows)
    styles = _styles(inside)
    for method, style in styles.items():
        _lines(axes, [row for row in inside if row["method"] == method], "grad_norm", style)
    _finish(axes, drawn=bool(_by_layer(inside, "grad_norm")))
    _legend(figure, styles, None)
    return figure


def blocks(rows: Sequence[Row]) -> list[Row]:
    """Rows without layer 0, which holds tables and head: the norm of their gradient has nothing to do with depth."""
    return [row for row in rows if row["layer"] > 0]


def in_words(rows: Sequence[Row], key: str, words: str) -> str:
    """A figure of `key` by layer in words: each method's mean at the first and at the last layer with a number."""
    said = []
    for method in _styles(rows):
        own = [row for row in rows if row["method"] == method]
        found = _by_layer(own, key)
        if any(row.get("apart") for row in own):
            said.append(f"{method}: no mean, as a planned seed is missing")
        elif found:
            first, last = min(found), max(found)
            said.append(
                f"{method} from {fmean(found[first]):.3g} at layer {first} to {fmean(found[last]):.3g} at {last}"
            )
    return f"{words} by layer: {'; '.join(said) or 'no numbers yet'}."


def _panels(names: list[str], title: str) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    width = max(len(names) * PANEL_INCHES[0], 6.4)
    figure = Figure(figsize=(width, PANEL_INCHES[1] + 0.9), layout="constrained")
    figure.suptitle(plain(title), fontsize=10, parse_math=False)
    panels = list(figure.subplots(1, len(names), squeeze=False).flat)
    for axes, name in zip(panels, names, strict=True):
        axes.set_xlabel("layer")
        axes.set_ylabel(name)
        axes.grid(visible=True, linewidth=0.4, alpha=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _styles(rows: Iterable[Row]) -> dict[str, tuple[str, Any]]:
    """Colour first, then dashes; a method keeps its style over all panels."""
    pairs = [(colour, dash) for dash in DASHES[:2] for colour in PALETTE]  # dots are for bounds
    names = dict.fromkeys(str(row["method"]) for row in rows)
    return {name: pairs[place % len(pairs)] for place, name in enumerate(names)}


def _by_layer(rows: Iterable[Row], key: str) -> dict[int, list[float]]:
    """Numbers of each layer, layers in order."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if row.get(key) is not None:
            found.setdefault(row["layer"], []).append(row[key])
    return dict(sorted(found.items()))


def _lines(axes: Axes, rows: list[Row], key: str, style: tuple[str, Any]) -> None:
    """One method: its mean and band, or every seed where no mean stands for all that were planned."""
    if not any(row.get("apart") for row in rows):
        _line(axes, _by_layer(rows, key), style)
        return
    for seed in dict.fromkeys(row["seed"] for row in rows):
        values = _by_layer([row for row in rows if row["seed"] == seed], key)
        axes.plot(list(values), [fmean(found) for found in values.values()], color=style[0], linestyle=style[1], lw=0.8)


def _line(axes: Axes, values: dict[int, list[float]], style: tuple[str, Any]) -> None:
    colour, dash = style
    layers = list(values)
    axes.plot(layers, [fmean(found) for found in values.values()], color=colour, linestyle=dash, linewidth=1.4)
    low, high = [min(found) for found in values.values()], [max(found) for found in values.values()]
    if low != high:
        axes.fill_between(layers, low, high, color=colour, alpha=0.18, linewidth=0)


def _finish(axes: Axes, *, drawn: bool) -> None:
    """Logarithmic, since methods differ by orders; a panel without numbers says so."""
    from matplotlib.ticker import MaxNLocator

    if not drawn:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", va="center", color=BOUND_COLOUR)
        return
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _legend(figure: Figure, styles: dict[str, tuple[str, Any]], bound: str | None) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, linestyle=dash) for colour, dash in styles.values()]
    labels = [plain(name).replace("$", r"\$") for name in styles]
    if bound:
        handles.append(Line2D([], [], color=BOUND_COLOUR, linestyle=":"))
        labels.append(bound)
    if labels:
        figure.legend(
            handles, labels, loc="outside lower center", ncols=LEGEND_COLUMNS, frameon=False, fontsize=8, handlelength=3
        )
