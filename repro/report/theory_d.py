"""Figures of paper D from rows: loss curves by beta, singular values, rates against eigenvalues, error by depth.

No screen and no global state of matplotlib; the same rows give the same figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from repro.report.escape import plain
from repro.report.figures import DASHES, PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]
COLOURS = (*PALETTE[:4], PALETTE[6], *PALETTE[4:6])  # five betas in the most distinct ones
PANEL_INCHES = (4.2, 3.2)
START_WORDS = {
    "inverse_d_qk": "W_Q, W_K of variance 1/d_QK (collapses)",
    "unit": "W_Q, W_K of variance 1 (does not)",
}
SKIP_WORDS = {True: "with residual", False: "without residual"}


def _panels(count: int, title: str) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PANEL_INCHES[0] * count, PANEL_INCHES[1] + 0.6), layout="constrained")
    figure.suptitle(plain(title), fontsize=10, parse_math=False)
    panels = list(figure.subplots(1, count, squeeze=False).flat)
    for axes in panels:
        axes.grid(visible=True, linewidth=0.4, alpha=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    handles = {label: handle for one in axes for handle, label in zip(*one.get_legend_handles_labels(), strict=True)}
    if handles:
        figure.legend(
            handles.values(), handles, loc="outside lower center", ncols=3 * len(axes), frameon=False, fontsize=8
        )


def _groups(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


def _colours(rows: Iterable[Row]) -> dict[float, str]:
    """One colour a beta, the same in all panels of a figure."""
    betas = sorted({row["beta"] for row in rows})
    return {beta: COLOURS[place % len(COLOURS)] for place, beta in enumerate(betas)}


def _empty(axes: Axes) -> None:
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", va="center", color="#555555")


def loss_curves(curves: Sequence[Row], panels: Sequence[str], title: str) -> Figure:
    """Loss against step, every seed of every beta: one panel for the data as they are and one for each control.

    A curve is {"panel", "beta", "seed", "steps", "losses"}; `panels` fixes their order and shows those not run too.
    """
    figure, axes = _panels(len(panels), title)
    colours = _colours(curves)
    for one, panel in zip(axes, panels, strict=True):
        own = [curve for curve in curves if curve["panel"] == panel]
        one.set_title(f"{plain(panel)}: {len(own)} runs", fontsize=9, parse_math=False)
        for curve in own:
            points = [(s, v) for s, v in zip(curve["steps"], curve["losses"], strict=True) if v is not None and v > 0]
            if points:
                one.plot(*zip(*points, strict=True), color=colours[curve["beta"]], linewidth=0.8, alpha=0.7)
        for beta in sorted({curve["beta"] for curve in own}):
            one.plot([], [], color=colours[beta], label=f"beta = {beta:g}")
        if own:
            one.set(yscale="log", xlabel="step of gradient descent", ylabel="training loss")
        else:
            _empty(one)
    _legend(figure, axes)
    return figure


def descents(curves: Sequence[Row]) -> Figure:
    """Loss curves of check `d_rate` (its details' `curves`, of all seeds), a panel for each d_QK."""
    named = [{**curve, "panel": f"d_QK = {curve['d_qk']}"} for curve in curves]
    panels = [f"d_QK = {d_qk}" for d_qk in sorted({curve["d_qk"] for curve in curves})]
    return loss_curves(named, panels or ["d_QK"], "Gradient descent to zero loss, one step size for all")


def along_training(rows: Sequence[Row]) -> Figure:
    """sigma_min(Z) and the kernel's smallest eigenvalue against step, from check `d_rate` (its details' `spectra`)."""
    figure, axes = _panels(2, "Conditioning along training")
    colours = _colours(rows)
    words = {"sigma_min": "sigma_min(Z), all sequences stacked", "kernel_min": "smallest kernel eigenvalue"}
    for one, (key, label) in zip(axes, words.items(), strict=True):
        for (beta, _), group in sorted(_groups(rows, "beta", "seed").items()):
            points = sorted((row["step"], row[key]) for row in group if row[key] > 0)
            if points:
                one.plot(*zip(*points, strict=True), color=colours[beta], marker=".", linewidth=0.7, alpha=0.7)
        for beta, colour in colours.items():
            one.plot([], [], color=colour, label=f"beta = {beta:g}")
        if rows:
            one.set_xscale("symlog", linthresh=10)  # the first point stands at step 0
            one.set(yscale="log", xlabel="step of gradient descent", ylabel=label)
        else:
            _empty(one)
    _legend(figure, axes)
    return figure


def singular_values(rows: Sequence[Row]) -> Figure:
    """Smallest over largest singular value of Attn(X) + beta X against d_QK: median over draws, band from end to end.

    `rows` are those of check `d_rank_collapse`, of all seeds; one panel for each start.
    """
    figure, axes = _panels(len(START_WORDS), "Condition of the attention sub-layer's output at start")
    colours = _colours(rows)
    for one, (start, words) in zip(axes, START_WORDS.items(), strict=True):
        own = [row for row in rows if row["start"] == start]
        one.set_title(words, fontsize=9, parse_math=False)
        for (beta,), group in sorted(_groups(own, "beta").items()):
            ratios = {size: [row["ratio"] for row in part] for (size,), part in sorted(_groups(group, "d_qk").items())}
            middle = [median(values) for values in ratios.values()]
            one.plot(list(ratios), middle, color=colours[beta], marker="o", markersize=3, label=f"beta = {beta:g}")
            one.fill_between(
                list(ratios),
                [min(values) for values in ratios.values()],
                [max(values) for values in ratios.values()],
                color=colours[beta],
                alpha=0.15,
                linewidth=0,
            )
        if own:
            one.set(xscale="log", yscale="log", xlabel="d_QK", ylabel="sigma_min / sigma_max")
        else:
            _empty(one)
    _legend(figure, axes)
    return figure


def rates(rows: Sequence[Row]) -> Figure:
    """Measured rate against 2 x step x smallest kernel eigenvalue at the end, and against sigma_min(Z)^2 at start.

    `rows` are those of check `d_rate`, of all seeds. The line in the first panel is equality.
    """
    figure, axes = _panels(2, "Rate of convergence and what sets it")
    known = [row for row in rows if row["rate"] is not None and row["rate"] > 0]
    colours = _colours(known)
    for one, (key, words) in zip(
        axes,
        [
            ("kernel_rate", "2 x step x smallest kernel eigenvalue at the end"),
            ("sigma_min_squared", "sigma_min(Z)^2 at start"),
        ],
        strict=True,
    ):
        own = [row for row in known if row[key] is not None and row[key] > 0]
        for (beta,), group in sorted(_groups(own, "beta").items()):
            x, y = [row[key] for row in group], [row["rate"] for row in group]
            one.scatter(x, y, color=colours[beta], s=14, label=f"beta = {beta:g}")
        if own:
            one.set(xscale="log", yscale="log", xlabel=words, ylabel="rate (natural logs a step)")
        else:
            _empty(one)
        if own and key == "kernel_rate":
            ends = [bound(row[name] for row in own for name in (key, "rate")) for bound in (min, max)]
            one.plot(ends, ends, color="#555555", linewidth=0.8, linestyle="--", label="equal")
    _legend(figure, axes)
    return figure


def depth_errors(rows: Sequence[Row]) -> Figure:
    """Training and dev error of a truncated GPT against its number of layers, with and without the skip.

    A row is {"layers", "residual", "seed", "train_error", "dev_error"}, errors as shares. Dots are seeds, lines means.
    """
    figure, axes = _panels(2, "Classification by a truncated GPT")
    for one, (key, words) in zip(axes, [("train_error", "training error"), ("dev_error", "dev error")], strict=True):
        own = [row for row in rows if row[key] is not None]
        for residual, colour, dash in zip((True, False), PALETTE, DASHES, strict=False):
            found = [row for row in own if row["residual"] is residual]
            by_depth = {n: [row[key] for row in part] for (n,), part in sorted(_groups(found, "layers").items())}
            means = [math.fsum(values) / len(values) for values in by_depth.values()]
            if means:
                one.plot(list(by_depth), means, color=colour, linestyle=dash, label=SKIP_WORDS[residual])
                one.scatter(
                    [row["layers"] for row in found], [row[key] for row in found], color=colour, s=10, alpha=0.6
                )
        if own:
            one.set(xlabel="layers kept", ylabel=words, xticks=sorted({row["layers"] for row in own}))
            one.set_ylim(bottom=0)
        else:
            _empty(one)
    _legend(figure, axes)
    return figure
