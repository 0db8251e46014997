"""The plots of simulations of one workload: devices in use, waiting jobs, distributions over the jobs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator
from numpy.typing import NDArray

from evenpace.reports import numbers
from evenpace.reports.drawing import Panel
from evenpace.reports.style import GREY, WorkerStyle
from lab.simulations.results import Outcome
from lab.simulator.record import Life
from scheduler.allocation import devices

_BINS = 240  # of the time axis
_POINTS = 400  # of a distribution, at most
_WIDE = (10.6, 2.6)  # inches
_TIMES = (1, 10, 60, 600, 3600, 36_000, 360_000, 3_600_000)  # seconds; ticks of a logarithmic axis

Amount: TypeAlias = tuple[int, int, int]
"""Start and end of a time, in seconds, and what is added during it."""


def in_use(name: str, outcome: Outcome, styles: Mapping[str, WorkerStyle], devices: int, end: float) -> Panel:
    """Return the plot of the devices in use up to `end`, in seconds, stacked by model."""
    edges = np.linspace(0, end, _BINS + 1)
    lives = {model: [life for life in outcome.lives if life.application == model] for model in styles}
    heights = [averages(devices_in_use(its), edges) for its in lives.values()]

    def draw(axes: Axes) -> None:
        colours = [style.colour for style in styles.values()]
        axes.stackplot((edges[:-1] + edges[1:]) / 7200, *heights, colors=colours, linewidth=0)
        axes.axhline(devices, color=GREY, linewidth=0.8)
        axes.set_ylim(0, 1.05 * devices)
        _label_hours(axes, end)

    hours = {model: sum(life.device_seconds for life in its) / 3600 for model, its in lives.items()}
    alt = (
        f"Devices in use against time, stacked by model, of {devices}; "
        f"{outcome.figures['utilisation']:.0%} over all. Device hours: {numbers.listed(hours.items())}."
    )
    return Panel(name, "Devices in use", alt, draw, _WIDE)


def queues(
    name: str, outcomes: Mapping[str, Outcome], styles: Mapping[str, WorkerStyle], end: float
) -> Panel:
    """Return the plot of the number of jobs without devices over time, a line for each policy."""
    edges = np.linspace(0, end, _BINS + 1)
    lines = {policy: averages(queue(outcome.lives), edges) for policy, outcome in outcomes.items()}

    def draw(axes: Axes) -> None:
        for policy, line in lines.items():
            axes.plot((edges[:-1] + edges[1:]) / 7200, line, **styles[policy].line)
        axes.set_ylim(0, numbers.top(value for line in lines.values() for value in line))
        _label_hours(axes, end)

    means = ((policy, outcome.figures["mean_queue"]) for policy, outcome in outcomes.items())
    alt = f"Number of jobs without devices against time. Means: {numbers.listed(means)}."
    return Panel(name, "Jobs that wait", alt, draw, _WIDE)


def completions(name: str, outcomes: Mapping[str, Outcome], styles: Mapping[str, WorkerStyle]) -> Panel:
    """Return the plot of the distribution of completion times, a line for each policy."""
    times = {policy: [max(life.completion, 1) for life in its.lives] for policy, its in outcomes.items()}
    least, most = (pick(map(pick, times.values())) for pick in (min, max))

    def draw(axes: Axes) -> None:
        axes.set_xscale("log")
        axes.set_xlim(least / 1.2, most * 1.2)
        axes.xaxis.set_major_locator(FixedLocator(_TIMES))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.span(value)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        _draw_distributions(axes, times, styles)

    medians = ((policy, outcome.figures["median_completion_s"]) for policy, outcome in outcomes.items())
    said = ", ".join(f"{policy} {numbers.span(median)}" for policy, median in medians)
    alt = f"Share of the jobs with at most a completion time, against this time. Medians: {said}."
    return Panel(name, "Completion time", alt, draw)


def fairness(name: str, outcomes: Mapping[str, Outcome], styles: Mapping[str, WorkerStyle]) -> Panel:
    """Return the plot of the distribution of finish-time fairness, by policy (Pollux, figure 7)."""
    rhos = {policy: outcome.rhos for policy, outcome in outcomes.items()}

    def draw(axes: Axes) -> None:
        for limit in (1, 2):
            axes.axvline(limit, color=GREY, linewidth=0.8, dashes=(2, 2))
        axes.set_xlim(0, max(2.5, 1.05 * max(map(max, rhos.values()))))
        _draw_distributions(axes, rhos, styles)

    shares = ((policy, outcome.figures["rho_below_2"]) for policy, outcome in outcomes.items())
    alt = (
        "Share of the jobs with at most a finish-time fairness rho, against rho. "
        f"Below 2: {numbers.listed(shares, '.0%')}."
    )
    return Panel(name, "Finish-time fairness ρ", alt, draw)


def distribution(values: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the corners of an empirical distribution: values, ascending, and the shares up to each.

    Of many values some are left out, evenly, so that the plot is small; the first and the last are kept.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    kept = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), _POINTS)).round().astype(int))
    return ordered[kept], (kept + 1) / len(ordered)


def _draw_distributions(
    axes: Axes, values: Mapping[str, Sequence[float]], styles: Mapping[str, WorkerStyle]
) -> None:
    for policy, its in values.items():
        x, shares = distribution(its)
        x, shares = np.concatenate([x[:1], x]), np.concatenate([[0.0], shares])
        axes.plot(x, shares, drawstyle="steps-post", **styles[policy].line)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter("{x:.0%}")


def _label_hours(axes: Axes, end: float) -> None:
    axes.set_xlim(0, end / 3600)
    axes.set_xlabel("hours")


def devices_in_use(lives: Iterable[Life]) -> list[Amount]:
    """Return the devices that jobs have, by times."""
    return [(span.start, span.end, devices(span.placement)) for life in lives for span in life.spans]


def queue(lives: Iterable[Life]) -> list[Amount]:
    """Return the jobs without devices, by times: 1 during a job's life, less 1 while it has devices."""
    present = [(life.submitted, life.submitted + life.completion, 1) for life in lives]
    return present + [(span.start, span.end, -1) for life in lives for span in life.spans]


def averages(amounts: Sequence[Amount], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the averages, (n,), of a sum over the times between ascending edges, in seconds, (n + 1,).

    Amounts are added up where their times overlap; nothing is there at other times.
    """
    steps = np.array([(t, a) for start, end, amount in amounts for t, a in ((start, amount), (end, -amount))])
    steps = steps.reshape(-1, 2)[np.argsort(steps.reshape(-1, 2)[:, 0], kind="stable")]
    times, level = steps[:, 0], np.cumsum(steps[:, 1])
    if not len(times):
        return np.zeros(len(edges) - 1)
    # The sum is constant between steps, so that its integral is linear there, and 0 before the first.
    integral = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(times))])
    totals: NDArray[np.float64] = np.diff(np.interp(edges, times, integral)) / np.diff(edges)
    return totals
