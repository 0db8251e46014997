"""The plots of the demo's report; see `demo` for the report's form."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from evenpace.reports import numbers
from evenpace.reports.demo_measures import iteration_numbers, median_time, series, waiting_share
from evenpace.reports.drawing import Panel, label_iterations, legend, marker
from evenpace.reports.style import GREY, INK, worker_styles

Report = Mapping[str, Any]

RUNS = {"even": "Even split", "balanced": "Balanced"}
SHADES = {"even": GREY, "balanced": INK}


def panels(report: Report) -> dict[str, Panel]:
    """Return the plots by name, all of which are on the page."""
    workers = list(report["shares"])
    runs = report["runs"]
    made = []
    for policy, run_title in RUNS.items():
        run = runs[policy]
        sizes = numbers.listed(((worker, run["batch_sizes"].get(worker)) for worker in workers), ",.0f")
        times = numbers.listed(((worker, median_time(run, worker)) for worker in workers), ".3f", " s")
        made += [
            Panel(
                f"sizes-{policy}",
                f"{run_title}: batch size (samples)",
                f"Batch size of each worker against the iteration. Final sizes: {sizes}.",
                partial(_draw_workers, report, policy, "batch_size"),
            ),
            Panel(
                f"times-{policy}",
                f"{run_title}: batch processing time (s)",
                f"Batch processing time of each worker against the iteration. Medians: {times}.",
                partial(_draw_workers, report, policy, "batch_processing_time"),
            ),
        ]
    waiting = "; ".join(
        f"{title}: " + numbers.listed(((w, waiting_share(runs[policy], w)) for w in workers), ".0%")
        for policy, title in RUNS.items()
    )
    durations = numbers.listed(
        ((title, runs[policy]["iteration_s_median"]) for policy, title in RUNS.items()), ".3f", " s"
    )
    made += [
        Panel(
            "durations",
            "Iteration time (s)",
            f"Duration of each iteration in both runs. Medians: {durations}.",
            partial(_draw_durations, report),
        ),
        Panel(
            "waiting",
            "Waiting share",
            f"Share of the run that each worker waits. {waiting}.",
            partial(_draw_waiting, report),
        ),
    ]
    for quantity, form in (("loss", ".3f"), ("accuracy", ".1%")):
        ends = numbers.listed(
            (
                (title, progress[-1][quantity])
                for policy, title in RUNS.items()
                if (progress := runs[policy]["progress"])
            ),
            form,
        )
        made.append(
            Panel(
                quantity,
                f"Test {quantity}",
                f"Test {quantity} of both runs against time. In the end: {ends or 'unknown'}.",
                partial(_draw_progress, report, quantity),
            )
        )
    return {panel.name: panel for panel in made}


def _draw_workers(report: Report, policy: str, quantity: str, axes: Axes) -> None:
    """Draw a line for each worker, on the scale of both runs, so that these can be compared."""
    lines = {
        run: {worker: series(report["runs"][run], worker, quantity) for worker in report["shares"]}
        for run in RUNS
    }
    iterations = iteration_numbers(report["runs"][policy])
    for worker, style in worker_styles(report["shares"]).items():
        axes.plot(iterations, lines[policy][worker], marker=marker(iterations), **style.line)
    axes.set_ylim(0, numbers.top(x for run in lines.values() for line in run.values() for x in line))
    label_iterations(axes)

    values = {x for line in lines[policy].values() for x in line}
    if len(values) == 1 and len(lines[policy]) > 1:  # the lines hide each other
        value = values.pop()
        axes.annotate(
            f"every worker: {value:,g}",
            (0.02, value),
            xycoords=axes.get_yaxis_transform(),
            xytext=(0, 4),
            textcoords="offset points",
        )


def _draw_durations(report: Report, axes: Axes) -> None:
    durations = {}
    for policy, title in RUNS.items():
        run = report["runs"][policy]
        x = iteration_numbers(run)
        durations[policy] = [numbers.number(iteration["duration"]) for iteration in run["iterations"]]
        axes.plot(x, durations[policy], color=SHADES[policy], label=title, marker=marker(x))
    axes.set_ylim(0, numbers.top(x for line in durations.values() for x in line))
    label_iterations(axes)
    legend(axes)


def _draw_waiting(report: Report, axes: Axes) -> None:
    workers = list(report["shares"])
    for (policy, title), offset in zip(RUNS.items(), (-0.2, 0.2), strict=True):
        shares = [waiting_share(report["runs"][policy], worker) for worker in workers]
        places = [place + offset for place in range(len(workers))]
        axes.bar(places, shares, width=0.38, color=SHADES[policy], label=title)
    crowded = max(map(len, workers), default=0) * len(workers) > 50
    axes.set_xticks(range(len(workers)), workers, rotation=90 if crowded else 0)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter("{x:.0%}")
    legend(axes)


def _draw_progress(report: Report, quantity: str, axes: Axes) -> None:
    for policy, title in RUNS.items():
        progress = report["runs"][policy]["progress"]
        x = [point["time_s"] for point in progress]
        y = [numbers.number(point[quantity]) for point in progress]
        axes.plot(x, y, color=SHADES[policy], label=title, marker=marker(x))
    if quantity == "accuracy":
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_xlabel("seconds since the run's start")
    legend(axes)
