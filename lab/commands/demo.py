"""`evenpace demo`."""

from pathlib import Path

import click

from evenpace.cli.options import example, user_mistakes
from evenpace.cli.settings import configured
from lab.demo_config import DemoConfig


@click.command()
@example("evenpace demo --shares 0.8,0.4,0.2,0.1 --json demo.json")
@configured(DemoConfig, "config")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), default=None, help="Write the summary here."
)
def demo(config: DemoConfig, json_path: Path | None) -> None:
    """Train on uneven workers, first with an even split, then balanced, and compare."""
    from lab.demo import run_demo

    with user_mistakes():
        run_demo(config, json_path)
