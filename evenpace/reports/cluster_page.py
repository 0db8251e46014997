"""The page that shows who had what of a shared cluster when: one file that loads nothing else."""

import statistics
from collections.abc import Iterator
from pathlib import Path

from evenpace.reports import numbers
from evenpace.reports.gantt import Had, gantt
from evenpace.reports.style import COLOURS, WorkerStyle, worker_styles
from evenpace.reports.templates import write_page
from scheduler.allocation import devices
from scheduler.cluster.history import Account

_STYLES = worker_styles(map(str, range(len(COLOURS))))


def write_cluster_page(account: Account, path: Path) -> None:
    """Write the page (OSError: the file cannot be written)."""
    times = account.completions
    path.parent.mkdir(parents=True, exist_ok=True)
    write_page(
        "cluster.html.j2",
        path,
        account=account,
        chart=picture(account),
        owners=any(life.owner for life in account.lives),
        styles=job_styles(account),
        figures=[
            ("Jobs", f"{len(account.lives):,}"),
            ("Mean completion time", numbers.span(statistics.fmean(times) if times else None)),
            ("Longest completion time", numbers.span(max(times, default=None))),
            ("Makespan", numbers.span(account.makespan)),
            ("Utilisation", numbers.text(account.utilisation, ".1%")),
        ],
    )


def picture(account: Account) -> str:
    """Return the chart of the job on each device as an SVG element; empty where no node was there."""
    if not account.cluster.nodes:
        return ""
    return gantt(
        list(_had(account)),
        account.cluster,
        _STYLES,
        max(account.now - account.began, 1.0),
        "Job on each device against time; the table of jobs has them in words.",
        account.hosts,
    )


def job_styles(account: Account) -> list[WorkerStyle]:
    """Return the style that each job has in the picture."""
    return [_STYLES[_group(number)] for number in range(len(account.lives))]


def _group(number: int) -> str:
    """Return the group of colour of a job by its number."""
    return str(number % len(COLOURS))


def _had(account: Account) -> Iterator[Had]:
    for number, life in enumerate(account.lives):
        for start, end, placement in life.spans:
            count = devices(placement)
            where = ", ".join(f"{of} on {account.hosts[node]}" for node, of in placement)
            title = (
                f"{life.job}: {count} {'device' if count == 1 else 'devices'} ({where}), "
                f"from {numbers.moment(start)}, for {numbers.span(end - start)}"
            )
            first, last = start - account.began, end - account.began
            yield Had(f"{life.job} {life.submitted}", _group(number), first, last, placement, title)
