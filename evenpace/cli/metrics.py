"""`evenpace metrics`: the table of metrics."""

import click

from evenpace.cli.options import example


@click.command()
@example("evenpace metrics > metrics.md")
def metrics() -> None:
    """Print all metrics as a table in Markdown."""
    from evenpace.metrics.markdown_table import markdown

    click.echo(markdown())
