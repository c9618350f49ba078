"""Figures of paper B from the rows that its checks leave in their records: no screen, no global state of matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from repro.report.figures import DASHES, PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]
ROLE_COLOURS = {"family": PALETTE[0], "control": PALETTE[1], "open": PALETTE[2]}
ROLE_WORDS = {"family": "family of the paper", "control": "negative control", "open": "open question"}
LIMITS = {"depth": ("layers L", -1.0, "1/L"), "width": ("heads M", -0.5, "1/√M")}
PANEL_INCHES = (4.4, 3.4)


def _panels(count: int, title: str) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PANEL_INCHES[0] * count, PANEL_INCHES[1] + 0.5), layout="constrained")
    figure.suptitle(title, fontsize=10, parse_math=False)
    panels = list(figure.subplots(1, count, squeeze=False).flat)
    for axes in panels:
        axes.grid(visible=True, linewidth=0.4, alpha=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=7)


def _groups(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return found


def spectrum(rows: Sequence[Row], dim: int = 3, measures: int = 4) -> Figure:
    """Smallest eigenvalue of the V-part and of the full kernel against the number of query tokens.

    `rows` are those of check `b_gram`; drawn are the lists of `dim` dimensions and `measures` measures, and controls
    whose number of measures follows from the dimension. Values below their round-off are hollow.
    """
    figure, panels = _panels(2, f"Smallest kernel eigenvalue, {measures} measures in {dim} dimensions")
    chosen = [r for r in rows if r["dim"] == dim and (r["measures"] == measures or r["laws"] == "many_gaussians")]
    for axes, (part, words) in zip(panels, (("v", "V-part"), ("full", "full kernel")), strict=True):
        seen: dict[str, int] = {}
        for (laws, role), own in _groups(chosen, "laws", "role").items():
            place = seen[role] = seen.get(role, -1) + 1
            _draw_spectrum(axes, own, part, f"{laws} ({ROLE_WORDS[role]})", (ROLE_COLOURS[role], "osD^v"[place % 5]))
        axes.set(yscale="log", xlabel="shared query tokens", ylabel=f"smallest eigenvalue, {words}")
        axes.set_xticks(sorted({row["queries"] for row in chosen}))
    if chosen:
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=7)
    return figure


def _draw_spectrum(axes: Axes, rows: list[Row], part: str, label: str, style: tuple[str, str]) -> None:
    colour, marker = style
    means = {q: [r[f"{part}_fine"] for r in own] for (q,), own in _groups(rows, "queries").items()}
    floors = {q: max(r[f"{part}_fine_floor"] for r in own) for (q,), own in _groups(rows, "queries").items()}
    x = sorted(means)
    y = [max(math.exp(sum(math.log(max(v, 1e-40)) for v in means[q]) / len(means[q])), 1e-40) for q in x]
    axes.plot(x, y, color=colour, linewidth=0.9, alpha=0.7)
    above = [value > floors[q] for q, value in zip(x, y, strict=True)]
    faces = [colour if resolved else "none" for resolved in above]
    axes.scatter(x, y, c=faces, edgecolors=colour, marker=marker, s=24, zorder=3)
    axes.plot([], [], color=colour, marker=marker, markersize=4, linewidth=0.9, label=label)


FEW = 6  # draws that a legend names one by one


def _first_seed(rows: Sequence[Row]) -> list[Row]:
    """Rows of one record, where a figure can show only one draw."""
    return [row for row in rows if row.get("seed") == rows[0].get("seed")]


def convergence(rows: Sequence[Row], draw: int = 0) -> Figure:
    """Risk over the time of the flow for each (layers, heads), and the rate that the smallest eigenvalue promises.

    `rows` are those of check `b_convergence`. The dotted line falls from the end of each curve backwards at twice the
    trajectory's smallest eigenvalue: the theorem's slope, which no curve may stay above.
    """
    figure, (axes,) = _panels(1, "Gradient flow from a small risk, and the predicted slope")
    own = [row for row in _first_seed(rows) if row["draw"] == draw]
    for place, ((layers, heads), points) in enumerate(_groups(own, "layers", "heads").items()):
        colour = PALETTE[place % len(PALETTE)]
        times = [row["time"] for row in points]
        axes.plot(times, [row["risk"] for row in points], color=colour, label=f"L {layers}, M {heads}")
        slowest = min(row["smallest"] for row in points)
        bound = [points[0]["risk"] * math.exp(-2 * slowest * t) for t in times]
        axes.plot(times, bound, color=colour, linestyle=":", linewidth=1.0)
    if own:
        axes.plot([], [], color="#555555", linestyle=":", label="R(0) exp(-2 λ t), smallest λ")
    axes.set(yscale="log", xlabel="time of the flow", ylabel="risk R")
    _legend(axes)
    return figure


def descents(curves: Sequence[Row]) -> Figure:
    """Risk against step of trained flows: rows with "layers", "heads", "seed", "steps", "losses"; a line a run."""
    figure, (axes,) = _panels(1, "Gradient descent along the flow")
    for place, ((layers, heads), own) in enumerate(_groups(curves, "layers", "heads").items()):
        colour = PALETTE[place % len(PALETTE)]
        for curve in own:
            points = [(s, v) for s, v in zip(curve["steps"], curve["losses"], strict=True) if v is not None and v > 0]
            axes.plot([s for s, _ in points], [v for _, v in points], color=colour, linewidth=0.9, alpha=0.7)
        axes.plot([], [], color=colour, label=f"L {layers}, M {heads}")
    axes.set(yscale="log", xlabel="step of gradient descent", ylabel="risk R")
    _legend(axes)
    return figure


def control(rows: Sequence[Row]) -> Figure:
    """Risk of the control with conflicting targets, of its twin without, and the floor; rows of check `b_control`."""
    figure, (axes,) = _panels(1, "One sequence with two targets")
    colours = {"twin": PALETTE[0], "control": PALETTE[1]}
    words = {"twin": "targets agree", "control": "targets disagree"}
    for place, ((arm, *_), points) in enumerate(_groups(rows, "arm", "seed", "draw").items()):
        end = points[-1]["time"] or 1.0
        x = [row["time"] / end for row in points]
        y = [row["risk"] / points[0]["risk"] for row in points]
        first = all(row["arm"] != arm for row in rows[: rows.index(points[0])])
        axes.plot(x, y, color=colours[arm], linewidth=1.0, label=words[arm] if first else None)
        if arm == "control":
            floor = points[0]["floor"] / points[0]["risk"]
            axes.axhline(floor, color="#555555", linestyle=":", linewidth=0.8, label="floor" if place <= 1 else None)
    axes.set(yscale="log", xlabel="time of the flow, in its whole length", ylabel="risk over its start")
    _legend(axes)
    return figure


def limits(rows: Sequence[Row]) -> Figure:
    """Error against depth and against width with the lines 1/L and 1/sqrt(M); rows of check `b_limits`."""
    figure, panels = _panels(2, "Limits of infinite depth and infinite width, apart")
    for axes, (limit, (label, slope, words)) in zip(panels, LIMITS.items(), strict=True):
        chosen = [row for row in rows if row["limit"] == limit]
        groups = _groups(chosen, "seed", "draw")
        for place, ((_, draw), points) in enumerate(groups.items()):
            x, y = [row["size"] for row in points], [row["error"] for row in points]
            axes.plot(
                x,
                y,
                color=PALETTE[place % len(PALETTE)],
                marker="o",
                markersize=3,
                label=f"draw {draw}" if len(groups) <= FEW else None,
            )
            if place == 0:
                guide = [y[0] * (size / x[0]) ** slope for size in x]
                axes.plot(x, guide, color="#555555", linestyle=DASHES[1], label=words)
        axes.set(xscale="log", yscale="log", xlabel=label, ylabel="error against the reference")
        _legend(axes)
    return figure


def trajectories(paths: Sequence[Row]) -> Figure:
    """Places of the tokens along depth, two coordinates, a panel for each sequence; `paths` of check `b_continuity`."""
    groups = _groups(_first_seed(paths), "sequence")
    figure, panels = _panels(max(len(groups), 1), "Tokens through depth (circle: input, disc: output)")
    for axes, ((sequence,), own) in zip(panels, groups.items(), strict=False):
        for place, points in enumerate(_groups(own, "token").values()):
            colour = PALETTE[place % len(PALETTE)]
            x, y = [row["x"] for row in points], [row["y"] for row in points]
            axes.plot(x, y, color=colour, linewidth=1.0)
            axes.scatter(x[:1], y[:1], facecolors="none", edgecolors=colour, s=22, zorder=3)
            axes.scatter(x[-1:], y[-1:], color=colour, s=22, zorder=3)
        axes.set_title(f"sequence {sequence}", fontsize=9)
        axes.set(xlabel="first coordinate", ylabel="second coordinate")
        axes.set_aspect("equal", adjustable="datalim")
    return figure
