"""Plots of Figures 6, 7 and 8 of LB-BSP, and of mappings, from the content of their JSON files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evenpace.reports import style

Figures = Mapping[str, Any]

_DPI = 110
_PANEL = 3.6  # inches
_HEIGHT = 3.4
_TITLES = {
    "per_update_s": "(a) Time per update",
    "updates_to_target": "(b) Updates to the target",
    "seconds_to_target": "(c) Time to the target",
}


def write(figure: Figure, path: Path) -> None:
    """Write a figure as a picture (OSError: the file cannot be written)."""
    with rc_context(style.STYLE):
        figure.savefig(path, dpi=_DPI)


def efficiency(figures: Figures) -> Figure:
    """Draw Figure 6: bars by workload, a colour for each scheme, as a share of BSP's."""
    workloads = figures["workloads"]
    schemes = _schemes(figures)
    with rc_context(style.STYLE):
        figure = Figure(figsize=(3 * _PANEL, _HEIGHT), layout="constrained")
        for axes, (measure, title) in zip(figure.subplots(1, 3), _TITLES.items(), strict=True):
            for i, scheme in enumerate(schemes):
                shares = [entry["schemes"][scheme]["of_bsp"][measure] for entry in workloads.values()]
                _bars(axes, shares, i, len(schemes), scheme)
            axes.axhline(1, color=style.GREY, linewidth=1)
            axes.set_title(f"{title}, BSP = 1")
            axes.set_xticks(range(len(workloads)), list(workloads))
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(schemes))
        return figure


def accuracy(figures: Figures) -> Figure:
    """Draw Figure 7: accuracy against epochs, a panel for each workload, a line for each scheme and seed."""
    workloads = figures["workloads"]
    with rc_context(style.STYLE):
        figure = Figure(figsize=(_PANEL * max(2, len(workloads)), _HEIGHT), layout="constrained")
        panels = figure.subplots(1, len(workloads), squeeze=False)[0]
        for axes, (workload, entry) in zip(panels, workloads.items(), strict=True):
            for i, (scheme, values) in enumerate(entry["schemes"].items()):
                for number, run in enumerate(values["runs"]):
                    axes.plot(
                        [point["epochs"] for point in run["curve"]],
                        [point["accuracy"] for point in run["curve"]],
                        label=None if number else scheme,
                        color=_colour(i),
                        linewidth=1.4,
                    )
            axes.set_title(workload)
            axes.set_xlabel("epochs")
            axes.set_ylabel("test accuracy")
            axes.yaxis.set_major_formatter("{x:.0%}")
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        return figure


def migration(figures: Figures) -> Figure:
    """Draw Figure 8: batch sizes and batch processing times, iteration by iteration."""
    with rc_context(style.STYLE):
        figure = Figure(figsize=(2.6 * _PANEL, _HEIGHT + 0.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        for i, (worker, share) in enumerate(figures["shares"].items()):
            label = f"{worker} ({share:g} cores)"
            sizes, times = figures["batch_sizes"][worker], figures["times"][worker]
            left.plot(figures["iterations"], sizes, label=label, color=_colour(i), linewidth=1.4)
            right.plot(figures["iterations"], times, color=_colour(i), linewidth=1)
        left.set_title("Batch size (samples)")
        right.set_title("Batch processing time (s)")
        for axes in (left, right):
            axes.set_xlabel("iteration")
            axes.set_ylim(bottom=0)
            if figures["cut"] is not None:
                axes.axvline(figures["cut"]["iteration"], color=style.GREY, linestyle="dotted")
        # A few long iterations must not flatten all others.
        everything = np.concatenate([np.asarray(times) for times in figures["times"].values()])
        right.set_ylim(top=1.3 * float(np.quantile(everything, 0.995)))
        figure.legend(loc="outside lower center", ncols=4)
        return figure


def differences(figures: Figures) -> Figure:
    """Draw what mappings differ by from plain PyTorch: a panel for each workload, a bar for each mapping."""
    shown = {
        workload: {"plain, backwards": entry["rounding"]}
        | {title: row["difference"] for title, row in entry["mappings"].items()}
        for workload, entry in figures["workloads"].items()
    }
    known = [value for values in shown.values() for value in values.values() if 0 < value < np.inf] or [1.0]
    height = 0.2 * max(map(len, shown.values())) + 1
    with rc_context(style.STYLE):
        figure = Figure(figsize=(1.4 * _PANEL * len(shown), height), layout="constrained")
        panels = figure.subplots(1, len(shown), squeeze=False)[0]
        for axes, (workload, values) in zip(panels, shown.items(), strict=True):
            colours = [style.GREY, *[_colour(0)] * (len(values) - 1)]
            bars = axes.barh(list(values), np.nan_to_num(list(values.values()), posinf=0), color=colours)
            axes.bar_label(bars, [f"{value:.1g}" for value in values.values()], padding=2, fontsize=7)
            axes.set_xscale("symlog", linthresh=min(known) / 10)  # which has a place for equal bits, at 0
            axes.set_xlim(0, 1e3 * max(known))
            axes.set_xticks([])
            axes.invert_yaxis()
            axes.set_title(workload)
            axes.set_xlabel("largest difference from plain PyTorch, logarithmic")
        return figure


def _bars(axes: Axes, shares: list[float | None], index: int, schemes: int, label: str) -> None:
    width = 0.84 / schemes
    places = np.arange(len(shares)) + (index - (schemes - 1) / 2) * width
    heights = [share or 0.0 for share in shares]
    bars = axes.bar(places, heights, width * 0.94, color=_colour(index), label=label)
    labels = ["not reached" if share is None else f"{share:.2f}" for share in shares]
    axes.bar_label(bars, labels, padding=2, fontsize=7, rotation=90)
    axes.margins(y=0.2)


def _schemes(figures: Figures) -> list[str]:
    """Return the schemes that every workload has, in their order: an interrupted run may lack some."""
    entries = list(figures["workloads"].values())
    return [name for name in entries[0]["schemes"] if all(name in entry["schemes"] for entry in entries)]


def _colour(index: int) -> str:
    return style.COLOURS[index % len(style.COLOURS)]
