"""`evenpace demo`."""

from dataclasses import replace
from pathlib import Path

import click

from evenpace.cli.options import example, user_mistakes
from evenpace.cli.settings import configured
from lab.demo_config import DemoConfig


@click.command()
@example("evenpace demo --shares 0.8,0.4,0.2,0.1 --json demo.json")
@configured(DemoConfig, "config")
@click.option("--no-http", is_flag=True, help="No live page.")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), default=None, help="Write the summary here."
)
def demo(config: DemoConfig, no_http: bool, json_path: Path | None) -> None:
    """Train on uneven workers, first with an even split, then balanced, and compare."""
    from lab.demo import run_demo

    with user_mistakes():
        run_demo(replace(config, http=None) if no_http else config, json_path)
