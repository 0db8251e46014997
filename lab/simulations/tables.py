"""The figures of simulations as tables in the terminal: one for each workload, a row for each policy.

This module must not know how the figures came about.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from lab.report import Columns, cells_of

COLUMNS: Columns = {
    "mean_completion_s": ("mean, s", "{:.1f}"),
    "published_mean_completion_s": ("publ.", "{:.1f}"),
    "p99_completion_s": ("p99, s", "{:.0f}"),
    "makespan_s": ("makespan", "{:.0f}"),
    "restarts": ("restarts", "{:.0f}"),
    "device_hours": ("dev. h", "{:.1f}"),
    "utilisation": ("used", "{:.0%}"),
    "mean_queue": ("queue", "{:.1f}"),
    "rho_below_2": ("ρ < 2", "{:.0%}"),
}


def print_figures(console: Console, figures: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Print a table for each workload, and one of their means; the figures are by policy, then by path."""
    paths = list(next(iter(figures.values())))
    for path in paths:
        _print(console, title(Path(path)), {policy: its[path] for policy, its in figures.items()})
    if len(paths) > 1:
        means = {policy: mean(list(its.values()), list(COLUMNS)) for policy, its in figures.items()}
        _print(console, f"mean of {len(paths)} workloads", means)


def title(workload: Path) -> str:
    """Return a workload's name for readers: its file's name behind that of the folder."""
    return f"{workload.parent.name}/{workload.stem}"


def mean(figures: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, float | None]:
    """Return the mean of each named figure over several simulations; None where one does not have it."""
    means: dict[str, float | None] = {}
    for name in names:
        known = [value for its in figures if (value := its[name]) is not None]
        means[name] = statistics.fmean(known) if len(known) == len(figures) else None
    return means


def _print(console: Console, heading: str, by_policy: Mapping[str, Mapping[str, Any]]) -> None:
    # Without lines between columns, so that 80 characters are enough.
    table = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    table.add_column("policy", no_wrap=True)
    for heading, _ in COLUMNS.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for policy, its in by_policy.items():
        table.add_row(policy, *cells_of(COLUMNS, its, missing=""))
    console.print(table)
