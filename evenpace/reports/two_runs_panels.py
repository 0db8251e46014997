"""The plots of two runs beside each other, and what they tell those who cannot see them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes

from evenpace.reports import numbers
from evenpace.reports.drawing import Panel, label_iterations, legend, marker
from evenpace.reports.run_lines import Values, array, draw_workers
from evenpace.reports.run_panels import QUANTITIES, Quantity, last, natural
from evenpace.reports.style import GREY, INK, WorkerStyle, worker_styles
from evenpace.reports.two_runs import ComparedRun, Evaluation, TwoRuns

_SHADES = (GREY, INK)  # of the first and the second run
_CROWDED = 50  # characters of workers' names, which then stand upright


def styles(two: TwoRuns) -> dict[str, WorkerStyle]:
    """Return how each shown worker's lines look, in both runs."""
    return worker_styles(sorted({name for run in two.runs for name in run.report.shown}, key=natural))


def panels(two: TwoRuns) -> dict[str, Panel]:
    """Return the plots by name: each worker's timeline in each run, then both runs in one."""
    looks = styles(two)
    made = [
        _timeline(quantity, number, two, looks) for quantity in QUANTITIES for number in range(len(two.runs))
    ]
    made += [_durations(two), _waiting(two, list(looks))]
    if two.was_evaluated:
        made.append(_learning(two, "loss", ".3f", lambda point: point.loss))
        made.append(_learning(two, "accuracy", ".1%", lambda point: point.accuracy))
    return {panel.name: panel for panel in made}


def _timeline(quantity: Quantity, number: int, two: TwoRuns, looks: Mapping[str, WorkerStyle]) -> Panel:
    """A line for each worker of one run, on the scale of both."""
    run = two.runs[number]
    lines, others = (_lines(quantity, one, looks) for one in (run, two.runs[1 - number]))
    ends = numbers.listed(((name, last(line)) for name, line in lines.items()), quantity.form, quantity.unit)
    return Panel(
        f"{quantity.name}-{number}",
        f"{run.title}: {quantity.title[0].lower()}{quantity.title[1:]}",
        f"{quantity.what} of each worker against the iteration. Last: {ends}.",
        partial(
            draw_workers,
            iterations=run.report.timeline.iterations,
            lines=lines,
            styles=looks,
            spread=None,
            scale=list(others.values()),
            reach=two.runs[1 - number].report.timeline.iterations,
        ),
    )


def _lines(quantity: Quantity, run: ComparedRun, looks: Mapping[str, WorkerStyle]) -> dict[str, Values]:
    workers = run.report.timeline.workers
    return {name: quantity.of_worker(workers[name]) for name in looks if name in workers}


def _durations(two: TwoRuns) -> Panel:
    ends = numbers.listed(((run.title, run.iteration_time) for run in two.runs), ".3f", " s")

    def draw(axes: Axes) -> None:
        lines = [(run.report.timeline.iterations, run.report.timeline.durations) for run in two.runs]
        _draw_both(axes, two, lines)
        axes.set_ylim(0, numbers.top(value for _, values in lines for value in values))
        label_iterations(axes, [number for iterations, _ in lines for number in iterations])

    alt = f"Duration of each iteration in both runs. Medians: {ends}."
    return Panel("durations", "Iteration time (s)", alt, draw)


def _waiting(two: TwoRuns, workers: Sequence[str]) -> Panel:
    shares = [
        {worker.worker: worker.waiting_share for worker in run.report.figures.workers} for run in two.runs
    ]
    said = "; ".join(
        f"{run.title}: " + numbers.listed(((worker, known.get(worker)) for worker in workers), ".0%")
        for run, known in zip(two.runs, shares, strict=True)
    )

    def draw(axes: Axes) -> None:
        for run, known, shade, offset in zip(two.runs, shares, _SHADES, (-0.2, 0.2), strict=True):
            places = [place + offset for place in range(len(workers))]
            values = array(known.get(worker) for worker in workers)
            axes.bar(places, values, width=0.38, color=shade, label=run.title)
        crowded = max(map(len, workers), default=0) * len(workers) > _CROWDED
        axes.set_xticks(range(len(workers)), workers, rotation=90 if crowded else 0)
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter("{x:.0%}")
        legend(axes)

    alt = f"Share of the last iterations that each worker waits. {said}."
    return Panel("waiting", "Waiting share", alt, draw)


def _learning(two: TwoRuns, name: str, form: str, value: Callable[[Evaluation], float]) -> Panel:
    ends = numbers.listed(
        ((run.title, value(run.evaluations[-1])) for run in two.runs if run.evaluations), form
    )

    def draw(axes: Axes) -> None:
        lines = [
            ([p.seconds for p in run.evaluations], list(map(value, run.evaluations))) for run in two.runs
        ]
        _draw_both(axes, two, lines)
        if name == "accuracy":
            axes.set_ylim(0, 1)
            axes.yaxis.set_major_formatter("{x:.0%}")
        axes.set_xlabel("seconds since the run's start")

    alt = f"Test {name} of both runs against time. In the end: {ends or 'unknown'}."
    return Panel(name, f"Test {name}", alt, draw)


def _draw_both(axes: Axes, two: TwoRuns, lines: Sequence[tuple[Sequence[float], Sequence[float]]]) -> None:
    """Draw a line (x, y) of each run."""
    for run, (x, y), shade in zip(two.runs, lines, _SHADES, strict=True):
        axes.plot(x, y, color=shade, label=run.title, marker=marker(x))
    legend(axes)
