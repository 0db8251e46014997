"""The page that shows a run's report: one file that loads nothing else."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evenpace.reports import numbers
from evenpace.reports.drawing import svg
from evenpace.reports.pages import write_page
from evenpace.reports.run_data import RunReport
from evenpace.reports.run_panels import course_panels, prediction_panels, styles
from evenpace.reports.run_totals import Presence

_CARDS = 10  # workers that are told of in words; all others are in the table
_ROWS = 200  # of a table
_EVENTS = 300

VERDICTS = {
    "chronic": "chronic straggler",
    "passing": "passing straggler",
    "leader": "leader",
    "even": "even",
}


def write_run_page(report: RunReport, path: Path) -> None:
    """Write the page.

    Raises:
        OSError: The file cannot be written.
    """
    figures = report.figures
    course = {panel.name: svg(panel) for panel in course_panels(report)}
    came_and_went = [presence for presence in report.presences if not _always_there(presence, report)]
    write_page(
        "run.html.j2",
        path,
        report=report,
        facts=report.facts,
        figures=figures,
        styles=styles(report),
        tiles=_tiles(report) if figures.iterations else [],
        course=course,
        predictions=[svg(panel) for panel in prediction_panels(report)],
        verdicts=VERDICTS,
        cards=_cards(report),
        rows=figures.workers[:_ROWS],
        more_rows=max(0, len(figures.workers) - _ROWS),
        came_and_went=came_and_went[:_ROWS],
        more_came=max(0, len(came_and_went) - _ROWS),
        last_iteration=figures.iteration,
        events=report.events[-_EVENTS:],
        more_events=max(0, len(report.events) - _EVENTS),
        at=_at,
        since=lambda at: numbers.span(max(0.0, at - report.facts.begun)) if report.facts.begun else None,
    )


def _cards(report: RunReport) -> list[dict[str, Any]]:
    """The workers that the page tells of in words: those with lines of their own."""
    shown = set(report.shown[:_CARDS])
    workers = [worker for worker in report.figures.workers if worker.worker in shown]
    largest = max((max(worker.batch_size, worker.even_batch_size) for worker in workers), default=0) or 1
    return [
        {
            "worker": worker,
            "own": min(1.0, worker.batch_size / largest),
            "even": min(1.0, worker.even_batch_size / largest),
        }
        for worker in workers
    ]


def _tiles(report: RunReport) -> list[tuple[str, str, str]]:
    """What is seen at a glance: what, how much, and of what that is."""
    figures = report.figures
    return [
        ("Iteration", numbers.span(figures.iteration_time), "median of the last iterations"),
        (
            "Throughput",
            numbers.quantity(figures.throughput),
            f"samples/s; even: {numbers.quantity(figures.even_throughput)}, estimated",
        ),
        ("Speedup", f"{numbers.text(figures.speedup, '.2f')}×", "over an even split, of late"),
        ("Time saved", numbers.span(figures.saved_seconds), "against an even split, in all"),
        ("Waiting", numbers.text(figures.waiting_share, ".0%"), "of the workers' time, of late"),
        (
            "Trained",
            numbers.span(figures.seconds),
            f"in {figures.iterations:,} {'iteration' if figures.iterations == 1 else 'iterations'}",
        ),
        ("Samples", f"{figures.samples:,}", f"epoch {numbers.text(figures.epoch, 'd')} at the end"),
        ("Prediction error", numbers.text(figures.prediction_error, ".1%"), "of speeds, of late"),
    ]


def _always_there(presence: Presence, report: RunReport) -> bool:
    return presence.iterations == report.figures.iterations


def _at(seconds: float) -> str:
    """A time in words that mean the same everywhere."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
