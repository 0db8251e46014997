"""Output of the lab's commands: tables, progress bars, figures as JSON."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from evenpace.reports import files


def make_table(title: str, first: str, *others: str, no_wrap: bool = False) -> Table:
    """Make a table with words in its first column, on one line each with `no_wrap`, and numbers elsewhere."""
    table = Table(title=title, title_justify="left")
    table.add_column(first, no_wrap=no_wrap)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def make_progress(console: Console | None = None, width: int = 0, *, transient: bool = False) -> Progress:
    """Make progress bars with counts, behind descriptions of at least `width` characters."""
    description = TextColumn(f"{{task.description:<{width}}}")
    columns = (description, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=transient)


def load_line(before: float, after: float) -> str:
    """Return a line about other load of the machine, from its load averages before and after a benchmark."""
    return f"load average {before:.1f} before, {after:.1f} after, on {os.cpu_count()} CPUs"


def give(figures: Mapping[str, Any], json_path: Path | None, console: Console) -> None:
    """Write figures as JSON, or print them where there is no file for them.

    Raises:
        OSError: The file cannot be written.
    """
    if json_path is not None:
        files.write_json(figures, json_path)
    else:
        console.print_json(json.dumps(figures))
