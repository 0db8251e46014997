"""The lines of a run's plots, over its iterations; None and NaN are gaps."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from evenpace.overview.figures import Spread
from evenpace.reports import numbers
from evenpace.reports.drawing import label_iterations, legend, marker
from evenpace.reports.style import GREY, INK, PARTS, SHADES, WorkerStyle

Values = Sequence[float | None]

_SHOWN = 0.99  # of the values must fit onto the axis
_OUTLIER = 1.6  # times these, from which a larger value is left off the axis
_THIN = 1.3  # points


def array(values: Iterable[float | None]) -> NDArray[np.float64]:
    """Return values as an array, (values,), with NaN for None."""
    return np.array([numbers.number(value) for value in values], dtype=np.float64)


def draw_workers(
    axes: Axes,
    iterations: Sequence[int],
    lines: Mapping[str, Values],
    styles: Mapping[str, WorkerStyle],
    spread: Sequence[Spread] | None,
    scale: Sequence[Values] = (),
    reach: Sequence[int] = (),
) -> None:
    """Draw a line for each worker and, if given, the spread over all behind them.

    Args:
        axes: Where.
        iterations: (points,)
        lines: By worker, (points,) each.
        spread: (points,)
        scale: Other values that would have to fit, such as those of a plot beside this one.
        reach: Other iterations that the axis would have to reach, likewise.
    """
    everything = [array(values) for values in (*lines.values(), *scale)]
    if spread is not None:
        least = array(part.minimum for part in spread)
        most = array(part.maximum for part in spread)
        axes.fill_between(iterations, least, most, color=GREY, alpha=0.25, linewidth=0)
        middle = array(part.median for part in spread)
        axes.plot(iterations, middle, color=GREY, marker=marker(iterations))
        everything += [most]
    for worker, values in lines.items():
        line = {**styles[worker].line, "linewidth": _THIN, "marker": marker(iterations)}
        axes.plot(iterations, array(values), **line)
    _limit(axes, everything, above=True)  # where no legend is
    label_iterations(axes, [*iterations, *reach])
    shown = {value for line in lines.values() for value in line if value is not None}
    if len(shown) == 1 and len(lines) > 1:  # the lines hide each other
        axes.annotate(
            f"every worker: {numbers.quantity(min(shown))}",
            (0.02, min(shown)),
            xycoords=axes.get_yaxis_transform(),
            xytext=(0, 4),
            textcoords="offset points",
        )


def draw_against(
    axes: Axes, iterations: Sequence[int], real: Values, even: Values, names: tuple[str, str], won_below: bool
) -> None:
    """Draw a quantity and its estimate for an even split, and shade the gain.

    Args:
        iterations: The iterations' numbers, (points,).
        real: The quantity, (points,).
        even: The estimate for an even split, (points,).
        won_below: Whether less is better.
    """
    ours, theirs = array(real), array(even)
    better = ours < theirs if won_below else ours > theirs
    axes.fill_between(iterations, ours, theirs, where=better.tolist(), color=GREY, alpha=0.25, linewidth=0)
    axes.plot(iterations, theirs, color=GREY, label=names[1], linewidth=_THIN, marker=marker(iterations))
    axes.plot(iterations, ours, color=INK, label=names[0], linewidth=_THIN, marker=marker(iterations))
    _limit(axes, [ours, theirs])
    label_iterations(axes, iterations)
    legend(axes)


def draw_named(axes: Axes, iterations: Sequence[int], lines: Mapping[str, Values]) -> None:
    """Draw at most two quantities of the same unit, (points,) each, by the names in the legend."""
    for colour, (name, values) in zip(SHADES, lines.items(), strict=False):
        axes.plot(
            iterations, array(values), color=colour, label=name, linewidth=_THIN, marker=marker(iterations)
        )
    _limit(axes, [array(values) for values in lines.values()])
    label_iterations(axes, iterations)
    legend(axes)


def draw_prediction(
    axes: Axes, iterations: Sequence[int], real: Values, predicted: Values, style: WorkerStyle
) -> None:
    """Draw a worker's speed and the predicted one."""
    measured, foreseen = array(real), array(predicted)
    axes.plot(iterations, measured, color=INK, label="real", linewidth=0.8, marker=marker(iterations))
    axes.plot(iterations, foreseen, color=style.colour, label="predicted", linewidth=_THIN)
    _limit(axes, [measured, foreseen])
    label_iterations(axes, iterations)
    legend(axes)


def draw_parts(
    axes: Axes, iterations: Sequence[int], parts: Mapping[str, Values], scale: Sequence[Values]
) -> None:
    """Draw a bar for each iteration, stacked of the parts of a worker's time.

    Args:
        axes: Where.
        iterations: (points,)
        parts: By names in `PARTS`, the first at the bottom, (points,) each; gaps of the first are of all.
        scale: The sums of the parts in all plots that are to have the same axis, (points,) each.
    """
    below = np.where(np.isnan(array(next(iter(parts.values())))), np.nan, 0.0)
    for name, values in parts.items():
        above = below + np.nan_to_num(array(values))
        axes.fill_between(iterations, below, above, step="mid", color=PARTS[name], linewidth=0)
        below = above
    _limit(axes, [array(values) for values in scale], above=True)
    label_iterations(axes, iterations)


def draw_shares(
    axes: Axes, iterations: Sequence[int], lines: Mapping[str, Values], styles: Mapping[str, WorkerStyle]
) -> None:
    """Draw shares, a line for each worker, as per cent."""
    draw_workers(axes, iterations, lines, styles, None)
    axes.yaxis.set_major_formatter("{x:.0%}")


def smoothed(values: NDArray[np.float64], window: int) -> list[float | None]:
    """Return the median over a window around each value; None where there is no value."""
    half = window // 2
    result: list[float | None] = []
    for i in range(len(values)):
        near = values[max(0, i - half) : i + half + 1]
        near = near[np.isfinite(near)]
        result.append(float(np.median(near)) if len(near) else None)
    return result


def _limit(axes: Axes, lines: Sequence[NDArray[np.float64]], above: bool = False) -> None:
    """Start the axis at 0, and leave a few outliers off it: their largest is written instead."""
    whole = np.concatenate([np.zeros(1), *lines])
    whole = whole[np.isfinite(whole)]
    usual, most = float(np.quantile(whole, _SHOWN)), float(whole.max())
    if usual > 0 and most > _OUTLIER * usual:
        axes.set_ylim(0, 1.15 * usual)
        axes.annotate(
            f"up to {numbers.quantity(most)}",
            (1, 1.02) if above else (0.995, 0.98),
            xycoords="axes fraction",
            horizontalalignment="right",
            verticalalignment="bottom" if above else "top",
            fontsize=8.5,
        )
    else:
        axes.set_ylim(0, 1.15 * most if most > 0 and math.isfinite(most) else 1)
