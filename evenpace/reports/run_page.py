"""The page that shows a run's report: one file that loads nothing else."""

from pathlib import Path
from typing import Any

from evenpace.overview import phrases, terms
from evenpace.overview.columns import SHOWN
from evenpace.overview.events import condensed
from evenpace.overview.figures import WorkerFigures
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
    """Return the main figures that are known: title, value, and what the value is of."""
    figures, quantity, text = report.figures, numbers.quantity, numbers.text
    trained = f"in {figures.iterations:,} {'iteration' if figures.iterations == 1 else 'iterations'}"
    noise = f"{quantity(figures.noise_scale)} samples" if figures.noise_known else numbers.UNKNOWN
    even = f"samples/s; even: {quantity(figures.even_throughput)}, estimated"
    speedup = "; ".join(filter(None, ("over an even split, of late", figures.speedup_doubt)))
    saved = "; ".join(filter(None, ("against an even split, in all", figures.saved_doubt)))
    tiles = [
        ("Iteration", numbers.span(figures.iteration_time), "median of the last iterations"),
        ("Throughput", quantity(figures.throughput), even),
        ("Speedup", f"{text(figures.speedup, '.2f')}×", speedup),
        ("Time saved", phrases.seconds(figures.saved_seconds), saved),
        ("Waiting", text(figures.waiting_share, ".0%"), "of the workers' time, of late"),
    ]
    if figures.exposed_share is not None:
        note = figures.transfers_text or "of the transfers' time, of late"
        tiles.append(("Hidden transfers", text(figures.hidden_share, ".0%"), note))
    tiles += [
        ("Trained", numbers.span(figures.seconds), trained),
        ("Samples", f"{figures.samples:,}", f"epoch {text(figures.epoch, 'd')} at the end"),
        ("Prediction error", text(figures.prediction_error, ".1%"), "of speeds, of late"),
        ("Gradient noise", noise, figures.noise_text),
    ]
    if figures.efficiency is not None:
        against = f"against batches of {report.facts.spec['total_batch_size']:,}, of late"
        tiles += [
            ("Efficiency", text(figures.efficiency, ".0%"), against),
            ("Goodput", quantity(figures.goodput), "samples/s times their efficiency, of late"),
        ]
    return tiles


def _always_there(presence: WorkerPresence, report: RunReport) -> bool:
    return presence.iterations == report.figures.iterations
