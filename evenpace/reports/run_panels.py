"""The plots of a run's report, with texts for readers who cannot see them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from evenpace.overview.figures import Spread, Timeline, WorkerTimeline
from evenpace.reports import numbers
from evenpace.reports.drawing import Panel
from evenpace.reports.run_data import RunReport
from evenpace.reports.run_lines import (
    Values,
    array,
    draw_against,
    draw_named,
    draw_parts,
    draw_prediction,
    draw_shares,
    draw_workers,
    smoothed,
)
from evenpace.reports.style import WorkerStyle, worker_styles

_PREDICTED = 6  # workers with a plot of their own
_WINDOW = 9  # points over which errors are smoothed


@dataclass(frozen=True)
class Quantity:
    """A quantity that is drawn for each worker: its names, and its place in a timeline."""

    name: str
    title: str
    what: str
    form: str | None
    unit: str
    of_worker: Callable[[WorkerTimeline], list[float | None]]
    of_all: Callable[[Timeline], list[Spread]]


QUANTITIES = (
    Quantity(
        "batch-sizes",
        "Batch size (samples)",
        "Batch size",
        ",.0f",
        "",
        lambda worker: worker.batch_sizes,
        lambda timeline: timeline.batch_sizes,
    ),
    Quantity(
        "times",
        "Batch processing time (s)",
        "Batch processing time",
        None,
        " s",
        lambda worker: worker.batch_processing_times,
        lambda timeline: timeline.batch_processing_times,
    ),
)


def styles(report: RunReport) -> dict[str, WorkerStyle]:
    """Return the style of each shown worker's lines, by the order of names, which speeds do not change."""
    return worker_styles(sorted(report.shown, key=natural))


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts worker-2 before worker-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def timeline_panels(report: RunReport) -> list[Panel]:
    """Return plots of the job, and of workers' batch sizes and times; none without iterations."""
    timeline = report.timeline
    if not timeline.iterations:
        return []
    looks = styles(report)
    some = len(report.figures.workers) > len(looks)
    made = []
    for quantity in QUANTITIES:
        lines = {worker: quantity.of_worker(timeline.workers[worker]) for worker in looks}
        spread = quantity.of_all(timeline) if some else None
        ends = numbers.listed(((w, last(v)) for w, v in lines.items()), quantity.form, quantity.unit)
        whose = "some workers" if some else "each worker"
        alt = f"{quantity.what} of {whose} against the iteration. Last: {ends}."
        if spread is not None:
            alt += f" Over all workers: {_spread(spread[-1], quantity)}."
        draw = partial(draw_workers, iterations=timeline.iterations, lines=lines, styles=looks, spread=spread)
        made.append(Panel(quantity.name, quantity.title, alt, draw))
    return [_durations(timeline), _throughput(timeline), *made, *_noise(timeline), *_sizes(report)]


def parts_panels(report: RunReport) -> list[Panel]:
    """Return plots of what each shown worker spends its time on, on one scale; none without iterations."""
    timeline = report.timeline
    if not timeline.iterations:
        return []
    lines = {worker: _parts(timeline.workers[worker]) for worker in styles(report)}
    wholes = [
        [
            None if parts[0] is None else sum(part or 0.0 for part in parts)
            for parts in zip(*of.values(), strict=True)
        ]
        for of in lines.values()
    ]
    figures = {one.worker: one.time_parts for one in report.figures.workers}
    made = []
    for number, (worker, parts) in enumerate(lines.items()):
        means = numbers.listed(((name, getattr(figures[worker], name)) for name in parts), unit=" s")
        made.append(
            Panel(
                f"parts-{number}",
                f"{worker}: an iteration's time (s)",
                f"What {worker} spends an iteration's time on, against the iteration. Means: {means}.",
                partial(draw_parts, iterations=timeline.iterations, parts=parts, scale=wholes),
            )
        )
    return made


def _parts(line: WorkerTimeline) -> dict[str, Values]:
    """Return the parts of a worker's time, the lowest first; without communication if it is not known."""
    parts: dict[str, Values] = {
        "computing": line.computing_times,
        "communicating": line.communication_times,
        "waiting": line.waiting_times,
    }
    return {name: values for name, values in parts.items() if name != "communicating" or _some(values)}


