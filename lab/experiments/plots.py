"""Plots of LB-BSP's table and figures, and of mappings, from the content of their JSON files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from evenpace.reports import style
from evenpace.reports.drawing import legend
from lab.experiments import paper
from lab.plots import bars, colour, legend_below, lines, one_line, panels, save, styled

Figures = Mapping[str, Any]

_WIDTH, _HEIGHT = 7.5, 3.2  # inches
_PANEL = 3.6  # inches
_SHOWN = 150  # iterations in the picture of predictions
_TITLES = {
    "per_update_s": "(a) Time per update",
    "updates_to_target": "(b) Updates to the target",
    "seconds_to_target": "(c) Time to the target",
}


def write_all(figures: Figures, folder: Path) -> None:
    """Draw every picture of schemes under contention for which there are figures."""
    for name, draw in (
        ("iteration-times", iteration_times),
        ("convergence", convergence),
        ("prediction", prediction),
    ):
        drawn = draw(figures)
        if drawn is not None:
            save(drawn, folder / f"{name}.png")


@styled
def iteration_times(figures: Figures) -> Figure:
    """Draw mean iteration times as a share of BSP's, a bar for each scheme."""
    schemes = {name: one["of_baseline"] for name, one in figures["schemes"].items() if one["of_baseline"]}
    figure, (axes,) = panels(_WIDTH, _HEIGHT)
    colours = [style.COLOURS[0] if name.startswith("lb-bsp") else style.GREY for name in schemes]
    bars(axes, list(schemes), {"": list(schemes.values())}, colours=[colours])
    one_line(axes)
    axes.set_title("Iteration time, as a share of BSP's")
    axes.tick_params(axis="x", rotation=25)
    return figure


@styled
def convergence(figures: Figures) -> Figure:
    """Draw accuracy against time, a line for each scheme."""
    figure, (axes,) = panels(_WIDTH, _HEIGHT)
    lines(
        axes,
        ((name, *_columns(one["curve"], "seconds", "accuracy")) for name, one in figures["schemes"].items()),
    )
    axes.set_title("Accuracy on the test set")
    axes.set_xlabel("seconds")
    figure.legend(loc="outside right upper")
    return figure


@styled
def prediction(figures: Figures, schemes: Sequence[str] | None = None) -> Figure | None:
    """Draw Figure 10: the first worker's speed and its predictions, for each scheme that predicts."""
    predicting = {
        name: figures["schemes"][name]
        for name in (figures["schemes"] if schemes is None else schemes)
        if figures["schemes"][name]["relative_rmse"] is not None
    }
    if not predicting:
        return None
    figure, everything = panels(_WIDTH, 1.9 * len(predicting) + 0.4, rows=len(predicting), sharex=True)
    for axes, (name, values) in zip(everything, predicting.items(), strict=True):
        rows = next(iter(values["workers"].values()))
        first = max(0, len(rows) - _SHOWN)
        # A row is batch size, speed, predicted speed and usage; what is not known leaves a gap.
        shown = np.array([row[1:3] for row in rows[first:]], dtype=float)  # (iterations, 2)
        x = np.arange(first, len(rows))
        axes.plot(x, shown[:, 0], color=style.GREY, label="measured")
        axes.plot(x, shown[:, 1], color=style.COLOURS[0], linewidth=1.3, label="predicted")
        axes.set_title(f"{name}: RMSE {values['relative_rmse']:.1%} of the mean speed, all workers")
        axes.set_ylabel("samples/s")
        axes.set_ylim(bottom=0)
    everything[-1].set_xlabel("iteration")
    everything[0].legend(loc="lower left", ncols=2)
    return figure


@styled
def efficiency(figures: Figures) -> Figure:
    """Draw Figure 6: bars by workload, a colour for each scheme, as a share of BSP's."""
    workloads = figures["workloads"]
    entries = list(workloads.values())
    # An interrupted run may lack some schemes.
    schemes = [name for name in entries[0]["schemes"] if all(name in entry["schemes"] for entry in entries)]
    figure, everything = panels(3 * _PANEL, _HEIGHT, columns=3)
    for axes, (measure, title) in zip(everything, _TITLES.items(), strict=True):
        shares = {name: [entry["schemes"][name]["of_bsp"][measure] for entry in entries] for name in schemes}
        bars(axes, list(workloads), shares, missing="not reached", fontsize=7, rotation=90)
        axes.margins(y=0.2)
        one_line(axes)
        axes.set_title(f"{title}, BSP = 1")
    legend_below(figure, everything[0])
    return figure


