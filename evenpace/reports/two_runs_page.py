"""The page that shows two runs beside each other: one file that loads nothing else."""

from pathlib import Path

from evenpace.reports.drawing import svg
from evenpace.reports.run_panels import natural
from evenpace.reports.templates import write_page
from evenpace.reports.two_runs import TwoRuns
from evenpace.reports.two_runs_panels import panels, styles

_ROWS = 200  # of a table


def write_two_runs_page(two: TwoRuns, path: Path) -> None:
    """Write the page (OSError: the file cannot be written)."""
    known = [{worker.worker: worker for worker in run.report.figures.workers} for run in two.runs]
    workers = sorted(set().union(*known), key=natural)
    write_page(
        "two_runs.html.j2",
        path,
        two=two,
        rows=[(name, [one.get(name) for one in known]) for name in workers[:_ROWS]],
        more_rows=max(0, len(workers) - _ROWS),
        styles=styles(two),
        figures={name: svg(panel) for name, panel in panels(two).items()},
    )