def prediction_panels(report: RunReport) -> list[Panel]:
    """Return plots of predicted and real speeds and of the errors; none without predictions."""
    timeline = report.timeline
    looks = styles(report)
    predicting = {
        worker: timeline.workers[worker]
        for worker in looks
        if _some(timeline.workers[worker].predicted_speeds)
    }
    if not predicting:
        return []
    errors: dict[str, Values] = {}
    for worker, line in predicting.items():
        real, predicted = array(line.speeds), array(line.predicted_speeds)
        with np.errstate(divide="ignore", invalid="ignore"):
            errors[worker] = smoothed(np.abs(predicted - real) / real, _WINDOW)
    made = []
    for number, (worker, line) in enumerate(list(predicting.items())[:_PREDICTED]):
        ends = numbers.listed((("real", last(line.speeds)), ("predicted", last(line.predicted_speeds))))
        made.append(
            Panel(
                f"prediction-{number}",
                f"{worker}: speed (samples/s)",
                f"Speed of {worker} against the iteration, and what was predicted. Last: {ends} samples/s.",
                partial(
                    draw_prediction,
                    iterations=timeline.iterations,
                    real=line.speeds,
                    predicted=line.predicted_speeds,
                    style=looks[worker],
                ),
            )
        )
    middle = numbers.listed(
        ((w, float(np.nanmedian(array(e)))) for w, e in errors.items() if _some(e)), ".1%"
    )
    made.append(
        Panel(
            "prediction-errors",
            "Prediction error",
            f"Error of predicted speeds, of the real ones, against the iteration. Medians: {middle}.",
            lambda axes: draw_shares(axes, timeline.iterations, errors, looks),
        )
    )
    return made


def _durations(timeline: Timeline) -> Panel:
    ends = numbers.listed(
        (
            ("balanced", float(np.median(timeline.durations))),
            ("an even split, estimated", _median(timeline.even_durations)),
        ),
        unit=" s",
    )
    return Panel(
        "durations",
        "Iteration time (s)",
        f"Duration of iterations, and what an even split would take, against the iteration. Medians: {ends}.",
        lambda axes: draw_against(
            axes,
            timeline.iterations,
            timeline.durations,
            timeline.even_durations,
            ("real", "even split, estimated"),
            won_below=True,
        ),
    )


def _throughput(timeline: Timeline) -> Panel:
    even = [
        throughput * duration / even if even else None
        for throughput, duration, even in zip(
            timeline.throughputs, timeline.durations, timeline.even_durations, strict=True
        )
    ]
    ends = numbers.listed(
        (("real", float(np.median(timeline.throughputs))), ("an even split, estimated", _median(even))),
    )
    return Panel(
        "throughput",
        "Throughput (samples/s)",
        f"Samples per second, and what an even split would give, against the iteration. Medians: {ends}.",
        lambda axes: draw_against(
            axes,
            timeline.iterations,
            timeline.throughputs,
            even,
            ("real", "even split, estimated"),
            won_below=False,
        ),
    )


def _noise(timeline: Timeline) -> list[Panel]:
    """Return the plot of the gradient noise; none where it was never known."""
    if not _some(timeline.noise_scales):
        return []
    lines: dict[str, Values] = {"noise scale": timeline.noise_scales, "batch": timeline.totals}
    ends = numbers.listed(((name, last(values)) for name, values in lines.items()), unit=" samples")
    return [
        Panel(
            "noise",
            "Gradient noise (samples)",
            f"Scale of the gradient noise, and the whole batch, against the iteration. Last: {ends}.",
            lambda axes: draw_named(axes, timeline.iterations, lines),
        )
    ]


def _sizes(report: RunReport) -> list[Panel]:
    """Return plots of the whole batch, and of its efficiency and goodput where they are known.

    There are none where all batches had the script's size.
    """
    timeline, first = report.timeline, report.facts.spec["total_batch_size"]
    if all(size.samples == first for size in report.sizes):
        return []
    plots: list[tuple[str, str, str, dict[str, Values]]] = [
        ("whole-batch", "Whole batch (samples)", "Samples of the whole batch", {"batch": timeline.totals})
    ]
    if _some(timeline.efficiencies):
        plots += [
            (
                "efficiency",
                "Statistical efficiency",
                f"Progress per sample, relative to batches of {first:,} samples",
                {"efficiency": timeline.efficiencies},
            ),
            (
                "goodput",
                "Goodput (samples/s)",
                "Samples per second times their efficiency, and samples per second",
                {"goodput": timeline.goodputs, "throughput": timeline.throughputs},
            ),
        ]
    return [
        Panel(
            name,
            title,
            f"{what}, against the iteration. Last: {numbers.listed((n, last(v)) for n, v in lines.items())}.",
            partial(draw_named, iterations=timeline.iterations, lines=lines),
        )
        for name, title, what, lines in plots
    ]


def last(values: Values) -> float | None:
    """Return the last value that is known; None without any."""
    return next((value for value in reversed(values) if value is not None), None)


def _some(values: Values) -> bool:
    return any(value is not None for value in values)


def _median(values: Values) -> float | None:
    return float(np.nanmedian(array(values))) if _some(values) else None


def _spread(spread: Spread, quantity: Quantity) -> str:
    parts = (("least", spread.minimum), ("median", spread.median), ("most", spread.maximum))
    return numbers.listed(parts, quantity.form, quantity.unit)
