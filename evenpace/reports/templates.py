"""Pages rendered from templates, which load nothing else."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from evenpace.reports import files, numbers

_MEASURED = {  # by `Shown.form`
    "percent": lambda value: numbers.text(value, ".0%"),
    "seconds": numbers.seconds,
    "number": numbers.quantity,
}


def write_page(template: str, path: Path, **values: Any) -> None:
    """Render a template of this folder to a file, in one step (OSError: the file cannot be written)."""
    files.replace(path, find_template(template).render(values).encode())


@cache
def find_template(name: str) -> Template:
    """Return a template of this folder."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=lambda value: numbers.text(value, ".1%"),
        whole_percent=lambda value: numbers.text(value, ".0%"),
        samples=lambda value: numbers.text(value, ",.0f"),
        seconds=numbers.seconds,
        span=numbers.span,
        moment=numbers.moment,
        quantity=numbers.quantity,
        factor=lambda value: numbers.text(value, ".2f"),
        share=lambda value: numbers.text(value, ".3g"),
        measured=lambda value, column: _MEASURED[column.form](value),
    )
    return environment.get_template(name)
