"""The page that shows a run's report: one file that loads nothing else."""

from pathlib import Path
from typing import Any

from evenpace.overview import phrases, terms
from evenpace.overview.columns import SHOWN
from evenpace.overview.events import condensed
from evenpace.overview.figures import JobFigures, WorkerFigures
from evenpace.reports import numbers
from evenpace.reports.drawing import svg
from evenpace.reports.run_data import RunReport
from evenpace.reports.run_panels import parts_panels, prediction_panels, styles, timeline_panels
from evenpace.reports.run_totals import WorkerPresence
from evenpace.reports.style import PARTS
from evenpace.reports.templates import write_page

_CARDS = 10  # workers described in words; the others are in the table
_ROWS = 200  # of a table
_EVENTS = 300
_SIZES = 12  # changes of the whole batch's size that a table lists; more are in the timeline alone

VERDICTS = {
    "chronic": "chronic straggler",
    "passing": "passing straggler",
    "leader": "leader",
    "even": "even",
}


def write_run_page(report: RunReport, path: Path) -> None:
    """Write the page of a run's report (OSError: the file cannot be written)."""
    figures = report.figures
    timeline = {panel.name: svg(panel) for panel in timeline_panels(report)}
    events = condensed(report.events)
    came_and_went = [presence for presence in report.presences if not _always_there(presence, report)]
    write_page(
        "run.html.j2",
        path,
        report=report,
        facts=report.facts,
        figures=figures,
        styles=styles(report),
        tiles=_tiles(report) if figures.iterations else [],
        timeline_panels=timeline,
        spent=[svg(panel) for panel in parts_panels(report)],
        part_colours=PARTS,
        terms=terms,
        predictions=[svg(panel) for panel in prediction_panels(report)],
        listed_sizes=_SIZES,
        verdicts=VERDICTS,
        cards=_cards(report),
        rows=figures.workers[:_ROWS],
        shown=SHOWN,
        more_rows=max(0, len(figures.workers) - _ROWS),
        came_and_went=came_and_went[:_ROWS],
        more_came=max(0, len(came_and_went) - _ROWS),
        last_iteration=figures.iteration,
        events=events[-_EVENTS:],
        more_events=max(0, len(events) - _EVENTS),
        at=numbers.moment,
        since=lambda at: numbers.span(max(0.0, at - report.facts.begun)) if report.facts.begun else None,
    )


def _cards(report: RunReport) -> list[dict[str, Any]]:
    """Return the workers that the page describes in words: those with lines in plots."""
    shown = set(report.shown[:_CARDS])
    workers = [worker for worker in report.figures.workers if worker.worker in shown]
    longest = max((sum(_spent(worker).values()) for worker in workers), default=0) or 1
    largest = max((max(worker.batch_size, worker.even_batch_size) for worker in workers), default=0) or 1
    return [
        {
            "worker": worker,
            "own": min(1.0, worker.batch_size / largest),
            "even": min(1.0, worker.even_batch_size / largest),
            "spent": {name: (seconds, seconds / longest) for name, seconds in _spent(worker).items()},
        }
        for worker in workers
    ]


def _spent(worker: WorkerFigures) -> dict[str, float]:
    """Return the parts of a worker's time that are known, in seconds."""
    parts = {name: getattr(worker.time_parts, name) for name in PARTS}
    return {name: seconds for name, seconds in parts.items() if seconds is not None}


def _tiles(report: RunReport) -> list[tuple[str, str, str]]:
    """Return the main figures: title, value, and what the value is of."""
    figures = report.figures
    return [
        ("Iteration", numbers.span(figures.iteration_time), "median of the last iterations"),
        (
            "Throughput",
            numbers.quantity(figures.throughput),
            f"samples/s; even: {numbers.quantity(figures.even_throughput)}, estimated",
        ),
        (
            "Speedup",
            f"{numbers.text(figures.speedup, '.2f')}×",
            _with_doubt("over an even split, of late", figures.speedup_doubt),
        ),
        (
            "Time saved",
            phrases.seconds(figures.saved_seconds),
            _with_doubt("against an even split, in all", figures.saved_doubt),
        ),
        ("Waiting", numbers.text(figures.waiting_share, ".0%"), "of the workers' time, of late"),
        *_transfers(figures),
        (
            "Trained",
            numbers.span(figures.seconds),
            f"in {figures.iterations:,} {'iteration' if figures.iterations == 1 else 'iterations'}",
        ),
        ("Samples", f"{figures.samples:,}", f"epoch {numbers.text(figures.epoch, 'd')} at the end"),
        ("Prediction error", numbers.text(figures.prediction_error, ".1%"), "of speeds, of late"),
        ("Gradient noise", _noise_scale(figures), figures.noise_text),
        *_progress(report),
    ]


def _transfers(figures: JobFigures) -> list[tuple[str, str, str]]:
    """Return the share of transfers that is hidden as in `_tiles`; none where nobody has measured it."""
    if figures.exposed_share is None:
        return []
    note = figures.transfers_text or "of the transfers' time, of late"
    return [("Hidden transfers", numbers.text(figures.hidden_share, ".0%"), note)]


def _with_doubt(what: str, doubt: str) -> str:
    """Return what a value is of, with how far it may be off, if that is to be said."""
    return f"{what}; {doubt}" if doubt else what


def _progress(report: RunReport) -> list[tuple[str, str, str]]:
    """Return efficiency and goodput as in `_tiles`; none where the noise scale is not known."""
    figures, first = report.figures, report.facts.spec["total_batch_size"]
    if figures.efficiency is None:
        return []
    return [
        ("Efficiency", numbers.text(figures.efficiency, ".0%"), f"against batches of {first:,}, of late"),
        ("Goodput", numbers.quantity(figures.goodput), "samples/s times their efficiency, of late"),
    ]


def _noise_scale(figures: JobFigures) -> str:
    known = figures.noise_known and figures.noise_scale is not None
    return f"{numbers.quantity(figures.noise_scale)} samples" if known else numbers.UNKNOWN


def _always_there(presence: WorkerPresence, report: RunReport) -> bool:
    return presence.iterations == report.figures.iterations
