"""Output of commands: tables and progress bars."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


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
