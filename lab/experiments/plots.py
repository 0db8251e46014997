"""Plots of a comparison, from the content of report.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from evenpace.reports import style

Figures = Mapping[str, Any]

_WIDTH, _HEIGHT = 7.5, 3.2  # inches
_SHOWN = 150  # iterations in the picture of predictions


def write_all(figures: Figures, folder: Path) -> list[Path]:
    """Draw every picture for which there are figures; return the files."""
    pictures = {
        "iteration-times.png": iteration_times(figures),
        "convergence.png": convergence(figures),
        "prediction.png": prediction(figures),
    }
    written = []
    for name, figure in pictures.items():
        if figure is not None:
            figure.savefig(folder / name, dpi=130)
            written.append(folder / name)
    return written


def iteration_times(figures: Figures) -> Figure:
    """Draw mean iteration times as a share of BSP's, a bar for each scheme."""
    shown = {
        name: values["of_baseline"] for name, values in figures["schemes"].items() if values["of_baseline"]
    }
    with rc_context(style.STYLE):
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        axes = figure.subplots()
        bars = axes.bar(list(shown), list(shown.values()), color=[_colour(name) for name in shown])
        axes.bar_label(bars, fmt="%.2f", padding=2)
        axes.axhline(1, color=style.GREY, linewidth=1)
        axes.set_title("Iteration time, as a share of BSP's")
        axes.tick_params(axis="x", rotation=25)
        return figure


def convergence(figures: Figures) -> Figure:
    """Draw accuracy against time, a line for each scheme."""
    with rc_context(style.STYLE):
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        axes = figure.subplots()
        for i, (name, values) in enumerate(figures["schemes"].items()):
            seconds = [point["seconds"] for point in values["curve"]]
            accuracy = [point["accuracy"] for point in values["curve"]]
            axes.plot(seconds, accuracy, label=name, color=style.COLOURS[i % 6], linestyle=_line(i))
        axes.set_title("Accuracy on the test set")
        axes.set_xlabel("seconds")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
        return figure


def prediction(figures: Figures) -> Figure | None:
    """Draw the speed of the first worker and its predictions, for each scheme that predicts."""
    predicting = {name: v for name, v in figures["schemes"].items() if v["relative_rmse"] is not None}
    if not predicting:
        return None
    with rc_context(style.STYLE):
        figure = Figure(figsize=(_WIDTH, 1.9 * len(predicting) + 0.4), layout="constrained")
        all_axes = np.atleast_1d(figure.subplots(len(predicting), 1, sharex=True))
        for axes, (name, values) in zip(all_axes, predicting.items(), strict=True):
            rows = next(iter(values["workers"].values()))
            first = max(0, len(rows) - _SHOWN)
            x = np.arange(first, len(rows))
            speeds = np.array([np.nan if row[1] is None else row[1] for row in rows[first:]])
            predicted = np.array([np.nan if row[2] is None else row[2] for row in rows[first:]])
            axes.plot(x, speeds, color=style.GREY, label="measured")
            axes.plot(x, predicted, color=style.COLOURS[0], linewidth=1.3, label="predicted")
            axes.set_title(f"{name}: RMSE {values['relative_rmse']:.1%} of the mean speed, all workers")
            axes.set_ylabel("samples/s")
            axes.set_ylim(bottom=0)
        all_axes[-1].set_xlabel("iteration")
        all_axes[0].legend(loc="lower left", ncols=2)
        return figure


def _colour(name: str) -> str:
    return style.COLOURS[0] if name.startswith("lb-bsp") else style.GREY


def _line(index: int) -> str:
    return ("solid", "dashed", "dotted")[index // len(style.COLOURS) % 3]
