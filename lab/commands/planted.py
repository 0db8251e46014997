"""`evenpace lab planted`: tests of the tests."""

import sys
from pathlib import Path

import click

from evenpace.cli.options import example, json_path, user_mistakes
from evenpace.cli.settings import configured
from lab.planted.config import PlantedConfig


@click.command()
@example('evenpace lab planted --only "stand still" --jobs 2')
@configured(PlantedConfig, "config")
@json_path
def planted(config: PlantedConfig, json_path: Path | None) -> None:
    """Take the mend of each finding out again, one at a time, and see whether tests find it.

    The findings are those of docs/track-record.md. Each is planted as a small change in a copy of the
    checkout, in which its tests run then. Status 1 if one is not found, or cannot be planted any more.
    """
    with user_mistakes():
        from lab.planted.planting import run

        if not run(config, json_path):
            sys.exit(1)