@styled
def accuracy(figures: Figures) -> Figure:
    """Draw Figure 7: accuracy against epochs, a panel for each workload, a line for each scheme and seed."""
    workloads = figures["workloads"]
    figure, everything = panels(_PANEL * max(2, len(workloads)), _HEIGHT, columns=len(workloads))
    for axes, (workload, entry) in zip(everything, workloads.items(), strict=True):
        for i, (scheme, values) in enumerate(entry["schemes"].items()):
            for number, run in enumerate(values["runs"]):
                points = _columns(run["curve"], "epochs", "accuracy")
                axes.plot(*points, label=None if number else scheme, color=colour(i), linewidth=1.4)
        axes.set_title(workload)
        axes.set_xlabel("epochs")
        axes.set_ylabel("test accuracy")
        axes.yaxis.set_major_formatter("{x:.0%}")
    legend_below(figure, everything[-1])
    return figure


@styled
def migration(figures: Figures) -> Figure:
    """Draw Figure 8: batch sizes and batch processing times, iteration by iteration."""
    figure, (left, right) = panels(2.6 * _PANEL, _HEIGHT + 0.2, columns=2)
    for i, (worker, share) in enumerate(figures["shares"].items()):
        label = f"{worker} ({share:g} cores)"
        sizes, times = figures["batch_sizes"][worker], figures["times"][worker]
        left.plot(figures["iterations"], sizes, label=label, color=colour(i), linewidth=1.4)
        right.plot(figures["iterations"], times, color=colour(i), linewidth=1)
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
    legend_below(figure, left)
    return figure


@styled
def approaches(figures: Figures) -> Figure:
    """Draw Table 3 as bars: errors as a share of EMA's, iteration times of BSP's, ours beside the paper's."""
    names, ema = list(paper.TABLE_3), paper.TABLE_3["ema"][0]
    ours = [figures["schemes"][f"lb-bsp:{name}"] for name in names]
    theirs = [(rmse / ema, time) for rmse, time in paper.TABLE_3.values()]
    figure, everything = panels(3 * _PANEL, _HEIGHT, columns=2)
    for axes, title, key, there in zip(
        everything,
        ("RMSE, EMA = 1", "Iteration time, BSP = 1"),
        ("rmse_of_ema", "of_baseline"),
        zip(*theirs, strict=True),
        strict=True,
    ):
        here = [part[key] for part in ours]
        bars(axes, names, {"here": here, "paper": there}, colours=(style.COLOURS[0], style.GREY))
        one_line(axes)
        axes.set_title(title)
    legend_below(figure, everything[0])
    return figure


@styled
def overhead(figures: Figures) -> Figure:
    """Draw Figure 11: the manager's part of an iteration by the number of workers; 5th to 95th percentile."""
    sizes, share = figures["sizes"], 1e-1 / figures["iteration_s"]  # per cent of an iteration, of a ms
    # low, mean, high: (sizes,) each, in per cent
    low, mean, high = share * np.array(
        [[size[key] for size in sizes] for key in ("p5_ms", "mean_ms", "p95_ms")]
    )
    figure, (axes,) = panels(3 * _PANEL, _HEIGHT)
    groups = [str(size["workers"]) for size in sizes]
    bars(axes, groups, {"": mean.tolist()}, text="{:.2f}%")
    reach = np.maximum(0, [mean - low, high - mean])
    axes.errorbar(range(len(sizes)), mean, reach, fmt="none", ecolor=style.GREY, capsize=4)
    axes.axhline(1.1, color=style.INK, linestyle="dotted", label="the paper's bound for 96 workers")
    axes.set_title("Balancing, per cent of an iteration")
    axes.set_xlabel("workers")
    axes.set_ylim(bottom=0)
    legend(axes)
    return figure


@styled
def differences(figures: Figures) -> Figure:
    """Draw what mappings differ by from plain PyTorch: a panel for each workload, a bar for each mapping."""
    shown = {
        workload: {"plain, backwards": entry["rounding"]}
        | {title: row["difference"] for title, row in entry["mappings"].items()}
        for workload, entry in figures["workloads"].items()
    }
    known = [value for values in shown.values() for value in values.values() if 0 < value < np.inf] or [1.0]
    height = 0.2 * max(map(len, shown.values())) + 1
    figure, everything = panels(1.4 * _PANEL * len(shown), height, columns=len(shown))
    for axes, (workload, values) in zip(everything, shown.items(), strict=True):
        colours = [style.GREY, *[colour(0)] * (len(values) - 1)]
        drawn = axes.barh(list(values), np.nan_to_num(list(values.values()), posinf=0), color=colours)
        axes.bar_label(drawn, [f"{value:.1g}" for value in values.values()], padding=2, fontsize=7)
        axes.set_xscale("symlog", linthresh=min(known) / 10)  # which has a place for equal bits, at 0
        axes.set_xlim(0, 1e3 * max(known))
        axes.set_xticks([])
        axes.invert_yaxis()
        axes.set_title(workload)
        axes.set_xlabel("largest difference from plain PyTorch, logarithmic")
    return figure


def _columns(points: Sequence[Mapping[str, float]], *keys: str) -> list[list[float]]:
    return [[point[key] for point in points] for key in keys]
