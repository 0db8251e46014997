"""Plots of Table 3 and Figures 10 and 11 of LB-BSP from the content of their JSON files."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from evenpace.reports import style
from evenpace.reports.drawing import legend
from lab.experiments import paper, plots

Figures = Mapping[str, Any]

_SIZE = (10.8, 3.2)  # inches


def prediction_of(figures: Figures, schemes: Sequence[str]) -> Figure | None:
    """Draw Figure 10: the first worker's speed and the predictions of some schemes."""
    return plots.prediction({**figures, "schemes": {name: figures["schemes"][name] for name in schemes}})


def approaches(figures: Figures) -> Figure:
    """Draw Table 3 as bars: errors as a share of EMA's, iteration times of BSP's, ours beside the paper's."""
    names = list(paper.TABLE_3)
    ours = [figures["schemes"][f"lb-bsp:{name}"] for name in names]
    ema = paper.TABLE_3["ema"][0]
    measures = (
        ("RMSE, EMA = 1", [part["rmse_of_ema"] for part in ours], [paper.TABLE_3[n][0] / ema for n in names]),
        (
            "Iteration time, BSP = 1",
            [part["of_baseline"] for part in ours],
            [paper.TABLE_3[n][1] for n in names],
        ),
    )
    with rc_context(style.STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        for axes, (title, here, there) in zip(figure.subplots(1, 2), measures, strict=True):
            places = np.arange(len(names))
            shown = [value or 0.0 for value in here]
            bars = axes.bar(places - 0.2, shown, 0.38, color=style.COLOURS[0], label="here")
            axes.bar_label(bars, [f"{value:.2f}" for value in shown], padding=2, fontsize=8)
            bars = axes.bar(places + 0.2, there, 0.38, color=style.GREY, label="paper")
            axes.bar_label(bars, [f"{value:.2f}" for value in there], padding=2, fontsize=8)
            axes.axhline(1, color=style.GREY, linewidth=1)
            axes.set_title(title)
            axes.set_xticks(places, names)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        return figure


def overhead(figures: Figures) -> Figure:
    """Draw Figure 11: the manager's part of an iteration by the number of workers; 5th to 95th percentile."""
    sizes = figures["sizes"]
    means = np.array([size["mean_ms"] for size in sizes])
    below = np.maximum(0, means - [size["p5_ms"] for size in sizes])
    above = np.maximum(0, [size["p95_ms"] for size in sizes] - means)
    with rc_context(style.STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.subplots()
        share = 1e-1 / figures["iteration_s"]  # per cent of an iteration, of a millisecond
        bars = axes.bar(
            np.arange(len(sizes)),
            means * share,
            0.35,
            yerr=(below * share, above * share),
            color=style.COLOURS[0],
            ecolor=style.GREY,
            capsize=4,
        )
        axes.bar_label(bars, [f"{mean * share:.2f}%" for mean in means], padding=2)
        axes.axhline(1.1, color=style.INK, linestyle="dotted", label="the paper's bound for 96 workers")
        axes.set_title("Balancing, per cent of an iteration")
        axes.set_xticks(range(len(sizes)), [str(size["workers"]) for size in sizes])
        axes.set_xlabel("workers")
        axes.set_ylim(bottom=0)
        legend(axes)
        return figure
