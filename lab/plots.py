"""Shapes of plots that the lab draws: panels, lines, grouped bars, and their legends.

This module must not know what is drawn. Whoever draws does so within `styled`.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from evenpace.reports import style

P = ParamSpec("P")
T = TypeVar("T")

_DPI = 130
_GROUP = 0.84  # width of a group of bars; the next one is at a distance of 1


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Let a function draw in the style of all plots."""

    @functools.wraps(draw)
    def drawn(*arguments: P.args, **options: P.kwargs) -> T:
        with rc_context(style.STYLE):
            return draw(*arguments, **options)

    return drawn


def panels(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Make a figure of panels, of a size in inches, and return both, the panels row by row."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


@styled
def save(figure: Figure, path: Path) -> None:
    """Write a figure as a picture (OSError: the file cannot be written)."""
    figure.savefig(path, dpi=_DPI)


def colour(index: int) -> str:
    """Return the colour of the line or bar with this index."""
    return style.COLOURS[index % len(style.COLOURS)]


def lines(axes: Axes, series: Iterable[tuple[str | None, Sequence[float], Sequence[float]]]) -> None:
    """Draw lines by label, x and y, in the colours' order, with other dashes once all colours are taken."""
    for index, (label, x, y) in enumerate(series):
        dashes = ("solid", "dashed", "dotted")[index // len(style.COLOURS) % 3]
        axes.plot(x, y, label=label, color=colour(index), linestyle=dashes)


def bars(
    axes: Axes,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    colours: Sequence[str | Sequence[str]] = (),
    text: str | None = "{:.2f}",
    missing: str = "-",
    **label: Any,
) -> None:
    """Draw bars in groups, one of each series, which has its heights by group, in each group.

    A series has a colour, or one for each of its bars; others are in the colours' order. Above the bars are
    their heights, or what stands for one that is None; where the text is None, nothing.
    """
    width = _GROUP / len(series)
    for index, (name, heights) in enumerate(series.items()):
        places = np.arange(len(groups)) + (index - (len(series) - 1) / 2) * width
        chosen = colours[index] if index < len(colours) else colour(index)
        drawn = axes.bar(
            places, [height or 0.0 for height in heights], width * 0.94, color=chosen, label=name
        )
        if text is not None:
            texts = [missing if height is None else text.format(height) for height in heights]
            axes.bar_label(drawn, texts, **{"padding": 2, "fontsize": 8, **label})
    axes.set_xticks(range(len(groups)), list(groups))


def one_line(axes: Axes) -> None:
    """Draw the line at 1, to which shares refer."""
    axes.axhline(1, color=style.GREY, linewidth=1)


def legend_below(figure: Figure, axes: Axes) -> None:
    """Add a legend of a panel's labels in one line below all panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(len(labels), 1))


def log_scale(axes: Axes) -> None:
    """Make the y axis logarithmic, with whole numbers at 1, 2 and 5."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
