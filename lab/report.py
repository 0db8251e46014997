"""Tables of figures: columns that are named by key, rows that are mappings.

This module must not know what any figure means.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.table import Table

from evenpace.local.terminal import make_table

Format = str | Callable[[Any], str]
"""The form of a cell: a format such as `{:.1%}`, or a function from the value to the text."""

Columns = Mapping[str, tuple[str, Format]]
"""Heading and form of each column, by the key of its values; `a.b` is the value of b in that of a."""


def table_of(
    title: str,
    first: str,
    columns: Columns,
    rows: Iterable[tuple[str, Mapping[str, Any]]],
    *,
    missing: str = "-",
    no_wrap: bool = False,
) -> Table:
    """Make a table of figures; the first column, under its heading, has the rows' names."""
    table = make_table(title, first, *(heading for heading, _ in columns.values()), no_wrap=no_wrap)
    for name, figures in rows:
        table.add_row(name, *cells_of(columns, figures, missing))
    return table


def cells_of(columns: Columns, figures: Mapping[str, Any], missing: str = "-") -> list[str]:
    """Return the cells of a row but its name, as `table_of` makes them."""
    return [_cell(value_at(figures, key), form, missing) for key, (_, form) in columns.items()]


def value_at(figures: Mapping[str, Any], key: str) -> Any:
    """Return a value by its key, `a.b` for one within another; None where it is not there."""
    value: Any = figures
    for part in key.split("."):
        value = None if value is None else value.get(part)
    return value


def options_of(config: Any) -> dict[str, Any]:
    """Return the fields of a configuration, a dataclass, as figures: paths as texts, without its plot."""
    values = {field.name: getattr(config, field.name) for field in fields(config) if field.name != "plot"}
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def _cell(value: Any, form: Format, missing: str) -> str:
    if value is None:
        return missing
    return form.format(value) if isinstance(form, str) else form(value)
